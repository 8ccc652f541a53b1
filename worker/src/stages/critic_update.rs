//! `critic_update`: the iteration's batch and its targets → `ppo_epochs` passes of the critic over
//! its minibatches → the next critic, its optimizer state, and `critic_update.json`. It does not
//! depend on the policy's update and runs in parallel with it.

use super::artifacts::{self, read};
use super::training::state::{Found, Left, optimizer_of, upload_state};
use super::training::step::{say_if_skipped, with_sums};
use super::training::units::{Size, Units};
use super::training::workbench::Workbench;
use super::training::{ADAM_EPS, Brakes, options, upload_critic};
use crate::blocking::blocking;
use crate::metrics::{self, write_json};
use crate::policies::CRITIC;
use crate::{Error, Report, Result, StageContext};
use agentgym_algorithms::losses::{Denominator, ValueLoss, ValueSums, ValueTokens};
use agentgym_jobs::artifact_names;
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{Batch, BatchEpisode, CriticSequence, CriticTargets};
use agentgym_model::{AdamW, ComputeOptions, Critic, ScoreRequest, Trainer};
use agentgym_record::documents::{CriticSettings, CriticStep, CriticSteps, UnitRule};
use agentgym_record::figures::mean;
use agentgym_record::metrics::CriticMetrics;
use agentgym_record::weights::{
    denominators, loss_tokens, micro_batch_size, minibatch_slots, wide,
};
use agentgym_storage::Outputs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

struct Trained {
    critic: Critic,
    left: Left,
    record: CriticSteps,
    size: Size,
    seconds: f64,
}

