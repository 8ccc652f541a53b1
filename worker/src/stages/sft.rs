//! `sft`: optimizer steps on demonstrations, `jobs.sft_part_steps` per part.
//!
//! The examples of a step are a pure function of the seed and the step number, so parts can be cut
//! anywhere, and a step never depends on which worker made the previous one. The loss is the mean
//! over the step's own reply tokens.

pub(super) mod held_out;
pub(super) mod mixture;

use super::artifacts;
use super::training::state::{finish, optimizer, resume};
use super::training::step::{of_log_probs, say_if_skipped, with_sums};
use super::training::units::{Size, Units};
use super::training::workbench::Workbench;
use super::training::{Brakes, policy_options, upload};
use crate::blocking::blocking;
use crate::demonstrations::Encoded;
use crate::metrics;
use crate::policies::POLICY;
use crate::{Report, Result, StageContext};
use agentgym_algorithms::losses::{Aggregation, Denominator, sft};
use agentgym_algorithms::{LearningRate, LearningRateStyle};
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_model::{AdamW, ComputeOptions, Policy, Trainer, UnitStreams};
use agentgym_record::documents::UnitRule;
use agentgym_record::figures::mean;
use agentgym_record::metrics::{SftMetrics, SftPoint, Validation, ValidationPoint};
use agentgym_record::weights::wide;
use agentgym_storage::Outputs;
use mixture::Mixture;
use std::sync::Arc;
use std::time::Instant;

/// Most points of the loss curve that a part records.
const POINTS_MAX: usize = 50;

struct StepResult {
    lr: f64,
    loss: f64,
    grad_norm: f64,
    non_finite: bool,
    size: Size,
    loss_tokens: usize,
}

const BRAKES: Brakes = Brakes {
    lr: "sft.lr",
    grad_clip: "sft.grad_clip",
};

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = Arc::clone(&context.plan);
    let id = context.part.id;
    let steps = plan.sft_steps(id.iteration, id.part);
    let mut mixture = Mixture::open(&context.inputs, &plan, id.iteration).await?;
    let policy = artifacts::policy(context, POLICY).await?;
    let optimizer = optimizer(context, Stage::Sft).await?;
    let work = Workbench::of(context);
    let (policy, results, validation, seconds) = blocking(move || {
        let sft = &plan.config.sft;
        let adamw = AdamW {
            betas: sft.betas,
            weight_decay: sft.weight_decay,
            grad_clip: sft.grad_clip,
            ..AdamW::default()
        };
        let mut trainer = resume(&policy, adamw, optimizer)?;
        let start = Instant::now();
        let tick = || work.beat.tick();
        let options = policy_options(&plan, work.threads, &tick);
        // Left-out rows make passes shorter than planned.
        let all = mixture.steps().unwrap_or(plan.sft_steps_of(id.iteration));
        let steps = steps.start.min(all)..steps.end.min(all);
        let rate = schedule(&plan, all);
        rate.validate()?;
        let mut results = Vec::with_capacity(steps.len());
        let held_out = mixture.held_out(&policy, sft.max_length)?;
        let (mut points, mut measured_s) = (Vec::new(), 0.0);
        let mut measure = |policy: &Policy, step: u32, epoch: Option<f64>| -> Result<()> {
            let before = Instant::now();
            if !held_out.is_empty() {
                let _call = work.beat.busy();
                points.push(ValidationPoint {
                    step,
                    epoch,
                    validation_loss: held_out::loss(policy, &held_out, &options)?,
                });
            }
            measured_s += before.elapsed().as_secs_f64();
            Ok(())
        };
        if id.part == 0 {
            measure(&policy, 0, mixture.passes_before(0))?;
        }
        mixture.skip_to(steps.start);
        for step in steps.clone() {
            work.check_cancelled()?;
            let batch = mixture.batch(&policy, sft.max_length)?;
            let _call = work.beat.busy();
            let result = train(
                &mut trainer,
                &batch,
                rate.at(step + 1),
                UnitRule::of(&plan.config),
                &options,
            );
            let place = || format!("optimizer step {} of sft ({id})", step + 1);
            results.push(result.map_err(BRAKES.failed(place))?);
            let (done, total) = (results.len() as u64, steps.len() as u64);
            work.beat
                .progress_with(done, total, "optimizer steps", || figures(&results, start));
            let passes = mixture.passes_before(step + 1);
            let ends_one = passes.is_some_and(|passes| passes.fract() == 0.0);
            if !held_out.is_empty() && (ends_one || step + 1 == steps.end) {
                measure(&trainer.model()?, step + 1, passes)?;
            }
        }
        let seconds = start.elapsed().as_secs_f64() - measured_s;
        let validation = (!held_out.is_empty()).then(|| Validation {
            validation_conversations: held_out.len(),
            validation_tokens: held_out.iter().map(Encoded::loss_tokens).sum(),
            validation_loss: points.last().map(|point| point.validation_loss),
            validation: points,
        });
        let policy = finish(trainer, &work).map_err(BRAKES.failed(|| id.to_string()))?;
        Ok((policy, results, validation, seconds))
    })
    .await?;
    upload(context, outputs, policy).await?;
    let first = context.plan.sft_steps(id.iteration, id.part).start;
    let rule = UnitRule::of(&context.plan.config);
    let metrics = summarise(first, &results, rule, validation);
    metrics::write(outputs, &metrics).await?;
    let mut report = Report::default();
    report
        .stats
        .trained(metrics.tokens.trained_tokens as u64, seconds);
    Ok(report)
}

