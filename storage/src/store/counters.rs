//! Number of requests that a store has made, and of bytes transferred.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(super) struct Counters {
    pub(super) puts: AtomicU64,
    pub(super) gets: AtomicU64,
    pub(super) lists: AtomicU64,
    pub(super) deletes: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
}

/// Requests made through a store and its clones since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Writes; each part of a multipart upload counts.
    pub puts: u64,
    /// Reads.
    pub gets: u64,
    /// Listings, in pages of 1 000 objects.
    pub lists: u64,
    /// Deletions.
    pub deletes: u64,
    /// Bytes written into the store.
    pub bytes_in: u64,
    /// Bytes read out of the store.
    pub bytes_out: u64,
}

pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn read(&self) -> RequestCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RequestCounts {
            puts: read(&self.puts),
            gets: read(&self.gets),
            lists: read(&self.lists),
            deletes: read(&self.deletes),
            bytes_in: read(&self.bytes_in),
            bytes_out: read(&self.bytes_out),
        }
    }
}
