//! Assigns sessions to servers, and keeps idle sessions for later episodes.
//!
//! A [`Place`] is a session's seat on a server; while it exists it counts as load on that server.
//! Creating a session is the expensive call (a Java process, a browser), so each server creates
//! only a limited number at a time, with a gap between them. A server may limit its open sessions.
//! Idle sessions count towards that limit, so they are reused before new ones are opened.
//!
//! A server that reuses the number of an open session (it was restarted unnoticed, or does not
//! count sessions) would let two episodes play in one game. The older session is then abandoned.
//! Only sessions of the same client are compared; workers that share a server cannot see each
//! other's sessions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::counters::Counters;
use super::http::Server;
use super::options::ClientOptions;
use crate::error::EnvError;
use crate::http_client::excerpt;
use crate::spec::EnvSpec;

/// Pause between two creations on a server with expensive sessions. Without it all sessions start
/// their processes at the same moment and slow each other down.
const GAP: Duration = Duration::from_millis(250);

pub(super) struct Pool {
    hosts: Vec<Arc<Host>>,
    turn: AtomicUsize,
    avoid: Duration,
}

struct Host {
    server: Server,
    load: AtomicUsize,
    tickets: AtomicU64,
    creating: Semaphore,
    /// Seats for sessions in use by episodes, if the number is limited.
    seats: Option<Arc<Semaphore>>,
    gap: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Sessions left by earlier episodes, with the server's `gone` counter when they were opened.
    idle: Vec<(Value, u64)>,
    avoided_until: Option<Instant>,
    /// Why the server opened no session when it was last asked for one.
    away: Option<String>,
    next_creation: Option<Instant>,
    /// Open sessions, keyed by id as JSON.
    open: BTreeMap<String, Open>,
}

struct Open {
    /// The server's `gone` counter when the session was opened.
    born: u64,
    /// The owner of the session: [`Place::ticket`].
    ticket: u64,
}

impl Host {
    fn state(&self) -> MutexGuard<'_, State> {
        // Lists and times stay consistent even if a thread panicked while it held the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn avoided(&self) -> bool {
        self.state()
            .avoided_until
            .is_some_and(|until| Instant::now() < until)
    }
}

/// A session's seat on a server.
pub(super) struct Place {
    host: Arc<Host>,
    avoid: Duration,
    /// Held if the server has a limit.
    seat: Mutex<Option<OwnedSemaphorePermit>>,
    /// Distinguishes sessions with the same id.
    ticket: u64,
}

impl Pool {
    pub(super) fn new(
        spec: &EnvSpec,
        urls: &[String],
        options: &ClientOptions,
        counters: &Arc<Counters>,
    ) -> Result<Self, EnvError> {
        let host = |url: &String| {
            Ok(Arc::new(Host {
                server: Server::new(url, options.clone(), Arc::clone(counters))?,
                load: AtomicUsize::new(0),
                tickets: AtomicU64::new(0),
                creating: Semaphore::new(spec.creates_at_once),
                seats: (options.sessions_max)
                    .map(|max| Arc::new(Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS)))),
                gap: if spec.creates_at_once <= 2 {
                    GAP
                } else {
                    Duration::ZERO
                },
                state: Mutex::default(),
            }))
        };
        let avoid = Duration::try_from_secs_f64(options.avoid_s)
            .map_err(|error| EnvError::Client(format!("the time to avoid a server: {error}")))?;
        Ok(Self {
            hosts: urls.iter().map(host).collect::<Result<_, EnvError>>()?,
            turn: AtomicUsize::new(0),
            avoid,
        })
    }

    /// A seat on the least loaded server that is not avoided; equal servers take turns. Waits until
    /// that server may have another session.
    pub(super) async fn place(&self) -> Place {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.hosts.len();
        let best = (0..count)
            .map(|step| &self.hosts[(turn + step) % count])
            .min_by_key(|host| (host.avoided(), host.load.load(Ordering::Relaxed)))
            .expect("a client has at least one server");
        // Counts as load from here on, so that waiting callers spread over the servers.
        let place = Place::new(best, self.avoid, None);
        if let Some(seats) = &best.seats {
            // The semaphore is never closed.
            *place.seat() = Arc::clone(seats).acquire_owned().await.ok();
        }
        place
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = &Server> {
        self.hosts.iter().map(|host| &host.server)
    }

    /// Why servers open no sessions, while others do.
    pub(super) fn away(&self) -> Vec<String> {
        let away = self
            .hosts
            .iter()
            .filter_map(|host| host.state().away.clone());
        let away: Vec<String> = away.collect();
        if away.len() == self.hosts.len() {
            Vec::new()
        } else {
            away
        }
    }

    /// Whether another server is a better choice than this one right after it failed.
    pub(super) fn has_better_than(&self, place: &Place) -> bool {
        self.hosts
            .iter()
            .any(|host| !Arc::ptr_eq(host, &place.host) && !host.avoided())
    }

    /// A session left by an earlier episode, on the least loaded server that has one.
    pub(super) fn idle(&self) -> Option<(Place, Value)> {
        let mut hosts: Vec<&Arc<Host>> = self.hosts.iter().collect();
        hosts.sort_by_key(|host| host.load.load(Ordering::Relaxed));
        hosts.into_iter().find_map(|host| {
            let seat = match &host.seats {
                Some(seats) => Some(Arc::clone(seats).try_acquire_owned().ok()?),
                None => None,
            };
            let mut place = Place::new(host, self.avoid, seat);
            let id = place.take_idle()?;
            Some((place, id))
        })
    }
}

