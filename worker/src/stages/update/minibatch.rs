//! A minibatch of the update: which sequences it computes, how they are cut into gradient units,
//! and its optimizer step.
//!
//! The members of a minibatch and of a gradient unit follow from the plan and the batch. Sequences
//! whose coefficients are all zero (no advantage, and no entropy or KL term) are left out before
//! units are cut: they would only cost time. They still count in the denominator.

use super::steps::Place;
use crate::Result;
use crate::stages::training::step::{say_if_skipped, with_sums};
use crate::stages::training::units::{Size, Units};
use agentgym_algorithms::losses::{ActorLoss, ActorSums, ActorTokens, Denominator};
use agentgym_jobs::records::{BatchEpisode, BatchSequence};
use agentgym_model::{
    ComputeOptions, PartialSum, Policy, ScoreRequest, StepReport, Trainer, Unit, UnitCoefficients,
    UnitStreams, partial_gradients,
};
use agentgym_record::documents::{UpdateSettings, UpdateStep};
use agentgym_record::weights::{denominators, loss_tokens, wide};
use std::ops::Range;

/// The result of some of a minibatch's units.
pub(super) struct Share {
    pub(super) gradient: PartialSum,
    /// Sums of each of the units, in order.
    pub(super) units: Vec<ActorSums>,
}

/// A minibatch cut into gradient units.
pub(super) struct Minibatch<'a> {
    pub(super) slots: Vec<usize>,
    pub(super) denominator: Denominator,
    /// Slot and sequence of each sequence with a gradient, in slot order.
    pub(super) members: Vec<(usize, &'a BatchSequence)>,
    /// The denominator of each member's tokens.
    pub(super) denominators: Vec<Denominator>,
    /// Numbers of members.
    pub(super) units: Units,
}

impl<'a> Minibatch<'a> {
    pub(super) fn new(
        batch: &'a [Option<BatchEpisode>],
        slots: Range<usize>,
        settings: &UpdateSettings,
    ) -> Result<Self> {
        let first = slots.start;
        let filled: Vec<(usize, &BatchEpisode)> = slots
            .clone()
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
        let requests: Vec<_> = members.iter().map(|(_, s)| request(s)).collect();
        let by_slot = denominators(&loss_tokens(batch, slots), settings.micro_batch_size);
        Ok(Self {
            denominators: members
                .iter()
                .map(|(slot, _)| by_slot[slot - first])
                .collect(),
            slots: filled.iter().map(|(slot, _)| *slot).collect(),
            denominator: Denominator::of_masks(
                sequences().map(|(_, s)| s.sequence.loss_mask.as_slice()),
            ),
            units: Units::cut(settings.units, &requests, 1)?,
            members,
        })
    }

    /// What goes through forward and backward.
    pub(super) fn size(&self) -> Size {
        self.units.size(0..self.units.len())
    }

    /// The whole optimizer step on one worker.
    pub(super) fn train(
        &self,
        trainer: &mut Trainer,
        settings: &UpdateSettings,
        place: &Place,
        options: &ComputeOptions<'_>,
    ) -> Result<UpdateStep> {
        if self.members.is_empty() {
            return Ok(self.skipped(place));
        }
        let loss = |unit: usize, streams: &UnitStreams| self.loss(unit, streams, &settings.loss);
        let (report, units) = with_sums(self.units.len(), loss, |coefficients| {
            let (temperature, lr) = (settings.temperature, settings.lr);
            trainer.step(&self.model_units(), temperature, lr, coefficients, options)
        })?;
        Ok(self.stepped(place, &units, report))
    }

    /// The gradient of some units.
    pub(super) fn share(
        &self,
        policy: &Policy,
        settings: &UpdateSettings,
        units: Range<usize>,
        options: &ComputeOptions<'_>,
    ) -> Result<Share> {
        let (model_units, temperature) = (self.model_units(), settings.temperature);
        let loss = |unit: usize, streams: &UnitStreams| self.loss(unit, streams, &settings.loss);
        let (gradient, mut sums) = with_sums(self.units.len(), loss, |coefficients| {
            let some = units.clone();
            partial_gradients(
                policy,
                &model_units,
                some,
                temperature,
                coefficients,
                options,
            )
        })?;
        Ok(Share {
            gradient: gradient.0,
            units: sums.drain(units).collect(),
        })
    }

    /// The optimizer step, given the gradients of all units in unit order.
    pub(super) fn step(
        &self,
        trainer: &mut Trainer,
        settings: &UpdateSettings,
        place: &Place,
        shares: Vec<Share>,
        options: &ComputeOptions<'_>,
    ) -> Result<UpdateStep> {
        if self.members.is_empty() {
            return Ok(self.skipped(place));
        }
        let (gradients, units): (Vec<_>, Vec<_>) = shares
            .into_iter()
            .map(|share| (share.gradient, share.units))
            .unzip();
        let report = trainer.step_on(gradients, settings.lr, options)?;
        Ok(self.stepped(place, &units.concat(), report))
    }

    /// The record of a step without a gradient.
    fn skipped(&self, place: &Place) -> UpdateStep {
        let slots = |members: &[usize]| members.iter().map(|&at| self.members[at].0).collect();
        UpdateStep {
            epoch: place.epoch,
            minibatch: place.minibatch,
            slots: self.slots.clone(),
            units: self.units.iter().map(slots).collect(),
            denominator: self.denominator,
            skipped: true,
            non_finite: false,
            grad_norm: 0.0,
            clip_scale: 1.0,
            metrics: ActorSums::default().metrics(),
        }
    }

    /// The record of a step, given the sums of its units.
    fn stepped(&self, place: &Place, units: &[ActorSums], report: StepReport) -> UpdateStep {
        say_if_skipped(&report, "the policy");
        // In unit order, not in the order in which threads or workers finished.
        let mut total = ActorSums::default();
        units.iter().for_each(|unit| total.merge(unit));
        UpdateStep {
            skipped: report.skipped_non_finite,
            non_finite: report.skipped_non_finite,
            grad_norm: if report.grad_norm.is_finite() {
                report.grad_norm
            } else {
                0.0
            },
            clip_scale: report.clip_scale,
            metrics: total.metrics(),
            ..self.skipped(place)
        }
    }

    fn model_units(&self) -> Vec<Unit> {
        self.units.for_model(|at| request(self.members[at].1))
    }

    /// The loss of a unit.
    fn loss(
        &self,
        unit: usize,
        streams: &UnitStreams,
        loss: &ActorLoss,
    ) -> Result<(UnitCoefficients, ActorSums)> {
        let (mut out, mut sums) = (UnitCoefficients::default(), ActorSums::default());
        for (index, &at) in self.units.of(unit).iter().enumerate() {
            let member = self.members[at].1;
            let reference = member.ref_log_probs.as_deref().map(wide);
            let tokens = ActorTokens {
                log_probs: &wide(&streams.log_probs[index]),
                entropies: &wide(&streams.entropies[index]),
                old_log_probs: &wide(&member.old_log_probs),
                ref_log_probs: reference.as_deref(),
                advantages: &member.advantages,
                loss_mask: &member.sequence.loss_mask,
            };
            let output = loss.evaluate(&tokens, self.denominators[at])?;
            sums.merge(&output.sums);
            out.log_probs.push(output.coefficients.log_probs);
            out.entropies.push(output.coefficients.entropies);
        }
        Ok((out, sums))
    }
}

fn request(sequence: &BatchSequence) -> ScoreRequest<'_> {
    ScoreRequest {
        token_ids: &sequence.sequence.token_ids,
        loss_mask: &sequence.sequence.loss_mask,
    }
}
