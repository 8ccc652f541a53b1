//! Copies of artifacts on this machine: files of the cache, which their readers lock.

use crate::artifact::{absorb, chunk_range, hash};
use crate::{Artifact, Digest, Error, Result};
use bytes::Bytes;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Chunks of 64 MiB read concurrently.
pub(crate) const CHUNKS_AT_ONCE: usize = 3;
/// Bytes of a file that are read and hashed at once.
const PIECE_BYTES: usize = 1 << 20;

/// A copy, on this machine, of an artifact or of one that it differs from.
#[derive(Debug)]
pub(crate) struct Near {
    path: PathBuf,
    /// How many links behind the artifact it is.
    link: usize,
    size: u64,
    chunk_digests: Vec<Digest>,
    /// Prevents eviction of the folder.
    _lock: File,
}

impl Near {
    /// Looks in the cache for the nearest link of an artifact, from the `first` on.
    pub(crate) async fn find(cache: &Path, artifact: &Artifact, first: usize) -> Option<Self> {
        let links = artifact.links().enumerate().skip(first);
        let links: Vec<(usize, Artifact)> = links.map(|(at, link)| (at, link.clone())).collect();
        let cache = cache.to_owned();
        let found = blocking(move || Ok(links.iter().find_map(|of| Self::copy(&cache, of))));
        found.await.ok().flatten()
    }

    fn copy(cache: &Path, (link, of): &(usize, Artifact)) -> Option<Self> {
        let (_, name) = of.name.split_once('/')?;
        let folders = std::fs::read_dir(cache).ok()?.flatten();
        let ids = folders.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let ids = ids.filter(|id| id.parse::<Digest>().is_ok());
        ids.into_iter().find_map(|id| {
            let path = cache.join(&id).join(name);
            if std::fs::metadata(&path).ok()?.len() != of.size {
                return None;
            }
            // Others are not marked as used.
            let file = File::open(&path).ok()?;
            if !holds(&file, of.chunk_digests.get(..1)?) {
                return None;
            }
            Some(Self {
                path,
                link: *link,
                size: of.size,
                chunk_digests: of.chunk_digests.clone(),
                _lock: hold(cache, &id).ok()?,
            })
        })
    }

    /// The verified bytes of a chunk, and how many links behind the artifact they are; `None` where the
    /// copy is damaged.
    pub(crate) async fn chunk(&self, index: usize) -> Option<(usize, Bytes)> {
        let (path, range) = (self.path.clone(), chunk_range(self.size, index));
        let read =
            blocking(move || read_part(&path, range).map_err(|e| Error::local("read", &path, e)));
        let content = Bytes::from(read.await.ok()?);
        let is_whole = hash(&content).await == *self.chunk_digests.get(index)?;
        is_whole.then_some((self.link, content))
    }
}

/// Some bytes of a local file.
pub(crate) fn read_part(path: &Path, range: std::ops::Range<u64>) -> std::io::Result<Vec<u8>> {
    let mut content = vec![0; (range.end - range.start) as usize];
    File::open(path)?.read_exact_at(&mut content, range.start)?;
    Ok(content)
}

/// Whether the chunks that follow in a file have these digests.
pub(crate) fn holds(file: &File, digests: &[Digest]) -> bool {
    let mut piece = vec![0; PIECE_BYTES];
    digests.iter().all(|expected| {
        let (mut hasher, mut chunk) = (blake3::Hasher::new(), file.take(crate::CHUNK_BYTES));
        loop {
            match chunk.read(&mut piece) {
                Ok(0) => return hasher.finalize() == *expected.as_bytes(),
                Ok(read) => absorb(&mut hasher, &piece[..read]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    })
}

/// Takes the shared lock of a folder and marks it as used now.
pub(crate) fn hold(cache: &Path, id: &str) -> Result<File> {
    let path = cache.join(format!("{id}.lock"));
    let file = lock_file(&path)?;
    let held = (file.lock_shared()).and_then(|()| file.set_modified(SystemTime::now()));
    held.map_err(|e| Error::local("lock", path, e))?;
    Ok(file)
}

/// A file that is there to be locked.
pub(crate) fn lock_file(path: &Path) -> Result<File> {
    let mut options = File::options();
    let opened = options.create(true).truncate(false).write(true).open(path);
    opened.map_err(|e| Error::local("lock", path, e))
}

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .expect("file work does not panic, and is not cancelled once it runs")
}
