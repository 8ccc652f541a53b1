//! Optimizer steps. The trainer does not know the loss: it runs a unit forward, passes
//! its log-probabilities and entropies to the caller, receives the derivative of the
//! loss by each of them as constants, and back-propagates. One thread computes a unit
//! alone; units are added in a fixed tree, so results do not depend on threads.

use crate::batch::ScoreRequest;
use crate::batch::Streams;
use crate::compute::fit::{Room, where_it_fits};
use crate::compute::footprint::Footprint;
use crate::compute::gradient_tree::{
    PartialSum, UnitGradients, Units, over_some_units, over_units, over_units_in_place,
};
use crate::compute::teacher_forced::{Recorded, TeacherForced, check_sequence, check_temperature};
use crate::cpu::adamw::{AdamW, StepReport};
use crate::cpu::gradients::Gradients;
use crate::parallel::ComputeOptions;
use crate::spare::Spare;
use crate::train::learner::Learner;
use crate::train::optimizer_state::OptimizerState;
use crate::{Error, Policy, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// One sequence to train on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrainSequence {
    /// The whole sequence.
    pub token_ids: Vec<u32>,
    /// Which tokens are part of the loss; never the first.
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
    /// The caller knows that it contributes nothing: it gets no forward pass either.
    pub skip: bool,
    /// Computes what its sequences have in common once, and no token after the last one that is
    /// part of the loss. The gradient is the same sum in another order.
    pub share_prefixes: bool,
}

/// The policy's output for a unit, per sequence and token as in [`crate::Scores`].
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

/// A model that a [`Trainer`] can train: [`Policy`], whose head gives log-probabilities, and
/// [`crate::Critic`], whose head gives values.
pub trait Trainable: Sized + Send + Sync {
    /// The head's output for a unit, per sequence and token.
    type Streams;
    /// Derivative of the loss by each number of the streams.
    type Coefficients;
    /// The head's settings, apart from its weights.
    type Settings: Copy + Send + Sync;
}

/// A model's head, as used by an optimizer step.
pub(crate) trait Head: Trainable {
    /// The coefficients of a unit, in the network's packed order.
    type Gathered: Send + Sync;
    /// What a forward pass records for the backward pass.
    type Recorded;

    /// The network and its head's weights.
    fn network(&self) -> &Policy;

    /// Drops everything but the network.
    fn into_network(self) -> Policy;

    /// The inverse of [`Head::into_network`].
    fn of_network(network: Policy) -> Self;

    /// Refuses settings that give no finite numbers.
    fn check(settings: Self::Settings) -> Result<()>;

    /// The streams of a unit.
    fn forward(
        &self,
        forced: &TeacherForced,
        settings: Self::Settings,
        checkpointed: bool,
    ) -> Result<(Self::Streams, Self::Recorded)>;

    /// Packs coefficients; `None` where all of them are 0.
    fn gather(
        forced: &TeacherForced,
        coefficients: &Self::Coefficients,
    ) -> Result<Option<Self::Gathered>>;

    /// Adds the gradients of a unit to `gradients`, which are of no use after an error.
    fn backward(
        &self,
        forced: &TeacherForced,
        settings: Self::Settings,
        recorded: Self::Recorded,
        coefficients: &Self::Gathered,
        gradients: &mut UnitGradients,
    ) -> Result<()>;
}

impl Trainable for Policy {
    type Streams = UnitStreams;
    type Coefficients = UnitCoefficients;
    /// The sampling temperature.
    type Settings = f64;
}

impl Head for Policy {
    type Gathered = Streams;
    type Recorded = Recorded;

    fn network(&self) -> &Policy {
        self
    }

    fn into_network(self) -> Policy {
        self
    }

    fn of_network(network: Policy) -> Self {
        network
    }

    fn check(temperature: f64) -> Result<()> {
        check_temperature(temperature)
    }

    fn forward(
        &self,
        forced: &TeacherForced,
        temperature: f64,
        checkpointed: bool,
    ) -> Result<(UnitStreams, Recorded)> {
        let (streams, recorded) =
            forced.forward_recorded(Policy::network(self), temperature, checkpointed)?;
        let streams = UnitStreams {
            log_probs: forced.spread(&streams.log_probs),
            entropies: forced.spread(&streams.entropies),
        };
        Ok((streams, recorded))
    }

    fn gather(forced: &TeacherForced, coefficients: &UnitCoefficients) -> Result<Option<Streams>> {
        let gathered = Streams {
            log_probs: forced.gather(&coefficients.log_probs, "log_probs")?,
            entropies: forced.gather(&coefficients.entropies, "entropies")?,
        };
        let mut all = gathered.log_probs.iter().chain(&gathered.entropies);
        let zero = all.all(|&coefficient| coefficient == 0.0);
        Ok((!zero).then_some(gathered))
    }

    fn backward(
        &self,
        forced: &TeacherForced,
        temperature: f64,
        recorded: Recorded,
        coefficients: &Streams,
        gradients: &mut UnitGradients,
    ) -> Result<()> {
        let network = Policy::network(self);
        forced.backward(network, temperature, recorded, coefficients, gradients)
    }
}

