//! The state that a client and its sessions share.

use super::counters::Counters;
use super::greeting;
use super::http::{Ask, Repeat};
use super::pool::{Place, Pool};
use super::reply;
use crate::error::{EnvError, Verdict};
use crate::spec::{CreateBody, EnvSpec, ErrorShape, IdInReply};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long a session being closed in the background keeps its seat. A server that hangs must not
/// block new episodes for longer.
const CLOSING: Duration = Duration::from_secs(30);

pub(super) struct Inner {
    pub(super) spec: &'static EnvSpec,
    pub(super) pool: Pool,
    pub(super) attempts_max: u32,
    pub(super) lenient_actions: bool,
    pub(super) counters: Arc<Counters>,
    /// Number of closes running in the background.
    pub(super) closing: watch::Sender<usize>,
}

impl Inner {
    /// Creates a session on any server that can. A repeated request at worst leaves an orphaned
    /// session, so every transient failure is retried. `first` is tried first.
    pub(super) async fn create(
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
            greeting::check(spec, place.server()).await?;
            let turn = place.turn_to_create().await;
            let ask = Ask::post(spec.routes.create, body.as_ref());
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
            place.failed(&error);
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

    pub(super) fn created(&self, place: &Place, reply: Value) -> Result<Value, EnvError> {
        let create = self.spec.routes.create;
        let reply = self.without_error(place, create, reply)?;
        let id = match self.spec.id_in_reply {
            IdInReply::Bare => &reply,
            IdInReply::Key(key) => reply::at(&reply, key),
        };
        if !id.is_number() && !id.is_string() {
            return Err(place.server().protocol(create, "no session id", &reply));
        }
        let id = id.clone();
        place.opened(create, &id);
        Ok(id)
    }

    /// Turns a reply that reports an error into that error.
    pub(super) fn without_error(
        &self,
        place: &Place,
        endpoint: &'static str,
        reply: Value,
    ) -> Result<Value, EnvError> {
        let text = match self.spec.errors {
            ErrorShape::Soft | ErrorShape::Status => {
                let error = reply.get("error");
                error.filter(|_| reply::at(&reply, self.spec.observation_key).is_null())
            }
            ErrorShape::InObservation(of_the_model) => {
                let text = reply::at(&reply, self.spec.observation_key);
                let routes = self.spec.routes;
                let failed = match endpoint {
                    _ if endpoint == routes.reset => {
                        text == "TimeoutError" && reply["sites"] == "Error"
                    }
                    _ if endpoint == routes.step => {
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

    pub(super) async fn close(&self, place: &Place, id: &Value) -> Result<(), EnvError> {
        close(self.spec, &self.counters, place, id).await
    }

    /// Closes a session without making the caller wait.
    pub(super) fn close_in_background(self: &Arc<Self>, place: Place, id: Value) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.counters.note(|counters| counters.leaked += 1);
            return;
        };
        let inner = Arc::clone(self);
        inner.closing.send_modify(|count| *count += 1);
        runtime.spawn(async move {
            let mut closing = std::pin::pin!(inner.close(&place, &id));
            // A failure has already been counted and logged; there is no caller to return it to.
            if tokio::time::timeout(CLOSING, &mut closing).await.is_err() {
                place.leave_seat();
                let _ = closing.await;
            }
            inner.closing.send_modify(|count| *count -= 1);
        });
    }
}

impl Drop for Inner {
    /// Closes the idle sessions: no client is left to use them.
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        while let Some((place, id)) = self.pool.idle() {
            let (spec, counters) = (self.spec, Arc::clone(&self.counters));
            runtime.spawn(async move {
                // A failure has already been counted and logged.
                let _ = close(spec, &counters, &place, &id).await;
            });
        }
    }
}

/// Closes a session; one that stays on the server is counted as leaked.
async fn close(
    spec: &EnvSpec,
    counters: &Counters,
    place: &Place,
    id: &Value,
) -> Result<(), EnvError> {
    // From here on the server may reuse the session's number. If it already has, the new session
    // must stay open.
    if !place.closing(id) {
        counters.note(|counters| counters.closed += 1);
        return Ok(());
    }
    if !spec.close {
        counters.note(|counters| counters.leaked += 1);
        return Ok(());
    }
    let body = json!({ spec.id_key: id });
    let ask = Ask::post(spec.routes.close, Some(&body));
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
        // Unless an earlier attempt closed it, the server has lost the session or keeps it for ever
        // (as BabyAI's server does with sessions that were never reset).
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
