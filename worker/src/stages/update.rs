//! `update`: one batch → `ppo_epochs` passes over its minibatches, an
//! optimizer step each → the next policy, its optimizer state, and
//! `update.json`, which with the batch is enough to recompute every step
//! elsewhere.
//!
//! What belongs to a minibatch and what to a gradient unit follows from the
//! plan and the batch. Sequences whose coefficients must all be zero (no
//! advantage, and no entropy or KL term) are left out before units are cut:
//! they add nothing to a sum but time. They still count in the denominator.

use super::{blocking, read, upload_policy};
use crate::metrics::{self, mean, write_json};
use crate::policies::POLICY;
use crate::{Error, Report, Result, StageContext};
use agentgym_algorithms::batches::{minibatches, units};
use agentgym_algorithms::losses::{
    ActorLoss, ActorMetrics, ActorSums, ActorTokens, ClipRange, Denominator, KlLoss,
};
use agentgym_algorithms::{LearningRate, LearningRateStyle};
use agentgym_jobs::config::WarmupStyle;
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{Batch, BatchEpisode, BatchSequence};
use agentgym_model::{
    AdamW, ComputeOptions, Policy, StepReport, TrainSequence, Trainer, Unit, UnitCoefficients,
    UnitStreams,
};
use agentgym_storage::{LocalFolder, Outputs};
use serde::Serialize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Folder of the optimizer's state among the artifacts.
pub(super) const OPTIMIZER: &str = "optimizer";

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
    /// True if no sequence had a gradient: weights and moments stay.
    skipped: bool,
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
                steps.push(minibatch.train(&mut trainer, &settings, epoch, index, &options)?);
                beat.progress(steps.len() as u64, total, "optimizer steps");
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
    report.set("trained_tokens", trained.tokens);
    report.set(
        "trained_tokens_per_s",
        trained.tokens as f64 / trained.seconds.max(1e-9),
    );
    Ok(report)
}

/// The state of the optimizer that made the input policy, if the stage
/// `from` made it and its state was kept; a new phase starts afresh.
pub(super) async fn optimizer_folder(
    context: &StageContext,
    from: Stage,
) -> Result<Option<LocalFolder>> {
    let made_by = context
        .part
        .inputs
        .iter()
        .find(|input| input.name == POLICY)
        .map(|input| input.from.stage);
    if made_by != Some(from) {
        return Ok(None);
    }
    Ok(Some(context.inputs.folder(POLICY, OPTIMIZER).await?))
}

/// Writes policy and optimizer into local folders.
pub(super) fn save(trainer: &Trainer, scratch: &Path) -> Result<()> {
    trainer.policy().save(&scratch.join(POLICY))?;
    trainer.save_optimizer(&scratch.join(OPTIMIZER))?;
    Ok(())
}

/// Uploads what [`save`] wrote and keeps the policy in memory.
pub(super) async fn upload(
    context: &StageContext,
    outputs: &mut Outputs,
    policy: Policy,
) -> Result<()> {
    let files = upload_policy(outputs, &context.scratch.join(POLICY)).await?;
    outputs
        .folder(OPTIMIZER, "optimizer", &context.scratch.join(OPTIMIZER))
        .await?;
    context
        .resources
        .policies
        .insert(&files, Arc::new(policy))
        .await;
    Ok(())
}