/// Called between forward and backward of each unit, on the thread that computes it.
pub type Coefficients<'a, M = Policy> =
    dyn Fn(usize, &<M as Trainable>::Streams) -> <M as Trainable>::Coefficients + Sync + 'a;

/// A model under training, and its optimizer's state. For a policy with an adapter,
/// only the adapter is trained.
pub struct Trainer<M = Policy> {
    learner: Learner,
    model: PhantomData<M>,
}

impl<M> std::fmt::Debug for Trainer<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let trained = self.learner.model().trained_weights();
        f.debug_struct("Trainer")
            .field("trained", &trained.parameter_count())
            .field("steps", &self.learner.steps())
            .finish_non_exhaustive()
    }
}

#[expect(
    private_bounds,
    reason = "which models have a head is this crate's to say"
)]
impl<M: Head> Trainer<M> {
    /// Starts with a fresh optimizer state.
    pub fn new(model: M, options: AdamW) -> Self {
        let model = model.into_network();
        let state = OptimizerState::new(&model);
        Self::of(model, options, state)
    }

    fn of(network: Policy, options: AdamW, state: OptimizerState) -> Self {
        Trainer {
            learner: Learner::new(network, options, state),
            model: PhantomData,
        }
    }

    /// Resumes with the optimizer state in a folder, or starts with a fresh one.
    ///
    /// # Errors
    /// The state cannot be read, or is another model's.
    pub fn resume(model: M, options: AdamW, state: Option<&Path>) -> Result<Self> {
        let Some(dir) = state else {
            return Ok(Self::new(model, options));
        };
        let model = model.into_network();
        let state = OptimizerState::load(&model, dir)?;
        Ok(Self::of(model, options, state))
    }

    /// Goes on with a state.
    ///
    /// # Errors
    /// It is another model's.
    pub fn go_on(model: M, options: AdamW, state: OptimizerState) -> Result<Self> {
        let model = model.into_network();
        (state.check(&model)).map(|state| Self::of(model, options, state))
    }

    /// One optimizer step on a minibatch divided into units.
    ///
    /// # Errors
    /// A unit cannot be computed: an id outside the vocabulary, a sequence that is
    /// too long, coefficients of another shape.
    pub fn step(
        &mut self,
        units: &[Unit],
        settings: M::Settings,
        lr: f64,
        coefficients: &Coefficients<'_, M>,
        options: &ComputeOptions<'_>,
    ) -> Result<StepReport> {
        let (gradients, tokens) = {
            // Afterwards it no longer shares the network, which the step overwrites.
            let pass = self.pass(units, settings, coefficients, options)?;
            over_units_in_place(options, pass.units(), |own, room| pass.run(own, room))?
        };
        let report = self.learner.step(gradients, lr, options)?;
        Ok(StepReport { tokens, ..report })
    }

    /// The gradient of a minibatch, summed over its units, and how many tokens went
    /// through a forward pass.
    ///
    /// # Errors
    /// As [`Trainer::step`].
    pub fn gradients(
        &self,
        units: &[Unit],
        settings: M::Settings,
        coefficients: &Coefficients<'_, M>,
        options: &ComputeOptions<'_>,
    ) -> Result<(Gradients, usize)> {
        let pass = self.pass(units, settings, coefficients, options)?;
        over_units(options, pass.units(), |own, room| pass.run(own, room))
    }

    fn pass<'a>(
        &self,
        units: &'a [Unit],
        settings: M::Settings,
        coefficients: &'a Coefficients<'_, M>,
        options: &'a ComputeOptions<'_>,
    ) -> Result<Pass<'a, M>> {
        let model = M::of_network(self.learner.model().clone());
        let spare = Arc::clone(self.learner.spare());
        Pass::new(model, units, settings, coefficients, options, spare)
    }

    /// The model as of the last step; later steps do not change the returned one.
    ///
    /// # Errors
    /// The GPU that has it is lost.
    pub fn model(&mut self) -> Result<M> {
        Ok(M::of_network(self.learner.fetch()?.clone()))
    }

    /// The model as of the last step.
    ///
    /// # Errors
    /// The GPU that has it is lost.
    pub fn into_model(self) -> Result<M> {
        Ok(M::of_network(self.learner.into_model()?))
    }

    /// Optimizer steps made, those before a resume included.
    pub fn optimizer_steps(&self) -> u64 {
        self.learner.steps()
    }

    #[cfg(test)]
    pub(crate) fn save_optimizer(&self, dir: &Path) -> Result<()> {
        self.learner.state()?.save(dir)
    }

    /// The model as of the last step, and its state for [`Trainer::go_on`].
    ///
    /// # Errors
    /// The GPU that has them is lost.
    pub fn into_parts(self) -> Result<(M, OptimizerState)> {
        let parts = self.learner.into_parts();
        parts.map(|(model, state)| (M::of_network(model), state))
    }
}

impl Trainer {
    /// [`Trainer::step`] on gradients that other workers have computed with
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

