//! The store: create, read, list. There is no way to overwrite an object, and
//! deletion is reserved to retention, so a reader never sees a change.

mod counters;

use crate::backend::{self, Backend};
use crate::keys::{before_iteration, run_prefix};
use crate::{Error, Key, Result, RunId};
use bytes::Bytes;
use counters::Counters;
pub use counters::RequestCounts;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path as ObjectPath;
use object_store::{
    Error as BackendError, GetOptions, GetRange, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutPayload,
};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Largest object that is read in one piece.
const OBJECT_BYTES_MAX: u64 = 1 << 30;
/// Objects per page of an S3 listing.
const LIST_PAGE: u64 = 1_000;
/// A create-only write answered "exists" while nothing is there: another
/// writer's request is in flight and may yet fail. Then it is asked again.
const CREATE_TRIES: usize = 5;

/// First and longest pause before a store that failed is asked again.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Whether to wait for a store that fails: asked with what it said, and for how long the
/// request has failed.
type Patience = Arc<dyn Fn(&Error, Duration) -> bool + Send + Sync>;

/// A store of runs. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    patience: Option<Patience>,
}

struct Inner {
    objects: Arc<dyn ObjectStore>,
    url: String,
    address: String,
    local_root: Option<PathBuf>,
    counters: Counters,
}

/// How a create-only write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The object holds these bytes.
    Won,
    /// The object holds other bytes, written earlier.
    Exists,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.inner.url).finish()
    }
}

