//! Drives any AgentGym server through its specification.
//!
//! What it promises: a call ends, with a typed error if need be; a step is sent again only if
//! it cannot have run and the server was there all the time; a session that was opened is closed (or, where opening one is dear,
//! kept for the next episode), also when it is dropped or its opening fails half-way; and all
//! of this is counted. With several servers of one kind a session goes to the least loaded of
//! those that answer. Cheap to clone, made to be shared by many episodes at once.

mod counters;
mod http;
mod inner;
mod options;

#[cfg(test)]
mod playback;
mod pool;
mod session;

#[cfg(test)]
mod tests;

use crate::error::{EnvError, Verdict};
use crate::spec::EnvSpec;
pub use counters::ClientCounters;
use counters::Counters;
use inner::Inner;
pub use options::ClientOptions;
use pool::Pool;
pub use session::{Session, StepOutput};
use std::sync::Arc;
use tokio::sync::watch;

/// A client of one kind of environment.
#[derive(Clone)]
pub struct EnvClient {
    inner: Arc<Inner>,
}

impl EnvClient {
    /// A client for servers of this kind at these base URLs. Nothing is sent yet.
    pub fn new(
        spec: &'static EnvSpec,
        urls: &[String],
        options: ClientOptions,
    ) -> Result<Self, EnvError> {
        if urls.is_empty() {
            return Err(EnvError::Address {
                address: String::new(),
                problem: "no environment address is given; at least one is needed".to_owned(),
            });
        }
        let counters = Arc::new(Counters::default());
        Ok(Self {
            inner: Arc::new(Inner {
                spec,
                attempts_max: options.attempts_max,
                pool: Pool::new(spec, urls, &options, &counters)?,
                counters,
                closing: watch::Sender::new(0),
            }),
        })
    }

    /// The specification that it follows.
    pub fn spec(&self) -> &'static EnvSpec {
        self.inner.spec
    }

    /// Opens a session on a task: takes one that an earlier episode left, or creates it, and
    /// resets it to the item.
    pub async fn open(&self, item_id: i64) -> Result<Session, EnvError> {
        let inner = &self.inner;
        let mut place = None;
        let kept = match inner.pool.idle() {
            None => {
                let mut seat = inner.pool.place().await;
                // While this one waited for a seat, another episode may have left a session.
                match seat.take_idle() {
                    Some(id) => Some((seat, id)),
                    None => {
                        place = Some(seat);
                        None
                    }
                }
            }
            kept => kept,
        };
        if let Some((place, id)) = kept {
            let mut session = Session::new(Arc::clone(inner), place, id);
            match session.reset(item_id).await {
                Ok(()) => {
                    inner.counters.note(|counters| counters.reused += 1);
                    return Ok(session);
                }
                // The server may have lost it in the meantime.
                Err(error) if error.verdict() == Verdict::Retry => {
                    tracing::debug!(%error, "a kept session is of no use any more");
                }
                Err(error) => return Err(error),
            }
        }
        let mut attempt = 1;
        loop {
            let (place, id) = inner.create(place.take(), item_id).await?;
            inner.counters.note(|counters| counters.opened += 1);
            // From here on the session is closed whatever happens, cancellation included.
            let mut session = Session::new(Arc::clone(inner), place, id);
            match session.reset(item_id).await {
                Ok(()) => return Ok(session),
                // A server that was started again needs a new session, not another reset.
                Err(_) if session.is_lost() && attempt < inner.attempts_max => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes the sessions that are kept for later episodes, and waits until closes that were
    /// left to the background have ended.
    pub async fn drain(&self) {
        while let Some((place, id)) = self.inner.pool.idle() {
            // A failure has been counted and logged.
            let _ = self.inner.close(&place, &id).await;
        }
        let mut closing = self.inner.closing.subscribe();
        // The sender lives as long as `self`, so that waiting ends at zero only.
        let _ = closing.wait_for(|count| *count == 0).await;
    }

    /// What has happened so far.
    pub fn counters(&self) -> ClientCounters {
        self.inner.counters.snapshot()
    }
}
