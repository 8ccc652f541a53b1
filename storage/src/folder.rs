//! A set of artifacts as a local folder, for readers that need files (memory-mapped weights,
//! tokenizers). Either the files are used in place, if the store is a local folder, or they are
//! downloaded into a cache keyed by content, in which several processes may download, use and evict
//! concurrently. In both cases every file is verified each time the folder is opened.
//!
//! Layout of the cache: `<id>/` holds the files and is complete once it has been renamed to that
//! name; every user of the folder holds a shared lock on `<id>.lock`, and only folders whose lock
//! can be taken exclusively are evicted; `<id>.<nonce>.partial` is a download in progress.

use crate::near::{CHUNKS_AT_ONCE, Near, blocking, hold, holds, lock_file};
use crate::{Artifact, Digest, Error, Result, Store, nonce};
use futures::{StreamExt, TryStreamExt, stream};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Folders that stay in the cache in addition to those in use: the initial policy, the policies and
/// states of the last iterations and that of an evaluation, of two runs.
const FOLDERS_KEPT: usize = 8;
/// A partial download not modified for this long is considered abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// A download that nothing was written of for this long is not waited for: its process may have died, or
/// stopped.
const STALLED_AFTER: Duration = Duration::from_secs(20);
/// How often somebody else's download is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
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
    for _ in 0..TRIES {
        let partial = loop {
            if let Some(folder) = held(&files, &id, cache).await? {
                return Ok(folder);
            }
            let (cache, id) = (cache.to_owned(), id.clone());
            match blocking(move || Partial::begin(&cache, &id)).await? {
                Some(partial) => break partial,
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        };
        let (cache_dir, own) = (cache.to_owned(), id.clone());
        let incoming = files.iter().map(|(_, artifact)| artifact.size).sum();
        blocking(move || evict(&cache_dir, &own, incoming, bytes_max)).await?;
        download(store, &files, &partial.path, cache).await?;
        // Renaming onto a non-empty folder fails: another process was faster, and the next iteration of
        // the loop checks its files.
        let _ = tokio::fs::rename(&partial.path, &path).await;
    }
    let source = std::io::Error::other("it is damaged again and again; is the disk failing?");
    Err(Error::local("keep the files of", path, source))
}

/// A download in progress, which is removed if it does not get its name.
struct Partial {
    path: PathBuf,
    /// Locked by one of those that download the same; it is gone when that one ends.
    lock: PathBuf,
    _locked: File,
}

impl Partial {
    /// A new one, unless the folder is there, or somebody else downloads it and gets on.
    fn begin(cache: &Path, id: &str) -> Result<Option<Self>> {
        let path = cache.join(format!("{id}.{}.partial", nonce()));
        let lock = cache.join(format!("{id}.download"));
        let locked = lock_file(&lock)?;
        let is_free = locked.try_lock().is_ok();
        let gets_on = || {
            let mut all = idle_downloads(cache, id).chain([age(&lock)]);
            all.any(|idle| idle < STALLED_AFTER)
        };
        if !is_free && gets_on() {
            return Ok(None);
        }
        let marked = locked.set_modified(SystemTime::now());
        marked.map_err(|e| Error::local("lock", &lock, e))?;
        let own = Self {
            path,
            lock,
            _locked: locked,
        };
        // Another one may have ended just now.
        if cache.join(id).exists() {
            return Ok(None);
        }
        let made = std::fs::create_dir_all(&own.path);
        made.map_err(|e| Error::local("make the folder", &own.path, e))?;
        Ok(Some(own))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        let _ = std::fs::remove_file(&self.lock);
    }
}

/// How long nothing of each download of a folder has changed.
fn idle_downloads(cache: &Path, id: &str) -> impl Iterator<Item = Duration> {
    let begins = format!("{id}.");
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter_map(move |path| {
        let name = path.file_name()?.to_string_lossy();
        (name.starts_with(&begins) && name.ends_with(".partial")).then(|| idle(&path))
    })
}

/// How long nothing of a folder has changed.
fn idle(folder: &Path) -> Duration {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let all = entries.map(|entry| entry.path()).chain([folder.to_owned()]);
    all.map(|path| age(&path)).min().unwrap_or_default()
}

/// How long ago a file was written; long, if it is gone.
fn age(path: &Path) -> Duration {
    let modified = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    let modified = modified.unwrap_or(SystemTime::UNIX_EPOCH);
    modified.elapsed().unwrap_or_default()
}

/// The files in the cache, if they are there.
pub(crate) async fn in_cache(
    files: &[&Artifact],
    under: &str,
    cache: &Path,
) -> Result<Option<LocalFolder>> {
    let (files, id) = content_of(files, under);
    held(&files, &id, cache).await
}

