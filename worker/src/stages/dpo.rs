//! `dpo`: optimizer steps on preference pairs, `jobs.dpo_part_steps` per part. The pairs of a step
//! are a function of the seed and the step number, so parts can be cut anywhere. The reference is
//! scored only for the pairs in use, and in the part that uses them. Both answers of a pair are
//! always in the same gradient unit.

use super::artifacts;
use super::training::state::{finish, optimizer, resume};
use super::training::step::{of_log_probs, say_if_skipped, with_sums};
use super::training::units::{Size, Units};
use super::training::workbench::Workbench;
use super::training::{Brakes, policy_options, upload};
use crate::blocking::blocking;
use crate::demonstrations::Encoded;
use crate::metrics;
use crate::pairs::Pair;
use crate::policies::POLICY;
use crate::{Error, Report, Result, StageContext};
use agentgym_algorithms::advantages::broadcast;
use agentgym_algorithms::losses::{Dpo, DpoPair, DpoSums, sequence_log_prob};
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::random::{Purpose, StreamKey, head, permutation};
use agentgym_model::{AdamW, ComputeOptions, Policy, Trainer, UnitStreams, score};
use agentgym_record::documents::UnitRule;
use agentgym_record::figures::mean;
use agentgym_record::metrics::{DpoMetrics, DpoPoint};
use agentgym_record::weights::wide;
use agentgym_storage::{Inputs, Outputs};
use serde::Serialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Instant;

/// File of the pairs that `init` wrote.
pub(super) const PAIRS: &str = "pairs.json";

/// Most points of the curve that a part records.
const POINTS_MAX: usize = 50;

/// Log-probs are at temperature 1.
pub(super) const TEMPERATURE: f64 = 1.0;

struct StepResult {
    lr: f64,
    sums: DpoSums,
    grad_norm: f64,
    non_finite: bool,
    size: Size,
}

/// A pair encoded for the model.
struct Example {
    /// Chosen, rejected.
    answers: [Encoded; 2],
    /// Log-probs of both under the reference, nats.
    reference: [f64; 2],
}

const BRAKES: Brakes = Brakes {
    lr: "dpo.lr",
    grad_clip: "dpo.grad_clip",
};

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = Arc::clone(&context.plan);
    let id = context.part.id;
    let steps = plan.dpo_steps(id.part);
    let pairs = pairs(&context.inputs).await?;
    let policy = artifacts::policy(context, POLICY).await?;
    let reference = artifacts::plain_policy(context, "reference").await?;
    let optimizer = optimizer(context, Stage::Dpo).await?;
    let work = Workbench::of(context);
    let (first, span) = (steps.start, steps.clone());
    let (policy, results, seconds) = blocking(move || {
        let dpo = &plan.config.dpo;
        let adamw = AdamW {
            betas: dpo.betas,
            weight_decay: dpo.weight_decay,
            grad_clip: dpo.grad_clip,
            ..AdamW::default()
        };
        let mut trainer = resume(&policy, adamw, optimizer)?;
        let start = Instant::now();
        let tick = || work.beat.tick();
        let options = policy_options(&plan, work.threads, &tick);
        let (loss, rate) = (dpo.loss()?, dpo.learning_rate()?);
        let mut examples: BTreeMap<usize, Example> = BTreeMap::new();
        let mut results = Vec::with_capacity(span.len());
        for step in span.clone() {
            work.check_cancelled()?;
            let batch = picks(&plan, pairs.len(), step);
            for &index in &batch {
                if let Entry::Vacant(place) = examples.entry(index) {
                    let _call = work.beat.busy();
                    place.insert(example(&plan, &pairs[index], &reference, &options)?);
                }
            }
            let batch: Vec<&Example> = batch.iter().map(|index| &examples[index]).collect();
            let (lr, rule) = (rate.at(step + 1), UnitRule::of(&plan.config));
            let _call = work.beat.busy();
            let result = train(&mut trainer, &batch, loss, (lr, rule), &options);
            let place = || format!("optimizer step {} of dpo ({id})", step + 1);
            results.push(result.map_err(BRAKES.failed(place))?);
            work.beat
                .progress(results.len() as u64, span.len() as u64, "optimizer steps");
        }
        let seconds = start.elapsed().as_secs_f64();
        let policy = finish(trainer, &work).map_err(BRAKES.failed(|| id.to_string()))?;
        Ok((policy, results, seconds))
    })
    .await?;
    upload(context, outputs, policy).await?;
    let metrics = summarise(first, &results, UnitRule::of(&context.plan.config));
    metrics::write(outputs, &metrics).await?;
    let mut report = Report::default();
    report
        .stats
        .trained(metrics.tokens.trained_tokens as u64, seconds);
    Ok(report)
}