/// The loss of the most recent steps, and the token rate of all steps.
fn figures(results: &[StepResult], start: Instant) -> Vec<(&'static str, f64)> {
    const RECENT_STEPS: usize = 20;
    let recent = &results[results.len().saturating_sub(RECENT_STEPS)..];
    let tokens: usize = results.iter().map(|r| r.size.tokens).sum();
    vec![
        ("loss", mean(recent.iter().map(|r| r.loss))),
        (
            "tokens/s",
            tokens as f64 / start.elapsed().as_secs_f64().max(1e-9),
        ),
    ]
}

pub(super) fn schedule(plan: &Plan, steps: u32) -> LearningRate {
    let sft = &plan.config.sft;
    LearningRate {
        base: sft.lr,
        warmup_iterations: sft.warmup_steps,
        total_iterations: steps,
        style: LearningRateStyle::Cosine,
        min_lr_ratio: sft.min_lr_ratio,
    }
}

/// One optimizer step.
fn train(
    trainer: &mut Trainer,
    batch: &[Encoded],
    lr: f64,
    rule: UnitRule,
    options: &ComputeOptions<'_>,
) -> Result<StepResult> {
    let requests: Vec<_> = batch.iter().map(Encoded::request).collect();
    let units = Units::cut(rule, &requests, 1)?;
    let denominator = Denominator::of(batch.iter().map(Encoded::loss_tokens));
    let model_units = units.for_model(|at| requests[at]);
    let loss = |unit: usize, streams: &UnitStreams| {
        let (mut rows, mut sum) = (Vec::new(), 0.0);
        for (&at, row) in units.of(unit).iter().zip(&streams.log_probs) {
            let (weighed, mask) = (Aggregation::TokenMean, &batch[at].loss_mask);
            let output = sft(&wide(row), mask, weighed, denominator)?;
            sum += output.loss;
            rows.push(output.coefficients);
        }
        Ok((of_log_probs(rows), sum))
    };
    let (report, losses) = with_sums(units.len(), loss, |coefficients| {
        trainer.step(&model_units, 1.0, lr, coefficients, options)
    })?;
    say_if_skipped(&report, "sft");
    Ok(StepResult {
        lr,
        loss: losses.iter().fold(0.0, |sum: f64, loss: &f64| sum + loss),
        grad_norm: report.grad_norm,
        non_finite: report.skipped_non_finite,
        size: units.size(0..units.len()),
        loss_tokens: denominator.loss_tokens,
    })
}

/// Means over the steps that were taken.
fn summarise(
    first: u32,
    results: &[StepResult],
    rule: UnitRule,
    validation: Option<Validation>,
) -> SftMetrics {
    let average = |steps: &[StepResult], value: fn(&StepResult) -> f64| {
        mean(steps.iter().filter(|s| !s.non_finite).map(value))
    };
    let size = results.len().div_ceil(POINTS_MAX).max(1);
    let mut step = first;
    let curve = results
        .chunks(size)
        .map(|chunk| {
            step += chunk.len() as u32;
            SftPoint {
                step,
                loss: average(chunk, |r| r.loss),
                grad_norm: average(chunk, |r| r.grad_norm),
                lr: mean(chunk.iter().map(|r| r.lr)),
            }
        })
        .collect();
    SftMetrics {
        steps: (first, first + results.len() as u32),
        loss: average(results, |r| r.loss),
        grad_norm: average(results, |r| r.grad_norm),
        tokens: results
            .iter()
            .map(|step| step.size)
            .sum::<Size>()
            .trained_by(rule),
        loss_tokens: results.iter().map(|r| r.loss_tokens).sum(),
        curve,
        non_finite_steps: results.iter().filter(|r| r.non_finite).count(),
        validation,
    }
}

#[cfg(test)]
mod tests;
