//! A simulated object store: objects in memory, reached over a [`Link`]. It records every effect
//! and immediately checks some invariants: no worker starts a part whose commit it has seen, a
//! commit's inputs are committed before it, and only files and journals are ever deleted.

use super::world::{Fate, Link, Sickness};
use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use tokio::time::Instant;

/// One process's connection to the objects.
#[derive(Debug)]
pub(super) struct SimulatedStore {
    pub(super) objects: Arc<InMemory>,
    pub(super) link: Arc<Link>,
}

impl fmt::Display for SimulatedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated store")
    }
}

fn away() -> Error {
    Error::Generic {
        store: "simulated",
        source: "503 Slow Down".into(),
    }
}

fn exists(location: &Path) -> Error {
    Error::AlreadyExists {
        path: location.to_string(),
        source: "412".into(),
    }
}

/// The commit of the part to which a start record belongs.
fn commit_of(start: &str) -> Option<String> {
    let pieces: Vec<&str> = start.split('/').collect();
    match pieces.as_slice() {
        [
            "runs",
            run,
            "attempts",
            iteration,
            stage,
            part,
            _,
            "start.json",
        ] => Some(format!(
            "runs/{run}/commits/{iteration}/{stage}/{part}.json"
        )),
        _ => None,
    }
}

fn is_commit(key: &str) -> bool {
    key.split('/').nth(2) == Some("commits")
}

/// Whether a crash may leave half of this object: nothing refers to it before it is complete.
fn may_be_torn(key: &str) -> bool {
    matches!(key.split('/').nth(2), Some("files" | "journal"))
}

/// The same object with every byte changed.
async fn garbled(got: GetResult) -> Result<GetResult> {
    let (meta, range, attributes) = (got.meta.clone(), got.range.clone(), got.attributes.clone());
    let bytes = got.bytes().await?;
    let wrong: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
    let payload = GetResultPayload::Stream(stream::once(async { Ok(wrong.into()) }).boxed());
    Ok(GetResult {
        payload,
        meta,
        range,
        attributes,
        extensions: Default::default(),
    })
}

/// What a sick process is answered instead of the truth, if anything.
async fn ail(link: &Link, writes: bool, location: &Path) -> Result<()> {
    use super::world::Sickness::{
        Blind, Expired, FilesUnreadable, FilesUnwritable, Full, Hangs, Refused, Unwritable,
    };
    let Some(sickness) = link.sickness() else {
        return Ok(());
    };
    let is_file = may_be_torn(location.as_ref());
    let error = match sickness {
        Hangs => std::future::pending().await,
        Refused => refused(location),
        Unwritable if writes => refused(location),
        FilesUnwritable if writes && is_file => refused(location),
        FilesUnreadable if !writes && is_file => refused(location),
        Expired => Error::Generic {
            store: "simulated",
            source: "400 Bad Request: <Code>ExpiredToken</Code>".into(),
        },
        Full if writes => Error::Generic {
            store: "simulated",
            source: Box::new(std::io::Error::from(std::io::ErrorKind::StorageFull)),
        },
        Blind if !writes => Error::NotFound {
            path: location.to_string(),
            source: "404".into(),
        },
        _ => return Ok(()),
    };
    link.answer().await;
    link.note("request", location.as_ref(), "ails");
    Err(error)
}

/// A listing misses nothing.
fn unless_blind(error: Error) -> Result<()> {
    match error {
        Error::NotFound { .. } => Ok(()),
        other => Err(other),
    }
}

fn refused(location: &Path) -> Error {
    Error::PermissionDenied {
        path: location.to_string(),
        source: "403 Forbidden: <Code>RequestTimeTooSkewed</Code>".into(),
    }
}

/// [`Link::ask`] in code that may panic.
async fn ask(link: &Link, what: &str, about: &str) -> Fate {
    link.turn(what, about).await;
    link.world.may_panic("the store's code", |f| f.store_panics);
    link.ask().await
}

impl SimulatedStore {
    fn created(&self, key: &str, content: &PutPayload) {
        let world = &self.link.world;
        if let Some(commit) = commit_of(key) {
            let committed = world.log().commits.contains_key(&commit);
            world.log().counts.attempts += 1;
            world.log().counts.races += u64::from(committed);
        }
        if is_commit(key) {
            self.committed(key, content);
        }
    }

    fn committed(&self, key: &str, content: &PutPayload) {
        let world = &self.link.world;
        let bytes: Vec<u8> = content.iter().flat_map(|piece| piece.to_vec()).collect();
        let manifest: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        for input in manifest["inputs"].as_array().into_iter().flatten() {
            let input = format!(
                "runs/{}/commits/{:08}/{}/{:06}.json",
                manifest["run"].as_str().unwrap_or_default(),
                input["iteration"].as_u64().unwrap_or_default(),
                input["stage"].as_str().unwrap_or_default(),
                input["part"].as_u64().unwrap_or_default(),
            );
            if !world.log().commits.contains_key(&input) {
                world.violated(format!("{key} was committed before its input {input}"));
            }
        }
        if world
            .log()
            .commits
            .insert(key.to_owned(), Instant::now())
            .is_some()
        {
            world.violated(format!("{key} was committed twice"));
        }
    }

