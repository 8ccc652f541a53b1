//! Conversations that solve tasks of the built-in environments, in the format of AgentGym's
//! trajectory files: the data for supervised warm starts.
//!
//! A conversation has the same shape as an episode of the trainer: the instruction and the first
//! observation are one human message, then model and environment alternate. It is played in a real
//! game, so the environment's messages are genuine.

mod talk;

pub use talk::{Demonstration, DemonstrationMessage, Talk};

/// Solves the tasks of one source.
pub trait Solver: std::fmt::Debug + Send + Sync {
    /// Solves a task and returns the conversation; `None` if the solver cannot solve it.
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration>;
}
