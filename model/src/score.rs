//! Teacher-forced scoring: log-probability and entropy of given tokens. The bits
//! are those that generation recorded, whatever is packed with what.

use std::sync::Arc;

use crate::network::{Batch, Network};
use crate::parallel::{self, ComputeOptions};
use crate::{Error, Policy, Result, ops};

/// One sequence to score.
#[derive(Debug, Clone, Copy)]
pub struct ScoreRequest<'a> {
    /// The whole sequence.
    pub token_ids: &'a [u32],
    /// Which tokens are scored; the first token cannot be.
    pub loss_mask: &'a [bool],
}

/// One number per token, 0.0 where the mask is false; entry t belongs to token t
/// as predicted from the tokens before it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scores {
    /// Log-probability of the token, temperature included.
    pub log_probs: Vec<f32>,
    /// Entropy in nats of the distribution the token was drawn from.
    pub entropies: Vec<f32>,
}

/// Scores every request under `policy` at `temperature`.
pub fn score(
    policy: &Policy,
    requests: &[ScoreRequest<'_>],
    temperature: f64,
    options: &ComputeOptions<'_>,
) -> Result<Vec<Scores>> {
    check_temperature(temperature)?;
    let network = policy.network();
    for (number, request) in requests.iter().enumerate() {
        check_sequence(network, policy.config().vocab_size, request)
            .map_err(|message| Error::Request(format!("sequence {number} to score: {message}")))?;
    }
    let packs = pack(requests, options.pack_tokens);
    let scored = parallel::map(options, packs.len(), |number| {
        let requests = &requests[packs[number].clone()];
        let rows = Rows::of(requests.iter().copied());
        let Some(streams) = rows.streams(network, requests.iter().copied(), temperature)? else {
            return Ok(requests.iter().map(|r| zeros(r.token_ids.len())).collect());
        };
        let values = ops::with_data(&streams, |values| Ok(values.to_vec()))?;
        Ok(rows.unpack(&values, requests.iter().map(|r| r.token_ids.len())))
    })?;
    Ok(scored.into_iter().flatten().collect::<Vec<Scores>>())
}

/// Runs of requests of at most `pack_tokens` tokens, or one request.
fn pack(requests: &[ScoreRequest<'_>], pack_tokens: usize) -> Vec<std::ops::Range<usize>> {
    let mut packs: Vec<std::ops::Range<usize>> = Vec::new();
    let mut tokens = 0;
    for (number, request) in requests.iter().enumerate() {
        let length = request.token_ids.len();
        match packs.last_mut() {
            Some(pack) if tokens + length <= pack_tokens => {
                pack.end = number + 1;
                tokens += length;
            }
            _ => {
                packs.push(number..number + 1);
                tokens = length;
            }
        }
    }
    packs
}

fn zeros(length: usize) -> Scores {
    Scores {
        log_probs: vec![0.0; length],
        entropies: vec![0.0; length],
    }
}

/// Which rows of a packed batch predict a masked token, and which token that is.
pub(crate) struct Rows {
    /// Row in the pack of the token before the predicted one.
    rows: Vec<u32>,
    targets: Arc<[u32]>,
}

impl Rows {
    pub(crate) fn of<'a>(sequences: impl Iterator<Item = ScoreRequest<'a>>) -> Self {
        let (mut rows, mut targets) = (Vec::new(), Vec::new());
        let mut start = 0;
        for sequence in sequences {
            for (token, (&id, &wanted)) in sequence
                .token_ids
                .iter()
                .zip(sequence.loss_mask)
                .enumerate()
            {
                if wanted {
                    rows.push((start + token - 1) as u32);
                    targets.push(id);
                }
            }
            start += sequence.token_ids.len();
        }
        Rows {
            rows,
            targets: targets.into(),
        }
    }

    /// How many tokens are predicted.
    pub(crate) fn count(&self) -> usize {
        self.rows.len()
    }

    /// `[2, rows]`, log-probabilities over entropies; none where no token is wanted.
    pub(crate) fn streams<'a>(
        &self,
        network: &Network,
        sequences: impl Iterator<Item = ScoreRequest<'a>>,
        temperature: f64,
    ) -> Result<Option<candle_core::Tensor>> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        let batch = Batch::new(sequences.map(|sequence| (0, sequence.token_ids)));
        let hidden = network.hidden(&batch, &self.rows, None)?;
        let inverse = ops::inverse_temperature(temperature);
        Ok(Some(ops::head(
            &hidden,
            network.head(),
            &self.targets,
            inverse,
        )?))
    }

    /// Spreads the two streams over the tokens of sequences of these lengths.
    pub(crate) fn unpack(
        &self,
        values: &[f32],
        lengths: impl Iterator<Item = usize>,
    ) -> Vec<Scores> {
        let (log_probs, entropies) = values.split_at(self.rows.len());
        let mut scores = Vec::new();
        let (mut start, mut next) = (0, 0);
        for length in lengths {
            let mut own = zeros(length);
            while next < self.rows.len() && (self.rows[next] as usize) < start + length {
                let token = self.rows[next] as usize + 1 - start;
                own.log_probs[token] = log_probs[next];
                own.entropies[token] = entropies[next];
                next += 1;
            }
            scores.push(own);
            start += length;
        }
        scores
    }

    /// Gathers per-token numbers of the sequences back into the two streams' order.
    pub(crate) fn gather<'a>(
        &self,
        sequences: impl Iterator<Item = (&'a [f64], &'a [f64])>,
    ) -> Vec<f32> {
        let mut values = vec![0.0; 2 * self.rows.len()];
        let (mut start, mut next) = (0, 0);
        for (by_log_prob, by_entropy) in sequences {
            let length = by_log_prob.len();
            while next < self.rows.len() && (self.rows[next] as usize) < start + length {
                let token = self.rows[next] as usize + 1 - start;
                values[next] = by_log_prob[token] as f32;
                values[self.rows.len() + next] = by_entropy[token] as f32;
                next += 1;
            }
            start += length;
        }
        values
    }
}

pub(crate) fn check_temperature(temperature: f64) -> Result<()> {
    if temperature.is_finite() && temperature > 0.0 {
        Ok(())
    } else {
        Err(Error::Request(format!(
            "temperature {temperature} must be a positive number"
        )))
    }
}

/// What the kernels take for granted about a sequence.
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
    if token_ids.len() > network.positions_max() {
        return Err(format!(
            "{} tokens, max_position_embeddings is {}",
            token_ids.len(),
            network.positions_max()
        ));
    }
    match token_ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(id) => Err(format!(
            "token id {id} is outside the vocabulary of {vocabulary}"
        )),
        None => Ok(()),
    }
}
