//! The store: create, read, list. Objects cannot be overwritten, and only retention deletes them,
//! so a reader never sees a change.

mod asking;
mod counters;
mod kept;
mod patience;

use crate::backend::{self, Backend};
use crate::error::is_cut;
use crate::keys::{before_iteration, run_prefix};
use crate::{Error, Key, Result, RunId};
use bytes::Bytes;
pub use counters::RequestCounts;
use counters::{Counters, add};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use kept::KeptCommits;
use object_store::multipart::MultipartStore;
use object_store::path::Path as ObjectPath;
use object_store::{
    Error as BackendError, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutPayload,
};
use patience::LISTING_BYTES;
pub use patience::Patience;
pub(crate) use patience::SMALL_BYTES;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Largest object that is read in one piece.
const OBJECT_BYTES_MAX: u64 = 1 << 30;
/// Objects per page of an S3 listing.
const LIST_PAGE: u64 = 1_000;
/// Times that a create-only write is sent whose connection is cut.
const SENDS_MAX: usize = 4;
/// Tries of a create-only write that is answered "exists" while the object is not there: another
/// writer's request is in flight and may still fail.
const CREATE_TRIES: usize = 5;

/// A store of runs. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    patience: Option<Arc<dyn Patience>>,
}

struct Inner {
    objects: Arc<dyn ObjectStore>,
    parts: Option<Arc<dyn MultipartStore>>,
    url: String,
    address: String,
    local_root: Option<PathBuf>,
    counters: Counters,
    kept: Option<KeptCommits>,
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
    /// Opens a store by URL: a folder or `file:///folder` (created if missing, synced to disk at
    /// every write), `s3://bucket/prefix` with the usual `AWS_*` variables or
    /// `?endpoint=…&region=…&allow_http=…&path_style=…`, `memory:` (lost when dropped) or
    /// `memory:NAME` (one per process).
    ///
    /// # Errors
    /// The URL is invalid, or the folder cannot be created. An S3 server is not contacted before
    /// [`Store::probe`].
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, &[]).await
    }

    /// [`Store::open`] with `AWS_*` settings that take precedence over the environment.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub async fn open_with(url: &str, options: &[(&str, &str)]) -> Result<Self> {
        let backend = backend::open(url, options)?;
        Ok(Self::new(backend))
    }

    /// A store over an already open backend; `url` is its name in messages.
    pub fn over(objects: Arc<dyn ObjectStore>, url: &str) -> Self {
        Self::new(Backend {
            objects,
            parts: None,
            url: url.to_owned(),
            address: url.to_owned(),
            local_root: None,
        })
    }

    fn new(backend: Backend) -> Self {
        let inner = Inner {
            objects: backend.objects,
            parts: backend.parts,
            url: backend.url,
            address: backend.address,
            local_root: backend.local_root,
            counters: Counters::default(),
            kept: None,
        };
        Self {
            inner: Arc::new(inner),
            patience: None,
        }
    }

    /// The same store, which keeps the commits that a listing has named in a local folder. A local
    /// store, and one of which there is a clone already, stay as they are.
    #[must_use]
    pub fn keeping_commits(mut self, folder: &Path) -> Self {
        let is_far = self.local_root().is_none() && !self.url().starts_with("memory:");
        if let (true, Some(inner)) = (is_far, Arc::get_mut(&mut self.inner)) {
            inner.kept = Some(KeptCommits::new(folder.to_owned(), &inner.url));
        }
        self
    }

    /// The store's name for people: without secrets; for a folder, its absolute path.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// The argument of `--store` that opens this store again, quoted for a shell if needed.
    pub fn argument(&self) -> String {
        let address = &self.inner.address;
        let is_plain = |c: char| c.is_alphanumeric() || "/:.-_=@%+,".contains(c);
        match address.chars().all(is_plain) {
            true => address.clone(),
            false => format!("'{}'", address.replace('\'', r"'\''")),
        }
    }

    /// The folder that holds the objects, if they are local files.
    pub fn local_root(&self) -> Option<&Path> {
        self.inner.local_root.as_deref()
    }

    /// Number of requests so far.
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
        let read = || async { self.try_get(key).await?.ok_or_else(not_found) };
        self.read_again(read).await
    }

    /// Reads an object if it is there.
    ///
    /// # Errors
    /// The store fails, or the object has more than 1 GiB.
    pub async fn try_get(&self, key: &Key) -> Result<Option<Bytes>> {
        self.get_at(&location(key)?).await
    }

    /// Creates an object if absent. If the answer to a successful write was lost, the repeated
    /// write finds its own bytes and counts as won; so two writers of which only one may win have
    /// to write different bytes.
    ///
    /// # Errors
    /// The store fails.
    pub async fn create(&self, key: &Key, content: Bytes) -> Result<Created> {
        let path = location(key)?;
        // Each request below has its own limit.
        self.persist(("create", &path, u64::MAX), || {
            self.create_once(key, &path, content.clone())
        })
        .await
    }

    async fn create_once(&self, key: &Key, path: &ObjectPath, content: Bytes) -> Result<Created> {
        for _ in 0..CREATE_TRIES {
            if self.put_at(path, content.clone()).await? {
                return Ok(Created::Won);
            }
            match self.get_at(path).await? {
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

    /// Every object under a prefix of whole path components (`runs/maze`), sorted by key, with its
    /// size. Objects whose names are not keys are left out.
    ///
    /// # Errors
    /// The store fails.
    pub async fn list(&self, prefix: &str) -> Result<Vec<(Key, u64)>> {
        let path = ObjectPath::from(prefix.trim_end_matches('/'));
        self.persist(("list", &path, LISTING_BYTES), || {
            let objects = self.inner.objects.list(Some(&path));
            self.listed(&path, objects)
        })
        .await
    }

    /// The objects in a folder of a run for iteration `first` and all later ones: one listing,
    /// which does not read earlier iterations.
    pub(crate) async fn list_iterations(
        &self,
        run: &RunId,
        folder: &str,
        first: u32,
    ) -> Result<Vec<(Key, u64)>> {
        let path = ObjectPath::from(run_prefix(run, folder));
        let before = ObjectPath::from(before_iteration(run, folder, first));
        self.persist(("list", &path, LISTING_BYTES), || {
            let objects = self.inner.objects.list_with_offset(Some(&path), &before);
            self.listed(&path, objects)
        })
        .await
    }

    /// [`Store::list`], and the names of objects that are not keys.
    pub(crate) async fn list_all(&self, prefix: &str) -> Result<(Vec<(Key, u64)>, Vec<String>)> {
        let path = ObjectPath::from(prefix.trim_end_matches('/'));
        self.persist(("list", &path, LISTING_BYTES), || {
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

    /// Objects by key and size, and the names that are not keys.
    async fn sorted(
        &self,
        path: &ObjectPath,
        mut objects: BoxStream<'static, object_store::Result<ObjectMeta>>,
    ) -> Result<(Vec<(Key, u64)>, Vec<String>)> {
        let (mut found, mut strange) = (Vec::new(), Vec::new());
        while let Some(meta) = objects.next().await {
            let meta = meta.map_err(|e| self.failed("list", path, &e))?;
            if let Some(kept) = &self.inner.kept {
                kept.listed(&meta);
            }
            match Key::parse(meta.location.as_ref()) {
                Ok(key) => found.push((key, meta.size)),
                Err(_) => strange.push(meta.location.to_string()),
            }
        }
        let pages = (found.len() as u64).div_ceil(LIST_PAGE).max(1);
        add(&self.inner.counters.lists, pages);
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
        let list = || async {
            let found = self.inner.objects.list_with_delimiter(Some(&path)).await;
            found.map_err(|e| self.failed("list", &path, &e))
        };
        let found = self.persist(("list", &path, LISTING_BYTES), list).await?;
        add(&self.inner.counters.lists, 1);
        let mut runs: Vec<RunId> = found
            .common_prefixes
            .iter()
            .filter_map(|p| p.filename()?.parse().ok())
            .collect();
        runs.sort_unstable();
        Ok(runs)
    }

    /// All objects in one folder of a run.
    pub(crate) async fn list_run(&self, run: &RunId, folder: &str) -> Result<Vec<(Key, u64)>> {
        self.list(&run_prefix(run, folder)).await
    }

    /// Deletes objects, with one request where the store supports it; missing objects are not an
    /// error. Only retention and the probe delete.
    pub(crate) async fn delete_all(&self, paths: &[ObjectPath]) -> Result<()> {
        let Some(first) = paths.first() else {
            return Ok(());
        };
        // Stores that delete one by one take a request for each.
        let bytes = (paths.len() as u64).saturating_mul(SMALL_BYTES);
        self.persist(("delete", first, bytes), || {
            self.delete_all_once(first, paths)
        })
        .await
    }

    async fn delete_all_once(&self, first: &ObjectPath, paths: &[ObjectPath]) -> Result<()> {
        add(&self.inner.counters.deletes, paths.len() as u64);
        let doomed = stream::iter(paths.to_vec()).map(Ok).boxed();
        let mut answers = self.inner.objects.delete_stream(doomed);
        // A failed deletion does not stop the others.
        let mut failed = Ok(());
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(_) | Err(BackendError::NotFound { .. }) => {}
                Err(e) => failed = failed.and(Err(self.failed("delete", first, &e))),
            }
        }
        failed
    }

    /// One create-if-absent write; false if the object exists.
    pub(crate) async fn put_at(&self, path: &ObjectPath, content: Bytes) -> Result<bool> {
        self.persist(("write", path, content.len() as u64), || {
            self.put_at_once(path, content.clone())
        })
        .await
    }

    /// A create whose connection is cut is sent again: the client below does not know that it may
    /// be, but callers recognise what they wrote themselves.
    async fn put_at_once(&self, path: &ObjectPath, content: Bytes) -> Result<bool> {
        let payload = PutPayload::from_bytes(content);
        let mut sent = 0;
        loop {
            self.count_put(payload.content_length());
            let put = self
                .inner
                .objects
                .put_opts(path, payload.clone(), PutMode::Create.into());
            sent += 1;
            match put.await {
                Ok(_) => return Ok(true),
                Err(BackendError::AlreadyExists { .. }) => return Ok(false),
                Err(e) if is_cut(&e) && sent < SENDS_MAX => {}
                Err(e) => return Err(self.failed("write", path, &e)),
            }
        }
    }

    pub(crate) async fn get_at(&self, path: &ObjectPath) -> Result<Option<Bytes>> {
        let kept = self.inner.kept.as_ref();
        if let Some(content) = kept.and_then(|kept| kept.get(path)) {
            return Ok(Some(content));
        }
        let read = ("read", path, SMALL_BYTES);
        let found = self.persist(read, || self.get_at_once(path)).await?;
        if let (Some(kept), Some(content)) = (kept, &found) {
            kept.keep(path, content);
        }
        Ok(found)
    }

    /// The next read of a commit asks the store.
    pub(crate) fn forget(&self, key: &Key) {
        if let (Some(kept), Ok(path)) = (&self.inner.kept, location(key)) {
            kept.forget(&path);
        }
    }

    async fn get_at_once(&self, path: &ObjectPath) -> Result<Option<Bytes>> {
        add(&self.inner.counters.gets, 1);
        let failed = |e| self.failed("read", path, &e);
        let found = match self.inner.objects.get(path).await {
            Ok(found) => found,
            // A missing bucket is not a missing object.
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
        self.count_got(content.len());
        Ok(Some(content))
    }

    /// Size of the whole object, and the bytes of a non-empty range.
    pub(crate) async fn get_range(&self, key: &Key, range: Range<u64>) -> Result<(u64, Bytes)> {
        let path = location(key)?;
        let bytes = range.end.saturating_sub(range.start);
        self.persist(("read", &path, bytes), || {
            self.get_range_once(&path, range.clone())
        })
        .await
    }

    async fn get_range_once(&self, path: &ObjectPath, range: Range<u64>) -> Result<(u64, Bytes)> {
        add(&self.inner.counters.gets, 1);
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            ..GetOptions::default()
        };
        let failed = |e| self.failed("read", path, &e);
        let found = self
            .inner
            .objects
            .get_opts(path, options)
            .await
            .map_err(failed)?;
        let size = found.meta.size;
        let content = found.bytes().await.map_err(failed)?;
        self.count_got(content.len());
        Ok((size, content))
    }

    /// Size of an object.
    pub(crate) async fn size(&self, key: &Key) -> Result<u64> {
        let path = location(key)?;
        self.persist(("read", &path, 0), || self.size_once(&path))
            .await
    }

    async fn size_once(&self, path: &ObjectPath) -> Result<u64> {
        add(&self.inner.counters.gets, 1);
        let meta = self
            .inner
            .objects
            .head(path)
            .await
            .map_err(|e| self.failed("read", path, &e))?;
        Ok(meta.size)
    }

    /// What takes large objects in parts.
    pub(crate) fn parts(&self) -> Option<Arc<dyn MultipartStore>> {
        self.inner.parts.clone()
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

/// The path of a key. The fields of a key are public, so this checks that the path parses back to
/// the same key: everything written can be listed.
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
