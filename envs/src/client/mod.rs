//! Drives any AgentGym server through its specification.
//!
//! What it promises: a call ends, with a typed error if need be; a step is sent again only if
//! it cannot have run and the server was there all the time; a session that was opened is closed (or, where opening one is dear,
//! kept for the next episode), also when it is dropped or its opening fails half-way; and all
//! of this is counted. With several servers of one kind a session goes to the least loaded of
//! those that answer. Cheap to clone, made to be shared by many episodes at once.

mod counters;
mod http;
#[cfg(test)]
mod playback;
mod pool;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;

pub use counters::ClientCounters;
pub use session::{Session, StepOutput};

use crate::error::{EnvError, Verdict};
use crate::spec::{CreateBody, EnvSpec, ErrorShape, IdInReply};
use counters::Counters;
use http::{Ask, Repeat};
use pool::{Place, Pool};

/// A session that nobody waits for has its seat for so long while it is being closed: a
/// server that hangs must not keep new episodes out for as long as it does.
const CLOSING: Duration = Duration::from_secs(30);

/// Limits of the client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientOptions {
    /// For a whole call, connecting and reading included, in seconds.
    pub call_timeout_s: f64,
    /// For connecting, in seconds.
    pub connect_timeout_s: f64,
    /// Largest reply body in bytes. A step of WebArena carries a picture and the page.
    pub body_max_bytes: usize,
    /// How often a call that may be repeated is tried.
    pub attempts_max: u32,
    /// Pause before the second attempt, in seconds; it doubles from there.
    pub backoff_first_s: f64,
    /// Longest pause, in seconds.
    pub backoff_max_s: f64,
    /// Most sessions that are open at one server at a time, those that are being closed
    /// included; none: as many as are asked for.
    pub sessions_max: Option<usize>,
    /// A server that failed to open a session gets no further ones for so long while another
    /// one answers, in seconds.
    pub avoid_s: f64,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            call_timeout_s: 300.0,
            connect_timeout_s: 10.0,
            body_max_bytes: 32 << 20,
            attempts_max: 5,
            backoff_first_s: 0.25,
            backoff_max_s: 8.0,
            sessions_max: None,
            avoid_s: 30.0,
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
    pool: Pool,
    attempts_max: u32,
    counters: Arc<Counters>,
    /// Closes that run in the background.
    closing: watch::Sender<usize>,
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

impl Inner {
    /// Creates a session, on whichever server can. Running twice leaves at worst a session
    /// that nobody knows of, so every failure that may pass is tried again. `first` is tried
    /// first.
    async fn create(
        &self,
        mut first: Option<Place>,
        item_id: i64,
    ) -> Result<(Place, Value), EnvError> {
        let spec = self.spec;
        let body = match spec.create_body {
            CreateBody::EmptyObject => Some(json!({})),
            CreateBody::Nothing => None,
            CreateBody::Item(key) => Some(json!({ key: item_id })),
        };
        let mut attempt = 1;
        loop {
            let place = match first.take() {
                Some(place) => place,
                None => self.pool.place().await,
            };
            let turn = place.turn_to_create().await;
            let ask = Ask::post("/create", body.as_ref());
            let result = place.server().try_call(ask, attempt).await;
            drop(turn);
            let error = match result {
                Ok(reply) => {
                    place.answered();
                    let id = self.created(&place, reply)?;
                    return Ok((place, id));
                }
                Err(error) => error,
            };
            place.failed();
            if error.verdict() != Verdict::Retry || attempt >= self.attempts_max {
                self.counters.fault(&error);
                return Err(error);
            }
            tracing::debug!(%error, attempt, "a session will be created elsewhere or later");
            if !self.pool.has_better_than(&place) {
                tokio::time::sleep(place.server().pause(attempt)).await;
            }
            attempt += 1;
        }
    }

    fn created(&self, place: &Place, reply: Value) -> Result<Value, EnvError> {
        let reply = self.without_error(place, "/create", reply)?;
        let id = match self.spec.id_in_reply {
            IdInReply::Bare => Some(&reply),
            IdInReply::Key(key) => reply.get(key),
        };
        let id = id
            .filter(|id| id.is_number() || id.is_string())
            .cloned()
            .ok_or_else(|| place.server().protocol("/create", "no session id", &reply))?;
        place.opened(&id);
        Ok(id)
    }

