//! A panic is a bug in the program. It ends the attempt in which it happens, with an end record,
//! and nothing else: not the worker, not its other runs, and the claim is still released.

use crate::{Error, Result};
use futures::FutureExt as _;
use std::any::Any;
use std::panic::AssertUnwindSafe;

/// Runs `work`; a panic in it, or one passed on from a task or thread, becomes an error.
///
/// State that the panic left inconsistent is not used again: each attempt has its own state, and
/// attempts share only caches and sets that are consistent after each use.
pub(crate) async fn caught<T, E: Into<Error>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => done.map_err(Into::into),
        Err(panic) => Err(Error::Internal(message(&*panic))),
    }
}

/// The message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
