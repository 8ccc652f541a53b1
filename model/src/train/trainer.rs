//! Optimizer steps. The trainer knows no loss: it runs a unit forward, hands the
//! log-probabilities and entropies out, takes back the derivative of the loss by
//! each of them as constants, and back-propagates. One thread computes a unit
//! alone; units are added in a fixed tree, so threads never show in a result.

use crate::batch::ScoreRequest;
use crate::batch::Streams;
use crate::compute::fit::where_it_fits;
use crate::compute::gradient_tree::{
    PartialSum, UnitGradients, over_some_units, over_units, over_units_in_place,
};
use crate::compute::teacher_forced::{TeacherForced, check_sequence, check_temperature};
use crate::cpu::adamw::{AdamW, StepReport};
use crate::cpu::gradients::Gradients;
use crate::parallel::ComputeOptions;
use crate::spare::Spare;
use crate::train::learner::Learner;
use crate::{Error, Policy, Result};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// One sequence to train on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrainSequence {
    /// The whole sequence.
    pub token_ids: Vec<u32>,
    /// Which tokens the loss sees; never the first.
    pub loss_mask: Vec<bool>,
}

impl TrainSequence {
    pub(crate) fn request(&self) -> ScoreRequest<'_> {
        ScoreRequest {
            token_ids: &self.token_ids,
            loss_mask: &self.loss_mask,
        }
    }
}

/// A gradient unit: sequences whose gradient one thread computes alone.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Unit {
    /// Its sequences.
    pub sequences: Vec<TrainSequence>,
    /// The caller knows that it contributes nothing: not even a forward pass.
    pub skip: bool,
}

/// What the policy gives for a unit, per sequence and token as in [`crate::Scores`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UnitStreams {
    /// Log-probability of each masked token.
    pub log_probs: Vec<Vec<f32>>,
    /// Entropy of each masked token's distribution.
    pub entropies: Vec<Vec<f32>>,
}

/// Derivative of the loss by each number of [`UnitStreams`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UnitCoefficients {
    /// By the log-probabilities.
    pub log_probs: Vec<Vec<f64>>,
    /// By the entropies.
    pub entropies: Vec<Vec<f64>>,
}

/// Asked between forward and backward of each unit, from the thread that computes it.
pub type Coefficients<'a> = dyn Fn(usize, &UnitStreams) -> UnitCoefficients + Sync + 'a;

/// A policy under training and its optimizer state. Of a policy with an adapter
/// the adapter alone is trained.
pub struct Trainer {
    learner: Learner,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let trained = self.learner.model().trained_weights();
        f.debug_struct("Trainer")
            .field("trained", &trained.parameter_count())
            .field("steps", &self.learner.steps())
            .finish_non_exhaustive()
    }
}

impl Trainer {
    /// Starts with a fresh optimizer state.
    pub fn new(policy: Policy, options: AdamW) -> Self {
        let learner = Learner::new(policy, options);
        Trainer { learner }
    }

    /// Carries on with the optimizer state in `dir`.
    pub fn with_state(policy: Policy, options: AdamW, dir: &Path) -> Result<Self> {
        let learner = Learner::with_state(policy, options, dir)?;
        Ok(Trainer { learner })
    }

    /// One optimizer step on a minibatch cut into units.
    pub fn step(
        &mut self,
        units: &[Unit],
        temperature: f64,
        lr: f64,
        coefficients: &Coefficients<'_>,
        options: &ComputeOptions<'_>,
    ) -> Result<StepReport> {
        check_temperature(temperature)?;
        let pass = self.pass(units, temperature, coefficients, options);
        let unit = |number| pass.unit(number);
        let (gradients, tokens) = over_units_in_place(options, units.len(), unit)?;
        let report = self.learner.step(gradients, lr, options)?;
        Ok(StepReport { tokens, ..report })
    }

    /// The same step, on gradients that others have computed by
    /// [`partial_gradients`]: all units of the minibatch, each once.
    ///
    /// # Errors
    /// Units are missing.
    pub fn step_on(
        &mut self,
        parts: Vec<PartialSum>,
        lr: f64,
        options: &ComputeOptions<'_>,
    ) -> Result<StepReport> {
        let gradients = PartialSum::whole(parts)?;
        self.learner.step(gradients.into(), lr, options)
    }

