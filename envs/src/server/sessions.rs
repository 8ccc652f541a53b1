//! The table of open sessions, with expiry of unused ones.
//!
//! Trainers can die, and the original servers then keep their sessions for ever. Here a session
//! that was unused for its time to live no longer exists. Lookups check the time themselves, so
//! behaviour does not depend on when the sweeper runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::options::ServerOptions;
use crate::task_index::TaskIndex;

/// Open sessions, each with its state.
pub struct Sessions<P> {
    ttl: Duration,
    sessions_max: usize,
    next_id: AtomicU64,
    table: Mutex<BTreeMap<u64, Arc<Mutex<Slot<P>>>>>,
}

struct Slot<P> {
    play: P,
    used: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while holding a lock is a bug that its own request reports as a 500; the other
    // sessions continue.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sessions of a server, independent of the environment.
pub trait Table {
    /// Number of open sessions.
    fn count(&self) -> usize;

    /// Frees the memory of expired sessions.
    fn remove_unused(&self);
}

impl<P: Send> Table for Sessions<P> {
    fn count(&self) -> usize {
        lock(&self.table).len()
    }

    fn remove_unused(&self) {
        let ttl = self.ttl;
        // A locked session is in use at this moment.
        lock(&self.table).retain(|_, slot| {
            slot.try_lock()
                .map_or(true, |slot| slot.used.elapsed() < ttl)
        });
    }
}

impl<P: Send> Sessions<P> {
    /// No session yet.
    pub fn new(options: &ServerOptions) -> Self {
        Self {
            ttl: Duration::from_secs(options.session_ttl_s),
            sessions_max: options.sessions_max,
            next_id: AtomicU64::new(options.first_id),
            table: Mutex::default(),
        }
    }

    /// Opens a session; its state may depend on its number. `None` if the limit is reached.
    pub fn create<T>(
        &self,
        play: impl FnOnce(u64) -> P,
        view: impl FnOnce(u64, &P) -> T,
    ) -> Option<T> {
        if self.count() >= self.sessions_max {
            self.remove_unused();
            if self.count() >= self.sessions_max {
                return None;
            }
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let play = play(id);
        let shown = view(id, &play);
        let used = Instant::now();
        lock(&self.table).insert(id, Arc::new(Mutex::new(Slot { play, used })));
        Some(shown)
    }

    /// Uses a session. `None` if there is no such session.
    pub fn with<T>(&self, id: &TaskIndex, act: impl FnOnce(&mut P) -> T) -> Option<T> {
        let session = self.find(id)?;
        let mut slot = lock(&session);
        slot.used = Instant::now();
        Some(act(&mut slot.play))
    }

    /// The answer of a session, or the error that there is no such session.
    pub fn answer(&self, id: &TaskIndex, act: impl FnOnce(&mut P) -> Value) -> Value {
        let answer = self.with(id, act);
        answer.unwrap_or_else(|| json!({"error": format!("The id {id} is not valid.")}))
    }

    /// Closes a session; whether it existed.
    pub fn close(&self, id: &TaskIndex) -> bool {
        let found = self.find(id).is_some();
        if let Some(id) = id.as_u64() {
            lock(&self.table).remove(&id);
        }
        found
    }

    /// The numbers of the sessions, in order.
    pub fn ids(&self) -> Vec<u64> {
        lock(&self.table).keys().copied().collect()
    }

    fn find(&self, id: &TaskIndex) -> Option<Arc<Mutex<Slot<P>>>> {
        let session = lock(&self.table).get(&id.as_u64()?).cloned()?;
        let unused = lock(&session).used.elapsed();
        (unused < self.ttl).then_some(session)
    }
}