    fn sees(&self, key: &str) {
        if is_commit(key) {
            self.link.sees(key);
        }
    }
}

#[async_trait]
impl ObjectStore for SimulatedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let (link, key) = (&self.link, location.as_ref());
        assert_eq!(options.mode, PutMode::Create, "{key} could be overwritten");
        ail(link, true, location).await?;
        let world = &link.world;
        let told = commit_of(key).filter(|commit| link.has_seen(commit));
        let fate = ask(link, "put", key).await;
        if fate == Fate::Refused || may_be_torn(key) && world.strikes(|f| f.torn) {
            if fate != Fate::Refused {
                let half: Vec<u8> = payload.iter().flat_map(|piece| piece.to_vec()).collect();
                let half = half[..half.len() / 2].to_vec();
                let _ = self.objects.put_opts(location, half.into(), options).await;
            }
            link.note("put", key, "refused");
            link.answer().await;
            return Err(away());
        }
        if world.strikes(|f| f.conflict) {
            link.note("put", key, "conflict");
            link.answer().await;
            return Err(exists(location));
        }
        let put = self
            .objects
            .put_opts(location, payload.clone(), options)
            .await;
        match &put {
            Ok(_) => {
                link.note("put", key, "done");
                self.created(key, &payload);
                // A record that already exists starts no attempt: the worker checks again.
                if let Some(commit) = told {
                    world.violated(format!(
                        "{} began {key} after it had been told of {commit}",
                        link.name
                    ));
                }
            }
            Err(_) => link.note("put", key, "exists"),
        }
        link.answer().await;
        match put {
            _ if fate == Fate::LostReply => Err(away()),
            Ok(_) if world.strikes(|f| f.own_exists) => Err(exists(location)),
            Ok(put) => {
                self.sees(key);
                Ok(put)
            }
            Err(e) => Err(e),
        }
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (link, key) = (&self.link, location.as_ref());
        ail(link, false, location).await?;
        let fate = ask(link, "get", key).await;
        let got = self.objects.get_opts(location, options).await;
        let got = match (link.sickness(), got) {
            (Some(Sickness::Garbled), Ok(got)) => Ok(garbled(got).await?),
            (Some(Sickness::OldProgram), Ok(got)) if key.contains("/plan/") => {
                Ok(garbled(got).await?)
            }
            (_, got) => got,
        };
        let how = if got.is_ok() { "found" } else { "missing" };
        link.note("get", key, how);
        link.answer().await;
        if fate != Fate::Fine {
            return Err(away());
        }
        if got.is_ok() {
            self.sees(key);
        }
        got
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (objects, link) = (Arc::clone(&self.objects), Arc::clone(&self.link));
        let prefix = prefix.cloned();
        let listed = async move {
            ail(&link, false, &Path::from("runs"))
                .await
                .or_else(unless_blind)?;
            let about = prefix.as_ref().map_or("", AsRef::as_ref);
            let fate = ask(&link, "list", about).await;
            let listed: Vec<ObjectMeta> = objects.list(prefix.as_ref()).try_collect().await?;
            link.note("list", about, &listed.len().to_string());
            link.answer().await;
            if fate != Fate::Fine {
                return Err(away());
            }
            for meta in &listed {
                if is_commit(meta.location.as_ref()) {
                    link.sees(meta.location.as_ref());
                }
            }
            Ok(stream::iter(listed).map(Ok::<_, Error>))
        };
        stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let about = Path::from("runs");
        ail(&self.link, false, &about).await.or_else(unless_blind)?;
        let fate = ask(&self.link, "list", "runs").await;
        let listed = self.objects.list_with_delimiter(prefix).await;
        self.link.note("list", "runs", "");
        self.link.answer().await;
        match fate {
            Fate::Fine => listed,
            _ => Err(away()),
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (objects, link) = (Arc::clone(&self.objects), Arc::clone(&self.link));
        let delete = move |location: Path| {
            let (objects, link) = (Arc::clone(&objects), Arc::clone(&link));
            async move {
                let key = location.as_ref();
                ail(&link, true, &location).await?;
                let fate = ask(&link, "delete", key).await;
                if fate != Fate::Refused {
                    if !may_be_torn(key) && !key.starts_with("probe") {
                        link.world.violated(format!("{key} was deleted"));
                    }
                    objects.delete(&location).await?;
                    link.note("delete", key, "done");
                    link.world.log().deleted.insert(key.to_owned());
                }
                link.answer().await;
                match fate {
                    Fate::Fine => Ok(location),
                    _ => Err(away()),
                }
            }
        };
        locations.and_then(delete).boxed()
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        unreachable!("the simulation's artifacts are small")
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        unreachable!("nothing is ever copied")
    }
}