fn settings(plan: &Plan, iteration: u32) -> Result<Settings> {
    let config = &plan.config;
    let (actor, optim) = (
        &config.actor_rollout_ref.actor,
        &config.actor_rollout_ref.actor.optim,
    );
    let lr = LearningRate {
        base: optim.lr,
        warmup_iterations: (optim.lr_warmup_steps_ratio * f64::from(plan.iterations)) as u32,
        total_iterations: plan.iterations,
        style: match optim.warmup_style {
            WarmupStyle::Constant => LearningRateStyle::Constant,
            WarmupStyle::Cosine => LearningRateStyle::Cosine,
        },
        min_lr_ratio: optim.min_lr_ratio,
    };
    lr.validate()?;
    let kl = match actor.use_kl_loss {
        true => Some(KlLoss {
            estimator: actor.kl_loss_type.parse()?,
            coef: actor.kl_loss_coef,
        }),
        false => None,
    };
    let loss = ActorLoss {
        clip: ClipRange {
            low: actor.clip_ratio_low,
            high: actor.clip_ratio_high,
        },
        entropy_coeff: actor.entropy_coeff,
        kl,
        aggregation: actor.loss_agg_mode.parse()?,
    };
    loss.validate()?;
    Ok(Settings {
        iteration,
        lr: lr.at(iteration),
        temperature: config.actor_rollout_ref.rollout.temperature,
        betas: optim.betas,
        eps: ADAM_EPS,
        weight_decay: optim.weight_decay,
        grad_clip: actor.grad_clip,
        loss,
        ppo_epochs: actor.ppo_epochs,
        unit_tokens: config.jobs.unit_tokens,
    })
}

/// torch's default.
pub(super) const ADAM_EPS: f64 = 1e-8;

fn trainer(policy: &Arc<Policy>, settings: &Settings, optimizer: Option<&Path>) -> Result<Trainer> {
    let adamw = AdamW {
        betas: settings.betas,
        eps: settings.eps,
        weight_decay: settings.weight_decay,
        grad_clip: settings.grad_clip,
        decay_excludes_norms_and_biases: false,
    };
    resume(policy, adamw, optimizer)
}

/// A trainer with the given optimizer state, or a fresh one.
pub(super) fn resume(
    policy: &Arc<Policy>,
    adamw: AdamW,
    optimizer: Option<&Path>,
) -> Result<Trainer> {
    let policy = Policy::clone(policy);
    Ok(match optimizer {
        Some(folder) => Trainer::with_state(policy, adamw, folder)?,
        None => Trainer::new(policy, adamw),
    })
}

/// A minibatch cut into gradient units.
struct Minibatch<'a> {
    slots: Vec<usize>,
    denominator: Denominator,
    /// Slot and sequence of everything that has a gradient, in slot order.
    members: Vec<(usize, &'a BatchSequence)>,
    /// Ranges of members.
    units: Vec<std::ops::Range<usize>>,
}

impl<'a> Minibatch<'a> {
    fn new(
        batch: &'a [Option<BatchEpisode>],
        slots: std::ops::Range<usize>,
        settings: &Settings,
    ) -> Result<Self> {
        let filled: Vec<(usize, &BatchEpisode)> = slots
            .filter_map(|slot| Some((slot, batch.get(slot)?.as_ref()?)))
            .collect();
        let sequences = || {
            filled
                .iter()
                .flat_map(|(slot, e)| e.sequences.iter().map(move |s| (*slot, s)))
        };
        let every_token_pulls = settings.loss.entropy_coeff != 0.0 || settings.loss.kl.is_some();
        let members: Vec<_> = sequences()
            .filter(|(_, s)| s.sequence.loss_tokens() > 0)
            .filter(|(_, s)| every_token_pulls || s.advantages.iter().any(|a| *a != 0.0))
            .collect();
        let lengths: Vec<usize> = members
            .iter()
            .map(|(_, s)| s.sequence.token_ids.len())
            .collect();
        Ok(Self {
            slots: filled.iter().map(|(slot, _)| *slot).collect(),
            denominator: Denominator::of_masks(
                sequences().map(|(_, s)| s.sequence.loss_mask.as_slice()),
            ),
            units: units(&lengths, settings.unit_tokens)?,
            members,
        })
    }

    /// Tokens that go through forward and backward.
    fn tokens(&self) -> usize {
        self.members
            .iter()
            .map(|(_, s)| s.sequence.token_ids.len())
            .sum()
    }