    /// Turns a reply that reports an error into the error that it is.
    fn without_error(
        &self,
        place: &Place,
        endpoint: &'static str,
        reply: Value,
    ) -> Result<Value, EnvError> {
        let text = match self.spec.errors {
            ErrorShape::Soft | ErrorShape::Status => {
                let error = reply.get("error");
                error.filter(|_| reply.get(self.spec.observation_key).is_none())
            }
            ErrorShape::InObservation(of_the_model) => {
                let text = &reply[self.spec.observation_key];
                let failed = match endpoint {
                    "/reset" => text == "TimeoutError" && reply["sites"] == "Error",
                    "/step" => {
                        let blames = |start: &&str| {
                            text.as_str().is_some_and(|text| text.starts_with(*start))
                        };
                        reply.get("info").is_some_and(Value::is_null)
                            && !of_the_model.iter().any(blames)
                    }
                    _ => false,
                };
                failed.then_some(text)
            }
        };
        let Some(text) = text else {
            return Ok(reply);
        };
        let call = place.server().name(endpoint);
        let text = text
            .as_str()
            .map_or_else(|| text.to_string(), str::to_owned);
        let error = if text.contains(self.spec.finished_text) {
            EnvError::Finished { call }
        } else {
            EnvError::Faulted { call, text }
        };
        self.counters.fault(&error);
        Err(error)
    }

    async fn close(&self, place: &Place, id: &Value) -> Result<(), EnvError> {
        close(self.spec, &self.counters, place, id).await
    }

    /// Closes a session when nobody can wait for it.
    fn close_in_background(self: &Arc<Self>, place: Place, id: Value) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.counters.note(|counters| counters.leaked += 1);
            return;
        };
        let inner = Arc::clone(self);
        inner.closing.send_modify(|count| *count += 1);
        runtime.spawn(async move {
            let mut closing = std::pin::pin!(inner.close(&place, &id));
            // A failure has been counted and logged; nobody is left to tell.
            if tokio::time::timeout(CLOSING, &mut closing).await.is_err() {
                place.leave_seat();
                let _ = closing.await;
            }
            inner.closing.send_modify(|count| *count -= 1);
        });
    }
}

impl Drop for Inner {
    /// Nobody is left to use the sessions that were kept for later.
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        while let Some((place, id)) = self.pool.idle() {
            let (spec, counters) = (self.spec, Arc::clone(&self.counters));
            runtime.spawn(async move {
                // A failure has been counted and logged.
                let _ = close(spec, &counters, &place, &id).await;
            });
        }
    }
}

/// Closes a session; one that stays on the server is counted as a leak.
async fn close(
    spec: &EnvSpec,
    counters: &Counters,
    place: &Place,
    id: &Value,
) -> Result<(), EnvError> {
    // From here on the server may give its number to another session; if it has done so
    // before, that one must stay.
    if !place.closing(id) {
        counters.note(|counters| counters.closed += 1);
        return Ok(());
    }
    if !spec.close {
        counters.note(|counters| counters.leaked += 1);
        return Ok(());
    }
    let body = json!({ spec.id_key: id });
    let ask = Ask::post("/close", Some(&body));
    let retries = counters.snapshot().retries;
    let gone = place.server().gone();
    match place.server().call(ask, Repeat::Always).await {
        // The session ended with its server.
        Err(_) if place.server().gone() != gone => {
            counters.note(|counters| counters.closed += 1);
            Ok(())
        }
        Err(error) => {
            counters.note(|counters| counters.leaked += 1);
            tracing::warn!(%error, "a session may have been left open");
            Err(error)
        }
        // Unless an earlier attempt has closed it, the server has lost it or keeps it for
        // ever (BabyAI's does so with sessions that were never reset).
        Ok(Value::Bool(false)) if counters.snapshot().retries == retries => {
            counters.note(|counters| counters.leaked += 1);
            Ok(())
        }
        Ok(_) => {
            counters.note(|counters| counters.closed += 1);
            Ok(())
        }
    }
}
