//! The HTTP behaviour of the games' servers, ours or the originals. It stands here, so that a plan that
//! names a game is read, shown and exported by programs that bring none.

pub mod babyai;
pub mod dataset;
pub mod maze;
pub mod sciworld;
pub mod searchqa;
pub mod sokoban;
pub mod textcraft;
pub mod toolbox;
pub mod wordle;

use super::EnvSpec;

/// Of all of them.
pub(super) static ALL: [&EnvSpec; 9] = [
    &textcraft::SPEC,
    &babyai::SPEC,
    &searchqa::SPEC,
    &maze::SPEC,
    &wordle::SPEC,
    &sokoban::SPEC,
    &sciworld::SPEC,
    &toolbox::SPEC,
    &dataset::SPEC,
];