const BRAKES: Brakes = Brakes {
    lr: "critic.optim.lr",
    grad_clip: "critic.grad_clip",
};

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let (plan, id) = (Arc::clone(&context.plan), context.part.id);
    let Batch::V1(batch) = read(&context.inputs, "batch", artifact_names::BATCH).await?;
    let CriticTargets::V1(targets) =
        read(&context.inputs, "batch", artifact_names::TARGETS).await?;
    let critic = artifacts::critic(context, CRITIC).await?;
    let optimizer = optimizer_of(context, CRITIC, Stage::CriticUpdate).await?;
    let settings = settings(&plan, context.part.id.iteration)?;
    let work = Workbench::of(context);
    let trained = blocking(move || {
        let mut trainer = trainer(&critic, &settings, optimizer)?;
        let start = Instant::now();
        let (mut steps, mut size) = (Vec::new(), Size::default());
        let minibatches = minibatch_slots(&plan, plan.config.critic.ppo_mini_batch_size)?;
        let total = u64::from(settings.ppo_epochs) * minibatches.len() as u64;
        let tick = || work.beat.tick();
        let checkpointed = plan.config.critic.model.enable_gradient_checkpointing;
        let options = options(&plan, work.threads, checkpointed, &tick);
        for epoch in 0..settings.ppo_epochs {
            for (index, slots) in minibatches.iter().enumerate() {
                work.check_cancelled()?;
                let minibatch = Minibatch::new(&batch, &targets, slots.clone(), &settings)?;
                size += minibatch.size();
                let _call = work.beat.busy();
                let step = minibatch.train(&mut trainer, &settings, (epoch, index), &options);
                let place = || format!("optimizer step {} of {total} of {id}", steps.len() + 1);
                let step = step.map_err(BRAKES.failed(place))?;
                steps.push(step);
                work.beat
                    .progress(steps.len() as u64, total, "optimizer steps");
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let saved = (trainer.into_parts().map_err(Error::from)).and_then(|(critic, state)| {
            critic.save(&work.scratch.join(CRITIC))?;
            Ok((critic, work.leave(state)?))
        });
        let (critic, left) = saved.map_err(BRAKES.failed(|| id.to_string()))?;
        Ok(Trained {
            critic,
            left,
            record: CriticSteps {
                settings,
                minibatches: steps,
            },
            size,
            seconds,
        })
    })
    .await?;
    upload_critic(context, outputs, trained.critic).await?;
    upload_state(context, outputs, trained.left).await?;
    metrics::write(outputs, &summarise(&trained.record, trained.size)).await?;
    write_json(
        outputs,
        artifact_names::CRITIC_UPDATE,
        "update",
        &trained.record,
    )
    .await?;
    let mut report = Report::default();
    report
        .stats
        .trained(trained.size.tokens as u64, trained.seconds);
    Ok(report)
}

fn settings(plan: &Plan, iteration: u32) -> Result<CriticSettings> {
    let critic = &plan.config.critic;
    let loss = plan.config.value_loss();
    let micro_batch_size = micro_batch_size(loss.aggregation, critic.ppo_micro_batch_size);
    Ok(CriticSettings {
        iteration,
        lr: critic.optim.learning_rate(plan.iterations)?.at(iteration),
        betas: critic.optim.betas,
        eps: ADAM_EPS,
        weight_decay: critic.optim.weight_decay,
        decay_excludes_norms_and_biases: critic.optim.decay_excludes_norms_and_biases,
        grad_clip: critic.grad_clip,
        loss,
        ppo_epochs: critic.ppo_epochs,
        units: UnitRule::of(&plan.config),
        micro_batch_size,
    })
}

fn trainer(
    critic: &Arc<Critic>,
    settings: &CriticSettings,
    optimizer: Option<Found>,
) -> Result<Trainer<Critic>> {
    let adamw = AdamW {
        betas: settings.betas,
        eps: settings.eps,
        weight_decay: settings.weight_decay,
        grad_clip: settings.grad_clip,
        decay_excludes_norms_and_biases: settings.decay_excludes_norms_and_biases,
    };
    let critic = Critic::clone(critic);
    Ok(match optimizer {
        None => Trainer::new(critic, adamw),
        Some(Found::InFolder(folder)) => Trainer::resume(critic, adamw, Some(folder.path()))?,
        Some(Found::InMemory(state)) => Trainer::go_on(critic, adamw, *state)?,
    })
}

/// A sequence of the minibatch.
struct Member<'a> {
    token_ids: &'a [u32],
    loss_mask: &'a [bool],
    targets: &'a CriticSequence,
    denominator: Denominator,
}

impl<'a> Member<'a> {
    fn request(&self) -> ScoreRequest<'a> {
        ScoreRequest {
            token_ids: self.token_ids,
            loss_mask: self.loss_mask,
        }
    }
}

/// A minibatch cut into gradient units. Every loss token contributes to the critic's gradient,
/// whatever its advantage.
struct Minibatch<'a> {
    slots: Vec<usize>,
    denominator: Denominator,
    members: Vec<Member<'a>>,
    /// Numbers of members.
    units: Units,
}

impl<'a> Minibatch<'a> {
    fn new(
        batch: &'a [Option<BatchEpisode>],
        targets: &'a [Option<Vec<CriticSequence>>],
        slots: Range<usize>,
        settings: &CriticSettings,
    ) -> Result<Self> {
        let episode = |slot: usize| batch.get(slot).and_then(Option::as_ref);
        let counts = loss_tokens(batch, slots.clone());
        let by_slot = denominators(&counts, settings.micro_batch_size);
        let (mut members, mut filled) = (Vec::new(), Vec::new());
        for (slot, denominator) in slots.zip(by_slot) {
            let Some(episode) = episode(slot) else {
                continue;
            };
            let own = targets.get(slot).and_then(Option::as_ref);
            let own = own
                .filter(|own| own.len() == episode.sequences.len())
                .ok_or_else(|| {
                    Error::stage(format!(
                        "targets.bin has nothing for slot {slot} of batch.bin (task {}); \
                         delete the commit of the advantage so that it is made again",
                        episode.task
                    ))
                })?;
            filled.push(slot);
            members.extend(
                episode
                    .sequences
                    .iter()
                    .zip(own)
                    .filter(|(s, _)| s.sequence.loss_tokens() > 0)
                    .map(|(s, targets)| Member {
                        token_ids: &s.sequence.token_ids,
                        loss_mask: &s.sequence.loss_mask,
                        targets,
                        denominator,
                    }),
            );
        }
        let requests: Vec<_> = members.iter().map(Member::request).collect();
        Ok(Self {
            slots: filled,
            denominator: Denominator::of(counts.concat()),
            units: Units::cut(settings.units, &requests, 1)?,
            members,
        })
    }