/// The pairs that `init` made.
pub(super) async fn pairs(inputs: &Inputs) -> Result<Vec<Pair>> {
    let bytes = inputs.bytes("init", PAIRS).await?;
    serde_json::from_slice(&bytes).map_err(|e| Error::stage(format!("{PAIRS}: {e}")))
}

/// The random key of the order of the pairs.
pub(super) fn order_key(seed: u64) -> StreamKey {
    StreamKey {
        seed,
        purpose: Purpose::Dpo,
        iteration: 0,
        draw: 0,
        sample: 0,
    }
}

/// The pairs of a step: each pass takes every pair once, in a new order.
pub(super) fn picks(plan: &Plan, pairs: usize, step: u32) -> Vec<usize> {
    let size = plan.config.dpo.batch_size;
    let seed = head(&order_key(plan.config.run.seed).stream());
    let mut order: Option<(u64, Vec<u32>)> = None;
    let first = u64::from(step) * size as u64;
    (first..first + size as u64)
        .map(|pick| {
            let (pass, at) = (pick / pairs as u64, (pick % pairs as u64) as usize);
            match &order {
                Some((known, order)) if *known == pass => order[at] as usize,
                _ => {
                    let made = permutation(seed, pass, pairs);
                    let index = made[at] as usize;
                    order = Some((pass, made));
                    index
                }
            }
        })
        .collect()
}

/// The chosen and the rejected answer, encoded.
pub(super) fn encoded(plan: &Plan, pair: &Pair, policy: &Policy) -> Result<[Encoded; 2]> {
    const KEY: &str = "dpo.max_length";
    let limit = plan.config.dpo.max_length;
    let encode = |chosen: bool| {
        let what = if chosen {
            "chosen answer"
        } else {
            "rejected answer"
        };
        let prefix = plan.reply_prefix();
        let conversation = pair.conversation(chosen, prefix);
        conversation.encode_below(policy, what, (KEY, limit))
    };
    Ok([encode(true)?, encode(false)?])
}

fn example(
    plan: &Plan,
    pair: &Pair,
    reference: &Policy,
    options: &ComputeOptions<'_>,
) -> Result<Example> {
    let answers = encoded(plan, pair, reference)?;
    let requests = [answers[0].request(), answers[1].request()];
    let scores = score(reference, &requests, TEMPERATURE, options)?;
    let log_prob =
        |at: usize| sequence_log_prob(&wide(&scores[at].log_probs), &answers[at].loss_mask);
    Ok(Example {
        reference: [log_prob(0)?, log_prob(1)?],
        answers,
    })
}

/// The preference of a policy in one pair.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Margin {
    /// The task of both answers.
    pub item_id: String,
    /// Rewards of the chosen and of the rejected answer, as the files give them.
    pub rewards: [f64; 2],
    /// Log-probs of the chosen and of the rejected answer under the reference, nats.
    pub reference: [f64; 2],
    /// The same under the policy.
    pub policy: [f64; 2],
    /// Policy tokens of both answers.
    pub tokens: [usize; 2],
    /// β.
    pub beta: f64,
    /// Which loss.
    pub loss_type: String,
    /// β · (policy − reference) of both answers.
    pub implicit_rewards: [f64; 2],
    /// Their difference, which the loss is a function of.
    pub margin: f64,
    /// The pair's loss.
    pub loss: f64,
    /// d loss / d log-prob of each token of the chosen answer; the rejected one has its negative.
    pub coefficient: f64,
}

/// Scores pair `index` of the run under a policy and the reference; none if there is no such pair.
///
/// # Errors
/// The stage's errors.
pub async fn margin(
    plan: &Plan,
    inputs: &Inputs,
    index: usize,
    policy: &Policy,
    reference: &Policy,
) -> Result<Option<Margin>> {
    let pairs = pairs(inputs).await?;
    let Some(pair) = pairs.get(index) else {
        return Ok(None);
    };
    let tick = || {};
    let options = policy_options(plan, 1, &tick);
    let of = |policy: &Policy| example(plan, pair, policy, &options);
    let (ours, theirs) = (of(policy)?, of(reference)?);
    let dpo = plan.config.dpo.loss()?;
    let term = dpo.evaluate(
        &DpoPair {
            policy_chosen: ours.reference[0],
            policy_rejected: ours.reference[1],
            ref_chosen: theirs.reference[0],
            ref_rejected: theirs.reference[1],
        },
        1,
    )?;
    let tokens = |at: usize| ours.answers[at].loss_mask.iter().filter(|m| **m).count();
    Ok(Some(Margin {
        item_id: pair.item_id.clone(),
        rewards: [pair.chosen_reward, pair.rejected_reward],
        reference: theirs.reference,
        policy: ours.reference,
        tokens: [tokens(0), tokens(1)],
        beta: dpo.beta,
        loss_type: dpo.loss.to_string(),
        implicit_rewards: [term.chosen_reward, term.rejected_reward],
        margin: term.chosen_reward - term.rejected_reward,
        loss: term.loss,
        coefficient: term.chosen_coefficient,
    }))
}

