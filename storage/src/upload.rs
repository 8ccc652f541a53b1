//! A large object, sent in parts. Each request waits for a failing store as a small write does, and a
//! part that was sent stays sent: an outage repeats the parts under way, not the object. The death of
//! the sender repeats at most a chunk and the parts under way: a later attempt goes on.

mod unfinished;

use crate::store::{SMALL_BYTES, location};
use crate::{Digest, Error, Journal, Key, Result, Store};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as ObjectPath;
use object_store::{MultipartId, PutPayload};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::{JoinError, JoinSet};
pub(crate) use unfinished::Unfinished;
use unfinished::{Note, PARTS_OF_CHUNK};

/// Parts being uploaded concurrently; together with the one being filled this bounds the memory of
/// a writer.
const PARTS_AT_ONCE: usize = 3;

/// An upload under a key of its attempt's folder. If dropped before [`Upload::complete`], it is given
/// up, unless the journal says what was sent: then a later attempt goes on with it.
pub(crate) struct Upload {
    target: Target,
    sending: JoinSet<Result<(usize, PartId)>>,
    sent: BTreeMap<usize, PartId>,
    parts: usize,
    bytes: u64,
    /// Chunks that the journal names.
    noted: usize,
    is_complete: bool,
}

#[derive(Clone)]
struct Target {
    store: Store,
    server: Arc<dyn MultipartStore>,
    key: Key,
    path: ObjectPath,
    id: MultipartId,
    /// An earlier attempt began it.
    is_resumed: bool,
}

impl Target {
    /// Sends a request, about so many `bytes`, until it succeeds or nobody waits for the store.
    async fn ask<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        bytes: u64,
        request: impl Fn() -> F,
    ) -> Result<T> {
        let failed = |e| self.store.failed("write", &self.path, &e);
        let answer = self.store.persist(("write", &self.path, bytes), || async {
            request().await.map_err(failed)
        });
        answer.await
    }

    /// An upload that its server has ended is not the part's fault: another attempt may write it. One
    /// that was resumed is begun again by its caller.
    fn ended(&self, error: Error) -> Error {
        match error {
            Error::NotFound { key, url } if !self.is_resumed => Error::Unavailable {
                url,
                doing: "write",
                key,
                why: "its server has ended the upload (does a lifecycle rule of the bucket do so?)"
                    .to_owned(),
            },
            other => other,
        }
    }
}

impl Upload {
    pub(crate) async fn begin(
        store: &Store,
        server: &Arc<dyn MultipartStore>,
        key: &Key,
    ) -> Result<Self> {
        let mut target = Target {
            store: store.clone(),
            server: Arc::clone(server),
            key: key.clone(),
            path: location(key)?,
            id: MultipartId::default(),
            is_resumed: false,
        };
        let id = target
            .ask(SMALL_BYTES, || server.create_multipart(&target.path))
            .await?;
        target.id = id;
        Ok(Self {
            target,
            sending: JoinSet::new(),
            sent: BTreeMap::new(),
            parts: 0,
            bytes: 0,
            noted: 0,
            is_complete: false,
        })
    }

    /// Goes on with what an earlier attempt began.
    pub(crate) fn resume(
        store: &Store,
        server: &Arc<dyn MultipartStore>,
        begun: Unfinished,
    ) -> Result<Self> {
        let target = Target {
            store: store.clone(),
            server: Arc::clone(server),
            path: location(&begun.key)?,
            key: begun.key,
            id: begun.upload,
            is_resumed: true,
        };
        Ok(Self {
            target,
            sending: JoinSet::new(),
            parts: begun.parts.len(),
            sent: begun.parts.into_iter().enumerate().collect(),
            bytes: begun.bytes,
            noted: begun.chunks,
            is_complete: false,
        })
    }

    /// Writes into the journal which chunks, of these digests, the server has.
    pub(crate) async fn note(&mut self, journal: &mut Journal, digests: &[Digest]) -> Result<()> {
        while let Some(sent) = self.sending.try_join_next() {
            self.received(sent)?;
        }
        let whole = digests.len().min(self.parts / PARTS_OF_CHUNK);
        self.note_all(journal, &digests[..whole]).await
    }

