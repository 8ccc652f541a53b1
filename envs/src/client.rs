//! A client for any AgentGym server, driven by its specification.
//!
//! Guarantees: every call ends, if necessary with a typed error. A step is sent again only if it
//! cannot have run and the server was not down in between. Every opened session is closed (or kept
//! for the next episode, where opening is expensive), even if it is dropped or opening fails
//! half-way. All of this is counted. With several servers, a session goes to the least loaded one
//! that answers. Cheap to clone; shared by many concurrent episodes.

mod counters;
mod greeting;
mod http;
mod inner;
mod options;

#[cfg(test)]
mod playback;
mod pool;
mod reply;
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
    /// A client for servers of this kind at these base URLs. It sends nothing yet.
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
                lenient_actions: options.lenient_actions,
                pool: Pool::new(spec, urls, &options, &counters)?,
                counters,
                closing: watch::Sender::new(0),
            }),
        })
    }

    /// The specification that the client follows.
    pub fn spec(&self) -> &'static EnvSpec {
        self.inner.spec
    }

    /// Whether the servers are this kind of environment, by what each says at `/`.
    pub async fn greet(&self) -> Result<(), EnvError> {
        for server in self.inner.pool.servers() {
            greeting::check(self.inner.spec, server).await?;
        }
        Ok(())
    }

    /// What was last found at servers that open no sessions, while others do.
    pub fn away(&self) -> Vec<String> {
        self.inner.pool.away()
    }

    /// Opens a session on a task: reuses one that an earlier episode left or creates one, and
    /// resets it to the item.
    pub async fn open(&self, item_id: i64) -> Result<Session, EnvError> {
        let inner = &self.inner;
        let mut place = None;
        let kept = match inner.pool.idle() {
            None => {
                let mut seat = inner.pool.place().await;
                // While this call waited for a seat, another episode may have left a session.
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
                // The server may have lost the session in the meantime.
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
            // From here on the session is closed in every case, including cancellation.
            let mut session = Session::new(Arc::clone(inner), place, id);
            match session.reset(item_id).await {
                Ok(()) => return Ok(session),
                // After a server restart a new session is needed, not another reset.
                Err(_) if session.is_lost() && attempt < inner.attempts_max => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes the sessions that are kept for later episodes, and waits for closes that run in the
    /// background.
    pub async fn drain(&self) {
        while let Some((place, id)) = self.inner.pool.idle() {
            // A failure has already been counted and logged.
            let _ = self.inner.close(&place, &id).await;
        }
        let mut closing = self.inner.closing.subscribe();
        // The sender lives as long as `self`, so the wait can only end at zero.
        let _ = closing.wait_for(|count| *count == 0).await;
    }

    /// The counters so far.
    pub fn counters(&self) -> ClientCounters {
        self.inner.counters.snapshot()
    }
}
