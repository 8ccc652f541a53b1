//! The optimizer steps of an update, and their shared settings.

use crate::Result;
use crate::stages::training::ADAM_EPS;
use agentgym_jobs::plan::Plan;
use agentgym_record::documents::{UnitRule, UpdateSettings};
use agentgym_record::weights::{micro_batch_size, minibatch_slots};
use std::ops::Range;

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

pub(super) fn settings(plan: &Plan, iteration: u32) -> Result<UpdateSettings> {
    let config = &plan.config;
    let (actor, optim) = (
        &config.actor_rollout_ref.actor,
        &config.actor_rollout_ref.actor.optim,
    );
    let loss = config.actor_loss()?;
    let micro_batch_size = micro_batch_size(loss.aggregation, actor.ppo_micro_batch_size);
    Ok(UpdateSettings {
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
