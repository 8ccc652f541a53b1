//! Drives any AgentGym server through its specification.
//!
//! What it promises: a call ends, with a typed error if need be; a step is sent again only if
//! it cannot have run; a session that was opened is closed, also when it is dropped or its
//! opening fails half-way; and all of this is counted. Cheap to clone, made to be shared by
//! many episodes at once.

mod counters;
mod http;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::sync::watch;

pub use counters::ClientCounters;
pub use session::{Session, StepOutput};

use crate::error::EnvError;
use crate::spec::{CreateBody, EnvSpec, IdInReply};
use counters::Counters;
use http::{Repeat, Server};

/// Limits of the client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientOptions {
    /// For a whole call, connecting and reading included, in seconds.
    pub call_timeout_s: f64,
    /// For connecting, in seconds.
    pub connect_timeout_s: f64,
    /// Largest reply body in bytes.
    pub body_max_bytes: usize,
    /// How often a call that may be repeated is tried.
    pub attempts_max: u32,
    /// Pause before the second attempt, in seconds; it doubles from there.
    pub backoff_first_s: f64,
    /// Longest pause, in seconds.
    pub backoff_max_s: f64,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            call_timeout_s: 300.0,
            connect_timeout_s: 10.0,
            body_max_bytes: 4 << 20,
            attempts_max: 5,
            backoff_first_s: 0.25,
            backoff_max_s: 8.0,
        }
    }
}

/// A client of one kind of environment.
#[derive(Clone)]
pub struct EnvClient {
    inner: Arc<Inner>,
}

struct Inner {
    spec: &'static EnvSpec,
    servers: Vec<Server>,
    next_server: AtomicUsize,
    counters: Arc<Counters>,
    /// Closes that run in the background.
    closing: watch::Sender<usize>,
}

impl EnvClient {
    /// A client for servers of this kind at these base URLs; sessions take turns over them.
    /// Nothing is sent yet.
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
        let servers: Result<Vec<Server>, EnvError> = urls
            .iter()
            .map(|url| Server::new(url, options.clone(), Arc::clone(&counters)))
            .collect();
        Ok(Self {
            inner: Arc::new(Inner {
                spec,
                servers: servers?,
                next_server: AtomicUsize::new(0),
                counters,
                closing: watch::Sender::new(0),
            }),
        })
    }

    /// The specification that it follows.
    pub fn spec(&self) -> &'static EnvSpec {
        self.inner.spec
    }

    /// Opens a session on a task: creates it and resets it to the item.
    pub async fn open(&self, item_id: i64) -> Result<Session, EnvError> {
        let inner = &self.inner;
        let spec = inner.spec;
        let turn = inner.next_server.fetch_add(1, Ordering::Relaxed) % inner.servers.len();
        let server = &inner.servers[turn];
        let body = match spec.create_body {
            CreateBody::EmptyObject => Some(json!({})),
            CreateBody::Nothing => None,
        };
        let reply = server
            .call("/create", body.as_ref(), Repeat::Always)
            .await?;
        let reply = inner.without_error(turn, "/create", reply)?;
        let id = match spec.id_in_reply {
            IdInReply::Bare => Some(&reply),
            IdInReply::Key(key) => reply.get(key),
        };
        let id = id
            .filter(|id| id.is_number() || id.is_string())
            .cloned()
            .ok_or_else(|| server.protocol("/create", "no session id", &reply))?;
        inner.counters.note(|counters| counters.opened += 1);
        // From here on the session is closed whatever happens, cancellation included.
        let mut session = Session::new(Arc::clone(inner), turn, id);
        session.reset(item_id).await?;
        Ok(session)
    }

    /// Waits until closes that were left to the background have ended.
    pub async fn drain(&self) {
        let mut closing = self.inner.closing.subscribe();
        // The sender lives as long as `self`, so that waiting ends at zero only.
        let _ = closing.wait_for(|count| *count == 0).await;
    }

    /// What has happened so far.
    pub fn counters(&self) -> ClientCounters {
        self.inner.counters.snapshot()
    }
}

impl Inner {
    /// Turns an `{"error": …}` reply into the error that it is.
    fn without_error(
        &self,
        server: usize,
        endpoint: &'static str,
        reply: Value,
    ) -> Result<Value, EnvError> {
        let error = match reply.get("error") {
            Some(error) if reply.get(self.spec.observation_key).is_none() => error,
            _ => return Ok(reply),
        };
        let call = self.servers[server].name(endpoint);
        let text = error
            .as_str()
            .map_or_else(|| error.to_string(), str::to_owned);
        let error = if text.contains(self.spec.finished_text) {
            EnvError::Finished { call }
        } else {
            EnvError::Faulted { call, text }
        };
        self.counters.fault(&error);
        Err(error)
    }

    /// Closes a session; a failure is counted as a leak.
    async fn close(&self, server: usize, id: &Value) -> Result<(), EnvError> {
        if self.spec.close {
            let body = json!({ self.spec.id_key: id });
            let closed = self.servers[server]
                .call("/close", Some(&body), Repeat::Always)
                .await;
            if let Err(error) = closed {
                self.counters.note(|counters| counters.leaked += 1);
                tracing::warn!(%error, "a session may have been left open");
                return Err(error);
            }
        }
        self.counters.note(|counters| counters.closed += 1);
        Ok(())
    }
}
