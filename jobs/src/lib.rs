//! What a run *is*: its config, its frozen plan, the parts each iteration is
//! made of, which of them can run now, and the records they exchange.
//!
//! Everything here is free of devices and environments. The planner and the
//! pipelines are pure functions, so any process may plan at any time; two
//! that plan at once agree, and one that dies takes nothing with it.

mod agenteval;
pub mod artifact_names;
pub mod codec;
pub mod config;
mod demonstration_files;
pub mod episode;
mod error;
pub mod files;
pub mod journal;
pub mod pipeline;
pub mod plan;
pub mod planner;
mod prompts;
pub mod random;
pub mod records;
mod stage;
pub mod tasks;
pub mod trajectory;

pub use error::{Error, Result};

#[cfg(test)]
mod damaged;
#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;

/// Readers of foreign bytes are tested for what they take, too.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
