//! The optimizer steps of an update, their shared settings, and the record of each.

use crate::Result;
use crate::stages::training::units::UnitRule;
use crate::stages::training::{ADAM_EPS, micro_batch_size, minibatch_slots};
use agentgym_algorithms::losses::{ActorLoss, ActorMetrics, Denominator};
use agentgym_jobs::plan::Plan;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The settings of all optimizer steps of an update.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) iteration: u32,
    pub(super) lr: f64,
    pub(super) temperature: f64,
    pub(super) betas: (f64, f64),
    pub(super) eps: f64,
    pub(super) weight_decay: f64,
    pub(super) grad_clip: f64,
    pub(super) loss: ActorLoss,
    pub(super) ppo_epochs: u32,
    #[serde(flatten)]
    pub(super) units: UnitRule,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) decay_excludes_norms_and_biases: bool,
    /// Slots per micro-batch, if the loss averages over micro-batches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) micro_batch_size: Option<usize>,
}

pub(super) fn is_false(value: &bool) -> bool {
    !value
}

/// The record of one optimizer step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Step {
    pub(super) epoch: u32,
    pub(super) minibatch: usize,
    /// Slots of the batch that hold an episode, in order.
    pub(super) slots: Vec<usize>,
    /// Slots per gradient unit, of the sequences that have a gradient.
    pub(super) units: Vec<Vec<usize>>,
    pub(super) denominator: Denominator,
    /// True if no sequence had a gradient, or if the gradient was not finite: weights and moments
    /// are unchanged.
    pub(super) skipped: bool,
    /// True if the gradient was not finite.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) non_finite: bool,
    /// Norm before clipping.
    pub(super) grad_norm: f64,
    pub(super) clip_scale: f64,
    pub(super) metrics: ActorMetrics,
}

/// The position of an optimizer step in an update.
pub(super) struct Place {
    pub(super) epoch: u32,
    pub(super) minibatch: usize,
    pub(super) slots: Range<usize>,
}

/// The optimizer steps of an update, in order.
pub(super) fn places(plan: &Plan, epochs: u32) -> Result<Vec<Place>> {
    let tasks = plan.config.actor_rollout_ref.actor.ppo_mini_batch_size;
    let minibatches = minibatch_slots(plan, tasks)?;
    let epoch = |epoch| {
        let minibatches = minibatches.iter().cloned().enumerate();
        minibatches.map(move |(minibatch, slots)| Place {
            epoch,
            minibatch,
            slots,
        })
    };
    Ok((0..epochs).flat_map(epoch).collect())
}

pub(super) fn settings(plan: &Plan, iteration: u32) -> Result<Settings> {
    let config = &plan.config;
    let (actor, optim) = (
        &config.actor_rollout_ref.actor,
        &config.actor_rollout_ref.actor.optim,
    );
    let loss = config.actor_loss()?;
    let micro_batch_size = micro_batch_size(loss.aggregation, actor.ppo_micro_batch_size);
    Ok(Settings {
        iteration,
        lr: optim.learning_rate(plan.iterations)?.at(iteration),
        temperature: config.actor_rollout_ref.rollout.temperature,
        betas: optim.betas,
        eps: ADAM_EPS,
        weight_decay: optim.weight_decay,
        grad_clip: actor.grad_clip,
        loss,
        // During critic warm-up the policy is passed on unchanged.
        ppo_epochs: match iteration <= config.trainer.critic_warmup {
            true => 0,
            false => actor.ppo_epochs,
        },
        units: UnitRule::of(config),
        decay_excludes_norms_and_biases: optim.decay_excludes_norms_and_biases,
        micro_batch_size,
    })
}
