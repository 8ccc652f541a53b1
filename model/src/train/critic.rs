//! The critic: a model of its own that gives every state a value. Its folder is
//! a `ForTokenClassification` model with one label, as `transformers` reads it:
//! the trunk of a language model and, instead of the vocabulary's head, `score`,
//! one row of weights and a bias.
//!
//! The value of a token is read where its log-probability is: from the state
//! before it, which is all that its choice could know.

use crate::batch::ScoreRequest;
use crate::compute::fit::halving;
use crate::compute::fit::where_it_fits;
use crate::compute::gradient_tree::{UnitGradients, over_units, over_units_in_place};
use crate::compute::teacher_forced::{TeacherForced, check_sequence};
use crate::cpu::adamw::{AdamW, StepReport};
use crate::cpu::gradients::Gradients;
use crate::folder::names::HEAD_BIAS;
use crate::folder::names::HEAD_WEIGHT;
use crate::parallel::{self, ComputeOptions};
use crate::train::learner::Learner;
use crate::train::score::pack;
use crate::train::trainer::{TrainSequence, Unit};
use crate::{Device, Error, Parameter, Policy, Result, Weights, parameter_shapes};
use std::collections::BTreeMap;
use std::path::Path;

/// An immutable critic; a clone shares everything.
#[derive(Debug, Clone)]
pub struct Critic {
    /// Holds `score` among its weights and has no other head.
    model: Policy,
}

impl Critic {
    /// A critic on the trunk of a policy. Its head is zero, so that before its
    /// first update every value is 0 and advantages are plain returns.
    pub fn new(trunk: &Policy) -> Result<Self> {
        let config = trunk.config().with_value_head(Path::new("new critic"))?;
        let mut parameters = BTreeMap::new();
        for (name, shape) in parameter_shapes(&config) {
            let parameter = match trunk.weights().get(&name) {
                Some(parameter) => parameter.clone(),
                None => Parameter::new(shape.clone(), vec![0.0; shape.iter().product()]),
            };
            parameters.insert(name, parameter);
        }
        let model = trunk.with_config(config, Weights::new(parameters))?;
        Ok(Critic { model })
    }

    /// The same critic with other weights of the same shapes.
    pub fn with_weights(&self, weights: Weights) -> Result<Self> {
        let model = self.model.with_weights(weights)?;
        Ok(Critic { model })
    }

    /// Reads a critic's folder, or puts a new head on a language model's.
    pub fn load(dir: &Path, device: &Device) -> Result<Self> {
        let model = Policy::load_any(dir, device)?;
        match model.config().value_head {
            true => Ok(Critic { model }),
            false => Self::new(&model),
        }
    }

    /// The same critic, whose `config.json` says the dtype as saved.
    #[must_use]
    pub fn saying_float32(self) -> Self {
        Critic {
            model: self.model.saying_float32(),
        }
    }

    /// Writes the folder in Hugging Face's layout. Equal critics give equal bytes.
    pub fn save(&self, dir: &Path) -> Result<()> {
        self.model.save(dir)
    }

    /// The parameters, `score.weight` and `score.bias` among them.
    pub fn weights(&self) -> &Weights {
        self.model.weights()
    }

    /// Rows of the embedding: the ids it can read.
    pub fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    /// How many numbers the parameters are.
    pub fn parameter_count(&self) -> usize {
        self.model.parameter_count()
    }

    fn head(&self) -> Result<ValueHead<'_>> {
        let get = |name: &str| match self.weights().get(name) {
            Some(parameter) => Ok(parameter.numbers()),
            None => Err(Error::Request(format!("the critic's weights lack {name}"))),
        };
        Ok(ValueHead {
            weight: get(HEAD_WEIGHT)?,
            bias: get(HEAD_BIAS)?[0],
        })
    }

    fn check(&self, request: &ScoreRequest<'_>) -> Result<(), String> {
        check_sequence(self.model.network(), self.vocab_size(), request)
    }
}

/// One output: its dot product is summed in one fixed order, whatever the batch.
struct ValueHead<'a> {
    weight: &'a [f32],
    bias: f32,
}

impl ValueHead<'_> {
    fn forward(&self, states: &[f32]) -> Vec<f32> {
        let dot = |state: &[f32]| {
            let terms = state.iter().zip(self.weight);
            terms.fold(self.bias, |sum, (x, w)| x.mul_add(*w, sum))
        };
        states.chunks_exact(self.weight.len()).map(dot).collect()
    }

    /// Derivatives by the states, the weight and the bias.
    fn backward(&self, states: &[f32], by_value: &[f32]) -> (Vec<f32>, Vec<f32>, f32) {
        let width = self.weight.len();
        let mut by_states = vec![0.0; states.len()];
        let (mut by_weight, mut by_bias) = (vec![0.0; width], 0.0);
        let rows = states
            .chunks_exact(width)
            .zip(by_states.chunks_exact_mut(width));
        for ((state, by_state), &e) in rows.zip(by_value) {
            for (k, (by_x, w)) in by_state.iter_mut().zip(self.weight).enumerate() {
                *by_x = e * w;
                by_weight[k] = e.mul_add(state[k], by_weight[k]);
            }
            by_bias += e;
        }
        (by_states, by_weight, by_bias)
    }
}

