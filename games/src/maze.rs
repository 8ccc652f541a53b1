//! LMRL-Gym's maze with two T-shaped corridors.

pub(crate) mod game;
mod scene;
pub(crate) mod server;
mod source;

pub(crate) use source::Source;
