//! `update`: one batch → `ppo_epochs` passes over its minibatches with an optimizer step each → the
//! next policy, its optimizer state, and `update.json`, which together with the batch is enough to
//! recompute every step elsewhere.
//!
//! All steps of an iteration use the same learning rate.
//!
//! With `jobs.update_shards` above 1 each step is its own part, and its gradient is the sum of the
//! gradients of `gradient` parts, which as many workers may compute. The bytes are the same: units
//! are cut and summed as in one part.

pub(super) mod gradient;
mod minibatch;
mod steps;

use super::artifacts::{self, read};
use super::training::state::{Found, Left, finish, optimizer, resume};
use super::training::units::Size;
use super::training::workbench::Workbench;
use super::training::{Brakes, policy_options, upload};
use crate::blocking::blocking;
use crate::metrics::{self, write_json};
use crate::policies::POLICY;
use crate::{Report, Result, StageContext};
use agentgym_jobs::artifact_names;
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::records::Batch;
use agentgym_model::{AdamW, Policy, Trainer};
use agentgym_record::documents::{self, UpdateSettings, UpdateStep, UpdateSteps};
use agentgym_record::figures::mean;
use agentgym_record::metrics::UpdateMetrics;
use agentgym_storage::Outputs;
use minibatch::{Minibatch, Share};
use std::sync::Arc;
use std::time::Instant;
use steps::{places, settings};

struct Trained {
    policy: (Policy, Left),
    record: UpdateSteps,
    /// Over all steps up to the last one made here.
    size: Size,
    /// Over the steps made here.
    own: Size,
    seconds: f64,
}

/// Results of other parts that this part builds on.
struct Shared {
    /// The earlier steps.
    before: Vec<UpdateStep>,
    /// The gradient of this step.
    shares: Vec<Share>,
}

const BRAKES: Brakes = Brakes {
    lr: "actor_rollout_ref.actor.optim.lr",
    grad_clip: "actor_rollout_ref.actor.grad_clip",
};

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let (plan, id) = (Arc::clone(&context.plan), context.part.id);
    let Batch::V1(batch) = read(&context.inputs, "batch", artifact_names::BATCH).await?;
    let policy = artifacts::policy(context, POLICY).await?;
    let optimizer = optimizer(context, Stage::Update).await?;
    let settings = settings(&plan, id.iteration)?;
    let mut trainer = trainer(&policy, &settings, optimizer)?;
    let shared = match plan.gradient_shards(id.iteration) {
        0 => None,
        shards => Some(Shared {
            before: steps_before(context).await?,
            shares: gradient::shares(context, &trainer, shards).await?,
        }),
    };
    let work = Workbench::of(context);
    let trained = blocking(move || {
        let start = Instant::now();
        let places = places(&plan, settings.ppo_epochs)?;
        let tick = || work.beat.tick();
        let options = policy_options(&plan, work.threads, &tick);
        let of = places.len();
        let failed =
            |step: usize| BRAKES.failed(move || format!("optimizer step {step} of {of} of {id}"));
        let (mut steps, mut size, mut own) = (Vec::new(), Size::default(), Size::default());
        if let Some(Shared { before, shares }) = shared {
            let last = before.len();
            for place in &places[..last] {
                size += Minibatch::new(&batch, place.slots.clone(), &settings)?.size();
            }
            let place = &places[last];
            let minibatch = Minibatch::new(&batch, place.slots.clone(), &settings)?;
            size += minibatch.size();
            let step = minibatch
                .step(&mut trainer, &settings, place, shares, &options)
                .map_err(failed(last + 1))?;
            steps = before;
            steps.push(step);
        } else {
            for place in &places {
                work.check_cancelled()?;
                let minibatch = Minibatch::new(&batch, place.slots.clone(), &settings)?;
                size += minibatch.size();
                let call = work.beat.busy();
                let step = minibatch
                    .train(&mut trainer, &settings, place, &options)
                    .map_err(failed(steps.len() + 1))?;
                steps.push(step);
                drop(call);
                let (done, total) = (steps.len() as u64, places.len() as u64);
                work.beat.progress_with(done, total, "optimizer steps", || {
                    vec![(
                        "tokens/s",
                        size.tokens as f64 / start.elapsed().as_secs_f64().max(1e-9),
                    )]
                });
            }
            own = size;
        }
        let seconds = start.elapsed().as_secs_f64();
        let policy = finish(trainer, &work).map_err(BRAKES.failed(|| id.to_string()))?;
        Ok(Trained {
            policy,
            record: UpdateSteps {
                settings,
                minibatches: steps,
            },
            size,
            own,
            seconds,
        })
    })
    .await?;
    upload(context, outputs, trained.policy).await?;
    metrics::write(outputs, &summarise(&trained.record, trained.size)).await?;
    write_json(outputs, artifact_names::UPDATE, "update", &trained.record).await?;
    let mut report = Report::default();
    report
        .stats
        .trained(trained.own.tokens as u64, trained.seconds);
    Ok(report)
}

/// The earlier optimizer steps of this iteration, which made the input policy of this part.
async fn steps_before(context: &StageContext) -> Result<Vec<UpdateStep>> {
    if context.part.id.part == 0 {
        return Ok(Vec::new());
    }
    let record: UpdateSteps = documents::read(&context.inputs, POLICY).await?;
    Ok(record.minibatches)
}

fn trainer(
    policy: &Arc<Policy>,
    settings: &UpdateSettings,
    optimizer: Option<Found>,
) -> Result<Trainer> {
    let adamw = AdamW {
        betas: settings.betas,
        eps: settings.eps,
        weight_decay: settings.weight_decay,
        grad_clip: settings.grad_clip,
        decay_excludes_norms_and_biases: settings.decay_excludes_norms_and_biases,
    };
    resume(policy, adamw, optimizer)
}

fn summarise(record: &UpdateSteps, size: Size) -> UpdateMetrics {
    let taken: Vec<&UpdateStep> = record
        .minibatches
        .iter()
        .filter(|step| !step.skipped)
        .collect();
    let average = |value: fn(&UpdateStep) -> f64| mean(taken.iter().map(|step| value(step)));
    UpdateMetrics {
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
        tokens: size.trained_by(record.settings.units),
    }
}

#[cfg(test)]
mod tests;
