//! LMRL-Gym's maze with two T-shaped corridors.

pub(crate) mod game;
mod scene;
pub(crate) mod server;
mod source;
mod spec;

pub(crate) use source::Source;
