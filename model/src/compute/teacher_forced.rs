//! Teacher forcing: a packed batch of known sequences and which of their tokens are
//! predicted. Scoring and training share it.

use crate::batch::Batch;
use crate::batch::ScoreRequest;
use crate::batch::Streams;
use crate::compute::Network;
use crate::compute::gradient_tree::UnitGradients;
use crate::cpu::gradients::Gradients;
use crate::cpu::network;
use crate::cpu::tape::Tape;
use crate::kernels::head::{Head, inverse_temperature};
use crate::spare::Spare;
use crate::{Error, Result, gpu};
use std::sync::Arc;

/// Sequences of one forward pass and the rows that predict their masked tokens.
pub(crate) struct TeacherForced {
    batch: Batch,
    /// Row of the token before each predicted one.
    rows: Vec<u32>,
    /// The predicted ids.
    targets: Vec<u32>,
}

/// What a forward pass records for [`TeacherForced::backward`].
pub(crate) enum Recorded {
    Host {
        tape: Tape,
        hidden: Vec<f32>,
    },
    Gpu {
        network: Arc<gpu::Network>,
        tape: Box<gpu::Tape>,
        hidden: gpu::Operands,
    },
}

/// What a forward pass records for [`TeacherForced::backward_states`].
pub(crate) enum RecordedStates {
    Host(Tape),
    Gpu(Arc<gpu::Network>, Box<gpu::Tape>),
}

