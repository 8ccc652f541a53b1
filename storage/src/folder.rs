//! A set of artifacts as a local folder, for readers that need files (memory-mapped weights,
//! tokenizers). Either the files are used in place, if the store is a local folder, or they are
//! downloaded into a cache keyed by content, in which several processes may download, use and evict
//! concurrently. In both cases every file is verified each time the folder is opened.
//!
//! Layout of the cache: `<id>/` holds the files and is complete once it has been renamed to that
//! name; every user of the folder holds a shared lock on `<id>.lock`, and only folders whose lock
//! can be taken exclusively are evicted; `<id>.<nonce>.partial` is a download in progress.

use crate::near::{CHUNKS_AT_ONCE, Near, blocking, hold, holds};
use crate::{Artifact, Digest, Error, Result, Store, nonce};
use futures::{StreamExt, TryStreamExt, stream};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::io::AsyncWriteExt;

/// Folders that stay in the cache in addition to those in use: the initial policy, those of the
/// last iterations and of an evaluation.
const FOLDERS_KEPT: usize = 4;
/// A partial download not modified for this long is considered abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Between two tries another process may evict the folder or finish the same download.
const TRIES: usize = 5;

/// Verified files on this machine. They stay in place as long as this value lives.
#[derive(Debug)]
pub struct LocalFolder {
    path: PathBuf,
    /// Prevents eviction of the folder.
    _lock: Option<File>,
}

