//! The likeliest id at every place of a known sequence: what tells whether its own ids are those that
//! greedy generation would take.

use crate::batch::{Batch, ScoreRequest};
use crate::compute::decode::Decoder;
use crate::compute::teacher_forced::{check_sequence, check_temperature};
use crate::sampler::{Draw, Drawn};
use crate::{Error, Policy, Result, Sampling};

/// Tokens run together: the logits of this many rows are held.
const CHUNK_TOKENS: usize = 256;

/// For each token but the first, the likeliest id after the tokens before it, the lowest of equals,
/// and its log-prob at `temperature`, as [`crate::score()`] gives it.
pub fn likeliest(policy: &Policy, token_ids: &[u32], temperature: f64) -> Result<Vec<(u32, f32)>> {
    check_temperature(temperature)?;
    let network = policy.network();
    let sequence = ScoreRequest {
        token_ids,
        loss_mask: &vec![false; token_ids.len()],
    };
    check_sequence(network, network.vocabulary(), &sequence).map_err(Error::Request)?;
    let Some((_, known)) = token_ids.split_last() else {
        return Ok(Vec::new());
    };
    let sampling = Sampling {
        temperature,
        greedy: true,
        ..Sampling::default()
    };
    // Greedy sampling draws no random number.
    let draw = Draw {
        sampling: &sampling,
        stream: &[0; 32],
        turn: 0,
        token: 0,
    };
    let (mut decoder, mut cache) = (Decoder::new(network), network.cache());
    let mut found = Vec::with_capacity(known.len());
    for chunk in known.chunks(CHUNK_TOKENS) {
        let batch = Batch::new([(cache.length(), chunk)]);
        let rows: Vec<u32> = (0..chunk.len() as u32).collect();
        let logits = decoder.next_token(network, &batch, &rows, &mut [&mut cache])?;
        let drawn = logits.draw(&vec![draw; chunk.len()])?;
        found.extend(
            drawn
                .iter()
                .map(|Drawn { id, log_prob, .. }| (*id, *log_prob)),
        );
    }
    Ok(found)
}
