//! Verifies that everything a run has committed is still there, byte for byte. One listing finds
//! the objects; every record and every byte of every artifact is read and checked against the
//! digests in its manifest. Memory grows with the number of objects (about 500 bytes each), not
//! with their size: at most about 200 MB of artifact data is in memory at a time.
//!
//! The run may continue meanwhile. An object that is not in the listing is read by name before it
//! is reported missing, and missing objects are compared with the tombstones again at the end.

mod report;

use crate::attempts::Record;
use crate::keys::run_prefix;
use crate::{
    Artifact, AttemptId, CHUNK_BYTES, Digest, Error, Key, Manifest, PartKey, Result, RunId, Store,
};
use futures::{StreamExt, stream};
pub use report::{BytesRead, Fault, Finding, Planned, Verified};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;

/// Records and artifacts read concurrently.
const AT_ONCE: usize = 16;
/// MiB of artifacts in memory at once.
const MIB_AT_ONCE: u32 = 3 * (CHUNK_BYTES >> 20) as u32;

const RESTORE: &str = "restore it from a copy";

/// The receiver of findings and progress.
type Told<'a> = &'a mut (dyn FnMut(Finding) + Send);

/// The objects of a run by kind, and the state of the verification.
struct Audit<'a> {
    store: &'a Store,
    run: RunId,
    told: Told<'a>,
    out: Verified,
    commits: BTreeSet<PartKey>,
    /// Attempts whose manifests were read: the manifest names everything they wrote.
    committed: BTreeSet<(PartKey, u32)>,
    files: BTreeMap<Key, u64>,
    /// Nonces by attempt; `None` if its start record cannot be read.
    attempts: BTreeMap<(PartKey, u32), Option<String>>,
    /// Keys named by tombstones.
    removed: BTreeSet<Key>,
    read: &'a BytesRead,
}

impl Store {
    /// Verifies a run's commits, artifacts, tombstones, pins and attempts, and passes each finding
    /// to `told` at once. `planned` says which run makes a part. Plans are opaque here; the caller
    /// verifies them.
    ///
    /// # Errors
    /// The store fails; nothing is reported about objects that were not read.
    pub async fn verify(
        &self,
        run: &RunId,
        planned: &mut (dyn FnMut(&PartKey) -> Planned + Send),
        read: &BytesRead,
        told: Told<'_>,
    ) -> Result<Verified> {
        let mut audit = Audit {
            store: self,
            run: run.clone(),
            told,
            out: Verified::default(),
            commits: BTreeSet::new(),
            committed: BTreeSet::new(),
            files: BTreeMap::new(),
            attempts: BTreeMap::new(),
            removed: BTreeSet::new(),
            read,
        };
        let (tombstones, pins, records) = audit.list().await?;
        audit.key_lists(tombstones, pins).await?;
        audit.attempt_records(records).await?;
        audit.commits(planned).await?;
        audit.leftovers();
        Ok(audit.out)
    }
}

