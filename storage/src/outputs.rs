//! The outputs of a stage. Bytes are streamed: hashed and uploaded in one pass into the attempt's
//! own folder, so nothing is buffered twice and nothing can be overwritten. An output is not valid
//! until a manifest names it.

use crate::backend::PART_BYTES;
use crate::difference::compare;
use crate::keys::check_name;
use crate::local_files::{Pieces, digests_of, files_under, link};
use crate::upload::{Unfinished, Upload};
use crate::{
    Artifact, AttemptId, CHUNK_BYTES, Created, Digest, Digesting, Error, Inputs, Journal, Key,
    LocalFolder, PartKey, Result, Store,
};
use bytes::{Buf, Bytes};
use object_store::multipart::MultipartStore;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of one attempt.
#[derive(Debug)]
pub struct Outputs {
    store: Store,
    slot: PartKey,
    attempt: AttemptId,
    artifacts: BTreeMap<String, Artifact>,
    /// What is said of uploads. In a folder none lasts long enough.
    uploads: Option<Journal>,
    /// What earlier attempts said, once it is asked for.
    said_before: Option<Vec<Bytes>>,
    /// The folder that is written after the commit, and its prefix.
    later: Option<(String, PathBuf)>,
    /// Digests are computed, and nothing is written.
    is_dry: bool,
}

impl Outputs {
    /// An empty set of outputs.
    pub fn new(store: Store, slot: PartKey, attempt: AttemptId) -> Self {
        let journal = || Journal::of_uploads(store.clone(), slot.clone(), attempt.clone());
        Self {
            uploads: store.local_root().is_none().then(journal),
            said_before: None,
            store,
            slot,
            attempt,
            artifacts: BTreeMap::new(),
            later: None,
            is_dry: false,
        }
    }

    /// Outputs of a part that is committed, whose journal has ended.
    pub(crate) fn after_commit(store: Store, slot: PartKey, attempt: AttemptId) -> Self {
        Self {
            uploads: None,
            ..Self::new(store, slot, attempt)
        }
    }

    /// Outputs whose digests alone are of interest: nothing of them is written.
    pub fn of_nothing(store: Store, slot: PartKey, attempt: AttemptId) -> Self {
        Self {
            is_dry: true,
            ..Self::after_commit(store, slot, attempt)
        }
    }

    /// Writes an artifact that is in memory.
    ///
    /// # Errors
    /// A name that is invalid or taken, or the store fails.
    pub async fn bytes(&mut self, name: &str, kind: &str, content: Bytes) -> Result<&Artifact> {
        let mut writer = self.create(name, kind).await?;
        writer.write(content).await?;
        writer.finish().await
    }

