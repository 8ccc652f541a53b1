//! What a plan would do, as a document.

use crate::plan::moves::StageMoves;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Sizes of a model, of what a run of it writes, and of what it needs in memory.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SizesDocument {
    pub(super) parameters: u64,
    pub(super) trained_parameters: u64,
    pub(super) policy_bytes: u64,
    pub(super) optimizer_bytes: u64,
    pub(super) critic_bytes: u64,
    pub(super) records_bytes_max: u64,
    pub(super) kept_bytes_max: u64,
    /// What a worker reads once: a base, a reference.
    pub(super) got_once_bytes: u64,
    /// What an iteration puts into the store and reads from it at most, by stage.
    pub(super) moves: BTreeMap<&'static str, StageMoves>,
    /// Seconds of an iteration in which the next policy waits for the store, at `store_rate` bytes a second.
    pub(super) store_waited_s: f64,
    pub(super) store_rate: u64,
    /// `STAGE_memory_bytes`, and with a GPU also what stages need there.
    #[serde(flatten)]
    pub(super) by_stage: BTreeMap<String, u64>,
    /// The same by what was measured, where it was of this model.
    pub(super) measured_memory: Option<BTreeMap<String, u64>>,
}

/// Seconds and money of the whole run, by what runs of the model took.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct MeasuredDocument {
    pub(super) worker_s: f64,
    pub(super) by_stage_s: BTreeMap<&'static str, f64>,
    pub(super) unmeasured: Vec<&'static str>,
    pub(super) runs: Vec<String>,
    pub(super) numeric_class: String,
    pub(super) price: Option<f64>,
    pub(super) cost: Option<f64>,
    pub(super) trial_s: Option<f64>,
}

/// What a fork would take over.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ForkDocument {
    pub(crate) run: String,
    pub(crate) iteration: u32,
    pub(crate) takes_over: Vec<String>,
    pub(crate) fresh_optimizer: bool,
    pub(crate) changed: Vec<String>,
}

/// `plan RUN.YAML`, `fork RUN --dry-run`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PlanDocument {
    pub(super) run: String,
    pub(super) identity: String,
    pub(super) iterations: u32,
    pub(super) tasks: usize,
    pub(super) sequences_per_iteration: u64,
    pub(super) tokens_per_sequence_max: usize,
    pub(super) minibatches: u32,
    pub(super) optimizer_steps_per_iteration: u64,
    pub(super) parts: u64,
    pub(super) stages: BTreeSet<&'static str>,
    /// Rounds by iteration.
    pub(super) horizon: Vec<u32>,
    pub(super) evaluations: Vec<u32>,
    pub(super) sizes: Option<SizesDocument>,
    pub(super) measured: Option<MeasuredDocument>,
    pub(super) unmeasured_why: Option<String>,
    pub(super) not_used: Vec<String>,
    pub(super) notes: Vec<String>,
    /// Better values of keys.
    pub(super) better: Vec<String>,
    pub(super) template: Option<String>,
    pub(super) kl: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fork: Option<ForkDocument>,
}