impl Audit<'_> {
    fn tell(
        &mut self,
        fault: Fault,
        key: impl fmt::Display,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        (self.told)(Finding {
            fault,
            key: key.to_string(),
            found: found.into(),
            remedy: remedy.into(),
        });
    }

    /// Sorts the listed objects by kind; returns tombstones, pins and attempt records.
    async fn list(&mut self) -> Result<(Vec<Key>, Vec<Key>, Vec<Key>)> {
        let (listed, strange) = self.store.list_all(&run_prefix(&self.run, "")).await?;
        for path in strange {
            self.tell(
                Fault::Stray,
                path,
                "no object of a run has such a name",
                "nothing reads it: delete it if nobody needs it",
            );
        }
        let (mut tombstones, mut pins, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for (key, size) in listed {
            match key {
                Key::Plan { .. } => {}
                Key::Commit(slot) => _ = self.commits.insert(slot),
                Key::AttemptStart { .. } | Key::AttemptEnd { .. } => records.push(key),
                Key::File { .. } => {
                    self.read.listed.fetch_add(size, Ordering::Relaxed);
                    self.files.insert(key, size);
                }
                Key::JournalSegment { .. } => self.out.journal_segments += 1,
                Key::Pin { .. } => pins.push(key),
                Key::Expired { .. } => tombstones.push(key),
            }
        }
        Ok((tombstones, pins, records))
    }

    /// Reads tombstones and pins, which are lists of keys of this run.
    async fn key_lists(&mut self, tombstones: Vec<Key>, pins: Vec<Key>) -> Result<()> {
        (self.out.tombstones, self.out.pins) = (tombstones.len() as u64, pins.len() as u64);
        let store = self.store;
        let mut lists = stream::iter(tombstones.into_iter().chain(pins))
            .map(|key| async move { (store.key_list(&key).await, key) })
            .buffered(AT_ONCE);
        while let Some((list, key)) = lists.next().await {
            let Some(keys) = self.readable(&key, list)? else {
                continue;
            };
            if let Some(other) = keys.iter().find(|k| *k.run() != self.run) {
                let found = format!("it names {other}, which is not an object of this run");
                self.tell(Fault::Foreign, &key, found, RESTORE);
            }
            if matches!(key, Key::Expired { .. }) {
                self.removed.extend(keys);
            }
        }
        Ok(())
    }

    async fn attempt_records(&mut self, records: Vec<Key>) -> Result<()> {
        self.out.attempt_records = records.len() as u64;
        let store = self.store;
        let mut ends = Vec::new();
        let mut read = stream::iter(records)
            .map(|key| async move { (store.attempt_record(&key).await, key) })
            .buffered(AT_ONCE);
        while let Some((record, key)) = read.next().await {
            let record = self.readable(&key, record)?;
            match (&key, record) {
                (Key::AttemptStart { slot, attempt }, Some(Record::Start(nonce))) => {
                    self.attempts.insert((slot.clone(), *attempt), Some(nonce));
                }
                (Key::AttemptStart { slot, attempt }, _) => {
                    self.attempts.insert((slot.clone(), *attempt), None);
                }
                (Key::AttemptEnd { slot, attempt }, _) => ends.push((slot.clone(), *attempt)),
                _ => {}
            }
        }
        // Attempt numbers are assigned in order, and an attempt that has an end has a start.
        let begun: Vec<(PartKey, u32)> = self.attempts.keys().cloned().collect();
        let mut lost: BTreeSet<(PartKey, u32)> = ends.into_iter().collect();
        for (at, (slot, number)) in begun.iter().enumerate() {
            let before = at.checked_sub(1).and_then(|before| begun.get(before));
            let before = before.filter(|(other, _)| other == slot);
            if *number > before.map_or(0, |(_, number)| *number).saturating_add(1) {
                lost.insert((slot.clone(), number - 1));
            }
        }
        lost.retain(|id| !self.attempts.contains_key(id));
        for (slot, attempt) in lost {
            self.missing_attempt(slot, attempt).await?;
        }
        Ok(())
    }

    async fn missing_attempt(&mut self, slot: PartKey, attempt: u32) -> Result<()> {
        let key = Key::AttemptStart {
            slot: slot.clone(),
            attempt,
        };
        // Report it only once.
        self.attempts.insert((slot, attempt), None);
        if self.store.try_get(&key).await?.is_none() {
            self.tell(
                Fault::Missing,
                &key,
                "an attempt has no record of its beginning",
                "restore it from a copy; without it only history is lost",
            );
        }
        Ok(())
    }

    async fn commits(
        &mut self,
        planned: &mut (dyn FnMut(&PartKey) -> Planned + Send),
    ) -> Result<()> {
        let store = self.store;
        let slots: Vec<PartKey> = self.commits.iter().cloned().collect();
        self.out.commits = slots.len() as u64;
        let mut manifests = stream::iter(slots)
            .map(|slot| async move { (store.manifest(&slot).await, slot) })
            .buffered(AT_ONCE);
        let room = Semaphore::new(MIB_AT_ONCE as usize);
        let mut gone = Vec::new();
        let mut batch = Vec::new();
        loop {
            let next = manifests.next().await;
            let is_last = next.is_none();
            if let Some((manifest, slot)) = next {
                let key = Key::Commit(slot.clone());
                let by = planned(&slot);
                if by == Planned::Unknown {
                    self.tell(
                        Fault::Foreign,
                        &key,
                        "the plan has no such part",
                        "it counts in the run's digest: delete it, or use the program that made it",
                    );
                }
                if let Some(Some(manifest)) = self.readable(&key, manifest)? {
                    self.commit(&manifest, by).await?;
                    batch.extend(manifest.outputs);
                }
            }
            // Artifacts of several commits are read concurrently; none is kept in memory.
            if batch.len() >= AT_ONCE || is_last {
                self.artifacts(std::mem::take(&mut batch), &room, &mut gone)
                    .await?;
            }
            if is_last {
                return self.tell_gone(gone).await;
            }
        }
    }

    /// Checks a manifest's references to objects other than its artifacts.
    async fn commit(&mut self, manifest: &Manifest, by: Planned) -> Result<()> {
        let mut keys = manifest.outputs.iter().map(|o| &o.key);
        let borrowed = keys.find(|key| *key.run() != self.run);
        if let (Planned::Made, Some(other)) = (by, borrowed) {
            self.tell(
                Fault::Foreign,
                Key::Commit(manifest.slot()),
                format!("it names {other}, and the plan takes this part over from no other run"),
                "delete it so that the part is made again",
            );
        }
        for input in &manifest.inputs {
            let slot = PartKey {
                run: self.run.clone(),
                iteration: input.iteration,
                stage: input.stage.clone(),
                part: input.part,
            };
            let key = Key::Commit(slot.clone());
            if !self.commits.contains(&slot) && self.store.try_get(&key).await?.is_none() {
                // Report it only once, even if several parts read this commit.
                self.commits.insert(slot);
                self.tell(
                    Fault::Missing,
                    &key,
                    format!("{} was made from it", manifest.slot()),
                    "restore it from a copy, or let `resume` make the part again",
                );
            }
        }
        let (slot, number) = (manifest.slot(), manifest.attempt);
        self.committed.insert((slot.clone(), number));
        match self.attempts.get(&(slot.clone(), number)) {
            Some(Some(nonce)) if *nonce != manifest.nonce => self.tell(
                Fault::Damaged,
                Key::AttemptStart {
                    slot,
                    attempt: number,
                },
                format!(
                    "its nonce is {}, that of the commit {}",
                    nonce.escape_debug(),
                    manifest.nonce
                ),
                RESTORE,
            ),
            Some(_) => {}
            None => self.missing_attempt(slot, number).await?,
        }
        Ok(())
    }

    async fn artifacts(
        &mut self,
        batch: Vec<Artifact>,
        room: &Semaphore,
        gone: &mut Vec<Artifact>,
    ) -> Result<()> {
        let mut wanted = Vec::new();
        for artifact in batch {
            let listed = self.files.remove(&artifact.key);
            if listed.is_none() && self.removed.contains(&artifact.key) {
                self.out.removed += 1;
            } else {
                wanted.push((artifact, listed));
            }
        }
        let (store, bytes) = (self.store, &self.read.done);
        let mut read = stream::iter(wanted)
            .map(|(artifact, listed)| async move {
                (whole(store, &artifact, listed, room, bytes).await, artifact)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((result, artifact)) = read.next().await {
            match result {
                // An unreadable tombstone is a finding of its own; artifacts that it names count as
                // missing.
                Err(Error::NotFound { .. } | Error::NotStored { .. }) if artifact.after_commit => {
                    self.out.not_stored += 1;
                    continue;
                }
                Err(Error::NotFound { .. } | Error::Malformed { .. } | Error::TooLarge { .. }) => {
                    gone.push(artifact);
                    continue;
                }
                // Retention removed it in the meantime.
                Err(Error::Removed { .. }) => {
                    self.out.removed += 1;
                    continue;
                }
                Err(Error::Damaged {
                    expected,
                    found,
                    commit,
                    ..
                }) => self.tell(
                    Fault::Damaged,
                    &artifact.key,
                    format!("expected {expected}, found {found}"),
                    format!("{RESTORE}, or delete {commit} so that the part is made again"),
                ),
                other => other?,
            }
            self.out.artifacts += 1;
            self.out.bytes += artifact.size;
            self.out.taken_over += u64::from(*artifact.key.run() != self.run);
        }
        Ok(())
    }

    /// Reports missing artifacts, except those that retention removed in the meantime.
    async fn tell_gone(&mut self, gone: Vec<Artifact>) -> Result<()> {
        let own = |artifact: &&Artifact| *artifact.key.run() == self.run;
        let keys = gone.iter().filter(own).map(|a| a.key.clone()).collect();
        let removed = match gone.is_empty() {
            true => BTreeSet::new(),
            false => match self.store.removed(&self.run, &keys).await {
                Err(Error::Malformed { .. } | Error::TooLarge { .. }) => BTreeSet::new(),
                removed => removed?,
            },
        };
        for artifact in gone {
            if removed.contains(&artifact.key) {
                self.out.removed += 1;
                continue;
            }
            let Key::File { slot, .. } = &artifact.key else {
                continue;
            };
            let commit = Key::Commit(slot.clone());
            self.tell(
                Fault::Missing,
                &artifact.key,
                format!(
                    "{} bytes with digest {} should be there",
                    artifact.size, artifact.digest
                ),
                format!("{RESTORE}, or delete {commit} so that the part is made again"),
            );
        }
        Ok(())
    }

    /// Reports files that no commit names.
    fn leftovers(&mut self) {
        for key in std::mem::take(&mut self.files).into_keys() {
            let Key::File {
                slot,
                attempt: AttemptId { number, nonce },
                ..
            } = &key
            else {
                continue;
            };
            let attempt = (slot.clone(), *number);
            let found = match self.attempts.get(&attempt) {
                Some(Some(recorded)) if recorded != nonce => "no attempt on record wrote it",
                None => "no attempt on record wrote it",
                Some(_) if self.committed.contains(&attempt) => {
                    "its attempt's commit does not name it"
                }
                Some(_) => {
                    self.out.left_behind += 1;
                    continue;
                }
            };
            self.tell(
                Fault::Stray,
                &key,
                found,
                "nothing reads it: delete it if nobody needs it",
            );
        }
    }

    /// The value read; `None` if the object itself is damaged or missing, which is reported. Other
    /// failures say nothing about the object and are returned as errors.
    fn readable<T>(&mut self, key: &Key, read: Result<T>) -> Result<Option<T>> {
        let (fault, found) = match read {
            Ok(value) => return Ok(Some(value)),
            Err(Error::Malformed { why, .. }) => (Fault::Damaged, why),
            Err(e @ Error::TooLarge { .. }) => (Fault::Damaged, e.to_string()),
            Err(Error::NotFound { .. }) => (Fault::Missing, "it was listed and is gone".to_owned()),
            Err(e) => return Err(e),
        };
        // Most messages already name the remedy.
        let remedy = match found.contains("restore") {
            true => "",
            false => RESTORE,
        };
        self.tell(fault, key, found, remedy);
        Ok(None)
    }
}

/// Reads an artifact, chunk by chunk, against the digests of its chunks and of the whole.
async fn whole(
    store: &Store,
    artifact: &Artifact,
    listed: Option<u64>,
    room: &Semaphore,
    bytes: &AtomicU64,
) -> Result<()> {
    let size = match listed {
        Some(size) => size,
        None => store.size(&artifact.key).await?,
    };
    if size != artifact.stored_size() {
        return Err(artifact.of_another_size(size));
    }
    let mut hasher = blake3::Hasher::new();
    for index in 0..artifact.chunks() {
        let begin = index as u64 * CHUNK_BYTES;
        let mib = (artifact.size - begin).min(CHUNK_BYTES).div_ceil(1 << 20);
        let held = room
            .acquire_many(u32::try_from(mib).unwrap_or(MIB_AT_ONCE))
            .await;
        let _held = held.expect("nobody closes it");
        let content = artifact.chunk(store, index).await?;
        bytes.fetch_add(content.len() as u64, Ordering::Relaxed);
        // For a single chunk, its digest equals that of the whole; reading a manifest checks this.
        if artifact.chunks() > 1 {
            let hashing = tokio::task::spawn_blocking(move || {
                hasher.update(&content);
                hasher
            });
            hasher = hashing
                .await
                .expect("hashing does not panic, and is not cancelled once it runs");
        }
    }
    if artifact.chunks() > 1 {
        let found = Digest::from(hasher.finalize());
        if found != artifact.digest {
            return Err(artifact.damaged(artifact.digest.to_string(), found.to_string()));
        }
    }
    Ok(())
}
