//! Commits in a store: written if absent, read, listed.

use crate::keys::commits_prefix;
use crate::{Artifact, Created, Error, Key, Manifest, PartKey, Result, RunId, Store};

/// How a commit ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Committed {
    /// This attempt's manifest is the commit.
    Won,
    /// Another attempt's manifest, given here, is the commit.
    Superseded(Box<Manifest>),
}

impl Store {
    /// Commits a part. The first manifest wins; calling this again with the same manifest is
    /// idempotent.
    ///
    /// # Errors
    /// The store fails, or the existing commit cannot be read.
    pub async fn commit(&self, manifest: &Manifest) -> Result<Committed> {
        let slot = manifest.slot();
        let key = Key::Commit(slot.clone());
        match self.create(&key, manifest.to_bytes()?).await? {
            Created::Won => Ok(Committed::Won),
            Created::Exists => {
                let first = self.listed_manifest(&slot).await?;
                Ok(Committed::Superseded(Box::new(first)))
            }
        }
    }

    /// The commit of a part, if there is one.
    ///
    /// # Errors
    /// The store fails, the object is not a manifest of this part, or it names files of another run
    /// that no pin keeps for this run.
    pub async fn manifest(&self, slot: &PartKey) -> Result<Option<Manifest>> {
        self.read_again(|| self.manifest_once(slot)).await
    }

    /// The commit of a part that a listing has named.
    ///
    /// # Errors
    /// As [`Store::manifest`], and [`Error::NotFound`].
    pub async fn listed_manifest(&self, slot: &PartKey) -> Result<Manifest> {
        let gone = || Error::NotFound {
            key: Key::Commit(slot.clone()).path(),
            url: self.url().to_owned(),
        };
        let read = || async { self.manifest_once(slot).await?.ok_or_else(gone) };
        self.read_again(read).await
    }

    async fn manifest_once(&self, slot: &PartKey) -> Result<Option<Manifest>> {
        let key = Key::Commit(slot.clone());
        let Some(content) = self.try_get(&key).await? else {
            return Ok(None);
        };
        let manifest = Manifest::read(&key.path(), &content).inspect_err(|_| self.forget(&key))?;
        if manifest.slot() == *slot {
            self.check_origin(&manifest).await?;
            return Ok(Some(manifest));
        }
        Err(Error::malformed(
            key.path(),
            format!(
                "it is the manifest of {}; was it copied here?",
                manifest.slot()
            ),
        ))
    }

    /// Checks the pin behind a taken-over part: a fork pins the files before it commits them.
    async fn check_origin(&self, manifest: &Manifest) -> Result<()> {
        let Some(origin) = &manifest.origin else {
            return Ok(());
        };
        let pinned = self.pins_of(&origin.run, &manifest.run).await?;
        let outputs = manifest.outputs.iter().flat_map(Artifact::links);
        // What a fork's parent has taken over itself is pinned in the run that wrote it.
        let mut own = outputs.filter(|artifact| *artifact.key.run() == origin.run);
        let Some(artifact) = own.find(|artifact| !pinned.contains(&artifact.key)) else {
            return Ok(());
        };
        let pin = Key::Pin {
            run: origin.run.clone(),
            child: manifest.run.clone(),
        };
        Err(Error::malformed(
            Key::Commit(manifest.slot()).path(),
            format!(
                "it names {}, which {pin} does not keep for run {}; restore the pin from a copy, or fork anew",
                artifact.key, manifest.run
            ),
        ))
    }

    /// The committed parts of an iteration, sorted: one listing.
    ///
    /// # Errors
    /// The store fails.
    pub async fn commits(&self, run: &RunId, iteration: u32) -> Result<Vec<PartKey>> {
        Ok(slots(self.list(&commits_prefix(run, iteration)).await?))
    }

    /// The committed parts of iteration `first` and all later ones, sorted: one listing.
    ///
    /// # Errors
    /// The store fails.
    pub async fn commits_from(&self, run: &RunId, first: u32) -> Result<Vec<PartKey>> {
        Ok(slots(self.list_iterations(run, "commits", first).await?))
    }

    /// The committed parts of a run, sorted: one listing.
    ///
    /// # Errors
    /// The store fails.
    pub async fn all_commits(&self, run: &RunId) -> Result<Vec<PartKey>> {
        Ok(slots(self.list_run(run, "commits").await?))
    }
}

fn slots(listed: Vec<(Key, u64)>) -> Vec<PartKey> {
    let slot = |(key, _)| {
        if let Key::Commit(slot) = key {
            Some(slot)
        } else {
            None
        }
    };
    listed.into_iter().filter_map(slot).collect()
}
