//! Whether a store can be trusted with commits. Several S3 servers accept `If-None-Match` and
//! ignore it: two attempts would then both "win", and the damage would show much later. So a probe
//! tests the store before a run starts.

use crate::keys::{nonce, probe_path};
use crate::{Error, Result, Store};
use bytes::Bytes;
use object_store::path::Path as ObjectPath;

/// More than a few bytes: a full disk often has room for those.
const PROBE_BYTES: usize = 64 << 10;

impl Store {
    /// Tests the operations that every run needs: to write an object, to read it back, and to be
    /// refused when creating it again. Deletes its object afterwards.
    ///
    /// # Errors
    /// One of [`Error::NoPermission`], [`Error::Full`], [`Error::Denied`],
    /// [`Error::NoBucket`], [`Error::NoConditionalPut`], [`Error::Unavailable`];
    /// each names the store and the remedy.
    pub async fn probe(&self) -> Result<()> {
        let path = ObjectPath::from(probe_path(&nonce()));
        let tried = self.try_creating(&path).await;
        if let Err(e) = self.delete_all(std::slice::from_ref(&path)).await
            && tried.is_ok()
        {
            tracing::warn!(
                "the store cannot delete ({e}): retention will not free space, and {path} stays behind"
            );
        }
        tried
    }

    async fn try_creating(&self, path: &ObjectPath) -> Result<()> {
        let refused = |found: &str| Error::NoConditionalPut {
            url: self.url().to_owned(),
            found: found.to_owned(),
        };
        let (first, second) = (
            Bytes::from(vec![1; PROBE_BYTES]),
            Bytes::from(vec![2; PROBE_BYTES]),
        );
        if !self.put_at(path, first.clone()).await? {
            return Err(refused("it calls a new object an existing one"));
        }
        if self.put_at(path, second).await? {
            return Err(refused("it accepted a second create of the same object"));
        }
        match self.get_at(path).await? {
            Some(content) if content == first => Ok(()),
            Some(_) => Err(refused("it refused a second create, but kept its bytes")),
            None => Err(refused("an object just written cannot be read")),
        }
    }
}
