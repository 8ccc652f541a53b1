//! Sizes of an iteration of a plan: counts that follow from the config, and stored bytes that
//! follow from the model's dimensions. No run is needed, so these are estimates; each has its
//! formula next to it.

use crate::plan::model_size::ModelSize;
use agentgym_jobs::config::{EvaluationSet, Pipeline, SaveDtype};
use agentgym_jobs::plan::Plan;

/// Bytes per token over all records of an iteration: id, mask, sampled log-prob and entropy in
/// `episodes.bin` (13), old log-prob and entropy in `log_probs.bin` (8), and all streams with an f64
/// advantage in `batch.bin` (21); reference log-probs are added to this.
const RECORD_BYTES_PER_TOKEN: u128 = EPISODE_BYTES_PER_TOKEN + 8 + 21;
const EPISODE_BYTES_PER_TOKEN: u128 = 13;
const REFERENCE_BYTES_PER_TOKEN: u128 = 4 + 4;
/// Values in `values.bin` and `targets.bin`, and f64 returns in the latter.
const CRITIC_BYTES_PER_TOKEN: u128 = 4 + 4 + 8;
/// Gradients and both AdamW moments are f32, and weights where the config asks for nothing else.
pub(super) const F32: u128 = 4;

/// Sizes of one iteration in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// What a run of one iteration leaves, with its model and a warm start.
    pub(crate) once: u64,
    /// The whole model that `init` commits.
    pub(crate) weights: u64,
    /// The policy of an iteration, or its adapter.
    pub(crate) policy: u64,
    pub(crate) optimizer: u64,
    /// The critic and its optimizer state; 0 without one.
    pub(crate) critic: u64,
    pub(crate) records: u64,
    pub(crate) kept: u64,
}

impl Sizes {
    /// Sizes for a plan and its model.
    pub(crate) fn new(plan: &Plan, model: &ModelSize) -> Self {
        let numbers = match plan.config.actor_rollout_ref.model.dtype {
            SaveDtype::F32 => F32,
            SaveDtype::Bf16 => 2,
        };
        let weights = model.parameters * numbers;
        // The f32 numbers behind a policy in bf16 lie with the optimizer's state; adapters are f32.
        let (trained, master) = match model.adapter_rank {
            None if numbers != F32 => (model.trained * numbers, model.trained * F32),
            _ => (model.trained * F32, 0),
        };
        // The base of an adapter is stored once and kept.
        let base = match model.adapter_rank {
            Some(_) => weights,
            None => 0,
        };
        let per_token = RECORD_BYTES_PER_TOKEN
            + if plan.needs_reference() {
                REFERENCE_BYTES_PER_TOKEN
            } else {
                0
            }
            + if plan.config.has_critic() {
                CRITIC_BYTES_PER_TOKEN
            } else {
                0
            };
        let tokens = u128::from(sequences(plan)) * plan.context_tokens() as u128;
        // Written again with the rewards of a function.
        let again = match plan.has_reward_function() {
            true => tokens * EPISODE_BYTES_PER_TOKEN,
            false => 0,
        };
        let records = match plan.config.run.pipeline {
            Pipeline::Rl => tokens * per_token + again,
            // Stored twice: as played and as kept by the filter.
            Pipeline::AgentEvol => 2 * tokens * EPISODE_BYTES_PER_TOKEN + again,
            Pipeline::Sft | Pipeline::Dpo | Pipeline::Eval => 0,
        };
        let optimizer = 2 * model.trained * F32 + master;
        // An upper bound: the critic's head has one column, the policy's may have one per token id.
        let critic = match plan.config.has_critic() {
            true => 3 * model.parameters * F32,
            false => 0,
        };
        let iterations = u128::from(plan.iterations);
        // Retention keeps the last two policies and optimizer states, the start policy with its state,
        // the best, and every `save_freq`-th.
        let every = u128::from(plan.config.trainer.save_freq);
        let saved = iterations.checked_div(every).unwrap_or(0);
        let policies = (saved + 4).min(iterations + 1);
        let critics = match critic {
            0 => 0,
            _ => (policies + 2 * 2) * model.parameters * F32,
        };
        let states = 2 + u128::from(plan.sft_parts(0) > 0);
        let kept = base + policies * trained + states * optimizer + critics + iterations * records;
        Self {
            once: narrow(weights + 2 * (trained + optimizer) + 2 * critic),
            weights: narrow(weights),
            policy: narrow(trained),
            optimizer: narrow(optimizer),
            critic: narrow(critic),
            records: narrow(records),
            kept: narrow(kept),
        }
    }
}

/// Sequences of an iteration.
pub(crate) fn sequences(plan: &Plan) -> u64 {
    let n = u64::from(plan.config.actor_rollout_ref.rollout.n);
    plan.config.data.train_batch_size as u64 * n
}

/// Sequences of the largest evaluation set: one part plays all of them.
pub(crate) fn evaluated_sequences(plan: &Plan) -> u64 {
    let evaluation = &plan.config.evaluation;
    let tasks = |set: &EvaluationSet| set.ids.count("ids").unwrap_or(0) as u64;
    let most = evaluation.sets.iter().map(tasks).max().unwrap_or(0);
    most * u64::from(evaluation.samples + evaluation.greedy_beside())
}

/// Optimizer steps of an iteration.
pub(crate) fn steps_per_iteration(plan: &Plan) -> u64 {
    if plan.config.run.pipeline == Pipeline::AgentEvol {
        return u64::from(plan.config.agentevol.steps);
    }
    u64::from(plan.minibatches()) * u64::from(plan.config.actor_rollout_ref.actor.ppo_epochs)
}

/// Converts bytes for display. Sizes are computed in u128, where no product of limits and model
/// sizes overflows; a value beyond u64 exceeds any machine.
pub(crate) fn narrow(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
