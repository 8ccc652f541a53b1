//! LMRL-Gym's Wordle.

pub(crate) mod game;
mod scene;
pub(crate) mod server;
mod source;
mod spec;

pub(crate) use source::Source;
