//! The definition of a run: its config, its frozen plan, the parts of each iteration, which of them
//! can run now, and the records they exchange.
//!
//! Nothing here depends on devices or environments. The planner and the pipelines are pure
//! functions, so any process may plan at any time: processes that plan concurrently agree, and if
//! one dies, no state is lost.

pub mod agent_record;
mod agenteval;
pub mod artifact_names;
pub mod codec;
pub mod config;
pub mod curriculum;
mod datasets;
mod demonstration_files;
pub mod episode;
mod error;
pub mod files;
pub mod journal;
mod opening;
pub mod pipeline;
pub mod plan;
pub mod planner;
mod prompts;
pub mod random;
pub mod records;
mod specs;
mod stage;
pub mod tasks;
pub mod trajectory;

pub use error::{Error, Result};

#[cfg(test)]
mod damaged;
#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;

/// Counts allocations: tests also limit the memory that readers of untrusted bytes allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
