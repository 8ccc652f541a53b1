//! LMRL-Gym's Wordle.

pub(crate) mod game;
mod scene;
pub(crate) mod server;
mod source;

pub(crate) use source::Source;
