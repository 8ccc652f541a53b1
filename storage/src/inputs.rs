//! What a stage may read: commits by the name that its part gives them, artifacts by the name in
//! their manifest. Every byte returned has been checked against the manifest.

use crate::folder::{self, LocalFolder};
use crate::manifest::find;
use crate::near::{CHUNKS_AT_ONCE, Near};
use crate::{Artifact, Error, Manifest, Result, Store};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Largest artifact that [`Inputs::bytes`] reads into memory.
pub const INPUT_BYTES_MAX: u64 = 4 << 30;
/// The commits that a part reads from.
#[derive(Debug, Clone)]
pub struct Inputs {
    store: Store,
    commits: Vec<(String, Manifest)>,
    cache_dir: PathBuf,
    cache_bytes_max: u64,
    /// A folder that was opened before it is asked for, by input and prefix.
    opened: Arc<Mutex<Option<(String, String, LocalFolder)>>>,
}

impl Inputs {
    /// Inputs by name. Folders from stores that are not local are cached under `cache_dir`, which
    /// several processes may share.
    pub fn new(
        store: Store,
        commits: Vec<(String, Manifest)>,
        cache_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            store,
            commits,
            cache_dir: cache_dir.into(),
            cache_bytes_max: u64::MAX,
            opened: Arc::default(),
        }
    }

    /// The same with a size limit for the cache. Folders in use stay, regardless of the limit.
    #[must_use]
    pub fn with_cache_max(mut self, bytes: u64) -> Self {
        self.cache_bytes_max = bytes;
        self
    }

    /// Names of the inputs, in the order of the plan.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.commits.iter().map(|(name, _)| name.as_str())
    }

    /// The artifacts of an input, sorted by name.
    ///
    /// # Errors
    /// [`Error::Unknown`], which lists the known names.
    pub fn artifacts(&self, input: &str) -> Result<&[Artifact]> {
        let known = || {
            let names: Vec<_> = self.names().collect();
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            }
        };
        let missing = || Error::Unknown {
            what: "input",
            name: input.to_owned(),
            known: known(),
        };
        let (_, manifest) = self
            .commits
            .iter()
            .find(|(name, _)| name == input)
            .ok_or_else(missing)?;
        Ok(&manifest.outputs)
    }

    /// The verified bytes of an artifact of at most 4 GiB.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Damaged`], [`Error::Removed`], or the
    /// store fails.
    pub async fn bytes(&self, input: &str, artifact: &str) -> Result<Bytes> {
        self.bytes_max(input, artifact, INPUT_BYTES_MAX).await
    }

    /// [`Inputs::bytes`] with another limit, checked before anything is read.
    ///
    /// # Errors
    /// [`Error::TooLarge`], and as [`Inputs::bytes`].
    pub async fn bytes_max(&self, input: &str, artifact: &str, limit: u64) -> Result<Bytes> {
        let artifact = find(self.artifacts(input)?, artifact)?;
        if artifact.size > limit {
            let (key, size) = (artifact.key.path(), artifact.size);
            return Err(Error::TooLarge {
                key,
                what: "an artifact read into memory",
                size,
                limit,
            });
        }
        read(&self.store, artifact).await
    }

    /// The artifacts under `prefix/` as verified files of a local folder. If the store is a local
    /// folder, these are the stored files themselves; otherwise each content is downloaded once.
    /// The files must not be changed.
    ///
    /// # Errors
    /// [`Error::Unknown`] if nothing has the prefix, a damaged artifact, or a
    /// failure of the store or the local disk.
    pub async fn folder(&self, input: &str, prefix: &str) -> Result<LocalFolder> {
        if let Some(folder) = self.take_opened(input, prefix) {
            return Ok(folder);
        }
        let under = folder_name(prefix);
        let artifacts = self.artifacts(input)?;
        let files: Vec<&Artifact> = artifacts
            .iter()
            .filter(|a| a.name.starts_with(&under))
            .collect();
        if files.is_empty() {
            return Err(find(artifacts, &under).expect_err("no artifact name ends with a slash"));
        }
        if files.iter().any(|a| a.after_commit)
            && let Some(folder) = folder::in_cache(&files, &under, &self.cache_dir).await?
        {
            return Ok(folder);
        }
        if let Some(folder) = folder::in_place(&self.store, &files, &under).await? {
            return Ok(folder);
        }
        folder::cached(&self.store, &files, &under, self.cache()).await
    }

    /// Moves a local folder into the cache that has just been written as `artifacts` under `prefix/`, so
    /// that nobody who shares the cache downloads it. Nothing depends on it.
    pub async fn adopt(
        &self,
        prefix: &str,
        artifacts: &[Artifact],
        folder: &Path,
    ) -> Option<LocalFolder> {
        let under = folder_name(prefix);
        let files: Vec<&Artifact> = artifacts.iter().collect();
        let is_whole = files.iter().all(|a| a.delta.is_none() && !a.after_commit);
        match self.store.local_root().is_none() || !is_whole {
            true => folder::adopt(&files, &under, self.cache(), folder).await,
            false => None,
        }
    }

    /// Removes the files of an input that were written after its commit from the cache, where nobody uses
    /// them: what was made of them is committed.
    pub async fn forget_later(&self, input: &str, prefix: &str) {
        let under = folder_name(prefix);
        let artifacts = self.artifacts(input).unwrap_or_default();
        let files: Vec<&Artifact> = artifacts.iter().filter(|a| a.after_commit).collect();
        if !files.is_empty() {
            folder::forget(&files, &under, &self.cache_dir).await;
        }
    }

    /// Whether the cache holds these artifacts as a folder, whose bytes are not looked at.
    pub fn is_cached(cache_dir: &Path, prefix: &str, artifacts: &[&Artifact]) -> bool {
        folder::is_cached(artifacts, &folder_name(prefix), cache_dir)
    }

    /// Keeps a folder that [`Self::folder`] will be asked for.
    pub fn keep_opened(&self, input: &str, prefix: &str, folder: LocalFolder) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        *opened = Some((input.to_owned(), prefix.to_owned(), folder));
    }

    fn take_opened(&self, input: &str, prefix: &str) -> Option<LocalFolder> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let found = opened.take_if(|(i, p, _)| (&**i, &**p) == (input, prefix));
        found.map(|(_, _, folder)| folder)
    }

    fn cache(&self) -> (&Path, u64) {
        (self.cache_dir.as_path(), self.cache_bytes_max)
    }

    /// A copy of an artifact on this machine, or of one that it differs from.
    pub(crate) async fn near(&self, artifact: &Artifact) -> Option<Near> {
        Near::find(&self.cache_dir, artifact, 0).await
    }
}

/// What the names of a folder's artifacts begin with.
fn folder_name(prefix: &str) -> String {
    format!("{}/", prefix.trim_end_matches('/'))
}

/// All bytes of an artifact. A single chunk is returned without a copy; several are joined in a
/// buffer of the final size.
async fn read(store: &Store, artifact: &Artifact) -> Result<Bytes> {
    match artifact.chunks() {
        0 => artifact.check_size(store).await.map(|()| Bytes::new()),
        1 => artifact.chunk(store, 0).await,
        chunks => {
            let size = usize::try_from(artifact.size).map_err(|_| Error::TooLarge {
                key: artifact.key.path(),
                what: "this machine's address space",
                size: artifact.size,
                limit: usize::MAX as u64,
            })?;
            let mut content = BytesMut::with_capacity(size);
            let mut parts = stream::iter(0..chunks)
                .map(|i| artifact.chunk(store, i))
                .buffered(CHUNKS_AT_ONCE);
            while let Some(part) = parts.try_next().await? {
                content.extend_from_slice(&part);
            }
            Ok(content.freeze())
        }
    }
}
