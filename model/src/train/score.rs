//! Teacher-forced scoring: log-probability and entropy of given tokens. The bits
//! are those that generation recorded, for any packing.

use crate::batch::ScoreRequest;
use crate::compute::Network;
use crate::compute::fit::halving;
use crate::compute::teacher_forced::{TeacherForced, check_sequence, check_temperature};
use crate::gpu::Gpu;
use crate::parallel::{self, ComputeOptions};
use crate::prefix_tree::cut_tree;
use crate::{Error, Policy, Result};
use std::collections::BTreeMap;

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
    network.host.keep_halves(options)?;
    together(policy.gpu(), requests, options, &|requests| {
        score_together(network, requests, temperature)
    })
}

/// The results of `work` on all requests, in their order. Those that begin alike are given to it
/// together, as far as `pack_tokens` allows.
pub(crate) fn together<T: Send>(
    gpu: Option<&Gpu>,
    requests: &[ScoreRequest<'_>],
    options: &ComputeOptions<'_>,
    work: &(dyn Fn(&[ScoreRequest<'_>]) -> Result<Vec<T>> + Sync),
) -> Result<Vec<T>> {
    let paths: Vec<Vec<&[u32]>> = requests.iter().map(|r| vec![r.path()]).collect();
    let packs = cut_tree(&paths, options.pack_tokens.max(1))?;
    let found = parallel::map_large(options, packs.len(), |number| {
        let requests: Vec<_> = packs[number].iter().map(|&at| requests[at]).collect();
        halving(gpu, &requests, &work)
    })?;
    let numbered = packs.into_iter().flatten().zip(found.into_iter().flatten());
    let ordered: BTreeMap<usize, T> = numbered.collect();
    Ok(ordered.into_values().collect())
}

fn score_together(
    network: &Network,
    requests: &[ScoreRequest<'_>],
    temperature: f64,
) -> Result<Vec<Scores>> {
    let forced = TeacherForced::shared(requests.iter().copied());
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
