//! The rules of AgentGym's server: the worlds of MiniGrid 2.3.1, with NumPy's draws, and its
//! judgement of missions.

mod grammar;
mod levels;
mod numpy;
mod rooms;
mod verify;
mod ways;

pub(super) use verify::Verifier;
pub(super) use ways::Ways;

use super::level::Level;
use agentgym_envs::quantity::Quantity;

/// The world of a level and a seed.
pub(super) fn level(number: usize, seed: &Quantity) -> Level {
    levels::level(number, &mut numpy::Numpy::seeded(seed))
}
