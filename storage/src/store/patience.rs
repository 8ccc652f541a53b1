//! How a caller deals with a store that fails, and how long a request may take.

use crate::Error;
use std::time::Duration;

/// An object of unknown size counts as so many bytes, and a listing.
pub(crate) const SMALL_BYTES: u64 = 1 << 20;
pub(super) const LISTING_BYTES: u64 = 2 << 20;

/// How a caller deals with a store that fails.
pub trait Patience: Send + Sync {
    /// Whether to repeat a request that has been failing for `lasted`.
    fn waits(&self, error: &Error, lasted: Duration) -> bool;

    /// The store has answered a request.
    fn answered(&self) {}
}