    fn train(
        &self,
        trainer: &mut Trainer,
        settings: &Settings,
        epoch: u32,
        minibatch: usize,
        options: &ComputeOptions<'_>,
    ) -> Result<Step> {
        let units: Vec<Vec<usize>> = self
            .units
            .iter()
            .map(|range| {
                self.members[range.clone()]
                    .iter()
                    .map(|(slot, _)| *slot)
                    .collect()
            })
            .collect();
        let mut step = Step {
            epoch,
            minibatch,
            slots: self.slots.clone(),
            units,
            denominator: self.denominator,
            skipped: self.members.is_empty(),
            grad_norm: 0.0,
            clip_scale: 1.0,
            metrics: ActorSums::default().metrics(),
        };
        if step.skipped {
            return Ok(step);
        }
        let sums = Mutex::new(vec![Ok(ActorSums::default()); self.units.len()]);
        let coefficients = |unit: usize, streams: &UnitStreams| {
            let (coefficients, result) = self.coefficients(unit, streams, &settings.loss);
            sums.lock().unwrap_or_else(PoisonError::into_inner)[unit] = result;
            coefficients
        };
        let StepReport {
            grad_norm,
            clip_scale,
            skipped_non_finite,
            ..
        } = trainer.step(
            &self.model_units(),
            settings.temperature,
            settings.lr,
            &coefficients,
            options,
        )?;
        // Unit order, not the order in which threads finished.
        let mut total = ActorSums::default();
        for unit in sums.into_inner().unwrap_or_else(PoisonError::into_inner) {
            total.merge(&unit?);
        }
        if skipped_non_finite {
            tracing::warn!(
                epoch,
                minibatch,
                "the gradient is not finite; this optimizer step changes nothing"
            );
        }
        step.skipped = skipped_non_finite;
        step.grad_norm = if grad_norm.is_finite() {
            grad_norm
        } else {
            0.0
        };
        step.clip_scale = clip_scale;
        step.metrics = total.metrics();
        Ok(step)
    }

    fn model_units(&self) -> Vec<Unit> {
        let sequence = |s: &BatchSequence| TrainSequence {
            token_ids: s.sequence.token_ids.clone(),
            loss_mask: s.sequence.loss_mask.clone(),
        };
        self.units
            .iter()
            .map(|range| Unit {
                sequences: self.members[range.clone()]
                    .iter()
                    .map(|(_, s)| sequence(s))
                    .collect(),
                skip: false,
            })
            .collect()
    }

    /// Coefficients of a unit; zeros beside an error, which ends the update.
    fn coefficients(
        &self,
        unit: usize,
        streams: &UnitStreams,
        loss: &ActorLoss,
    ) -> (
        UnitCoefficients,
        Result<ActorSums, agentgym_algorithms::Error>,
    ) {
        let mut out = UnitCoefficients {
            log_probs: vec![],
            entropies: vec![],
        };
        let mut sums = Ok(ActorSums::default());
        for (index, (_, member)) in self.members[self.units[unit].clone()].iter().enumerate() {
            let reference = member.ref_log_probs.as_deref().map(wide);
            let tokens = ActorTokens {
                log_probs: &wide(&streams.log_probs[index]),
                entropies: &wide(&streams.entropies[index]),
                old_log_probs: &wide(&member.old_log_probs),
                ref_log_probs: reference.as_deref(),
                advantages: &member.advantages,
                loss_mask: &member.sequence.loss_mask,
            };
            match loss.evaluate(&tokens, self.denominator) {
                Ok(output) => {
                    if let Ok(sums) = &mut sums {
                        sums.merge(&output.sums);
                    }
                    out.log_probs.push(output.coefficients.log_probs);
                    out.entropies.push(output.coefficients.entropies);
                }
                Err(error) => {
                    sums = Err(error);
                    out.log_probs.push(vec![0.0; member.advantages.len()]);
                    out.entropies.push(vec![0.0; member.advantages.len()]);
                }
            }
        }
        (out, sums)
    }
}

pub(super) fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|value| f64::from(*value)).collect()
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
        trained_tokens,
    }
}

#[cfg(test)]
mod tests;
