//! Optimizer steps. The trainer knows no loss: it runs a unit forward, hands the
//! log-probabilities and entropies out, takes back the derivative of the loss by
//! each of them as constants, and back-propagates. One thread computes a unit
//! alone; units are added in a fixed tree, so threads never show in a result.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Tensor, Var};

use crate::adamw::{AdamW, AdamWState, StepReport};
use crate::gradients::{GradientTree, Gradients};
use crate::network::Network;
use crate::parallel::{self, ComputeOptions};
use crate::policy::turned;
use crate::score::{Rows, ScoreRequest, Scores, check_sequence, check_temperature};
use crate::weights::transpose;
use crate::{Error, Policy, Result, Weights, ops};

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// One sequence to train on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrainSequence {
    /// The whole sequence.
    pub token_ids: Vec<u32>,
    /// Which tokens the loss sees; never the first.
    pub loss_mask: Vec<bool>,
}

impl TrainSequence {
    fn request(&self) -> ScoreRequest<'_> {
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

/// What the policy gives for a unit, per sequence and token as in [`Scores`].
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

/// A policy under training and its optimizer state.
pub struct Trainer {
    policy: Policy,
    variables: BTreeMap<String, Var>,
    options: AdamW,
    state: AdamWState,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("parameters", &self.policy.parameter_count())
            .field("optimizer", &self.options)
            .field("step", &self.state.step())
            .finish_non_exhaustive()
    }
}

impl Trainer {
    /// Starts with a fresh optimizer state.
    pub fn new(policy: Policy, options: AdamW) -> Result<Self> {
        let state = AdamWState::new(policy.config());
        Self::assemble(policy, options, state)
    }

    /// Carries on with the optimizer state in `dir`.
    pub fn with_state(policy: Policy, options: AdamW, dir: &Path) -> Result<Self> {
        let state = AdamWState::load(dir, policy.config())?;
        Self::assemble(policy, options, state)
    }

    fn assemble(policy: Policy, options: AdamW, state: AdamWState) -> Result<Self> {
        let mut variables = BTreeMap::new();
        for (name, tensor) in policy.weights().iter() {
            variables.insert(name.to_owned(), Var::from_tensor(tensor)?);
        }
        Ok(Trainer {
            policy,
            variables,
            options,
            state,
        })
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
        let (gradients, tokens) = self.gradients(units, temperature, coefficients, options)?;
        let variables = &mut self.variables;
        let report = self
            .state
            .update(&self.options, &gradients, lr, |name, update| {
                let variable = variables
                    .get_mut(name)
                    .ok_or_else(|| Error::Request(format!("the policy lacks {name}")))?;
                let updated = ops::with_data(variable, |numbers| Ok(update(numbers)))?;
                // A new tensor: snapshots of the policy keep the old one.
                *variable = Var::from_vec(updated, variable.shape(), variable.device())?;
                Ok(())
            })?;
        if !report.skipped_non_finite {
            self.policy = self.policy.with_weights(self.detached())?;
        }
        Ok(StepReport { tokens, ..report })
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
        let tied = self.policy.config().tie_word_embeddings;
        let head = match self.variables.get(HEAD) {
            Some(head) => head.clone(),
            None => {
                let embedding = self
                    .variables
                    .get(EMBEDDING)
                    .ok_or_else(|| Error::Request(format!("the policy lacks {EMBEDDING}")))?;
                Var::from_tensor(&turned(embedding)?)?
            }
        };
        let network = Network::new(
            self.policy.config(),
            self.policy.network().rope(),
            head.as_tensor().clone(),
            |name| self.variables.get(name).map(Var::as_tensor),
        )?;
        let tree = GradientTree::new(units.len());
        let tokens = parallel::map(options, units.len(), |number| {
            let unit = &units[number];
            if unit.skip {
                tree.add(number, None);
                return Ok(0);
            }
            let ask = |streams: &UnitStreams| coefficients(number, streams);
            let gradients = self
                .unit_gradients(unit, temperature, &network, &head, ask)
                .map_err(|error| match error {
                    Error::Request(message) => Error::Request(format!("unit {number}: {message}")),
                    other => other,
                })?;
            tree.add(number, gradients);
            Ok(unit
                .sequences
                .iter()
                .map(|sequence| sequence.token_ids.len())
                .sum())
        })?;
        let mut gradients = tree.finish();
        if tied && let Some(by_head) = gradients.remove(HEAD) {
            let (rows, columns) = head.dims2()?;
            let by_head = transpose(&by_head, rows, columns);
            if let Some(by_embedding) = gradients.get_mut(EMBEDDING) {
                crate::kernels::pointwise::add_assign(by_embedding, &by_head);
            }
        }
        Ok((gradients, tokens.into_iter().sum()))
    }