    async fn note_all(&mut self, journal: &mut Journal, digests: &[Digest]) -> Result<()> {
        for (chunk, digest) in digests.iter().enumerate().skip(self.noted) {
            let first = chunk * PARTS_OF_CHUNK;
            let numbers = first..self.parts.min(first + PARTS_OF_CHUNK);
            let parts = numbers.map(|number| Some(self.sent.get(&number)?.content_id.clone()));
            let Some(parts) = parts.collect() else {
                break;
            };
            let note = Note {
                key: self.target.key.clone(),
                upload: self.target.id.clone(),
                chunk,
                digest: *digest,
                parts,
            };
            journal.append(note.to_bytes()).await?;
            self.noted += 1;
        }
        Ok(())
    }

    /// Sends the next part, of [`crate::backend::PART_BYTES`] unless it is the last. Waits while too
    /// many are under way.
    pub(crate) async fn send(&mut self, part: PutPayload) -> Result<()> {
        self.wait(PARTS_AT_ONCE - 1).await?;
        let (target, number) = (self.target.clone(), self.parts);
        let bytes = part.content_length() as u64;
        self.parts += 1;
        self.bytes += bytes;
        self.sending.spawn(async move {
            let request = || {
                target.store.count_put(part.content_length());
                let (path, id) = (&target.path, &target.id);
                target.server.put_part(path, id, number, part.clone())
            };
            let sent = target.ask(bytes, request).await;
            Ok((number, sent.map_err(|e| target.ended(e))?))
        });
        Ok(())
    }

    /// Waits until at most `count` parts are under way.
    async fn wait(&mut self, count: usize) -> Result<()> {
        while self.sending.len() > count {
            if let Some(sent) = self.sending.join_next().await {
                self.received(sent)?;
            }
        }
        Ok(())
    }

    fn received(
        &mut self,
        sent: std::result::Result<Result<(usize, PartId)>, JoinError>,
    ) -> Result<()> {
        let (number, part) = sent.expect(
            "an upload does not panic, and nobody cancels its parts before it is dropped",
        )?;
        self.sent.insert(number, part);
        Ok(())
    }

    /// Makes the object of the parts; `notes` are the journal, and the digests of all chunks.
    pub(crate) async fn complete(mut self, notes: Option<(&mut Journal, &[Digest])>) -> Result<()> {
        self.wait(0).await?;
        if let Some((journal, digests)) = notes {
            self.note_all(journal, digests).await?;
        }
        let parts: Vec<PartId> = std::mem::take(&mut self.sent).into_values().collect();
        let target = &self.target;
        let (path, id, bytes) = (&target.path, &target.id, self.bytes);
        let complete = || async {
            let completed = target.server.complete_multipart(path, id, parts.clone());
            let error = match completed.await {
                Ok(_) => return Ok(()),
                Err(e) => target.store.failed("write", path, &e),
            };
            // The answer to an earlier request may be lost: then the upload is over, servers refuse
            // to complete it again in different ways, and the object is there.
            let is_there = match error {
                Error::Unavailable { .. } | Error::Full { .. } => false,
                _ => (target.store.size(&target.key).await).is_ok_and(|size| size == bytes),
            };
            match is_there {
                true => Ok(()),
                false => Err(error),
            }
        };
        // The server may read all parts for it.
        let completed = target.store.persist(("write", path, bytes), complete).await;
        completed.map_err(|e| target.ended(e))?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.sending.abort_all();
        // Otherwise the uploaded parts are kept, and charged for, until the bucket's lifecycle
        // rules remove them.
        let is_over = self.is_complete || self.noted > 0;
        if let (false, Ok(runtime)) = (is_over, tokio::runtime::Handle::try_current()) {
            let target = self.target.clone();
            runtime.spawn(async move {
                let aborted = target.server.abort_multipart(&target.path, &target.id);
                if let Err(e) = aborted.await {
                    tracing::debug!("an unfinished upload could not be given up: {e}");
                }
            });
        }
    }
}
