//! The outputs of a stage. Bytes are streamed: hashed and uploaded in one pass into the attempt's
//! own folder, so nothing is buffered twice and nothing can be overwritten. An output is not valid
//! until a manifest names it.

use crate::artifact::Digesting;
use crate::keys::check_name;
use crate::store::location;
use crate::{Artifact, AttemptId, Created, Error, Key, PartKey, Result, Store};
use bytes::{Bytes, BytesMut};
use object_store::{MultipartUpload, PutPayload};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

/// All parts of a large object but the last have this size, as some servers require. S3 allows
/// 10 000 parts: 156 GiB.
const PART_BYTES: usize = 16 << 20;
/// Parts being uploaded concurrently; together with the one being filled this bounds the memory of
/// a writer.
const PARTS_AT_ONCE: usize = 3;
/// Local files are read in pieces of this size.
const READ_BYTES: usize = 1 << 20;

/// The files of one attempt.
#[derive(Debug)]
pub struct Outputs {
    store: Store,
    slot: PartKey,
    attempt: AttemptId,
    artifacts: BTreeMap<String, Artifact>,
}

impl Outputs {
    /// An empty set of outputs.
    pub fn new(store: Store, slot: PartKey, attempt: AttemptId) -> Self {
        Self {
            store,
            slot,
            attempt,
            artifacts: BTreeMap::new(),
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
            upload: None,
            outputs: self,
        })
    }

    /// Writes a local file as an artifact.
    ///
    /// # Errors
    /// The file cannot be read, the name is invalid or taken, or the store fails.
    pub async fn file(&mut self, name: &str, kind: &str, path: &Path) -> Result<&Artifact> {
        let failed = |e| Error::local("read", path, e);
        let mut file = tokio::fs::File::open(path).await.map_err(failed)?;
        let mut writer = self.create(name, kind).await?;
        loop {
            let mut piece = BytesMut::with_capacity(READ_BYTES);
            while piece.len() < READ_BYTES && file.read_buf(&mut piece).await.map_err(failed)? > 0 {
            }
            if piece.is_empty() {
                return writer.finish().await;
            }
            writer.write(piece.freeze()).await?;
        }
    }

    /// Writes every file of a local folder as `prefix/<path in the folder>`.
    ///
    /// # Errors
    /// As [`Outputs::file`]; also a file name that is not a valid artifact name.
    pub async fn folder(&mut self, prefix: &str, kind: &str, path: &Path) -> Result<()> {
        let root = path.to_owned();
        let files = tokio::task::spawn_blocking(move || files_under(&root));
        let files = files
            .await
            .expect("listing does not panic, and is not cancelled once it runs")?;
        for (name, file) in files {
            self.file(
                &format!("{}/{name}", prefix.trim_end_matches('/')),
                kind,
                &file,
            )
            .await?;
        }
        Ok(())
    }

    /// The artifacts written, sorted by name.
    pub fn into_artifacts(self) -> Vec<Artifact> {
        self.artifacts.into_values().collect()
    }
}

/// Files under a folder by their `/`-separated relative name, sorted.
fn files_under(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    let mut folders = vec![(String::new(), root.to_owned())];
    while let Some((prefix, folder)) = folders.pop() {
        let failed = |e| Error::local("list", &folder, e);
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            // Follows links: a Hugging Face cache consists of links.
            let metadata = std::fs::metadata(entry.path())
                .map_err(|e| Error::local("read", entry.path(), e))?;
            if metadata.is_dir() {
                folders.push((format!("{name}/"), entry.path()));
            } else {
                files.push((name, entry.path()));
            }
        }
    }
    files.sort_unstable();
    Ok(files)
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
        while self.part_bytes + content.len() >= PART_BYTES {
            self.push(content.split_to(PART_BYTES - self.part_bytes));
            self.send_part().await?;
        }
        self.push(content);
        Ok(())
    }

    /// Completes the artifact; it is durable when this returns.
    ///
    /// # Errors
    /// The store fails.
    pub async fn finish(mut self) -> Result<&'a Artifact> {
        if self.upload.is_some() {
            if self.part_bytes > 0 {
                self.send_part().await?;
            }
            let upload = self.upload.take().expect("the upload has begun");
            upload.complete(&self.outputs.store, &self.key).await?;
        } else {
            let content = match std::mem::take(&mut self.part).as_slice() {
                [one] => one.clone(),
                pieces => pieces.concat().into(),
            };
            if self.outputs.store.create(&self.key, content).await? == Created::Exists {
                let hint = "an attempt's folder has one writer; was the number of an attempt given out twice?";
                return Err(Error::Conflict {
                    key: self.key.path(),
                    hint,
                });
            }
        }
        let (size, digest, chunk_digests) = self.digesting.finish();
        let artifact = Artifact {
            name: self.name.clone(),
            kind: self.kind,
            key: self.key,
            size,
            digest,
            chunk_digests,
        };
        Ok(self.outputs.artifacts.entry(self.name).or_insert(artifact))
    }

    fn push(&mut self, content: Bytes) {
        if !content.is_empty() {
            self.part_bytes += content.len();
            self.part.push(content);
        }
    }

    async fn send_part(&mut self) -> Result<()> {
        let store = &self.outputs.store;
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(Upload {
                inner: Some(store.multipart(&self.key).await?),
                parts: JoinSet::new(),
            }),
        };
        store.count_put(self.part_bytes);
        let part = std::mem::take(&mut self.part);
        self.part_bytes = 0;
        upload
            .send(part.into_iter().collect(), store, &self.key)
            .await
    }
}

/// A multipart upload.
struct Upload {
    inner: Option<Box<dyn MultipartUpload>>,
    parts: JoinSet<object_store::Result<()>>,
}

impl Upload {
    async fn send(&mut self, part: PutPayload, store: &Store, key: &Key) -> Result<()> {
        self.wait(PARTS_AT_ONCE - 1, store, key).await?;
        let inner = self
            .inner
            .as_mut()
            .expect("an upload is completed once, at its end");
        self.parts.spawn(inner.put_part(part));
        Ok(())
    }

    /// Waits until at most `count` parts are in flight.
    async fn wait(&mut self, count: usize, store: &Store, key: &Key) -> Result<()> {
        while self.parts.len() > count {
            if let Some(done) = self.parts.join_next().await {
                let done = done.expect(
                    "an upload does not panic, and nobody cancels its parts before it is dropped",
                );
                done.map_err(|e| failed(store, key, &e))?;
            }
        }
        Ok(())
    }

    async fn complete(mut self, store: &Store, key: &Key) -> Result<()> {
        self.wait(0, store, key).await?;
        let inner = self
            .inner
            .as_mut()
            .expect("an upload is completed once, at its end");
        inner.complete().await.map_err(|e| failed(store, key, &e))?;
        self.inner = None;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.parts.abort_all();
        // Otherwise the uploaded parts are kept, and charged for, until the bucket's lifecycle
        // rules remove them.
        if let (Some(mut inner), Ok(runtime)) =
            (self.inner.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move {
                if let Err(e) = inner.abort().await {
                    tracing::debug!("an unfinished upload could not be given up: {e}");
                }
            });
        }
    }
}

fn failed(store: &Store, key: &Key, error: &object_store::Error) -> Error {
    match location(key) {
        Ok(path) => store.failed("write", &path, error),
        Err(e) => e,
    }
}
