//! Plans: numbered revisions, opaque here. The highest revision is in force.

use crate::{Created, Key, Result, RunId, Store};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

/// Revisions read concurrently.
const READS_AT_ONCE: usize = 8;

impl Store {
    /// Writes a plan revision. [`Created::Exists`] means that this number is already taken by a
    /// different plan.
    ///
    /// # Errors
    /// The store fails.
    pub async fn put_plan(&self, run: &RunId, revision: u32, plan: Bytes) -> Result<Created> {
        self.create(
            &Key::Plan {
                run: run.clone(),
                revision,
            },
            plan,
        )
        .await
    }

    /// The newest plan revision of a run, if it is newer than the one that the caller knows.
    /// Revisions have no gaps: a caller that knows one costs one read per newer revision, plus one;
    /// a caller that knows none costs a listing.
    ///
    /// # Errors
    /// The store fails.
    pub async fn newest_plan(
        &self,
        run: &RunId,
        known: Option<u32>,
    ) -> Result<Option<(u32, Bytes)>> {
        if let Some(known) = known {
            return self.newer_plan(run, known).await;
        }
        let listed = self.list_run(run, "plan").await?;
        let revision = |(key, _): &(Key, u64)| match key {
            Key::Plan { revision, .. } => Some(*revision),
            _ => None,
        };
        let Some(revision) = listed.iter().filter_map(revision).max() else {
            return Ok(None);
        };
        let key = Key::Plan {
            run: run.clone(),
            revision,
        };
        Ok(Some((revision, self.get(&key).await?)))
    }

    async fn newer_plan(&self, run: &RunId, known: u32) -> Result<Option<(u32, Bytes)>> {
        let mut newest = None;
        for revision in known.saturating_add(1)..=u32::MAX {
            let key = Key::Plan {
                run: run.clone(),
                revision,
            };
            match self.try_get(&key).await? {
                Some(content) => newest = Some((revision, content)),
                None => break,
            }
        }
        Ok(newest)
    }

    /// All plan revisions of a run, in ascending order; empty if the run has no plan.
    ///
    /// # Errors
    /// The store fails.
    pub async fn plans(&self, run: &RunId) -> Result<Vec<(u32, Bytes)>> {
        let listed = self.list_run(run, "plan").await?;
        let revisions = listed.into_iter().filter_map(|(key, _)| match key {
            Key::Plan { revision, .. } => Some((revision, key)),
            _ => None,
        });
        let read =
            |(revision, key): (u32, Key)| async move { Ok((revision, self.get(&key).await?)) };
        stream::iter(revisions)
            .map(read)
            .buffered(READS_AT_ONCE)
            .try_collect()
            .await
    }
}
