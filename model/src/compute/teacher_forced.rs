//! Teacher forcing: a packed batch of known sequences and which of their tokens are
//! predicted. Scoring and training share it.

use crate::batch::Batch;
use crate::batch::ScoreRequest;
use crate::batch::Streams;
use crate::compute::Network;
use crate::compute::gradient_tree::UnitGradients;
use crate::cpu::network;
use crate::cpu::tape::Tape;
use crate::kernels::head::{Head, Logits, inverse_temperature};
use crate::prefix_tree::PrefixTree;
use crate::{Error, Result, gpu};
use std::sync::Arc;

/// Sequences of one forward pass and the rows that predict their masked tokens.
pub(crate) struct TeacherForced {
    batch: Batch,
    /// Row of the token before each prediction, ascending.
    rows: Vec<u32>,
    /// The predicted ids.
    targets: Vec<u32>,
    /// Per sequence.
    tokens: Vec<Predicted>,
}

/// Which tokens of a sequence are predicted.
struct Predicted {
    length: usize,
    /// Masked tokens, ascending, and the number of the prediction of each.
    tokens: Vec<(u32, u32)>,
}

/// What a forward pass records for [`TeacherForced::backward`].
pub(crate) enum Recorded {
    Host {
        tape: Tape,
        hidden: Vec<f32>,
        logits: Logits,
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
    /// All tokens of all sequences, one sequence after another.
    pub(crate) fn apart<'a>(sequences: impl Iterator<Item = ScoreRequest<'a>> + Clone) -> Self {
        let (mut rows, mut targets, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for sequence in sequences.clone() {
            let mut own = Vec::new();
            for token in masked(sequence) {
                own.push((token, rows.len() as u32));
                rows.push(start + token - 1);
                targets.push(sequence.token_ids[token as usize]);
            }
            let length = sequence.token_ids.len();
            let predicted = Predicted {
                length,
                tokens: own,
            };
            tokens.push(predicted);
            start += length as u32;
        }
        TeacherForced {
            batch: Batch::new(sequences.map(|sequence| (0, sequence.token_ids))),
            rows,
            targets,
            tokens,
        }
    }

    /// The prefix tree of the tokens that a prediction depends on. What sequences have in common is
    /// computed once, a prediction of the same token after the same path too.
    pub(crate) fn shared<'a>(sequences: impl Iterator<Item = ScoreRequest<'a>> + Clone) -> Self {
        let paths: Vec<&[u32]> = sequences.clone().map(|sequence| sequence.path()).collect();
        let tree = PrefixTree::new(&paths);
        let prediction = |number: usize, sequence: ScoreRequest<'_>, token: u32| {
            let (before, token) = (token as usize - 1, token as usize);
            (tree.nodes[number][before], sequence.token_ids[token])
        };
        let all = || sequences.clone().enumerate();
        let mut predictions: Vec<(u32, u32)> = all()
            .flat_map(|(number, sequence)| {
                masked(sequence).map(move |token| prediction(number, sequence, token))
            })
            .collect();
        predictions.sort_unstable();
        predictions.dedup();
        let tokens = all().map(|(number, sequence)| {
            let own = masked(sequence).map(|token| {
                let at = predictions.binary_search(&prediction(number, sequence, token));
                (token, at.expect("all predictions are listed") as u32)
            });
            Predicted {
                length: sequence.token_ids.len(),
                tokens: own.collect(),
            }
        });
        let tokens = tokens.collect();
        let segments = tree.runs.iter();
        let segments = segments.map(|(at, own)| (own.start, &paths[*at][own.clone()]));
        let (rows, targets) = predictions.into_iter().unzip();
        TeacherForced {
            batch: Batch::new(segments),
            rows,
            targets,
            tokens,
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
        if let Some(network) = network.on_gpu()? {
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
        if let Some(network) = network.on_gpu()? {
            let mut tape = gpu::Tape::new(checkpointed);
            let hidden = network.hidden(&self.batch, &self.rows, Some(&mut tape))?;
            let scale = inverse_temperature(temperature);
            let streams = network.predict(&hidden, &self.targets, scale)?;
            let recorded = Recorded::Gpu {
                network,
                tape: Box::new(tape),
                hidden,
            };
            return Ok((streams, recorded));
        }
        let mut tape = Tape::new(checkpointed);
        let hidden = network
            .host
            .hidden(&self.batch, &self.rows, None, Some(&mut tape));
        let head = self.head(&network.host, temperature);
        let (log_probs, entropies, logits) = head.forward_kept(&hidden);
        let streams = Streams {
            log_probs,
            entropies,
        };
        let recorded = Recorded::Host {
            tape,
            hidden,
            logits,
        };
        Ok((streams, recorded))
    }

    /// The hidden states that predict the masked tokens: the input of a value head.
    pub(crate) fn states(&self, network: &Network) -> Result<Vec<f32>> {
        match network.on_gpu()? {
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
        if let Some(network) = network.on_gpu()? {
            let mut tape = gpu::Tape::new(checkpointed);
            let states = network.states(&self.batch, &self.rows, Some(&mut tape))?;
            let recorded = RecordedStates::Gpu(network, Box::new(tape));
            return Ok((states, recorded));
        }
        let mut tape = Tape::new(checkpointed);
        let states = network
            .host
            .hidden(&self.batch, &self.rows, None, Some(&mut tape));
        Ok((states, RecordedStates::Host(tape)))
    }

    /// Adds the derivative of every parameter but the head to `gradients`, given the derivative by the
    /// states; on the CPU, where that of no other unit is in them.
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

    /// Adds the derivative of a loss by every trained parameter to `gradients`, given its derivatives
    /// `coefficients` by the streams; a tied head's is part of the embedding's. On the CPU that of no
    /// other unit is in them.
    pub(crate) fn backward(
        &self,
        network: &Network,
        temperature: f64,
        recorded: Recorded,
        coefficients: &Streams,
        gradients: &mut UnitGradients,
    ) -> Result<()> {
        let (tape, hidden, logits) = match recorded {
            Recorded::Host {
                tape,
                hidden,
                logits,
            } => (tape, hidden, logits),
            Recorded::Gpu {
                network,
                tape,
                hidden,
            } => {
                let head = (self.targets.as_slice(), inverse_temperature(temperature));
                let (batch, gradients) = (&self.batch, &mut gradients.gpu);
                return network.backward(batch, *tape, &hidden, head, coefficients, gradients);
            }
        };
        let gradients = &mut gradients.host;
        let Streams {
            log_probs,
            entropies,
        } = coefficients;
        let network = &network.host;
        let head = self.head(network, temperature);
        let mut by_head = (!network.adapted).then(|| gradients.room(network.embedding.len()));
        let grad = head.backward(&hidden, log_probs, entropies, logits, by_head.as_mut());
        if let Some(by_head) = by_head {
            gradients.insert(network.head_name(), by_head);
        }
        network.backward(&self.batch, &self.rows, tape, &grad, gradients);
        Ok(())
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
        let spread = self.tokens.iter().map(|sequence| {
            let mut own = vec![0.0; sequence.length];
            for &(token, at) in &sequence.tokens {
                own[token as usize] = packed[at as usize];
            }
            own
        });
        spread.collect()
    }

    /// The derivative of [`TeacherForced::spread`]: the numbers of all sequences that a prediction
    /// belongs to are added in their order. An error where there is not one number per token of
    /// each sequence.
    pub(crate) fn gather(&self, spread: &[Vec<f64>], what: &str) -> Result<Vec<f32>> {
        let lengths = self.tokens.iter().map(|sequence| sequence.length);
        if !spread.iter().map(Vec::len).eq(lengths) {
            return Err(Error::Request(format!(
                "the coefficients of {what} must have one number per token of each sequence"
            )));
        }
        // -0.0 + x is x for every x, the zeros too.
        let mut packed = vec![-0.0; self.rows.len()];
        for (sequence, numbers) in self.tokens.iter().zip(spread) {
            for &(token, at) in &sequence.tokens {
                packed[at as usize] += numbers[token as usize];
            }
        }
        Ok(packed.into_iter().map(|sum| sum as f32).collect())
    }
}

/// The tokens of a sequence that are predicted.
fn masked(sequence: ScoreRequest<'_>) -> impl Iterator<Item = u32> {
    let mask = sequence.loss_mask.iter().enumerate();
    mask.filter_map(|(token, &wanted)| wanted.then_some(token as u32))
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