/// One optimizer step.
fn train(
    trainer: &mut Trainer,
    batch: &[&Example],
    loss: Dpo,
    (lr, rule): (f64, UnitRule),
    options: &ComputeOptions<'_>,
) -> Result<StepResult> {
    let answers = batch.iter().flat_map(|e| &e.answers);
    let requests: Vec<_> = answers.map(Encoded::request).collect();
    // A pair's loss depends on both of its answers.
    let units = Units::cut(rule, &requests, 2)?;
    let model_units = units.for_model(|at| requests[at]);
    let loss = |unit: usize, streams: &UnitStreams| {
        let pairs = units.of(unit).iter().step_by(2).map(|at| batch[at / 2]);
        let (rows, sums) = unit_coefficients(pairs, batch.len(), loss, streams)?;
        Ok((of_log_probs(rows), sums))
    };
    let (report, found) = with_sums(units.len(), loss, |coefficients| {
        trainer.step(&model_units, TEMPERATURE, lr, coefficients, options)
    })?;
    say_if_skipped(&report, "dpo");
    let mut total = DpoSums::default();
    found.iter().for_each(|unit| total.merge(unit));
    Ok(StepResult {
        lr,
        sums: total,
        grad_norm: report.grad_norm,
        non_finite: report.skipped_non_finite,
        size: units.size(0..units.len()),
    })
}

type Found = (Vec<Vec<f64>>, DpoSums);

fn unit_coefficients<'a>(
    pairs: impl Iterator<Item = &'a Example>,
    in_all: usize,
    loss: Dpo,
    streams: &UnitStreams,
) -> Result<Found, agentgym_algorithms::Error> {
    let (mut rows, mut sums) = (Vec::new(), DpoSums::default());
    for (example, own) in pairs.zip(streams.log_probs.chunks(2)) {
        let [chosen, rejected] = &example.answers;
        let pair = DpoPair {
            policy_chosen: sequence_log_prob(&wide(&own[0]), &chosen.loss_mask)?,
            policy_rejected: sequence_log_prob(&wide(&own[1]), &rejected.loss_mask)?,
            ref_chosen: example.reference[0],
            ref_rejected: example.reference[1],
        };
        let term = loss.evaluate(&pair, in_all)?;
        sums.add(&term);
        rows.push(broadcast(term.chosen_coefficient, &chosen.loss_mask));
        rows.push(broadcast(term.rejected_coefficient, &rejected.loss_mask));
    }
    Ok((rows, sums))
}

/// The steps that were taken; steps with non-finite gradients are only counted.
fn finite(results: &[StepResult]) -> impl Iterator<Item = &StepResult> {
    results.iter().filter(|result| !result.non_finite)
}

fn summarise(first: u32, results: &[StepResult], rule: UnitRule) -> DpoMetrics {
    let taken = || finite(results);
    let average = |value: fn(&StepResult) -> f64| mean(taken().map(value));
    let share = |sum: f64, pairs: usize| sum / pairs.max(1) as f64;
    let rewards =
        |pick: fn(&DpoSums) -> f64| mean(taken().map(|r| share(pick(&r.sums), r.sums.pairs)));
    let size = results.len().div_ceil(POINTS_MAX).max(1);
    let mut step = first;
    let curve = results
        .chunks(size)
        .map(|chunk| {
            step += chunk.len() as u32;
            DpoPoint {
                step,
                loss: mean(finite(chunk).map(|r| r.sums.loss)),
                accuracy: mean(finite(chunk).map(|r| r.sums.accuracy())),
                lr: mean(chunk.iter().map(|r| r.lr)),
            }
        })
        .collect();
    DpoMetrics {
        steps: (first, first + results.len() as u32),
        loss: average(|r| r.sums.loss),
        accuracy: average(|r| r.sums.accuracy()),
        chosen_reward: rewards(|s| s.chosen_reward),
        rejected_reward: rewards(|s| s.rejected_reward),
        grad_norm: average(|r| r.grad_norm),
        non_finite_steps: Some(results.iter().filter(|r| r.non_finite).count()),
        tokens: results
            .iter()
            .map(|step| step.size)
            .sum::<Size>()
            .trained_by(rule),
        curve,
    }
}

#[cfg(test)]
mod tests;
