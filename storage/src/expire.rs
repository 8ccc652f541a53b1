//! Retention deletes what a run no longer needs; it is the only deletion. The order of steps makes
//! it safe against crashes and concurrent forks:
//!
//! 1. a create-only tombstone names the keys; a second attempt uses the tombstone of the first;
//! 2. pins are read *after* that, and pinned keys are kept;
//! 3. the rest is deleted; a missing object is not an error.
//!
//! A fork writes its pin first and reads tombstones afterwards. So if a fork and an expiry run
//! concurrently, at least one sees the other.

use crate::manifest::{from_json, to_json};
use crate::store::location;
use crate::{Artifact, AttemptId, Created, Error, Key, Manifest, PartKey, Result, RunId, Store};
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const VERSION: u32 = 1;
/// Concurrent requests.
const AT_ONCE: usize = 16;
/// How many iterations back files of attempts are looked for that did not commit. One that was slow
/// may have written some after its part was committed by another.
const LOOKED_BACK: u32 = 4;

/// The keys in a pin or a tombstone.
#[derive(Serialize, Deserialize)]
struct KeyList {
    version: u32,
    keys: BTreeSet<Key>,
}

/// Counts of an expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Expired {
    /// Objects that the tombstone names.
    pub named: usize,
    /// Objects among these that a fork's pin kept.
    pub pinned: usize,
}

impl Store {
    /// Deletes the artifacts of `manifests` for which `keep` returns false, and what these differ from,
    /// except what an artifact that stays is read from: `manifests` are also to have all policies that
    /// stay. Of committed parts it deletes, in
    /// iterations up to `iteration`, which is also the number of the tombstone, the journals and what
    /// other attempts have written.
    ///
    /// Artifacts stored in another run's folder (a fork's inputs) are never touched. Safe to call
    /// again: the keys in the first tombstone are the ones deleted.
    ///
    /// # Errors
    /// A manifest of another run, or the store fails.
    pub fn expire(
        &self,
        run: &RunId,
        iteration: u32,
        keep: impl Fn(&Manifest, &Artifact) -> bool,
        manifests: &[Manifest],
    ) -> impl Future<Output = Result<Expired>> + Send {
        // Evaluated before the future is created, so that `keep` need not be `Send`.
        let foreign = manifests.iter().find(|m| m.run != *run).map(|m| m.slot());
        let (mut kept, mut surplus) = (BTreeSet::new(), BTreeSet::new());
        for manifest in manifests {
            for artifact in &manifest.outputs {
                match keep(manifest, artifact) {
                    true => kept.extend(artifact.keys()),
                    false => surplus.extend(artifact.keys()),
                }
            }
        }
        surplus.retain(|key| key.run() == run && !kept.contains(key));
        async move {
            match foreign {
                Some(slot) => Err(Error::malformed(
                    slot.to_string(),
                    format!("it is not a commit of run {run}"),
                )),
                None => self.expire_keys(run, iteration, surplus).await,
            }
        }
    }

    async fn expire_keys(
        &self,
        run: &RunId,
        iteration: u32,
        mut keys: BTreeSet<Key>,
    ) -> Result<Expired> {
        let tombstone = Key::Expired {
            run: run.clone(),
            iteration,
        };
        keys.extend(self.finished_journals(run, iteration).await?);
        keys.extend(self.left_behind(run, iteration).await?);
        let spared = self.pinned(run).await?;
        keys.retain(|key| !spared.contains(key));
        if keys.is_empty() && self.try_get(&tombstone).await?.is_none() {
            return Ok(Expired::default());
        }
        let content = to_json(
            &tombstone.path(),
            "a tombstone",
            &KeyList {
                version: VERSION,
                keys: keys.clone(),
            },
        )?;
        if self.create(&tombstone, content).await? == Created::Exists {
            keys = self.key_list(&tombstone).await?;
        }
        let named = keys.len();
        let spared = self.pinned(run).await?;
        let ours = |key: &Key| {
            key.run() == run && matches!(key, Key::File { .. } | Key::JournalSegment { .. })
        };
        let doomed: Vec<Key> = keys
            .into_iter()
            .filter(|key| ours(key) && !spared.contains(key))
            .collect();
        let deleted = doomed.len();
        let doomed: Vec<_> = doomed.iter().map(location).collect::<Result<_>>()?;
        self.delete_all(&doomed).await?;
        Ok(Expired {
            named,
            pinned: named - deleted,
        })
    }

    /// Journal segments of parts that are committed.
    async fn finished_journals(&self, run: &RunId, iteration: u32) -> Result<Vec<Key>> {
        let mut by_slot: BTreeMap<PartKey, Vec<Key>> = BTreeMap::new();
        for (key, _) in self.list_run(run, "journal").await? {
            if let Key::JournalSegment { slot, .. } = &key
                && slot.iteration <= iteration
            {
                by_slot.entry(slot.clone()).or_default().push(key);
            }
        }
        let iterations: BTreeSet<u32> = by_slot.keys().map(|slot| slot.iteration).collect();
        let list = |iteration| self.commits(run, iteration);
        let committed: Vec<Vec<PartKey>> = stream::iter(iterations)
            .map(list)
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        let committed: BTreeSet<PartKey> = committed.into_iter().flatten().collect();
        Ok(by_slot
            .into_iter()
            .filter(|(slot, _)| committed.contains(slot))
            .flat_map(|(_, keys)| keys)
            .collect())
    }

