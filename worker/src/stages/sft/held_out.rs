//! Which rows of a source are held out from training, and the policy's loss on them.

use crate::demonstrations::Encoded;
use crate::{Error, Result};
use agentgym_algorithms::losses::sequence_log_prob;
use agentgym_jobs::config::rows_held_out;
use agentgym_jobs::random::{Purpose, StreamKey, permutation};
use agentgym_model::{ComputeOptions, Policy, score};
use agentgym_record::weights::wide;
use std::collections::BTreeMap;

/// Log-probs are at temperature 1.
const TEMPERATURE: f64 = 1.0;

/// The random key of the order in which a source's tasks are held out: the same in every iteration
/// and part.
pub(in crate::stages) fn split_key(seed: u64, index: usize) -> StreamKey {
    StreamKey {
        seed,
        purpose: Purpose::HeldOut,
        iteration: 0,
        draw: index as u64,
        sample: 0,
    }
}

/// For each row, whether it is held out: whole tasks in a random order, until they make up `share`
/// of the rows. `tasks` names each row's task. Rows of one task are never on both sides, since
/// training on one would leak the other.
pub(super) fn held_out(tasks: &[String], share: f64, order: u64) -> Vec<bool> {
    let wanted = rows_held_out(share, tasks.len());
    let mut rows_of: Vec<Vec<usize>> = Vec::new();
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for (row, task) in tasks.iter().enumerate() {
        let number = *numbers.entry(task).or_insert(rows_of.len());
        match rows_of.get_mut(number) {
            Some(rows) => rows.push(row),
            None => rows_of.push(vec![row]),
        }
    }
    let mut out = vec![false; tasks.len()];
    let mut found = 0;
    for number in permutation(order, 0, rows_of.len()) {
        if found >= wanted {
            break;
        }
        let rows = &rows_of[number as usize];
        found += rows.len();
        for row in rows {
            out[*row] = true;
        }
    }
    out
}

/// Mean cross-entropy per reply token over all rows, nats: −Σ ln π / tokens, the same as a step's
/// loss on its batch ([`Aggregation::TokenMean`](agentgym_algorithms::losses::Aggregation)).
///
/// # Errors
/// The policy's log-probs cannot be computed.
pub(super) fn loss(policy: &Policy, rows: &[Encoded], options: &ComputeOptions<'_>) -> Result<f64> {
    let requests: Vec<_> = rows.iter().map(Encoded::request).collect();
    let scores = score(policy, &requests, TEMPERATURE, options)?;
    let (mut sum, mut tokens) = (0.0, 0);
    for (row, scores) in rows.iter().zip(&scores) {
        sum += sequence_log_prob(&wide(&scores.log_probs), &row.loss_mask)
            .map_err(|e| Error::stage(format!("the loss on what is held out: {e}")))?;
        tokens += row.loss_tokens();
    }
    Ok(-sum / tokens.max(1) as f64)
}
