//! What a segment of a journal holds, and which part it is of.

use crate::{Result, StageContext};
use agentgym_jobs::episode::{Episode, Sequence};
use agentgym_jobs::journal::{Link, Record};

/// Approximate limit of a segment in bytes. A segment is larger only if a single event is (an
/// observation may be as large as the environment client allows).
pub(super) const SEGMENT_BYTES: usize = 32 << 20;

/// New records, split into segments of bounded size; at least one segment.
pub(super) fn bounded(records: Vec<(Record, usize)>) -> Vec<Vec<Record>> {
    let mut segments = vec![Vec::new()];
    let mut total = 0;
    for (record, bytes) in records {
        if total > 0 && total + bytes > SEGMENT_BYTES {
            segments.push(Vec::new());
            total = 0;
        }
        total += bytes;
        segments.last_mut().expect("one at least").push(record);
    }
    segments
}

pub(super) fn readable<T>(decoded: agentgym_jobs::Result<T>) -> Option<T> {
    decoded
        .inspect_err(|e| {
            tracing::warn!(
                "a segment of the journal is left out, the work in it will be made again: {e}"
            )
        })
        .ok()
}

pub(super) fn sampled_tokens(episode: &Episode) -> u64 {
    let tokens: usize = episode.sequences.iter().map(Sequence::loss_tokens).sum();
    tokens as u64
}

/// A digest of the run, the part and its inputs.
pub(super) fn part_of(context: &StageContext) -> Result<Link> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    let plan = &context.plan;
    for text in [
        plan.identity.as_str(),
        plan.run.as_str(),
        &context.part.id.to_string(),
    ] {
        add(text);
    }
    for input in context.inputs.names() {
        add(input);
        for artifact in context.inputs.artifacts(input)? {
            add(&artifact.name);
            add(&artifact.digest.to_string());
        }
    }
    Ok(hasher.finalize().into())
}