    /// What goes through forward and backward.
    fn size(&self) -> Size {
        self.units.size(0..self.units.len())
    }

    fn train(
        &self,
        trainer: &mut Trainer<Critic>,
        settings: &CriticSettings,
        (epoch, minibatch): (u32, usize),
        options: &ComputeOptions<'_>,
    ) -> Result<CriticStep> {
        let mut step = CriticStep {
            epoch,
            minibatch,
            slots: self.slots.clone(),
            denominator: self.denominator,
            skipped: self.members.is_empty(),
            non_finite: false,
            grad_norm: 0.0,
            clip_scale: 1.0,
            metrics: ValueSums::default().metrics(),
        };
        if step.skipped {
            return Ok(step);
        }
        let model_units = self.units.for_model(|at| self.members[at].request());
        let loss = |unit: usize, values: &Vec<Vec<f32>>| self.loss(unit, values, &settings.loss);
        let (report, units) = with_sums(self.units.len(), loss, |coefficients| {
            trainer.step(&model_units, (), settings.lr, coefficients, options)
        })?;
        say_if_skipped(&report, "the critic");
        let mut total = ValueSums::default();
        units.iter().for_each(|unit| total.merge(unit));
        step.skipped = report.skipped_non_finite;
        step.non_finite = report.skipped_non_finite;
        step.grad_norm = Some(report.grad_norm)
            .filter(|norm| norm.is_finite())
            .unwrap_or(0.0);
        step.clip_scale = report.clip_scale;
        step.metrics = total.metrics();
        Ok(step)
    }

    /// The loss of a unit.
    fn loss(
        &self,
        unit: usize,
        values: &[Vec<f32>],
        loss: &ValueLoss,
    ) -> Result<(Vec<Vec<f64>>, ValueSums)> {
        let (mut rows, mut sums) = (Vec::new(), ValueSums::default());
        for (&at, values) in self.units.of(unit).iter().zip(values) {
            let member = &self.members[at];
            let tokens = ValueTokens {
                values: &wide(values),
                old_values: &wide(&member.targets.values),
                returns: &member.targets.returns,
                loss_mask: member.loss_mask,
            };
            let output = loss.evaluate(&tokens, member.denominator)?;
            sums.merge(&output.sums);
            rows.push(output.coefficients);
        }
        Ok((rows, sums))
    }
}

fn summarise(record: &CriticSteps, size: Size) -> CriticMetrics {
    let all = &record.minibatches;
    let taken: Vec<&CriticStep> = all.iter().filter(|step| !step.skipped).collect();
    let average = |value: fn(&CriticStep) -> f64| mean(taken.iter().map(|step| value(step)));
    CriticMetrics {
        vf_loss: average(|s| s.metrics.loss),
        vf_clip_fraction: average(|s| s.metrics.clip_fraction),
        value_mean: average(|s| s.metrics.value_mean),
        grad_norm: average(|s| s.grad_norm),
        lr: record.settings.lr,
        optimizer_steps: taken.len(),
        skipped_steps: all.len() - taken.len(),
        non_finite_steps: Some(all.iter().filter(|s| s.non_finite).count()),
        tokens: size.trained_by(record.settings.units),
    }
}

#[cfg(test)]
mod tests;
