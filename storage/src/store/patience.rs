//! How a caller deals with a store that fails, what it notes of its requests, and how long one may take.

use crate::Error;
use std::any::Any;
use std::time::Duration;

/// An object of unknown size counts as so many bytes, and a listing.
pub(crate) const SMALL_BYTES: u64 = 1 << 20;
pub(super) const LISTING_BYTES: u64 = 2 << 20;

/// How a caller deals with a store that fails.
pub trait Patience: Send + Sync {
    /// Whether to repeat a request that has been failing for `lasted`.
    fn waits(&self, _error: &Error, _lasted: Duration) -> bool {
        false
    }

    /// The store has answered a request.
    fn answered(&self) {}

    /// A request begins, and is over when the returned value is dropped. Requests overlap.
    fn asking(&self) -> Box<dyn Any + Send + Sync> {
        Box::new(())
    }

    /// Bytes went into the store, or came out of it.
    fn moved(&self, _put: u64, _got: u64) {}
}