/// A folder of the cache, if it is there and whole. Its lock is taken first, so that nobody removes it
/// in between.
async fn held(
    files: &[(String, &Artifact)],
    id: &str,
    cache: &Path,
) -> Result<Option<LocalFolder>> {
    let path = cache.join(id);
    let (cache_dir, id) = (cache.to_owned(), id.to_owned());
    let wanted: Vec<_> = files
        .iter()
        .map(|(name, a)| (path.join(name), a.size, a.chunk_digests.clone()))
        .collect();
    blocking(move || {
        std::fs::create_dir_all(&cache_dir)
            .map_err(|e| Error::local("make the folder", &cache_dir, e))?;
        let lock = hold(&cache_dir, &id)?;
        if !path.exists() {
            return Ok(None);
        }
        for (file, size, digests) in &wanted {
            if !is_intact(file, *size, digests) {
                tracing::warn!("{} in the cache is damaged; it is not used", file.display());
                let aside = cache_dir.join(format!("damaged-{}.partial", nonce()));
                std::fs::rename(&path, &aside).map_err(|e| Error::local("move aside", &path, e))?;
                std::fs::remove_dir_all(&aside).map_err(|e| Error::local("remove", &aside, e))?;
                return Ok(None);
            }
        }
        Ok(Some(LocalFolder {
            path,
            _lock: Some(lock),
        }))
    })
    .await
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

/// Whether the cache has such a folder.
pub(crate) fn is_cached(files: &[&Artifact], under: &str, cache: &Path) -> bool {
    cache.join(content_of(files, under).1).exists()
}

/// Makes a local folder that has just been written as these artifacts a folder of the cache. Nothing
/// depends on it: where it cannot be moved it stays.
pub(crate) async fn adopt(
    files: &[&Artifact],
    under: &str,
    (cache, bytes_max): (&Path, u64),
    from: &Path,
) -> Option<LocalFolder> {
    let (files, id) = content_of(files, under);
    // An earlier attempt may have left it.
    if let Ok(Some(folder)) = held(&files, &id, cache).await {
        return Some(folder);
    }
    let incoming = files.iter().map(|(_, artifact)| artifact.size).sum();
    let (cache, from) = (cache.to_owned(), from.to_owned());
    let moved = blocking(move || {
        std::fs::create_dir_all(&cache).map_err(|e| Error::local("make the folder", &cache, e))?;
        let lock = hold(&cache, &id)?;
        evict(&cache, &id, incoming, bytes_max)?;
        let path = cache.join(&id);
        std::fs::rename(&from, &path).map_err(|e| Error::local("move", &from, e))?;
        let _lock = Some(lock);
        Ok(LocalFolder { path, _lock })
    });
    let not_kept = |e: &Error| tracing::debug!("it is not kept for later readers: {e}");
    moved.await.inspect_err(not_kept).ok()
}

/// Removes a folder from the cache unless somebody uses it.
pub(crate) async fn forget(files: &[&Artifact], under: &str, cache: &Path) {
    let (_, id) = content_of(files, under);
    let cache = cache.to_owned();
    let removed =
        blocking(move || remove_idle(&cache.join(&id), &cache.join(format!("{id}.lock"))));
    if let Err(e) = removed.await {
        tracing::debug!("it stays in the cache: {e}");
    }
}

/// Removes a folder of the cache whose lock is free; false if somebody holds it.
fn remove_idle(path: &Path, lock: &Path) -> Result<bool> {
    if !lock_file(lock).is_ok_and(|lock| lock.try_lock().is_ok()) {
        return Ok(false);
    }
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::local("remove", path, e)),
        _ => Ok(true),
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
        let mut file = File::create(&path).map_err(failed)?;
        let mut chunks = stream::iter(0..artifact.chunks())
            .map(|i| artifact.chunk_near(store, near, i))
            .buffered(CHUNKS_AT_ONCE);
        while let Some(chunk) = chunks.try_next().await? {
            let to = path.clone();
            let write = move || {
                let written = file.write_all(&chunk).map(|()| file);
                written.map_err(|e| Error::local("write", to, e))
            };
            file = blocking(write).await?;
        }
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

impl Artifact {
    /// Whether a local file has these bytes.
    pub async fn is_at(&self, path: &Path) -> bool {
        let (path, size, digests) = (path.to_owned(), self.size, self.chunk_digests.clone());
        let looked = blocking(move || Ok(is_intact(&path, size, &digests)));
        looked.await.unwrap_or(false)
    }
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

/// Removes what nobody uses from the cache, since its disk is full.
pub async fn make_room(cache: &Path) {
    let cache = cache.to_owned();
    if let Err(e) = blocking(move || evict(&cache, "", 0, 0)).await {
        tracing::debug!("the cache stays as it is: {e}");
    }
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
        if name.ends_with(".partial") {
            if age(&path) > ABANDONED_AFTER {
                let _ = std::fs::remove_dir_all(&path);
            }
        } else if name.parse::<Digest>().is_ok() && name != own {
            let lock = cache.join(format!("{name}.lock"));
            idle.push((std::cmp::Reverse(age(&lock)), path, lock));
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
        let bytes = size(&path);
        if remove_idle(&path, &lock)? {
            held = held.saturating_sub(bytes);
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