impl Place {
    fn new(host: &Arc<Host>, avoid: Duration, seat: Option<OwnedSemaphorePermit>) -> Self {
        host.load.fetch_add(1, Ordering::Relaxed);
        Self {
            host: Arc::clone(host),
            avoid,
            seat: Mutex::new(seat),
            ticket: host.tickets.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn seat(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees the seat for another session, although this one may still be open.
    pub(super) fn leave_seat(&self) {
        *self.seat() = None;
    }

    /// A session that an earlier episode left on this server.
    pub(super) fn take_idle(&mut self) -> Option<Value> {
        let gone = self.server().gone();
        let mut state = self.host.state();
        // Sessions from before a restart are lost.
        state.idle.retain(|(_, born)| *born == gone);
        state.open.retain(|_, open| open.born == gone);
        let (id, _) = state.idle.pop()?;
        let kept = state.open.get(&id.to_string()).map(|open| open.ticket);
        drop(state);
        self.ticket = kept.unwrap_or(self.ticket);
        Some(id)
    }

    /// Records a session as open. An open session with the same id loses the id.
    pub(super) fn opened(&self, create: &'static str, id: &Value) {
        let open = Open {
            born: self.server().gone(),
            ticket: self.ticket,
        };
        let mut state = self.host.state();
        state.idle.retain(|(kept, _)| kept != id);
        let born = open.born;
        let before = state.open.insert(id.to_string(), open);
        drop(state);
        if before.is_some_and(|before| before.born == born) {
            let error = self.shared(create, id);
            tracing::warn!(%error, "the session that was open before is given up");
        }
    }

    /// Whether this place still owns the session; the server may have reused the id.
    pub(super) fn owns(&self, id: &Value) -> bool {
        let state = self.host.state();
        (state.open.get(&id.to_string())).is_none_or(|open| open.ticket == self.ticket)
    }

    /// Call before closing a session: frees its id. False if another session owns the id by now.
    pub(super) fn closing(&self, id: &Value) -> bool {
        let owns = self.owns(id);
        if owns {
            self.host.state().open.remove(&id.to_string());
        }
        owns
    }

    /// The error for a session whose id the server has reused.
    pub(super) fn shared(&self, endpoint: &'static str, id: &Value) -> EnvError {
        EnvError::SharedSession {
            call: self.server().name(endpoint),
            id: excerpt(id.to_string().as_bytes()),
        }
    }

    pub(super) fn server(&self) -> &Server {
        &self.host.server
    }

    /// Waits until the server may create another session; the permit is held during the creation.
    pub(super) async fn turn_to_create(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        let permit = self.host.creating.acquire().await.ok();
        let wait = {
            let mut state = self.host.state();
            let now = Instant::now();
            let at = state.next_creation.map_or(now, |at| at.max(now));
            state.next_creation = Some(at + self.host.gap);
            at - now
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        permit
    }

    pub(super) fn answered(&self) {
        let mut state = self.host.state();
        (state.avoided_until, state.away) = (None, None);
    }

    pub(super) fn failed(&self, error: &EnvError) {
        let mut state = self.host.state();
        state.avoided_until = Some(Instant::now() + self.avoid);
        state.away = Some(error.to_string());
    }

    /// Keeps the session for a later episode.
    pub(super) fn keep(&self, id: Value, born: u64) {
        self.host.state().idle.push((id, born));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.host.load.fetch_sub(1, Ordering::Relaxed);
    }
}
