//! Teacher-forced scoring: log-probability and entropy of given tokens. The bits
//! are those that generation recorded, for any packing.

use crate::batch::ScoreRequest;
use crate::compute::Network;
use crate::compute::fit::halving;
use crate::compute::teacher_forced::{TeacherForced, check_sequence, check_temperature};
use crate::parallel::{self, ComputeOptions};
use crate::{Error, Policy, Result};
use std::ops::Range;

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
        check_sequence(network, network.vocabulary(), request)
            .map_err(|message| Error::Request(format!("sequence {number} to score: {message}")))?;
    }
    let packs = pack(requests, options.pack_tokens);
    let together = |requests: &[ScoreRequest<'_>]| score_together(network, requests, temperature);
    let scored = parallel::map(options, packs.len(), |number| {
        let requests = &requests[packs[number].clone()];
        halving(policy.gpu(), requests, &together)
    })?;
    Ok(scored.into_iter().flatten().collect())
}

fn score_together(
    network: &Network,
    requests: &[ScoreRequest<'_>],
    temperature: f64,
) -> Result<Vec<Scores>> {
    let forced = TeacherForced::new(requests.iter().copied());
    if forced.is_empty() {
        let zeros = |r: &ScoreRequest<'_>| vec![0.0; r.token_ids.len()];
        let scores = requests.iter().map(|request| Scores {
            log_probs: zeros(request),
            entropies: zeros(request),
        });
        return Ok(scores.collect());
    }
    let streams = forced.forward(network, temperature)?;
    let log_probs = forced.spread(&streams.log_probs).into_iter();
    let entropies = forced.spread(&streams.entropies);
    let scores = log_probs
        .zip(entropies)
        .map(|(log_probs, entropies)| Scores {
            log_probs,
            entropies,
        });
    Ok(scores.collect())
}

/// Runs of consecutive requests of at most `pack_tokens` tokens, or of one longer request.
pub(crate) fn pack(requests: &[ScoreRequest<'_>], pack_tokens: usize) -> Vec<Range<usize>> {
    let mut packs: Vec<Range<usize>> = Vec::new();
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
