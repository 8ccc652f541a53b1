//! The environments that are written in Rust: each has its game, its server and, where there is
//! one, its solver in a folder of its own.

pub mod babyai;
pub(crate) mod maze;
pub mod searchqa;
pub(crate) mod sokoban;
pub mod textcraft;
pub(crate) mod wordle;