    /// Reads gradients that [`partial_gradients`] computed for this policy.
    ///
    /// # Errors
    /// The file is missing, or of another model.
    pub fn read_partial(&self, dir: &Path) -> Result<PartialSum> {
        let size = |(name, shape): (String, Vec<usize>)| (name, shape.iter().product());
        let sizes = self.learner.model().trained_shapes().into_iter().map(size);
        PartialSum::load(dir, &sizes.collect())
    }
}

/// The gradients of `some` of a minibatch's units, and how many tokens went through
/// a forward pass. `units` are those of the whole minibatch, so that results of
/// several workers fit into the same sum; `some` are those of [`crate::shard_of_units`].
///
/// # Errors
/// As [`Trainer::step`].
pub fn partial_gradients(
    policy: &Policy,
    units: &[Unit],
    some: Range<usize>,
    temperature: f64,
    coefficients: &Coefficients<'_>,
    options: &ComputeOptions<'_>,
) -> Result<(PartialSum, usize)> {
    let (policy, spare) = (policy.clone(), Arc::default());
    let pass = Pass::new(policy, units, temperature, coefficients, options, spare)?;
    over_some_units(options, pass.units(), some, |own, room| pass.run(own, room))
}

/// Forward and backward over the units of a minibatch.
struct Pass<'a, M: Head> {
    model: M,
    units: &'a [Unit],
    settings: M::Settings,
    coefficients: &'a Coefficients<'a, M>,
    options: &'a ComputeOptions<'a>,
    /// Memory for gradients.
    spare: Arc<Spare>,
}

impl<'a, M: Head> Pass<'a, M> {
    fn new(
        model: M,
        units: &'a [Unit],
        settings: M::Settings,
        coefficients: &'a Coefficients<'_, M>,
        options: &'a ComputeOptions<'_>,
        spare: Arc<Spare>,
    ) -> Result<Self> {
        M::check(settings)?;
        Ok(Pass {
            model,
            units,
            settings,
            coefficients,
            options,
            spare,
        })
    }

    /// The minibatch's units, in the runs of the device.
    fn units(&self) -> Units {
        let count = self.units.len();
        match self.model.network().gpu() {
            Some(_) => Units::in_runs(count),
            None => Units::apart(count),
        }
    }

    /// Computes the sum of a run of units; `None` where nothing contributes. Also returns how many
    /// tokens went through. Where the device's memory is full the run is computed from its first
    /// unit again.
    fn run(&self, own: Range<usize>, room: &Room<'_>) -> Result<(Option<UnitGradients>, usize)> {
        let gpu = self.model.network().gpu();
        // Requested once, even if a unit is computed again.
        let mut asked = BTreeMap::new();
        where_it_fits(gpu, self.options, room, |checkpointed| {
            let mut sum = None;
            let mut tokens = 0;
            for number in own.clone() {
                let done = self.unit(number, checkpointed, &mut asked, &mut sum);
                tokens += done.map_err(|error| match error {
                    Error::Request(message) => Error::Request(format!("unit {number}: {message}")),
                    other => other,
                })?;
            }
            Ok((sum, tokens))
        })
    }

    /// Computes a unit: forward, the caller's coefficients, backward, which adds to `sum`. Returns how
    /// many tokens went through.
    fn unit(
        &self,
        number: usize,
        checkpointed: bool,
        asked: &mut BTreeMap<usize, Option<M::Gathered>>,
        sum: &mut Option<UnitGradients>,
    ) -> Result<usize> {
        let unit = &self.units[number];
        let forced = self.forced(unit)?;
        if unit.skip || forced.is_empty() {
            return Ok(0);
        }
        let (model, settings) = (&self.model, self.settings);
        if model.network().gpu().is_none() {
            let (tokens, sequences) = (forced.tokens(), unit.sequences.len());
            let footprint = Footprint::of(model.network().config());
            footprint.check_unit(tokens, sequences, self.options)?;
        }
        let (streams, recorded) = model.forward(&forced, settings, checkpointed)?;
        let coefficients = match asked.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let coefficients = (self.coefficients)(number, &streams);
                new.insert(M::gather(&forced, &coefficients)?)
            }
        };
        if let Some(coefficients) = coefficients {
            let sum = sum.get_or_insert_with(|| UnitGradients::new(&self.spare));
            model.backward(&forced, settings, recorded, coefficients, sum)?;
        }
        (self.options.beat)();
        Ok(forced.tokens())
    }

    /// The sequences of a unit, checked.
    fn forced(&self, unit: &Unit) -> Result<TeacherForced> {
        let requests = unit.sequences.iter().map(TrainSequence::request);
        let network = self.model.network().network();
        for (number, request) in requests.clone().enumerate() {
            check_sequence(network, network.vocabulary(), &request)
                .map_err(|message| Error::Request(format!("sequence {number}: {message}")))?;
        }
        Ok(match unit.share_prefixes {
            true => TeacherForced::shared(requests),
            false => TeacherForced::apart(requests),
        })
    }
}
