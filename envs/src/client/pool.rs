//! Which server a session lives on, and sessions kept from one episode to the next.
//!
//! A [`Place`] is a session's seat on a server: while it exists the server counts it as load.
//! Creation is the dear call (a Java process, a browser), so each server opens only so many
//! sessions at a time, one after the other with a gap.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::ClientOptions;
use super::counters::Counters;
use super::http::Server;
use crate::error::EnvError;
use crate::spec::EnvSpec;

/// Between two creations on a server whose sessions are dear; without it they all start their
/// processes in the same moment and each takes as long as all.
const GAP: Duration = Duration::from_millis(250);

pub(super) struct Pool {
    hosts: Vec<Arc<Host>>,
    turn: AtomicUsize,
    avoid: Duration,
}

struct Host {
    server: Server,
    load: AtomicUsize,
    creating: Semaphore,
    gap: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Sessions left by earlier episodes, with the server's `gone` when they were opened.
    idle: Vec<(Value, u64)>,
    avoided_until: Option<Instant>,
    next_creation: Option<Instant>,
}

impl Host {
    fn state(&self) -> MutexGuard<'_, State> {
        // Lists and times stay usable even if a holder died.
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
                creating: Semaphore::new(spec.creates_at_once),
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

    /// A seat on the least loaded server that is not avoided; servers that are equal take
    /// turns.
    pub(super) fn place(&self) -> Place {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.hosts.len();
        let best = (0..count)
            .map(|step| &self.hosts[(turn + step) % count])
            .min_by_key(|host| (host.avoided(), host.load.load(Ordering::Relaxed)))
            .expect("a client has at least one server");
        Place::new(best, self.avoid)
    }

    /// Whether another server is a better choice than this one right after its failure.
    pub(super) fn has_better_than(&self, place: &Place) -> bool {
        self.hosts
            .iter()
            .any(|host| !Arc::ptr_eq(host, &place.host) && !host.avoided())
    }

    /// A session that an earlier episode left, on the least loaded server that has one.
    pub(super) fn idle(&self) -> Option<(Place, Value)> {
        let mut hosts: Vec<&Arc<Host>> = self.hosts.iter().collect();
        hosts.sort_by_key(|host| host.load.load(Ordering::Relaxed));
        hosts.into_iter().find_map(|host| {
            let gone = host.server.gone();
            let mut state = host.state();
            // Those from before a restart are lost.
            state.idle.retain(|(_, born)| *born == gone);
            let (id, _) = state.idle.pop()?;
            drop(state);
            Some((Place::new(host, self.avoid), id))
        })
    }
}

impl Place {
    fn new(host: &Arc<Host>, avoid: Duration) -> Self {
        host.load.fetch_add(1, Ordering::Relaxed);
        Self {
            host: Arc::clone(host),
            avoid,
        }
    }

    pub(super) fn server(&self) -> &Server {
        &self.host.server
    }

    /// Waits until the server may open another session; the permit is held while it does.
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
        self.host.state().avoided_until = None;
    }

    pub(super) fn failed(&self) {
        self.host.state().avoided_until = Some(Instant::now() + self.avoid);
    }

    /// Leaves the session to a later episode.
    pub(super) fn keep(&self, id: Value, born: u64) {
        self.host.state().idle.push((id, born));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.host.load.fetch_sub(1, Ordering::Relaxed);
    }
}