    /// Begins an artifact that is written piece by piece.
    ///
    /// # Errors
    /// A name that is invalid or taken.
    pub async fn create(&mut self, name: &str, kind: &str) -> Result<OutputWriter<'_>> {
        check_name(name)?;
        if self.artifacts.contains_key(name) {
            return Err(Error::DuplicateOutput {
                name: name.to_owned(),
                slot: self.slot.to_string(),
            });
        }
        let key = Key::File {
            slot: self.slot.clone(),
            attempt: self.attempt.clone(),
            name: name.to_owned(),
        };
        Ok(OutputWriter {
            key,
            name: name.to_owned(),
            kind: kind.to_owned(),
            digesting: Digesting::default(),
            part: Vec::new(),
            part_bytes: 0,
            skipped: 0,
            upload: None,
            outputs: self,
        })
    }

    /// Writes a local file as an artifact. If an earlier attempt at this part has begun to upload the
    /// same bytes under this name, the rest is sent, and the artifact lies in that attempt's folder.
    ///
    /// # Errors
    /// The file cannot be read, the name is invalid or taken, or the store fails.
    pub async fn file(&mut self, name: &str, kind: &str, path: &Path) -> Result<&Artifact> {
        let begun = self.begun(name, path).await?;
        if let (Some(begun), Some(server)) = (begun, self.store.parts()) {
            let mut writer = self.create(name, kind).await?;
            writer.resume(&server, begun)?;
            match writer.copy(path).await {
                Err(e @ (Error::Unavailable { .. } | Error::Full { .. })) => return Err(e),
                Err(e) => tracing::info!("{name} is sent whole: {e}"),
                Ok(()) => return Ok(&self.artifacts[name]),
            }
        }
        self.create(name, kind).await?.copy(path).await?;
        Ok(&self.artifacts[name])
    }

    /// [`Outputs::file`] for a file that nobody needs afterwards: a store in a folder of the same disk
    /// takes the file itself in place of a copy.
    ///
    /// # Errors
    /// As [`Outputs::file`].
    pub async fn take(&mut self, name: &str, kind: &str, path: &Path) -> Result<&Artifact> {
        if let Some(root) = self.store.local_root().map(Path::to_owned)
            && !self.is_dry
        {
            let writer = self.create(name, kind).await?;
            if writer.take(&root, path).await? {
                return Ok(&self.artifacts[name]);
            }
        }
        self.file(name, kind, path).await
    }

    /// [`Outputs::file`] for a file of numbers that have `width` bytes, of which many are those of `base`, an
    /// artifact of `inputs`: where that is smaller, the difference is stored.
    ///
    /// # Errors
    /// As [`Outputs::file`]; also those of reading `base`.
    pub async fn differing(
        &mut self,
        name: &str,
        kind: &str,
        path: &Path,
        base: &Artifact,
        width: usize,
        inputs: &Inputs,
    ) -> Result<&Artifact> {
        if self.is_dry {
            return self.file(name, kind, path).await;
        }
        let size = tokio::fs::metadata(path).await;
        let size = size.map_err(|e| Error::local("read", path, e))?.len();
        let frames = path.with_extension("difference");
        let made = match size == base.size && size > 0 {
            true => {
                let near = inputs.near(base).await;
                compare(&self.store, path, base, width, near.as_ref(), &frames).await?
            }
            false => None,
        };
        let Some((digests, difference)) = made else {
            let _ = tokio::fs::remove_file(&frames).await;
            return self.file(name, kind, path).await;
        };
        self.file(name, kind, &frames).await?;
        let _ = tokio::fs::remove_file(&frames).await;
        if let Some(artifact) = self.artifacts.get_mut(name) {
            (artifact.size, artifact.digest, artifact.chunk_digests) = digests;
            artifact.delta = Some(Box::new(difference));
        }
        Ok(&self.artifacts[name])
    }

    /// The upload of a local file that an earlier attempt began.
    async fn begun(&mut self, name: &str, path: &Path) -> Result<Option<Unfinished>> {
        if self.attempt.number == 1 || self.uploads.is_none() {
            return Ok(None);
        }
        let size = tokio::fs::metadata(path).await;
        let size = size.map_err(|e| Error::local("read", path, e))?.len();
        if size <= CHUNK_BYTES {
            return Ok(None);
        }
        if self.said_before.is_none() {
            let said = Journal::replay_uploads(&self.store, &self.slot).await?;
            self.said_before = Some(said);
        }
        let notes = self.said_before.as_deref().unwrap_or_default();
        Unfinished::find(notes, &self.slot, name, path, size).await
    }

    /// Takes every file of a local folder as `prefix/<path in the folder>`.
    ///
    /// # Errors
    /// As [`Outputs::take`]; also a file name that is not a valid artifact name.
    pub async fn folder(&mut self, prefix: &str, kind: &str, path: &Path) -> Result<()> {
        for (name, file) in Self::files_of(prefix, path).await? {
            self.take(&name, kind, &file).await?;
        }
        Ok(())
    }

    /// The files of a local folder by the names of their artifacts.
    async fn files_of(prefix: &str, path: &Path) -> Result<Vec<(String, PathBuf)>> {
        let root = path.to_owned();
        let files = tokio::task::spawn_blocking(move || files_under(&root)).await;
        let files = files.expect("listing does not panic, and is not cancelled once it runs")?;
        let prefix = prefix.trim_end_matches('/');
        let named = |(name, file): (String, PathBuf)| (format!("{prefix}/{name}"), file);
        Ok(files.into_iter().map(named).collect())
    }

    /// Names every file of a local folder as `prefix/<path in the folder>`, to be written after the commit
    /// ([`Store::deliver`]) or never.
    ///
    /// # Errors
    /// As [`Outputs::folder`].
    pub async fn folder_after_commit(
        &mut self,
        prefix: &str,
        kind: &str,
        path: &Path,
    ) -> Result<()> {
        for (name, file) in Self::files_of(prefix, path).await? {
            let digests = digests_of(&file).await?;
            self.name_after_commit(&name, kind, digests).await?;
        }
        self.later = Some((prefix.to_owned(), path.to_owned()));
        Ok(())
    }

    /// Names a file of these bytes, to be written after the commit ([`Store::deliver`]) or never.
    ///
    /// # Errors
    /// A name that is invalid or taken.
    pub async fn name_after_commit(
        &mut self,
        name: &str,
        kind: &str,
        digests: Digesting,
    ) -> Result<()> {
        self.create(name, kind).await?.written(digests.finish());
        if let Some(artifact) = self.artifacts.get_mut(name) {
            artifact.after_commit = true;
        }
        Ok(())
    }

    /// Moves the folder of [`Self::folder_after_commit`] into the cache of `inputs`, where whoever shares
    /// the cache finds it.
    pub async fn adopt_later(&mut self, inputs: &Inputs) -> Option<LocalFolder> {
        let (prefix, path) = self.later.take()?;
        let later = self.artifacts.values().filter(|a| a.after_commit);
        let later: Vec<Artifact> = later.cloned().collect();
        inputs.adopt(&prefix, &later, &path).await
    }

    /// The artifacts so far, by name.
    pub fn artifacts(&self) -> impl Iterator<Item = &Artifact> {
        self.artifacts.values()
    }

    /// The artifacts written, sorted by name.
    pub fn into_artifacts(self) -> Vec<Artifact> {
        self.artifacts.into_values().collect()
    }
}

