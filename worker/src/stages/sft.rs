//! `sft`: optimizer steps on demonstrations, `jobs.sft_part_steps` to a part.
//!
//! What a step learns from is a pure function of the seed and the step's
//! number, so parts can be cut anywhere and a step never depends on who made
//! the one before it. The loss is the mean over the step's own reply tokens.

pub(super) mod mixture;

use super::blocking;
use super::training::{ADAM_EPS, optimizer_folder, policy_options, resume, save, upload, wide};
use crate::demonstrations::Encoded;
use crate::metrics::{self, mean};
use crate::policies::POLICY;
use crate::{Error, Report, Result, StageContext};
use agentgym_algorithms::batches::units;
use agentgym_algorithms::losses::{Aggregation, Denominator, sft};
use agentgym_algorithms::{LearningRate, LearningRateStyle};
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_model::{
    AdamW, ComputeOptions, StepReport, TrainSequence, Trainer, Unit, UnitCoefficients, UnitStreams,
};
use agentgym_storage::{LocalFolder, Outputs};
use mixture::Mixture;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Points of the loss curve that a part records.
const POINTS_MAX: usize = 50;

/// `metrics.json` of a part.
#[derive(Debug, Serialize)]
struct Metrics {
    /// 0-based, the end excluded.
    steps: (u32, u32),
    /// Mean cross-entropy per reply token over the part, nats.
    loss: f64,
    grad_norm: f64,
    trained_tokens: usize,
    loss_tokens: usize,
    curve: Vec<Point>,
}

/// Means over some neighbouring steps.
#[derive(Debug, Serialize)]
struct Point {
    /// Last step of the point, 1-based.
    step: u32,
    loss: f64,
    grad_norm: f64,
    lr: f64,
}

struct StepResult {
    lr: f64,
    loss: f64,
    grad_norm: f64,
    tokens: usize,
    loss_tokens: usize,
}

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = Arc::clone(&context.plan);
    let id = context.part.id;
    let steps = plan.sft_steps(id.iteration, id.part);
    let mut mixture = Mixture::open(context, &plan).await?;
    let policy = super::policy(context, POLICY).await?;
    let optimizer = optimizer_folder(context, Stage::Sft).await?;
    let (threads, beat, cancel) = (
        context.resources.threads,
        context.beat.clone(),
        context.cancel.clone(),
    );
    let scratch = context.scratch.clone();
    let (policy, results, seconds) = blocking(move || {
        let sft = &plan.config.sft;
        let adamw = AdamW {
            betas: sft.betas,
            eps: ADAM_EPS,
            weight_decay: sft.weight_decay,
            grad_clip: sft.grad_clip,
            decay_excludes_norms_and_biases: false,
        };
        let mut trainer = resume(&policy, adamw, optimizer.as_ref().map(LocalFolder::path))?;
        let start = Instant::now();
        let tick = || beat.tick();
        let options = policy_options(&plan, threads, &tick);
        let rate = schedule(&plan, id.iteration);
        rate.validate()?;
        let mut results = Vec::with_capacity(steps.len());
        mixture.skip_to(steps.start);
        for step in steps.clone() {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let batch = mixture.batch(&policy, sft.max_length)?;
            let _call = beat.busy();
            results.push(train(
                &mut trainer,
                &batch,
                rate.at(step + 1),
                plan.config.jobs.unit_tokens,
                &options,
            )?);
            let (done, total) = (results.len() as u64, steps.len() as u64);
            beat.progress_with(done, total, "optimizer steps", || figures(&results, start));
        }
        let seconds = start.elapsed().as_secs_f64();
        save(&mut trainer, &scratch)?;
        Ok((trainer.into_policy()?, results, seconds))
    })
    .await?;
    upload(context, outputs, policy).await?;
    let first = context.plan.sft_steps(id.iteration, id.part).start;
    let metrics = summarise(first, &results);
    metrics::write(outputs, &metrics).await?;
    let mut report = Report::default();
    report.tokens("trained", metrics.trained_tokens as u64, seconds);
    Ok(report)
}

