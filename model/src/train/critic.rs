//! The critic: a model of its own that gives every state a value. Its folder is
//! a `ForTokenClassification` model with one label, as `transformers` reads it:
//! the trunk of a language model and, instead of the vocabulary's head, `score`,
//! one row of weights and a bias.
//!
//! The value of a token is read where its log-probability is: from the state
//! before it, which holds all that was known when the token was chosen.

use crate::batch::ScoreRequest;
use crate::compute::gradient_tree::UnitGradients;
use crate::compute::teacher_forced::{RecordedStates, TeacherForced, check_sequence};
use crate::folder::names::HEAD_BIAS;
use crate::folder::names::HEAD_WEIGHT;
use crate::parallel::ComputeOptions;
use crate::train::score::together;
use crate::train::trainer::{Head, Trainable};
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

    /// Reads a critic's folder, or a language model's, which gets a new head.
    pub fn load(dir: &Path, device: &Device) -> Result<Self> {
        let model = Policy::load_any(dir, device)?;
        match model.config().value_head {
            true => Ok(Critic {
                model: model.in_f32(),
            }),
            false => Self::new(&model),
        }
    }

    /// The same critic with float32, the dtype of saved weights, in its `config.json`.
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

    /// The number of parameters, as scalars.
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
        check_sequence(critic.model.network(), critic.vocab_size(), request)
            .map_err(|message| Error::Request(format!("sequence {number} to value: {message}")))?;
    }
    let head = critic.head()?;
    together(critic.model.gpu(), requests, options, &|requests| {
        let forced = TeacherForced::shared(requests.iter().copied());
        if forced.is_empty() {
            let zeros = requests.iter().map(|r| vec![0.0; r.token_ids.len()]);
            return Ok(zeros.collect());
        }
        let states = forced.states(critic.model.network())?;
        Ok(forced.spread(&head.forward(&states)))
    })
}

impl Trainable for Critic {
    /// The value of each masked token.
    type Streams = Vec<Vec<f32>>;
    type Coefficients = Vec<Vec<f64>>;
    type Settings = ();
}

impl Head for Critic {
    type Gathered = Vec<f32>;
    type Recorded = (Vec<f32>, RecordedStates);

    fn network(&self) -> &Policy {
        &self.model
    }

    fn into_network(self) -> Policy {
        self.model
    }

    fn of_network(model: Policy) -> Self {
        Critic { model }
    }

    fn check((): ()) -> Result<()> {
        Ok(())
    }

    fn forward(
        &self,
        forced: &TeacherForced,
        (): (),
        checkpointed: bool,
    ) -> Result<(Self::Streams, Self::Recorded)> {
        let (states, tape) = forced.states_recorded(self.model.network(), checkpointed)?;
        Ok((
            forced.spread(&self.head()?.forward(&states)),
            (states, tape),
        ))
    }

    fn gather(
        forced: &TeacherForced,
        coefficients: &Self::Coefficients,
    ) -> Result<Option<Vec<f32>>> {
        let by_value = forced.gather(coefficients, "values")?;
        let zero = by_value.iter().all(|&coefficient| coefficient == 0.0);
        Ok((!zero).then_some(by_value))
    }

    fn backward(
        &self,
        forced: &TeacherForced,
        (): (),
        (states, tape): Self::Recorded,
        by_value: &Vec<f32>,
        gradients: &mut UnitGradients,
    ) -> Result<()> {
        let (by_states, by_weight, by_bias) = self.head()?.backward(&states, by_value);
        gradients.host.add_one(HEAD_WEIGHT, by_weight);
        gradients.host.add_one(HEAD_BIAS, vec![by_bias]);
        forced.backward_states(self.model.network(), tape, &by_states, gradients)
    }
}
