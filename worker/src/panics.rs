//! A panic is a fault of the program. It ends the attempt that met it, with a record that says so,
//! and nothing else: not the worker, not its other runs, not the hold of a claim.

use crate::{Error, Result};
use futures::FutureExt as _;
use std::any::Any;
use std::panic::AssertUnwindSafe;

/// Does `work`; a panic in it, or in a task or thread whose panic it passes on, is its error.
///
/// What the panic has left half done is not used again: an attempt has a state of its own, and
/// what attempts share are caches and sets that every use leaves whole.
pub(crate) async fn caught<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.unwrap_or_else(|panic| Err(Error::Internal(message(&*panic))))
}

/// What a panic said.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
