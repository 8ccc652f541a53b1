//! Unfinished work: an attempt appends segments to its own folder, and a later attempt of the same
//! part reads the segments of all earlier ones. The content is opaque here; segments about uploads have
//! numbers of their own.
//!
//! A segment carries its length and digest. A segment that fails the check is skipped: a journal
//! only saves work, and whatever is missing from it is computed again.

use crate::store::location;
use crate::{AttemptId, Digest, Error, Key, PartKey, Result, Store};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};

/// Largest content of one segment.
pub const SEGMENT_BYTES_MAX: u64 = 256 << 20;
/// First bytes of a segment; the digit is the format's version.
const MAGIC: &[u8; 8] = b"AGJRNL1\n";
const HEADER_BYTES: usize = MAGIC.len() + 8 + 32;
/// Number of an attempt's first segment about uploads. Those before it are the stage's.
const UPLOADS_FROM: u32 = 500_000;
/// Segments read at once.
const READS_AT_ONCE: usize = 8;

/// One attempt's journal.
#[derive(Debug)]
pub struct Journal {
    store: Store,
    slot: PartKey,
    attempt: AttemptId,
    next: u32,
}

impl Journal {
    /// The journal of an attempt that has just begun; nothing is written yet.
    pub fn open(store: Store, slot: PartKey, attempt: AttemptId) -> Self {
        Self {
            store,
            slot,
            attempt,
            next: 0,
        }
    }

    /// The journal of the same attempt about its uploads.
    pub(crate) fn of_uploads(store: Store, slot: PartKey, attempt: AttemptId) -> Self {
        Self {
            next: UPLOADS_FROM,
            ..Self::open(store, slot, attempt)
        }
    }

    /// Number of the attempt.
    pub fn attempt(&self) -> u32 {
        self.attempt.number
    }

    /// Appends a segment; it is durable when this returns.
    ///
    /// # Errors
    /// More than 256 MiB, or the store fails; then it may be appended again.
    pub async fn append(&mut self, content: Bytes) -> Result<()> {
        let size = content.len() as u64;
        if size > SEGMENT_BYTES_MAX {
            let key = format!("a segment of {}", self.slot);
            return Err(Error::TooLarge {
                key,
                what: "a journal segment",
                size,
                limit: SEGMENT_BYTES_MAX,
            });
        }
        let wrapped = wrap(&content);
        loop {
            let key = Key::JournalSegment {
                slot: self.slot.clone(),
                attempt: self.attempt.clone(),
                segment: self.next,
            };
            let created = self.store.create(&key, wrapped.clone()).await?;
            self.next += 1;
            // Only this attempt writes to the folder: a segment that exists with other bytes comes
            // from an earlier write that was reported as failed.
            if created == crate::Created::Won {
                return Ok(());
            }
        }
    }

    /// The contents of all segments written by earlier attempts of a part, ordered by attempt and
    /// segment.
    ///
    /// # Errors
    /// The store fails. Damaged segments are skipped with a warning.
    pub async fn replay(store: &Store, slot: &PartKey) -> Result<Vec<Bytes>> {
        Self::read(store, slot, |number| number < UPLOADS_FROM).await
    }

    /// [`Self::replay`] for the segments about uploads.
    pub(crate) async fn replay_uploads(store: &Store, slot: &PartKey) -> Result<Vec<Bytes>> {
        Self::read(store, slot, |number| number >= UPLOADS_FROM).await
    }

    async fn read(
        store: &Store,
        slot: &PartKey,
        wanted: impl Fn(u32) -> bool,
    ) -> Result<Vec<Bytes>> {
        let mut segments: Vec<Key> = store
            .list(&slot.journal_prefix())
            .await?
            .into_iter()
            .map(|(key, _)| key)
            .collect();
        segments
            .retain(|key| matches!(key, Key::JournalSegment { segment, .. } if wanted(*segment)));
        let read = |key: Key| async move {
            // Retention may remove a segment between the listing and now.
            let Some(content) = store.get_at(&location(&key)?).await? else {
                return Ok(None);
            };
            let unwrapped = unwrap(&content);
            if unwrapped.is_none() {
                tracing::warn!("{key} is torn or damaged; the work in it will be made again");
            }
            Ok::<_, Error>(unwrapped)
        };
        stream::iter(segments)
            .map(read)
            .buffered(READS_AT_ONCE)
            .try_filter_map(|s| async { Ok(s) })
            .try_collect()
            .await
    }
}

fn wrap(content: &Bytes) -> Bytes {
    let mut wrapped = BytesMut::with_capacity(HEADER_BYTES + content.len());
    wrapped.put_slice(MAGIC);
    wrapped.put_u64_le(content.len() as u64);
    wrapped.put_slice(Digest::of(content).as_bytes());
    wrapped.put_slice(content);
    wrapped.freeze()
}

fn unwrap(wrapped: &Bytes) -> Option<Bytes> {
    let header = wrapped.get(..HEADER_BYTES)?;
    let (magic, rest) = header.split_at(MAGIC.len());
    let (size, digest) = rest.split_at(8);
    let content = wrapped.slice(HEADER_BYTES..);
    let whole = magic == MAGIC
        && size == (content.len() as u64).to_le_bytes()
        && digest == Digest::of(&content).as_bytes();
    whole.then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_damage_is_seen(content in proptest::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let wrapped = wrap(&content.clone().into());
            prop_assert_eq!(unwrap(&wrapped).unwrap(), content);
            let mut damaged = wrapped.to_vec();
            damaged[at.index(wrapped.len())] ^= 1 << bit;
            prop_assert_eq!(unwrap(&damaged.into()), None);
            prop_assert_eq!(unwrap(&wrapped.slice(..at.index(wrapped.len()))), None);
        }
    }
}
