//! One hash over everything that a run has committed, to compare the results of two runs.

use crate::{Digest, Manifest, PartKey, Result, RunId, Store};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;

/// Manifests read concurrently.
const READS_AT_ONCE: usize = 16;

/// Manifests that the caller has already seen, reduced to what the digest needs. A commit never
/// changes, so a manifest that was read, or written and won, need not be read again.
#[derive(Debug, Clone, Default)]
pub struct SeenCommits {
    outputs: BTreeMap<PartKey, Vec<(String, Digest)>>,
}

impl SeenCommits {
    /// Remembers a commit. The manifest must be the stored one: read from the store, or that of an
    /// attempt that won ([`crate::Committed::Won`]).
    pub fn add(&mut self, manifest: &Manifest) {
        let outputs = manifest.outputs.iter();
        let outputs = outputs.map(|o| (o.name.clone(), o.digest)).collect();
        self.outputs.insert(manifest.slot(), outputs);
    }
}

impl Store {
    /// Digest of a run and the number of its commits: BLAKE3 over one line
    /// `iteration stage part name digest` for each output of each commit, sorted. Equal digests
    /// mean equal results.
    ///
    /// # Errors
    /// The store fails, or a commit cannot be read.
    pub async fn run_digest(&self, run: &RunId) -> Result<(Digest, usize)> {
        self.run_digest_of(run, SeenCommits::default()).await
    }

    /// [`Store::run_digest`] for a caller that has seen most commits: the commits are listed, and
    /// only those not in `seen` are read.
    ///
    /// # Errors
    /// As [`Store::run_digest`].
    pub async fn run_digest_of(
        &self,
        run: &RunId,
        mut seen: SeenCommits,
    ) -> Result<(Digest, usize)> {
        let slots = self.all_commits(run).await?;
        let unseen = slots.iter().filter(|s| !seen.outputs.contains_key(s));
        let read = |slot: PartKey| async move { self.listed_manifest(&slot).await };
        let unseen: Vec<Manifest> = stream::iter(unseen.cloned().collect::<Vec<_>>())
            .map(read)
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await?;
        for manifest in &unseen {
            seen.add(manifest);
        }
        let mut lines = Vec::new();
        for slot in &slots {
            for (name, digest) in seen.outputs.get(slot).into_iter().flatten() {
                let (stage, name) = (slot.stage.as_str(), name.as_str());
                lines.push((slot.iteration, stage, slot.part, name, *digest));
            }
        }
        lines.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        for (iteration, stage, part, name, digest) in lines {
            hasher.update(format!("{iteration} {stage} {part} {name} {digest}\n").as_bytes());
        }
        Ok((Digest::from(hasher.finalize()), slots.len()))
    }
}