/// The loss of the last steps and the rate of all of them.
fn figures(results: &[StepResult], start: Instant) -> Vec<(&'static str, f64)> {
    const RECENT_STEPS: usize = 20;
    let recent = &results[results.len().saturating_sub(RECENT_STEPS)..];
    let tokens: usize = results.iter().map(|r| r.tokens).sum();
    vec![
        ("loss", mean(recent.iter().map(|r| r.loss))),
        (
            "tokens/s",
            tokens as f64 / start.elapsed().as_secs_f64().max(1e-9),
        ),
    ]
}

fn schedule(plan: &Plan, iteration: u32) -> LearningRate {
    let sft = &plan.config.sft;
    LearningRate {
        base: sft.lr,
        warmup_iterations: sft.warmup_steps,
        total_iterations: plan.sft_steps_of(iteration),
        style: LearningRateStyle::Cosine,
        min_lr_ratio: sft.min_lr_ratio,
    }
}

/// One optimizer step.
fn train(
    trainer: &mut Trainer,
    batch: &[Encoded],
    lr: f64,
    unit_tokens: usize,
    options: &ComputeOptions<'_>,
) -> Result<StepResult> {
    let lengths: Vec<usize> = batch.iter().map(|e| e.token_ids.len()).collect();
    let ranges = units(&lengths, unit_tokens)?;
    let denominator = Denominator::of(batch.iter().map(Encoded::loss_tokens));
    let model_units: Vec<Unit> = ranges
        .iter()
        .map(|range| Unit {
            sequences: batch[range.clone()]
                .iter()
                .map(|e| TrainSequence {
                    token_ids: e.token_ids.clone(),
                    loss_mask: e.loss_mask.clone(),
                })
                .collect(),
            skip: false,
        })
        .collect();
    let losses = Mutex::new(vec![Ok(0.0); ranges.len()]);
    let coefficients = |unit: usize, streams: &UnitStreams| {
        let (mut log_probs, mut entropies, mut loss) = (Vec::new(), Vec::new(), Ok(0.0));
        for (e, row) in batch[ranges[unit].clone()].iter().zip(&streams.log_probs) {
            entropies.push(vec![0.0; row.len()]);
            match sft(
                &wide(row),
                &e.loss_mask,
                Aggregation::TokenMean,
                denominator,
            ) {
                Ok(output) => {
                    loss = loss.map(|sum: f64| sum + output.loss);
                    log_probs.push(output.coefficients);
                }
                Err(error) => {
                    loss = Err(error);
                    log_probs.push(vec![0.0; row.len()]);
                }
            }
        }
        losses.lock().unwrap_or_else(PoisonError::into_inner)[unit] = loss;
        UnitCoefficients {
            log_probs,
            entropies,
        }
    };
    let StepReport {
        grad_norm,
        skipped_non_finite,
        ..
    } = trainer.step(&model_units, 1.0, lr, &coefficients, options)?;
    if skipped_non_finite {
        tracing::warn!("the gradient is not finite; this optimizer step changes nothing");
    }
    let mut loss = 0.0;
    for unit in losses.into_inner().unwrap_or_else(PoisonError::into_inner) {
        loss += unit?;
    }
    Ok(StepResult {
        lr,
        loss,
        grad_norm: if grad_norm.is_finite() {
            grad_norm
        } else {
            0.0
        },
        tokens: lengths.iter().sum(),
        loss_tokens: denominator.loss_tokens,
    })
}

fn summarise(first: u32, results: &[StepResult]) -> Metrics {
    let size = results.len().div_ceil(POINTS_MAX).max(1);
    let mut step = first;
    let curve = results
        .chunks(size)
        .map(|chunk| {
            step += chunk.len() as u32;
            Point {
                step,
                loss: mean(chunk.iter().map(|r| r.loss)),
                grad_norm: mean(chunk.iter().map(|r| r.grad_norm)),
                lr: mean(chunk.iter().map(|r| r.lr)),
            }
        })
        .collect();
    Metrics {
        steps: (first, first + results.len() as u32),
        loss: mean(results.iter().map(|r| r.loss)),
        grad_norm: mean(results.iter().map(|r| r.grad_norm)),
        trained_tokens: results.iter().map(|r| r.tokens).sum(),
        loss_tokens: results.iter().map(|r| r.loss_tokens).sum(),
        curve,
    }
}

#[cfg(test)]
mod tests;
