//! `update`: one batch → `ppo_epochs` passes over its minibatches, an
//! optimizer step each → the next policy, its optimizer state, and
//! `update.json`, which with the batch is enough to recompute every step
//! elsewhere.
//!
//! The learning rate is that of the iteration: the same for all of its steps.
mod minibatch;

use super::training::{ADAM_EPS, optimizer_folder, resume, save, upload};
use super::{blocking, read};
use crate::metrics::{self, mean, write_json};
use crate::policies::POLICY;
use crate::{Error, Report, Result, StageContext};
use agentgym_algorithms::batches::minibatches;
use agentgym_algorithms::losses::{ActorLoss, ActorMetrics, Aggregation, Denominator};
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::Batch;
use agentgym_model::{AdamW, ComputeOptions, Policy, Trainer};
use agentgym_storage::{LocalFolder, Outputs};
use minibatch::Minibatch;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What every optimizer step of an update has in common.
#[derive(Debug, Clone, Serialize)]
struct Settings {
    iteration: u32,
    lr: f64,
    temperature: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    grad_clip: f64,
    loss: ActorLoss,
    ppo_epochs: u32,
    unit_tokens: usize,
    #[serde(skip_serializing_if = "is_false")]
    decay_excludes_norms_and_biases: bool,
    /// Slots of a micro-batch, where the loss averages over these.
    #[serde(skip_serializing_if = "Option::is_none")]
    micro_batch_size: Option<usize>,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// One optimizer step.
#[derive(Debug, Clone, Serialize)]
struct Step {
    epoch: u32,
    minibatch: usize,
    /// Slots of the batch that hold an episode, in order.
    slots: Vec<usize>,
    /// Slots per gradient unit, of the sequences that have a gradient.
    units: Vec<Vec<usize>>,
    denominator: Denominator,
    /// True if no sequence had a gradient, or one that is not finite: weights and
    /// moments stay.
    skipped: bool,
    /// True if the gradient was not finite.
    #[serde(skip_serializing_if = "is_false")]
    non_finite: bool,
    /// Norm before clipping.
    grad_norm: f64,
    clip_scale: f64,
    metrics: ActorMetrics,
}

/// `update.json`.
#[derive(Debug, Serialize)]
struct Record {
    settings: Settings,
    /// In the order in which the steps were taken.
    minibatches: Vec<Step>,
}

/// `metrics.json`: means over the optimizer steps that were taken.
#[derive(Debug, Serialize)]
struct Metrics {
    pg_loss: f64,
    clip_fraction: f64,
    ppo_kl: f64,
    entropy: f64,
    kl_loss: f64,
    ratio_max: f64,
    grad_norm: f64,
    lr: f64,
    optimizer_steps: usize,
    skipped_steps: usize,
    /// Of the skipped ones, those whose gradient was not finite.
    #[serde(skip_serializing_if = "is_zero")]
    non_finite_steps: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    dual_clip_fraction: Option<f64>,
    trained_tokens: usize,
}

struct Trained {
    policy: Policy,
    record: Record,
    tokens: usize,
    seconds: f64,
}

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = Arc::clone(&context.plan);
    let Batch::V1(batch) = read(&context.inputs, "batch", "batch.bin").await?;
    let policy = super::policy(context, POLICY).await?;
    let optimizer = optimizer_folder(context, Stage::Update).await?;
    let settings = settings(&plan, context.part.id.iteration)?;
    let (threads, beat, cancel) = (
        context.resources.threads,
        context.beat.clone(),
        context.cancel.clone(),
    );
    let scratch = context.scratch.clone();
    let trained = blocking(move || {
        let mut trainer = trainer(
            &policy,
            &settings,
            optimizer.as_ref().map(LocalFolder::path),
        )?;
        let start = Instant::now();
        let mut steps = Vec::new();
        let mut tokens = 0;
        let ranges = minibatches(
            plan.config.data.train_batch_size,
            plan.config.actor_rollout_ref.actor.ppo_mini_batch_size,
        )?;
        let total = u64::from(settings.ppo_epochs) * ranges.len() as u64;
        let tick = || beat.tick();
        for epoch in 0..settings.ppo_epochs {
            for (index, draws) in ranges.iter().enumerate() {
                if cancel.is_cancelled() {
                    return Err(Error::Cancelled);
                }
                let n = plan.config.actor_rollout_ref.rollout.n as usize;
                let minibatch = Minibatch::new(&batch, draws.start * n..draws.end * n, &settings)?;
                let options = ComputeOptions {
                    threads,
                    pack_tokens: plan.config.jobs.pack_tokens,
                    beat: &tick,
                };
                tokens += minibatch.tokens();
                let call = beat.busy();
                steps.push(minibatch.train(&mut trainer, &settings, epoch, index, &options)?);
                drop(call);
                beat.progress_with(steps.len() as u64, total, "optimizer steps", || {
                    vec![(
                        "tokens/s",
                        tokens as f64 / start.elapsed().as_secs_f64().max(1e-9),
                    )]
                });
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        save(&trainer, &scratch)?;
        Ok(Trained {
            policy: trainer.into_policy(),
            record: Record {
                settings,
                minibatches: steps,
            },
            tokens,
            seconds,
        })
    })
    .await?;
    upload(context, outputs, trained.policy).await?;
    metrics::write(outputs, &summarise(&trained.record, trained.tokens)).await?;
    write_json(outputs, "update.json", "update", &trained.record).await?;
    let mut report = Report::default();
    report.tokens("trained", trained.tokens as u64, trained.seconds);
    Ok(report)
}

fn settings(plan: &Plan, iteration: u32) -> Result<Settings> {
    let config = &plan.config;
    let (actor, optim) = (
        &config.actor_rollout_ref.actor,
        &config.actor_rollout_ref.actor.optim,
    );
    let loss = config.actor_loss()?;
    let by_micro_batch = loss.aggregation == Aggregation::MicroBatchMean;
    Ok(Settings {
        iteration,
        lr: optim.learning_rate(plan.iterations)?.at(iteration),
        temperature: config.actor_rollout_ref.rollout.temperature,
        betas: optim.betas,
        eps: ADAM_EPS,
        weight_decay: optim.weight_decay,
        grad_clip: actor.grad_clip,
        loss,
        // A warm-up of the critic hands the policy on as it is.
        ppo_epochs: match iteration <= config.trainer.critic_warmup {
            true => 0,
            false => actor.ppo_epochs,
        },
        unit_tokens: config.jobs.unit_tokens,
        decay_excludes_norms_and_biases: optim.decay_excludes_norms_and_biases,
        micro_batch_size: actor.ppo_micro_batch_size.filter(|_| by_micro_batch),
    })
}

fn trainer(policy: &Arc<Policy>, settings: &Settings, optimizer: Option<&Path>) -> Result<Trainer> {
    let adamw = AdamW {
        betas: settings.betas,
        eps: settings.eps,
        weight_decay: settings.weight_decay,
        grad_clip: settings.grad_clip,
        decay_excludes_norms_and_biases: settings.decay_excludes_norms_and_biases,
    };
    resume(policy, adamw, optimizer)
}

fn summarise(record: &Record, trained_tokens: usize) -> Metrics {
    let taken: Vec<&Step> = record
        .minibatches
        .iter()
        .filter(|step| !step.skipped)
        .collect();
    let average = |value: fn(&Step) -> f64| mean(taken.iter().map(|step| value(step)));
    Metrics {
        pg_loss: average(|s| s.metrics.policy_loss),
        clip_fraction: average(|s| s.metrics.clip_fraction),
        ppo_kl: average(|s| s.metrics.approx_kl),
        entropy: average(|s| s.metrics.entropy),
        kl_loss: average(|s| s.metrics.kl_loss),
        ratio_max: taken
            .iter()
            .map(|s| s.metrics.ratio_max)
            .fold(0.0, f64::max),
        grad_norm: average(|s| s.grad_norm),
        lr: record.settings.lr,
        optimizer_steps: taken.len(),
        skipped_steps: record.minibatches.len() - taken.len(),
        non_finite_steps: record.minibatches.iter().filter(|s| s.non_finite).count(),
        dual_clip_fraction: record.settings.loss.dual_clip.map(|_| {
            mean(
                taken
                    .iter()
                    .map(|s| s.metrics.dual_clip_fraction.unwrap_or(0.0)),
            )
        }),
        trained_tokens,
    }
}

#[cfg(test)]
mod tests;
