//! Plans: numbered revisions, opaque here. The highest is in force.

use crate::{Created, Key, Result, RunId, Store};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

/// Revisions read at once.
const READS_AT_ONCE: usize = 8;

impl Store {
    /// Writes a plan revision. [`Created::Exists`] means that somebody else
    /// took this number with another plan.
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

    /// All plan revisions of a run, in ascending order; none if nobody planned it.
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