    /// Forward, the caller's coefficients, backward; none where nothing contributes.
    fn unit_gradients(
        &self,
        unit: &Unit,
        temperature: f64,
        network: &Network,
        head: &Var,
        ask: impl Fn(&UnitStreams) -> UnitCoefficients,
    ) -> Result<Option<Gradients>> {
        let requests = || unit.sequences.iter().map(TrainSequence::request);
        for (number, request) in requests().enumerate() {
            check_sequence(network, self.policy.config().vocab_size, &request)
                .map_err(|message| Error::Request(format!("sequence {number}: {message}")))?;
        }
        let rows = Rows::of(requests());
        let Some(streams) = rows.streams(network, requests(), temperature)? else {
            return Ok(None);
        };
        let values = ops::with_data(&streams, |values| Ok(values.to_vec()))?;
        let lengths = || {
            unit.sequences
                .iter()
                .map(|sequence| sequence.token_ids.len())
        };
        let (log_probs, entropies) = rows
            .unpack(&values, lengths())
            .into_iter()
            .map(
                |Scores {
                     log_probs,
                     entropies,
                 }| (log_probs, entropies),
            )
            .unzip();
        let coefficients = ask(&UnitStreams {
            log_probs,
            entropies,
        });
        for (kind, found) in [
            ("log_probs", &coefficients.log_probs),
            ("entropies", &coefficients.entropies),
        ] {
            if !found.iter().map(Vec::len).eq(lengths()) {
                return Err(Error::Request(format!(
                    "the coefficients of {kind} must have one number per token of each sequence"
                )));
            }
        }
        let pairs = coefficients.log_probs.iter().zip(&coefficients.entropies);
        let weights = rows.gather(pairs.map(|(a, b)| (a.as_slice(), b.as_slice())));
        if weights.iter().all(|&weight| weight == 0.0) {
            return Ok(None);
        }
        let weights = Tensor::from_vec(weights, (2, rows.count()), streams.device())?;
        let mut store = (streams * weights)?.sum_all()?.backward()?;
        let mut gradients = Gradients::default();
        let mut take = |name: &str, variable: &Var| -> Result<()> {
            if let Some(gradient) = store.remove(variable) {
                gradients.insert(name, gradient.flatten_all()?.to_vec1()?);
            }
            Ok(())
        };
        for (name, variable) in &self.variables {
            take(name, variable)?;
        }
        if !self.variables.contains_key(HEAD) {
            take(HEAD, head)?;
        }
        Ok(Some(gradients))
    }

    fn detached(&self) -> Weights {
        let tensors = self
            .variables
            .iter()
            .map(|(name, v)| (name.clone(), v.as_tensor().detach()));
        Weights::from_tensors(tensors.collect())
    }

    /// The policy as of the last step; later steps do not change it.
    pub fn policy(&self) -> Policy {
        self.policy.clone()
    }

    /// The policy as of the last step.
    pub fn into_policy(self) -> Policy {
        self.policy
    }

    /// Optimizer steps made, those before a resume included.
    pub fn optimizer_steps(&self) -> u64 {
        self.state.step()
    }

    /// Writes `state.safetensors` into `dir`, for [`Trainer::with_state`].
    pub fn save_optimizer(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        self.state.save(dir)
    }
}