/// Writes one artifact. If dropped without [`OutputWriter::finish`], there is no artifact and the
/// upload is aborted.
pub struct OutputWriter<'a> {
    outputs: &'a mut Outputs,
    key: Key,
    name: String,
    kind: String,
    digesting: Digesting,
    part: Vec<Bytes>,
    part_bytes: usize,
    /// First bytes that the server has, and that are yet to be written.
    skipped: u64,
    /// `None` until the first part is full; a smaller object takes a single request.
    upload: Option<Upload>,
}

impl<'a> OutputWriter<'a> {
    /// Writes the next piece. Waits if the store is slower than the writer (back-pressure).
    ///
    /// # Errors
    /// The store fails.
    pub async fn write(&mut self, mut content: Bytes) -> Result<()> {
        self.digesting = std::mem::take(&mut self.digesting)
            .update(content.clone())
            .await;
        let known = self.skipped.min(content.len() as u64);
        self.skipped -= known;
        content.advance(known as usize);
        if self.outputs.is_dry {
            return Ok(());
        }
        // A store that takes no parts gets the object in one piece.
        if let Some(server) = self.outputs.store.parts() {
            while self.part_bytes + content.len() >= PART_BYTES {
                self.push(content.split_to(PART_BYTES - self.part_bytes));
                self.send_part(&server).await?;
            }
        }
        self.push(content);
        Ok(())
    }

