//! The environments written in Rust. Each has its own folder with its game, its server and, where
//! one exists, its solver.

pub mod babyai;
pub(crate) mod maze;
pub(crate) mod sciworld;
pub mod searchqa;
pub(crate) mod sokoban;
pub mod textcraft;
pub(crate) mod toolbox;
pub(crate) mod wordle;