impl Store {
    /// Opens a store by URL: a folder or `file:///folder` (made if missing,
    /// synced to disk at every write), `s3://bucket/prefix` with the usual
    /// `AWS_*` variables or `?endpoint=…&region=…&allow_http=…&path_style=…`,
    /// `memory:` (gone when dropped) or `memory:NAME` (one per process).
    ///
    /// # Errors
    /// A URL that is not understood, or a folder that cannot be made. An S3
    /// server is not contacted before [`Store::probe`].
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, &[]).await
    }

    /// [`Store::open`] with `AWS_*` settings that go before the environment's.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn open_with(url: &str, options: &[(&str, &str)]) -> Result<Self> {
        let backend = backend::open(url, options)?;
        Ok(Self::new(backend))
    }

    /// A store over a backend that is open already; `url` is its name for people.
    pub fn over(objects: Arc<dyn ObjectStore>, url: &str) -> Self {
        Self::new(Backend {
            objects,
            url: url.to_owned(),
            address: url.to_owned(),
            local_root: None,
        })
    }

    fn new(backend: Backend) -> Self {
        let inner = Inner {
            objects: backend.objects,
            url: backend.url,
            address: backend.address,
            local_root: backend.local_root,
            counters: Counters::default(),
        };
        Self {
            inner: Arc::new(inner),
            patience: None,
        }
    }

    /// The same store, for callers that rather wait than fail: while it does not answer or is
    /// full, requests are made again, with growing pauses, as long as `waits` says so.
    pub fn patient(
        &self,
        waits: impl Fn(&Error, Duration) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            patience: Some(Arc::new(waits)),
        }
    }

    /// Makes a request until it is answered, or patience ends.
    async fn persist<T, F: Future<Output = Result<T>>>(
        &self,
        request: impl Fn() -> F,
    ) -> Result<T> {
        let Some(waits) = &self.patience else {
            return request().await;
        };
        let (begun, mut pause) = (Instant::now(), PAUSE_MIN);
        loop {
            let error = match request().await {
                Err(e @ (Error::Unavailable { .. } | Error::Full { .. })) => e,
                answer => return answer,
            };
            if !waits(&error, begun.elapsed()) {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The store's name for people: without secrets, a folder as its absolute path.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// What to type behind `--store` to reach it again, quoted where a shell wants that.
    pub fn argument(&self) -> String {
        let address = &self.inner.address;
        let is_plain = |c: char| c.is_alphanumeric() || "/:.-_=@%+,".contains(c);
        match address.chars().all(is_plain) {
            true => address.clone(),
            false => format!("'{}'", address.replace('\'', r"'\''")),
        }
    }

    /// The folder that holds the objects, if they are files.
    pub fn local_root(&self) -> Option<&Path> {
        self.inner.local_root.as_deref()
    }

    /// Requests so far.
    pub fn requests(&self) -> RequestCounts {
        self.inner.counters.read()
    }

    /// Reads an object that must be there.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it is not.
    pub async fn get(&self, key: &Key) -> Result<Bytes> {
        let not_found = || Error::NotFound {
            key: key.path(),
            url: self.url().to_owned(),
        };
        self.try_get(key).await?.ok_or_else(not_found)
    }

    /// Reads an object if it is there.
    ///
    /// # Errors
    /// The store fails, or the object has more than 1 GiB.
    pub async fn try_get(&self, key: &Key) -> Result<Option<Bytes>> {
        self.get_at(&location(key)?).await
    }

    /// Writes an object that nobody has written. A writer whose first answer
    /// got lost finds its own bytes and has won all the same; so two writers
    /// that must not both win have to write different bytes.
    ///
    /// # Errors
    /// The store fails.
    pub async fn create(&self, key: &Key, content: Bytes) -> Result<Created> {
        let path = location(key)?;
        for _ in 0..CREATE_TRIES {
            if self.put_at(&path, content.clone()).await? {
                return Ok(Created::Won);
            }
            match self.get_at(&path).await? {
                Some(found) if found == content => return Ok(Created::Won),
                Some(_) => return Ok(Created::Exists),
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        let why = "it says that the object exists, but does not find it".to_owned();
        Err(Error::Unavailable {
            url: self.url().to_owned(),
            doing: "create",
            key: key.path(),
            why,
        })
    }

    /// Every object under a prefix of whole path pieces (`runs/maze`), sorted
    /// by key, with its size. Objects of foreign shape are left out.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list(&self, prefix: &str) -> Result<Vec<(Key, u64)>> {
        let path = ObjectPath::from(prefix.trim_end_matches('/'));
        self.persist(|| {
            let objects = self.inner.objects.list(Some(&path));
            self.listed(&path, objects)
        })
        .await
    }

    /// What a folder of a run holds of iteration `first` and all later ones: one listing,
    /// however many iterations that are, and however many lie behind.
    pub(crate) async fn list_iterations(
        &self,
        run: &RunId,
        folder: &str,
        first: u32,
    ) -> Result<Vec<(Key, u64)>> {
        let path = ObjectPath::from(run_prefix(run, folder));
        let before = ObjectPath::from(before_iteration(run, folder, first));
        self.persist(|| {
            let objects = self.inner.objects.list_with_offset(Some(&path), &before);
            self.listed(&path, objects)
        })
        .await
    }

    /// [`Store::list`], and beside it the names of objects of foreign shape.
    pub(crate) async fn list_all(&self, prefix: &str) -> Result<(Vec<(Key, u64)>, Vec<String>)> {
        let path = ObjectPath::from(prefix.trim_end_matches('/'));
        self.persist(|| {
            let objects = self.inner.objects.list(Some(&path));
            self.sorted(&path, objects)
        })
        .await
    }

    async fn listed(
        &self,
        path: &ObjectPath,
        objects: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> Result<Vec<(Key, u64)>> {
        Ok(self.sorted(path, objects).await?.0)
    }

    /// Objects by key and size, and the names that are no keys.
    async fn sorted(
        &self,
        path: &ObjectPath,
        mut objects: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> Result<(Vec<(Key, u64)>, Vec<String>)> {
        let (mut found, mut strange) = (Vec::new(), Vec::new());
        while let Some(meta) = objects.next().await {
            let meta = meta.map_err(|e| self.failed("list", path, &e))?;
            match Key::parse(meta.location.as_ref()) {
                Ok(key) => found.push((key, meta.size)),
                Err(_) => strange.push(meta.location.to_string()),
            }
        }
        self.inner.counters.lists.fetch_add(
            (found.len() as u64).div_ceil(LIST_PAGE).max(1),
            Ordering::Relaxed,
        );
        found.sort_unstable();
        strange.sort_unstable();
        Ok((found, strange))
    }

    /// Ids of all runs that have an object in this store, sorted.
    ///
    /// # Errors
    /// The store fails.
    pub async fn runs(&self) -> Result<Vec<RunId>> {
        let path = ObjectPath::from("runs");
        let found = self.inner.objects.list_with_delimiter(Some(&path)).await;
        let found = found.map_err(|e| self.failed("list", &path, &e))?;
        self.inner.counters.lists.fetch_add(1, Ordering::Relaxed);
        let mut runs: Vec<RunId> = found
            .common_prefixes
            .iter()
            .filter_map(|p| p.filename()?.parse().ok())
            .collect();
        runs.sort_unstable();
        Ok(runs)
    }

    /// All objects of one folder of a run.
    pub(crate) async fn list_run(&self, run: &RunId, folder: &str) -> Result<Vec<(Key, u64)>> {
        self.list(&run_prefix(run, folder)).await
    }

    /// Removes an object; only retention and the probe do. A missing one is fine.
    /// Deletes objects, with one request where the store can; what is gone is fine.
    pub(crate) async fn delete_all(&self, paths: &[ObjectPath]) -> Result<()> {
        self.persist(|| self.delete_all_once(paths)).await
    }

    async fn delete_all_once(&self, paths: &[ObjectPath]) -> Result<()> {
        let Some(first) = paths.first() else {
            return Ok(());
        };
        let deletes = &self.inner.counters.deletes;
        deletes.fetch_add(paths.len() as u64, Ordering::Relaxed);
        let doomed = stream::iter(paths.to_vec()).map(Ok).boxed();
        let mut answers = self.inner.objects.delete_stream(doomed);
        // One that fails keeps no other one from being deleted.
        let mut failed = Ok(());
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(_) | Err(BackendError::NotFound { .. }) => {}
                Err(e) => failed = failed.and(Err(self.failed("delete", first, &e))),
            }
        }
        failed
    }

    /// One create-only write; false if something is there.
    pub(crate) async fn put_at(&self, path: &ObjectPath, content: Bytes) -> Result<bool> {
        self.persist(|| self.put_at_once(path, content.clone()))
            .await
    }

    async fn put_at_once(&self, path: &ObjectPath, content: Bytes) -> Result<bool> {
        self.count_put(content.len());
        let payload = PutPayload::from_bytes(content);
        match self
            .inner
            .objects
            .put_opts(path, payload, PutMode::Create.into())
            .await
        {
            Ok(_) => Ok(true),
            Err(BackendError::AlreadyExists { .. }) => Ok(false),
            Err(e) => Err(self.failed("write", path, &e)),
        }
    }

    pub(crate) async fn get_at(&self, path: &ObjectPath) -> Result<Option<Bytes>> {
        self.persist(|| self.get_at_once(path)).await
    }

    async fn get_at_once(&self, path: &ObjectPath) -> Result<Option<Bytes>> {
        self.inner.counters.gets.fetch_add(1, Ordering::Relaxed);
        let failed = |e| self.failed("read", path, &e);
        let found = match self.inner.objects.get(path).await {
            Ok(found) => found,
            // A bucket that is missing is not an object that is missing.
            Err(e @ BackendError::NotFound { .. }) => match failed(e) {
                Error::NotFound { .. } => return Ok(None),
                other => return Err(other),
            },
            Err(e) => return Err(failed(e)),
        };
        let size = found.meta.size;
        if size > OBJECT_BYTES_MAX {
            let (key, limit) = (path.to_string(), OBJECT_BYTES_MAX);
            return Err(Error::TooLarge {
                key,
                what: "an object read in one piece",
                size,
                limit,
            });
        }
        let content = found.bytes().await.map_err(failed)?;
        self.inner
            .counters
            .bytes_out
            .fetch_add(content.len() as u64, Ordering::Relaxed);
        Ok(Some(content))
    }

    /// Size of the whole object and the bytes of a range that is not empty.
    pub(crate) async fn get_range(&self, key: &Key, range: Range<u64>) -> Result<(u64, Bytes)> {
        self.persist(|| self.get_range_once(key, range.clone()))
            .await
    }

    async fn get_range_once(&self, key: &Key, range: Range<u64>) -> Result<(u64, Bytes)> {
        let path = location(key)?;
        self.inner.counters.gets.fetch_add(1, Ordering::Relaxed);
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            ..GetOptions::default()
        };
        let failed = |e| self.failed("read", &path, &e);
        let found = self
            .inner
            .objects
            .get_opts(&path, options)
            .await
            .map_err(failed)?;
        let size = found.meta.size;
        let content = found.bytes().await.map_err(failed)?;
        self.inner
            .counters
            .bytes_out
            .fetch_add(content.len() as u64, Ordering::Relaxed);
        Ok((size, content))
    }

    /// Size of an object.
    pub(crate) async fn size(&self, key: &Key) -> Result<u64> {
        self.persist(|| self.size_once(key)).await
    }

    async fn size_once(&self, key: &Key) -> Result<u64> {
        let path = location(key)?;
        self.inner.counters.gets.fetch_add(1, Ordering::Relaxed);
        let meta = self
            .inner
            .objects
            .head(&path)
            .await
            .map_err(|e| self.failed("read", &path, &e))?;
        Ok(meta.size)
    }

    /// Begins a write in parts, under a key that nobody else uses.
    pub(crate) async fn multipart(&self, key: &Key) -> Result<Box<dyn MultipartUpload>> {
        let path = location(key)?;
        self.inner
            .objects
            .put_multipart(&path)
            .await
            .map_err(|e| self.failed("write", &path, &e))
    }

    pub(crate) fn count_put(&self, bytes: usize) {
        self.inner.counters.puts.fetch_add(1, Ordering::Relaxed);
        self.inner
            .counters
            .bytes_in
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn failed(
        &self,
        doing: &'static str,
        path: &ObjectPath,
        error: &BackendError,
    ) -> Error {
        Error::backend(self.url(), doing, path.as_ref(), error)
    }
}

/// Where a key lies. The fields of a key are open, so it is checked here that
/// the path can be read back: what is written can always be listed.
pub(crate) fn location(key: &Key) -> Result<ObjectPath> {
    let path = key.path();
    if Key::parse(&path)? != *key {
        return Err(Error::BadKey {
            path,
            why: "it reads back as another key".to_owned(),
        });
    }
    Ok(ObjectPath::from(path))
}