    /// Completes the artifact; it is durable when this returns.
    ///
    /// # Errors
    /// The store fails.
    pub async fn finish(mut self) -> Result<&'a Artifact> {
        let digests = std::mem::take(&mut self.digesting).finish();
        if let Some(mut upload) = self.upload.take() {
            if self.part_bytes > 0 {
                upload.send(self.part.drain(..).collect()).await?;
            }
            let (size, _, chunk_digests) = &digests;
            let journal = self.outputs.uploads.as_mut();
            let notes = journal.filter(|_| *size > CHUNK_BYTES);
            let notes = notes.map(|journal| (journal, &chunk_digests[..]));
            upload.complete(notes).await?;
        } else if !self.outputs.is_dry {
            let content = match std::mem::take(&mut self.part).as_slice() {
                [one] => one.clone(),
                pieces => pieces.concat().into(),
            };
            if self.outputs.store.create(&self.key, content).await? == Created::Exists {
                return Err(self.conflict());
            }
        }
        Ok(self.written(digests))
    }

    /// The object is in the store.
    fn written(self, (size, digest, chunk_digests): (u64, Digest, Vec<Digest>)) -> &'a Artifact {
        let artifact = Artifact {
            name: self.name.clone(),
            kind: self.kind,
            key: self.key,
            size,
            digest,
            chunk_digests,
            delta: None,
            after_commit: false,
        };
        self.outputs.artifacts.entry(self.name).or_insert(artifact)
    }

    fn conflict(&self) -> Error {
        Error::Conflict {
            key: self.key.path(),
            hint: "an attempt's folder has one writer; was the number of an attempt given out twice?",
        }
    }

    fn push(&mut self, content: Bytes) {
        if !content.is_empty() {
            self.part_bytes += content.len();
            self.part.push(content);
        }
    }

    async fn send_part(&mut self, server: &Arc<dyn MultipartStore>) -> Result<()> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(Upload::begin(&self.outputs.store, server, &self.key).await?),
        };
        let part = std::mem::take(&mut self.part);
        self.part_bytes = 0;
        upload.send(part.into_iter().collect()).await?;
        match &mut self.outputs.uploads {
            Some(journal) => upload.note(journal, self.digesting.of_chunks()).await,
            None => Ok(()),
        }
    }

    /// Goes on with an earlier attempt's upload of the bytes that will be written.
    fn resume(&mut self, server: &Arc<dyn MultipartStore>, begun: Unfinished) -> Result<()> {
        tracing::info!("{} goes on after {} bytes", begun.key, begun.bytes);
        (self.key, self.skipped) = (begun.key.clone(), begun.bytes);
        self.upload = Some(Upload::resume(&self.outputs.store, server, begun)?);
        Ok(())
    }

    /// Writes a local file, and nothing else.
    async fn copy(mut self, path: &Path) -> Result<()> {
        let mut pieces = Pieces::of(path).await?;
        while let Some(piece) = pieces.next().await? {
            self.write(piece).await?;
        }
        self.finish().await.map(|_| ())
    }

    /// Makes a local file the object, durably; false if the store's folder is on another disk. A
    /// failure leaves the file where it is.
    async fn take(self, root: &Path, path: &Path) -> Result<bool> {
        let _asking = self.outputs.store.asking();
        match link(root, path, &self.key).await {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                return Err(self.conflict());
            }
            Err(e) => {
                tracing::debug!("{} is copied: {e}", self.key);
                return Ok(false);
            }
        }
        let digests = digests_of(path).await?.finish();
        self.outputs.store.count_put(digests.0 as usize);
        self.written(digests);
        // The store's name for it stays.
        let _ = tokio::fs::remove_file(path).await;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_files::READ_BYTES;
    use crate::testing::slot;
    use std::os::unix::fs::MetadataExt;

    /// A folder store takes files over without a copy; what is a link, or has no room for a second name
    /// because another attempt wrote there, is not touched.
    #[tokio::test]
    async fn a_store_in_a_folder_takes_files_over() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("store").display().to_string();
        let store = Store::open(&root).await.unwrap();
        let scratch = folder.path().join("scratch");
        std::fs::create_dir_all(scratch.join("deep")).unwrap();
        let large = vec![7; 3 * READ_BYTES + 5];
        let file = scratch.join("deep/weights");
        std::fs::write(&file, &large).unwrap();
        std::fs::write(scratch.join("config"), "{}").unwrap();
        let inode = std::fs::metadata(&file).unwrap().ino();
        let attempt = AttemptId::new(1);
        let mut outputs = Outputs::new(store.clone(), slot(), attempt.clone());
        outputs.folder("policy", "model", &scratch).await.unwrap();
        assert!(!file.exists() && !scratch.join("config").exists());
        let artifacts = outputs.into_artifacts();
        let [config, weights] = &artifacts[..] else {
            panic!("{artifacts:?}");
        };
        assert_eq!((config.name.as_str(), config.size), ("policy/config", 2));
        let stored = store.local_root().unwrap().join(weights.key.path());
        assert_eq!(std::fs::metadata(&stored).unwrap().ino(), inode);
        assert_eq!(weights.digest, Digest::of(&large));
        assert_eq!(store.get(&weights.key).await.unwrap(), large);
        assert_eq!(store.requests().bytes_in, large.len() as u64 + 2);

        // The folder of a hub's cache consists of links.
        let link = scratch.join("link");
        std::fs::write(&file, "other").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let mut outputs = Outputs::new(store.clone(), slot(), attempt);
        let linked = outputs.take("policy/link", "model", &link).await.unwrap();
        assert_eq!((linked.size, linked.digest), (5, Digest::of(b"other")));
        assert!(file.exists());
        let taken = outputs.take("policy/deep/weights", "model", &file).await;
        assert!(matches!(taken, Err(Error::Conflict { .. })), "{taken:?}");
        assert!(file.exists());
        assert_eq!(store.get(&weights.key).await.unwrap(), large);
    }
}
