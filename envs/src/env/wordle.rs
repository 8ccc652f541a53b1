//! Wordle, of LMRL-Gym.

pub(crate) mod game;
pub(crate) mod server;
