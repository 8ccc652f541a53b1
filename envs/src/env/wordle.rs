//! LMRL-Gym's Wordle.

pub(crate) mod game;
pub(crate) mod server;
mod source;
mod spec;

pub(crate) use source::Source;