    fn pass<'a>(
        &'a self,
        units: &'a [Unit],
        temperature: f64,
        coefficients: &'a Coefficients<'_>,
        options: &'a ComputeOptions<'_>,
    ) -> Pass<'a> {
        Pass {
            policy: self.learner.model(),
            units,
            temperature,
            coefficients,
            options,
            spare: Arc::clone(self.learner.spare()),
        }
    }

    /// The gradient of a minibatch, summed over its units, and how many tokens went
    /// through a forward pass.
    pub fn gradients(
        &self,
        units: &[Unit],
        temperature: f64,
        coefficients: &Coefficients<'_>,
        options: &ComputeOptions<'_>,
    ) -> Result<(Gradients, usize)> {
        check_temperature(temperature)?;
        let pass = self.pass(units, temperature, coefficients, options);
        over_units(options, units.len(), |number| pass.unit(number))
    }

    /// Reads gradients that [`partial_gradients`] computed for this policy.
    ///
    /// # Errors
    /// The file is missing, or of another model.
    pub fn read_partial(&self, dir: &Path) -> Result<PartialSum> {
        let size = |(name, shape): (String, Vec<usize>)| (name, shape.iter().product());
        let sizes = self.learner.model().trained_shapes().into_iter().map(size);
        PartialSum::load(dir, &sizes.collect())
    }

    /// The policy as of the last step; later steps do not change it.
    ///
    /// # Errors
    /// The GPU that has it is lost.
    pub fn policy(&mut self) -> Result<Policy> {
        self.learner.fetch().cloned()
    }

    /// The policy as of the last step.
    ///
    /// # Errors
    /// The GPU that has it is lost.
    pub fn into_policy(self) -> Result<Policy> {
        self.learner.into_model()
    }

    /// Optimizer steps made, those before a resume included.
    pub fn optimizer_steps(&self) -> u64 {
        self.learner.steps()
    }

    /// Writes `state.safetensors` into `dir`, for [`Trainer::with_state`].
    ///
    /// # Errors
    /// The file cannot be written, or the GPU that has the state is lost.
    pub fn save_optimizer(&self, dir: &Path) -> Result<()> {
        self.learner.save_state(dir)
    }
}

/// The gradients of `some` of a minibatch's units, and how many tokens went through
/// a forward pass. The units are those of the whole minibatch: what is
/// computed elsewhere fits into the same sum.
///
/// # Errors
/// A unit cannot be computed: an id outside the vocabulary, a sequence that is
/// too long, coefficients of another shape.
pub fn partial_gradients(
    policy: &Policy,
    units: &[Unit],
    some: Range<usize>,
    temperature: f64,
    coefficients: &Coefficients<'_>,
    options: &ComputeOptions<'_>,
) -> Result<(PartialSum, usize)> {
    check_temperature(temperature)?;
    let pass = Pass {
        policy,
        units,
        temperature,
        coefficients,
        options,
        spare: Arc::default(),
    };
    over_some_units(options, units.len(), some, |number| pass.unit(number))
}

/// Forward and backward over the units of a minibatch.
struct Pass<'a> {
    policy: &'a Policy,
    units: &'a [Unit],
    temperature: f64,
    coefficients: &'a Coefficients<'a>,
    options: &'a ComputeOptions<'a>,
    /// Memory for gradients.
    spare: Arc<Spare>,
}

impl Pass<'_> {
    /// The unit of a number: forward, the caller's coefficients, backward; no gradients where
    /// nothing contributes. And how many tokens went through.
    fn unit(&self, number: usize) -> Result<(Option<UnitGradients>, usize)> {
        let (network, unit) = (self.policy.network(), &self.units[number]);
        let requests = unit.sequences.iter().map(TrainSequence::request);
        for (number, request) in requests.clone().enumerate() {
            check_sequence(network, network.vocabulary(), &request)
                .map_err(|message| Error::Request(format!("sequence {number}: {message}")))?;
        }
        let forced = TeacherForced::new(requests);
        if unit.skip || forced.is_empty() {
            return Ok((None, 0));
        }
        // Asked once, also where the unit is computed again.
        let mut asked = None;
        let gradients = where_it_fits(self.policy.gpu(), self.options, |checkpointed| {
            let (streams, recorded) =
                forced.forward_recorded(network, self.temperature, checkpointed)?;
            let coefficients = match &asked {
                Some(coefficients) => coefficients,
                None => {
                    let streams = UnitStreams {
                        log_probs: forced.spread(&streams.log_probs),
                        entropies: forced.spread(&streams.entropies),
                    };
                    let coefficients = (self.coefficients)(number, &streams);
                    asked.insert(Streams {
                        log_probs: forced.gather(&coefficients.log_probs, "log_probs")?,
                        entropies: forced.gather(&coefficients.entropies, "entropies")?,
                    })
                }
            };
            let mut all = coefficients.log_probs.iter().chain(&coefficients.entropies);
            if all.all(|&coefficient| coefficient == 0.0) {
                return Ok(None);
            }
            let (temperature, spare) = (self.temperature, &self.spare);
            let gradients = forced.backward(network, temperature, recorded, coefficients, spare)?;
            Ok(Some(gradients))
        })?;
        Ok((gradients, forced.tokens()))
    }
}