impl TeacherForced {
    pub(crate) fn new<'a>(sequences: impl Iterator<Item = ScoreRequest<'a>> + Clone) -> Self {
        let (mut rows, mut targets) = (Vec::new(), Vec::new());
        let mut start = 0;
        for sequence in sequences.clone() {
            let tokens = sequence.token_ids.iter().zip(sequence.loss_mask);
            for (token, (&id, _)) in tokens.enumerate().filter(|(_, (_, wanted))| **wanted) {
                rows.push((start + token - 1) as u32);
                targets.push(id);
            }
            start += sequence.token_ids.len();
        }
        TeacherForced {
            batch: Batch::new(sequences.map(|sequence| (0, sequence.token_ids))),
            rows,
            targets,
        }
    }

    /// Whether no token is predicted.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Tokens in the batch.
    pub(crate) fn tokens(&self) -> usize {
        self.batch.ids.len()
    }

    /// Log-probabilities and entropies at `temperature`.
    pub(crate) fn forward(&self, network: &Network, temperature: f64) -> Result<Streams> {
        if let Some(network) = &network.gpu {
            let hidden = network.hidden(&self.batch, &self.rows, None)?;
            return network.predict(&hidden, &self.targets, inverse_temperature(temperature));
        }
        let hidden = network.host.hidden(&self.batch, &self.rows, None, None);
        Ok(self.predict(&network.host, temperature, &hidden))
    }

    /// The same, with what the backward pass needs: each layer's input if `checkpointed`,
    /// else all of its activations.
    pub(crate) fn forward_recorded(
        &self,
        network: &Network,
        temperature: f64,
        checkpointed: bool,
    ) -> Result<(Streams, Recorded)> {
        if let Some(network) = &network.gpu {
            let mut tape = gpu::Tape::new(checkpointed);
            let hidden = network.hidden(&self.batch, &self.rows, Some(&mut tape))?;
            let scale = inverse_temperature(temperature);
            let streams = network.predict(&hidden, &self.targets, scale)?;
            let recorded = Recorded::Gpu {
                network: Arc::clone(network),
                tape: Box::new(tape),
                hidden,
            };
            return Ok((streams, recorded));
        }
        let mut tape = Tape::new(checkpointed);
        let hidden = network
            .host
            .hidden(&self.batch, &self.rows, None, Some(&mut tape));
        let streams = self.predict(&network.host, temperature, &hidden);
        Ok((streams, Recorded::Host { tape, hidden }))
    }

    /// The hidden states that predict the masked tokens: the input of a value head.
    pub(crate) fn states(&self, network: &Network) -> Result<Vec<f32>> {
        match &network.gpu {
            Some(network) => network.states(&self.batch, &self.rows, None),
            None => Ok(network.host.hidden(&self.batch, &self.rows, None, None)),
        }
    }

    /// The same, with what the backward pass needs.
    pub(crate) fn states_recorded(
        &self,
        network: &Network,
        checkpointed: bool,
    ) -> Result<(Vec<f32>, RecordedStates)> {
        if let Some(network) = &network.gpu {
            let mut tape = gpu::Tape::new(checkpointed);
            let states = network.states(&self.batch, &self.rows, Some(&mut tape))?;
            let recorded = RecordedStates::Gpu(Arc::clone(network), Box::new(tape));
            return Ok((states, recorded));
        }
        let mut tape = Tape::new(checkpointed);
        let states = network
            .host
            .hidden(&self.batch, &self.rows, None, Some(&mut tape));
        Ok((states, RecordedStates::Host(tape)))
    }

    /// Adds the derivative of every parameter but the head, given the derivative by the states.
    pub(crate) fn backward_states(
        &self,
        network: &Network,
        recorded: RecordedStates,
        by_states: &[f32],
        gradients: &mut UnitGradients,
    ) -> Result<()> {
        match recorded {
            RecordedStates::Gpu(network, tape) => {
                let grad = network.upload_states(by_states)?;
                network.backward_states(&self.batch, *tape, grad, &mut gradients.gpu)
            }
            RecordedStates::Host(tape) => {
                let gradients = &mut gradients.host;
                let network = &network.host;
                network.backward(&self.batch, &self.rows, tape, by_states, gradients);
                Ok(())
            }
        }
    }

    /// The derivative of a loss by every trained parameter, given its derivatives `coefficients`
    /// by the streams; a tied head's is part of the embedding's.
    pub(crate) fn backward(
        &self,
        network: &Network,
        temperature: f64,
        recorded: Recorded,
        coefficients: &Streams,
        spare: &Arc<Spare>,
    ) -> Result<UnitGradients> {
        let mut gradients = Gradients::new(spare);
        let (tape, hidden) = match recorded {
            Recorded::Host { tape, hidden } => (tape, hidden),
            Recorded::Gpu {
                network,
                tape,
                hidden,
            } => {
                let (targets, scale) = (&self.targets, inverse_temperature(temperature));
                let gpu =
                    network.backward(&self.batch, *tape, &hidden, targets, scale, coefficients)?;
                return Ok(UnitGradients {
                    gpu,
                    ..UnitGradients::default()
                });
            }
        };
        let Streams {
            log_probs,
            entropies,
        } = coefficients;
        let network = &network.host;
        let head = self.head(network, temperature);
        let mut by_head = (!network.adapted).then(|| gradients.zeros(network.embedding.len()));
        let grad = head.backward(&hidden, log_probs, entropies, by_head.as_deref_mut());
        if let Some(by_head) = by_head {
            gradients.insert(network.head_name(), by_head);
        }
        network.backward(&self.batch, &self.rows, tape, &grad, &mut gradients);
        Ok(gradients.into())
    }

    fn head<'a>(&'a self, network: &'a network::Network, temperature: f64) -> Head<'a> {
        Head {
            weight: network.head(),
            targets: &self.targets,
            inverse_temperature: inverse_temperature(temperature),
        }
    }

    fn predict(&self, network: &network::Network, temperature: f64, hidden: &[f32]) -> Streams {
        let (log_probs, entropies) = self.head(network, temperature).forward(hidden);
        Streams {
            log_probs,
            entropies,
        }
    }

    /// Spreads packed numbers over the tokens of each sequence, 0.0 elsewhere.
    pub(crate) fn spread(&self, packed: &[f32]) -> Vec<Vec<f32>> {
        let mut spread = Vec::with_capacity(self.batch.lengths.len());
        let mut numbers = self.rows.iter().zip(packed).peekable();
        let mut start = 0;
        for &length in &self.batch.lengths {
            let mut own = vec![0.0; length];
            while let Some((row, &number)) =
                numbers.next_if(|(row, _)| (**row as usize) < start + length)
            {
                own[*row as usize + 1 - start] = number;
            }
            spread.push(own);
            start += length;
        }
        spread
    }

    /// The inverse of [`TeacherForced::spread`]; an error where there is not one number
    /// per token of each sequence.
    pub(crate) fn gather(&self, spread: &[Vec<f64>], what: &str) -> Result<Vec<f32>> {
        let lengths = self.batch.lengths.iter().copied();
        if !spread.iter().map(Vec::len).eq(lengths) {
            return Err(Error::Request(format!(
                "the coefficients of {what} must have one number per token of each sequence"
            )));
        }
        let flat: Vec<f64> = spread.concat();
        Ok(self
            .rows
            .iter()
            .map(|&row| flat[row as usize + 1] as f32)
            .collect())
    }
}

/// Refuses temperatures at which no log-probabilities exist.
pub(crate) fn check_temperature(temperature: f64) -> Result<()> {
    if temperature.is_finite() && temperature > 0.0 {
        Ok(())
    } else {
        Err(Error::Request(format!(
            "temperature {temperature} must be a positive number"
        )))
    }
}

/// Checks what the kernels assume of a sequence.
pub(crate) fn check_sequence(
    network: &Network,
    vocabulary: usize,
    sequence: &ScoreRequest<'_>,
) -> Result<(), String> {
    let ScoreRequest {
        token_ids,
        loss_mask,
    } = sequence;
    if token_ids.len() != loss_mask.len() {
        return Err(format!(
            "{} token ids but {} mask entries",
            token_ids.len(),
            loss_mask.len()
        ));
    }
    if loss_mask.first() == Some(&true) {
        return Err("the first token has nothing before it to be predicted from".to_owned());
    }
    let positions = network.positions_max();
    if token_ids.len() > positions {
        return Err(format!(
            "{} tokens, max_position_embeddings is {positions}",
            token_ids.len()
        ));
    }
    match token_ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => Err(format!(
            "token id {id} is outside the vocabulary of {vocabulary}"
        )),
        None => Ok(()),
    }
}