    /// Files that commits do not name, of parts that several attempts have written files of. Nobody
    /// takes them up: the parts are committed.
    async fn left_behind(&self, run: &RunId, iteration: u32) -> Result<Vec<Key>> {
        let first = iteration.saturating_sub(LOOKED_BACK);
        let mut by_slot: BTreeMap<PartKey, (BTreeSet<AttemptId>, Vec<Key>)> = BTreeMap::new();
        for (key, _) in self.list_iterations(run, "files", first).await? {
            if let Key::File { slot, attempt, .. } = &key
                && slot.iteration <= iteration
            {
                let (attempts, keys) = by_slot.entry(slot.clone()).or_default();
                attempts.insert(attempt.clone());
                keys.push(key);
            }
        }
        by_slot.retain(|_, (attempts, _)| attempts.len() > 1);
        let mut left = Vec::new();
        for (slot, (_, keys)) in by_slot {
            if let Some(manifest) = self.manifest(&slot).await? {
                let named: BTreeSet<&Key> = manifest.outputs.iter().map(|of| &of.key).collect();
                left.extend(keys.into_iter().filter(|key| !named.contains(key)));
            }
        }
        Ok(left)
    }

    /// Keeps objects of `run` for a fork permanently. Must be called once, before the fork's plan
    /// is written.
    ///
    /// # Errors
    /// [`Error::Removed`] if one of them is marked for deletion, even if it still exists;
    /// [`Error::Conflict`] if `child` has already pinned other keys.
    pub async fn pin(&self, run: &RunId, child: &RunId, keys: BTreeSet<Key>) -> Result<()> {
        let pin = Key::Pin {
            run: run.clone(),
            child: child.clone(),
        };
        let content = to_json(
            &pin.path(),
            "a pin",
            &KeyList {
                version: VERSION,
                keys: keys.clone(),
            },
        )?;
        if self.create(&pin, content).await? == Created::Exists {
            let hint = "this fork has pinned other objects; choose another run id";
            return Err(Error::Conflict {
                key: pin.path(),
                hint,
            });
        }
        for (tombstone, removed) in self.key_lists(run, "expired").await? {
            if let Some(key) = removed.intersection(&keys).next() {
                return Err(Error::Removed {
                    key: key.path(),
                    tombstone: tombstone.path(),
                });
            }
        }
        Ok(())
    }

    /// The keys of `run` among `keys` that a tombstone names.
    ///
    /// # Errors
    /// The store fails.
    pub async fn removed(&self, run: &RunId, keys: &BTreeSet<Key>) -> Result<BTreeSet<Key>> {
        let tombstones = self.key_lists(run, "expired").await?;
        let named = tombstones.into_iter().flat_map(|(_, named)| named);
        Ok(named.filter(|key| keys.contains(key)).collect())
    }

    /// Keys of `run` that `child` has pinned; empty without a pin.
    pub(crate) async fn pins_of(&self, run: &RunId, child: &RunId) -> Result<BTreeSet<Key>> {
        let pin = Key::Pin {
            run: run.clone(),
            child: child.clone(),
        };
        match self.try_get(&pin).await? {
            Some(content) => key_list_of(&pin, &content),
            None => Ok(BTreeSet::new()),
        }
    }

    /// Keys of `run` that forks need.
    async fn pinned(&self, run: &RunId) -> Result<BTreeSet<Key>> {
        Ok(self
            .key_lists(run, "pins")
            .await?
            .into_iter()
            .flat_map(|(_, keys)| keys)
            .collect())
    }

    /// The tombstone that names a key, if there is one.
    pub(crate) async fn tombstone_of(&self, key: &Key) -> Result<Option<Key>> {
        let tombstones = self.key_lists(key.run(), "expired").await?;
        Ok(tombstones
            .into_iter()
            .find(|(_, keys)| keys.contains(key))
            .map(|(tombstone, _)| tombstone))
    }

    async fn key_lists(&self, run: &RunId, folder: &str) -> Result<Vec<(Key, BTreeSet<Key>)>> {
        let listed = self.list_run(run, folder).await?;
        let read = |(key, _): (Key, u64)| async move {
            let keys = self.key_list(&key).await?;
            Ok::<_, Error>((key, keys))
        };
        stream::iter(listed)
            .map(read)
            .buffered(AT_ONCE)
            .try_collect()
            .await
    }

    pub(crate) async fn key_list(&self, at: &Key) -> Result<BTreeSet<Key>> {
        key_list_of(at, &self.get(at).await?)
    }
}

fn key_list_of(at: &Key, content: &[u8]) -> Result<BTreeSet<Key>> {
    let list: KeyList = from_json(&at.path(), "a list of keys", VERSION, content)?;
    Ok(list.keys)
}