/// The value of every masked token of every request, 0.0 elsewhere.
pub fn values(
    critic: &Critic,
    requests: &[ScoreRequest<'_>],
    options: &ComputeOptions<'_>,
) -> Result<Vec<Vec<f32>>> {
    for (number, request) in requests.iter().enumerate() {
        critic
            .check(request)
            .map_err(|message| Error::Request(format!("sequence {number} to value: {message}")))?;
    }
    let head = critic.head()?;
    let packs = pack(requests, options.pack_tokens);
    let together = |requests: &[ScoreRequest<'_>]| {
        let forced = TeacherForced::new(requests.iter().copied());
        if forced.is_empty() {
            let zeros = requests.iter().map(|r| vec![0.0; r.token_ids.len()]);
            return Ok(zeros.collect());
        }
        let states = forced.states(critic.model.network())?;
        Ok(forced.spread(&head.forward(&states)))
    };
    let all = parallel::map(options, packs.len(), |number| {
        let requests = &requests[packs[number].clone()];
        halving(critic.model.gpu(), requests, &together)
    })?;
    Ok(all.into_iter().flatten().collect())
}

/// Derivative of the loss by each value of a unit, per sequence and token. Asked
/// between forward and backward of each unit, from the thread that computes it.
pub type ValueCoefficients<'a> = dyn Fn(usize, &[Vec<f32>]) -> Vec<Vec<f64>> + Sync + 'a;

/// A critic under training and its optimizer state.
#[derive(Debug)]
pub struct CriticTrainer {
    learner: Learner,
}

impl CriticTrainer {
    /// Starts with a fresh optimizer state.
    pub fn new(critic: Critic, options: AdamW) -> Self {
        let learner = Learner::new(critic.model, options);
        CriticTrainer { learner }
    }

    /// Carries on with the optimizer state in `dir`.
    pub fn with_state(critic: Critic, options: AdamW, dir: &Path) -> Result<Self> {
        let learner = Learner::with_state(critic.model, options, dir)?;
        Ok(CriticTrainer { learner })
    }

    /// One optimizer step on a minibatch cut into units.
    pub fn step(
        &mut self,
        units: &[Unit],
        lr: f64,
        coefficients: &ValueCoefficients<'_>,
        options: &ComputeOptions<'_>,
    ) -> Result<StepReport> {
        let unit = self.unit_by_number(units, coefficients, options);
        let (gradients, tokens) = over_units_in_place(options, units.len(), unit)?;
        let report = self.learner.step(gradients, lr, options)?;
        Ok(StepReport { tokens, ..report })
    }

    /// The gradient of a minibatch, added over its units in a fixed tree, and how
    /// many tokens went through a forward pass.
    pub fn gradients(
        &self,
        units: &[Unit],
        coefficients: &ValueCoefficients<'_>,
        options: &ComputeOptions<'_>,
    ) -> Result<(Gradients, usize)> {
        let unit = self.unit_by_number(units, coefficients, options);
        over_units(options, units.len(), unit)
    }

    /// Computes the unit of a number.
    fn unit_by_number<'a>(
        &'a self,
        units: &'a [Unit],
        coefficients: &'a ValueCoefficients<'_>,
        options: &'a ComputeOptions<'_>,
    ) -> impl Fn(usize) -> Result<(Option<UnitGradients>, usize)> + Sync + 'a {
        let model = self.learner.model().clone();
        let critic = Critic { model };
        move |number| {
            let ask = |values: &[Vec<f32>]| coefficients(number, values);
            self.unit_gradients(&critic, &units[number], options, ask)
        }
    }

    fn unit_gradients(
        &self,
        critic: &Critic,
        unit: &Unit,
        options: &ComputeOptions<'_>,
        ask: impl Fn(&[Vec<f32>]) -> Vec<Vec<f64>>,
    ) -> Result<(Option<UnitGradients>, usize)> {
        let (network, head) = (critic.model.network(), critic.head()?);
        let requests = unit.sequences.iter().map(TrainSequence::request);
        for (number, request) in requests.clone().enumerate() {
            critic
                .check(&request)
                .map_err(|message| Error::Request(format!("sequence {number}: {message}")))?;
        }
        let forced = TeacherForced::new(requests);
        if unit.skip || forced.is_empty() {
            return Ok((None, 0));
        }
        // Asked once, also where the unit is computed again.
        let mut asked = None;
        let gradients = where_it_fits(critic.model.gpu(), options, |checkpointed| {
            let (states, tape) = forced.states_recorded(network, checkpointed)?;
            let by_value = match &asked {
                Some(by_value) => by_value,
                None => {
                    let coefficients = ask(&forced.spread(&head.forward(&states)));
                    asked.insert(forced.gather(&coefficients, "values")?)
                }
            };
            if by_value.iter().all(|&coefficient| coefficient == 0.0) {
                return Ok(None);
            }
            let mut gradients = Gradients::new(self.learner.spare());
            let (by_states, by_weight, by_bias) = head.backward(&states, by_value);
            gradients.insert(HEAD_WEIGHT, by_weight);
            gradients.insert(HEAD_BIAS, vec![by_bias]);
            let mut gradients = UnitGradients::from(gradients);
            forced.backward_states(network, tape, &by_states, &mut gradients)?;
            Ok(Some(gradients))
        })?;
        Ok((gradients, forced.tokens()))
    }

    /// The critic as of the last step; later steps do not change it.
    ///
    /// # Errors
    /// The GPU that has it is lost.
    pub fn critic(&mut self) -> Result<Critic> {
        let model = self.learner.fetch()?.clone();
        Ok(Critic { model })
    }

    /// The critic as of the last step.
    ///
    /// # Errors
    /// The GPU that has it is lost.
    pub fn into_critic(self) -> Result<Critic> {
        let model = self.learner.into_model()?;
        Ok(Critic { model })
    }

    /// Writes `state.safetensors` into `dir`, for [`CriticTrainer::with_state`].
    ///
    /// # Errors
    /// The file cannot be written, or the GPU that has the state is lost.
    pub fn save_optimizer(&self, dir: &Path) -> Result<()> {
        self.learner.save_state(dir)
    }
}
