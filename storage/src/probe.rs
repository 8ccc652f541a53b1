//! Whether a store can be trusted with commits. Several S3 servers accept `If-None-Match` and
//! ignore it: two attempts would then both "win", and the damage would show much later. So a probe
//! tests the store before a run starts.

use crate::keys::{nonce, probe_path};
use crate::{Error, Result, Store};
use bytes::Bytes;
use futures::future::join_all;
use object_store::path::Path as ObjectPath;

/// More than a few bytes: a full disk often has room for those.
const PROBE_BYTES: usize = 64 << 10;
/// A server that looks first and writes then is caught only while both are under way, so several
/// writers meet at one object, several times.
const RACERS: u8 = 6;
const RACES: usize = 3;

impl Store {
    /// Tests the operations that every run needs: to write an object, to read it back, to be refused
    /// when creating it again, and to create one that others create at the same moment. Deletes its
    /// objects afterwards.
    ///
    /// # Errors
    /// One of [`Error::NoPermission`], [`Error::Full`], [`Error::Denied`],
    /// [`Error::NoBucket`], [`Error::NoConditionalPut`], [`Error::Unavailable`];
    /// each names the store and the remedy.
    pub async fn probe(&self) -> Result<()> {
        let name = || ObjectPath::from(probe_path(&nonce()));
        let mut paths = vec![name()];
        let mut tried = self.try_creating(&paths[0]).await;
        for _ in 0..RACES {
            if tried.is_ok() {
                let path = name();
                tried = self.try_racing(&path).await;
                paths.push(path);
            }
        }
        if let Err(e) = self.delete_all(&paths).await
            && tried.is_ok()
        {
            tracing::warn!(
                "the store cannot delete ({e}): retention will not free space, and {} stays behind",
                paths[0]
            );
        }
        tried
    }

    async fn try_creating(&self, path: &ObjectPath) -> Result<()> {
        let (first, second) = (
            Bytes::from(vec![1; PROBE_BYTES]),
            Bytes::from(vec![2; PROBE_BYTES]),
        );
        // The answer to a write that succeeded may be lost: then its own bytes are there.
        let is_new = self.put_at(path, first.clone()).await?;
        if !is_new && self.get_at(path).await?.as_ref() != Some(&first) {
            return Err(self.distrusted("it calls a new object an existing one"));
        }
        if self.put_at(path, second).await? {
            return Err(self.distrusted("it accepted a second create of the same object"));
        }
        match self.get_at(path).await? {
            Some(content) if content == first => Ok(()),
            Some(_) => Err(self.distrusted("it refused a second create, but kept its bytes")),
            None => Err(self.distrusted("an object just written cannot be read")),
        }
    }

    /// At most one of several writers may win; none does if the winner's answer is lost.
    async fn try_racing(&self, path: &ObjectPath) -> Result<()> {
        let content = |racer: u8| Bytes::from(vec![racer; PROBE_BYTES]);
        let racers = (0..RACERS).map(|racer| self.put_at(path, content(racer)));
        let mut won = Vec::new();
        for (racer, answer) in (0..RACERS).zip(join_all(racers).await) {
            if answer? {
                won.push(racer);
            }
        }
        match won[..] {
            [] => Ok(()),
            [winner] if self.get_at(path).await? == Some(content(winner)) => Ok(()),
            [_] => Err(self.distrusted(
                "of several creates of one object at the same moment it kept another one than it accepted",
            )),
            _ => Err(self.distrusted(&format!(
                "it accepted {} of {RACERS} creates of one object at the same moment",
                won.len()
            ))),
        }
    }

    fn distrusted(&self, found: &str) -> Error {
        Error::NoConditionalPut {
            url: self.url().to_owned(),
            found: found.to_owned(),
        }
    }
}