impl LocalFolder {
    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The store's own folder with the files, if the store is a local folder and all the files are in
/// the same place.
pub(crate) async fn in_place(
    store: &Store,
    files: &[&Artifact],
    under: &str,
) -> Result<Option<LocalFolder>> {
    let Some(root) = store.local_root() else {
        return Ok(None);
    };
    if files.iter().any(|a| a.delta.is_some()) {
        return Ok(None);
    }
    let home = |a: &Artifact| a.key.path().strip_suffix(&a.name).map(str::to_owned);
    let Some(first) = files.first().and_then(|a| home(a)) else {
        return Ok(None);
    };
    if files.iter().any(|a| home(a).as_ref() != Some(&first)) {
        return Ok(None);
    }
    for artifact in files {
        let chunks = stream::iter(0..artifact.chunks())
            .map(|i| artifact.chunk(store, i))
            .buffered(CHUNKS_AT_ONCE);
        chunks.try_for_each(|_| async { Ok(()) }).await?;
        if artifact.chunks() == 0 {
            artifact.check_size(store).await?;
        }
    }
    Ok(Some(LocalFolder {
        path: root.join(first).join(under),
        _lock: None,
    }))
}

/// The files in the cache; they are downloaded if missing or damaged.
pub(crate) async fn cached(
    store: &Store,
    files: &[&Artifact],
    under: &str,
    (cache, bytes_max): (&Path, u64),
) -> Result<LocalFolder> {
    let (files, id) = content_of(files, under);
    let path = cache.join(&id);
    let lock = blocking({
        let (cache, id) = (cache.to_owned(), id.clone());
        move || {
            std::fs::create_dir_all(&cache)
                .map_err(|e| Error::local("make the folder", &cache, e))?;
            hold(&cache, &id)
        }
    })
    .await?;
    for _ in 0..TRIES {
        let wanted: Vec<_> = files
            .iter()
            .map(|(name, a)| (path.join(name), a.size, a.chunk_digests.clone()))
            .collect();
        let (at, cache_dir) = (path.clone(), cache.to_owned());
        let intact = blocking(move || {
            if !at.exists() {
                return Ok(false);
            }
            for (file, size, digests) in &wanted {
                if !is_intact(file, *size, digests) {
                    tracing::warn!(
                        "{} in the cache is damaged; it is downloaded again",
                        file.display()
                    );
                    let aside = cache_dir.join(format!("damaged-{}.partial", nonce()));
                    std::fs::rename(&at, &aside).map_err(|e| Error::local("move aside", &at, e))?;
                    std::fs::remove_dir_all(&aside)
                        .map_err(|e| Error::local("remove", &aside, e))?;
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await?;
        if intact {
            return Ok(LocalFolder {
                path,
                _lock: Some(lock),
            });
        }
        let partial = cache.join(format!("{id}.{}.partial", nonce()));
        let (cache_dir, own) = (cache.to_owned(), id.clone());
        let incoming = files.iter().map(|(_, artifact)| artifact.size).sum();
        blocking(move || evict(&cache_dir, &own, incoming, bytes_max)).await?;
        let downloaded = download(store, &files, &partial, cache).await;
        let (from, to) = (partial, path.clone());
        blocking(move || {
            // Renaming onto a non-empty folder fails: another process was faster, and the next
            // iteration of the loop checks its files.
            if downloaded.is_err() || std::fs::rename(&from, &to).is_err() {
                let _ = std::fs::remove_dir_all(&from);
            }
            downloaded
        })
        .await?;
    }
    let source = std::io::Error::other("it is damaged again and again; is the disk failing?");
    Err(Error::local("keep the files of", path, source))
}

/// The files by their names in the folder, and the folder's id.
fn content_of<'a>(files: &[&'a Artifact], under: &str) -> (Vec<(String, &'a Artifact)>, String) {
    let named = files.iter().map(|a| (a.name[under.len()..].to_owned(), *a));
    let files: Vec<(String, &Artifact)> = named.collect();
    let lines = files
        .iter()
        .map(|(name, a)| format!("{name} {}\n", a.digest));
    let id = Digest::of(lines.collect::<String>().as_bytes()).to_string();
    (files, id)
}

/// Makes a local folder that has just been written as these artifacts a folder of the cache. Nothing
/// depends on it: where it cannot be moved it stays.
pub(crate) async fn adopt(
    files: &[&Artifact],
    under: &str,
    (cache, bytes_max): (&Path, u64),
    from: &Path,
) {
    let (files, id) = content_of(files, under);
    let incoming = files.iter().map(|(_, artifact)| artifact.size).sum();
    let (cache, from) = (cache.to_owned(), from.to_owned());
    let moved = blocking(move || {
        std::fs::create_dir_all(&cache).map_err(|e| Error::local("make the folder", &cache, e))?;
        let _lock = hold(&cache, &id)?;
        evict(&cache, &id, incoming, bytes_max)?;
        std::fs::rename(&from, cache.join(&id)).map_err(|e| Error::local("move", &from, e))
    });
    if let Err(e) = moved.await {
        tracing::debug!("it is not kept for later readers: {e}");
    }
}

async fn download(
    store: &Store,
    files: &[(String, &Artifact)],
    to: &Path,
    cache: &Path,
) -> Result<()> {
    for (name, artifact) in files {
        let near = match artifact.delta.is_some() {
            true => Near::find(cache, artifact, 1).await,
            false => None,
        };
        let near = near.as_ref();
        let path = to.join(name);
        let failed = |e| Error::local("write", path.clone(), e);
        if let Some(parent) = path.parent() {
            tokio::fs::create_dir_all(parent).await.map_err(failed)?;
        }
        let mut file = tokio::fs::File::create(&path).await.map_err(failed)?;
        let mut chunks = stream::iter(0..artifact.chunks())
            .map(|i| artifact.chunk_near(store, near, i))
            .buffered(CHUNKS_AT_ONCE);
        while let Some(chunk) = chunks.try_next().await? {
            file.write_all(&chunk).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)?;
        if artifact.chunks() == 0 {
            artifact.check_size(store).await?;
        }
    }
    Ok(())
}

/// Whether a local file has the size and the chunk digests it should have.
fn is_intact(path: &Path, size: u64, digests: &[Digest]) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    if !file.metadata().is_ok_and(|m| m.len() == size) {
        return false;
    }
    holds(&file, digests)
}

/// Whether the first chunks of a local file have these digests.
pub(crate) async fn begins_with(path: &Path, digests: Vec<Digest>) -> Result<bool> {
    let path = path.to_owned();
    blocking(move || {
        let file = File::open(&path).map_err(|e| Error::local("read", &path, e))?;
        Ok(holds(&file, &digests))
    })
    .await
}

/// Makes room for `incoming` bytes: removes the least recently used folders and abandoned
/// downloads. Folders in use stay, regardless of the limit. Lock files stay too: if one were
/// removed and created again, its holders would hold locks on two different files.
fn evict(cache: &Path, own: &str, incoming: u64, bytes_max: u64) -> Result<()> {
    let mut idle = Vec::new();
    for entry in std::fs::read_dir(cache)
        .map_err(|e| Error::local("list", cache, e))?
        .flatten()
    {
        let (path, name) = (
            entry.path(),
            entry.file_name().to_string_lossy().into_owned(),
        );
        let modified = |path: &Path| {
            std::fs::metadata(path)
                .and_then(|m| m.modified())
                .unwrap_or(SystemTime::UNIX_EPOCH)
        };
        if name.ends_with(".partial") {
            if modified(&path)
                .elapsed()
                .is_ok_and(|age| age > ABANDONED_AFTER)
            {
                let _ = std::fs::remove_dir_all(&path);
            }
        } else if name.parse::<Digest>().is_ok() && name != own {
            let lock = cache.join(format!("{name}.lock"));
            idle.push((modified(&lock), path, lock));
        }
    }
    idle.sort();
    let mut surplus = (idle.len() + 1).saturating_sub(FOLDERS_KEPT);
    let mut held: u64 = incoming + idle.iter().map(|(_, path, _)| size(path)).sum::<u64>();
    for (_, path, lock) in idle {
        if surplus == 0 && held <= bytes_max {
            break;
        }
        surplus = surplus.saturating_sub(1);
        let Ok(lock) = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(lock)
        else {
            continue;
        };
        if lock.try_lock().is_ok() {
            held = held.saturating_sub(size(&path));
            std::fs::remove_dir_all(&path).map_err(|e| Error::local("remove", &path, e))?;
        }
    }
    Ok(())
}

/// Total bytes of the files below a folder; missing files count as 0.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}
