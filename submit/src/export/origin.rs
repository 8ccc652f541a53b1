//! `export.json`: where the files of an export come from, and the settings that their numbers need.

use super::wanted::Wanted;
use agentgym_jobs::config::{Actor, Algorithm, Critic, Model, Pipeline};
use agentgym_jobs::plan::Plan;
use agentgym_record::documents::KlState;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Origin {
    run: String,
    identity: String,
    plan_format: u32,
    pipeline: Pipeline,
    iteration: u32,
    seed: u64,
    temperature: f64,
    rollout: Sampling,
    train_batch_size: usize,
    actor: Actor,
    algorithm: Algorithm,
    save_dtype: String,
    /// Of a run that trains an adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<Model>,
    /// The part that wrote the reference policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reference: Option<String>,
    /// Of iterations that trained: [`CARRIED`], [`GONE`] or [`FRESH`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) optimizer_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kl: Option<KlState>,
    #[serde(flatten)]
    pub(super) batch: Option<OfBatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) critic: Option<Critic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) critic_optimizer_before: Option<String>,
    /// Folders that retention has removed.
    pub(super) removed: Vec<String>,
    /// Files that cannot be produced on this machine, and why.
    pub(super) unwritten: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Sampling {
    n: u32,
    temperature: f64,
    top_k: i64,
    top_p: f64,
}

/// Of an iteration of reinforcement learning.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct OfBatch {
    /// The groups that a filter has chosen; null without one.
    pub(super) selected_groups: Option<Vec<u32>>,
    pub(super) slots: usize,
}

/// How an update found its optimizer's state.
pub(super) const CARRIED: &str = "carried on";
pub(super) const GONE: &str = "carried on, and removed by retention since";
pub(super) const FRESH: &str = "fresh";

impl Origin {
    pub(super) fn new(plan: &Plan, n: u32, wanted: Wanted) -> Self {
        let (config, model) = (&plan.config, &plan.config.actor_rollout_ref.model);
        let rollout = &config.actor_rollout_ref.rollout;
        Self {
            run: plan.run.to_string(),
            identity: plan.identity.clone(),
            plan_format: plan.format,
            pipeline: config.run.pipeline,
            iteration: n,
            seed: config.run.seed,
            temperature: rollout.temperature,
            rollout: Sampling {
                n: rollout.n,
                temperature: rollout.temperature,
                top_k: rollout.top_k,
                top_p: rollout.top_p,
            },
            train_batch_size: config.data.train_batch_size,
            actor: config.actor_rollout_ref.actor.clone(),
            algorithm: config.algorithm.clone(),
            save_dtype: wanted.dtype(plan).to_string(),
            model: plan.has_adapter().then(|| model.clone()),
            reference: None,
            optimizer_before: None,
            kl: None,
            batch: None,
            critic: None,
            critic_optimizer_before: None,
            removed: Vec::new(),
            unwritten: Vec::new(),
        }
    }
}
