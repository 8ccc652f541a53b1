//! The table of open games, with an end for those that nobody uses.
//!
//! Trainers die, and the original server then keeps their sessions for ever. Here a session
//! that was not used for its time to live does not exist any more: lookups check the time
//! themselves, so behaviour does not depend on when the sweeper runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ServerOptions;
use crate::textcraft::{Game, TaskIndex, Tasks};

/// A game and what it said last.
pub(super) struct Play {
    game: Game,
    pub(super) observation: String,
    pub(super) reward: u8,
    pub(super) done: bool,
    used: Instant,
}

pub(super) struct Sessions {
    tasks: Arc<Tasks>,
    ttl: Duration,
    sessions_max: usize,
    next_id: AtomicU64,
    table: Mutex<BTreeMap<u64, Arc<Mutex<Play>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic while holding a lock is a defect that its own request reports as a 500; the
    // other sessions go on.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Play {
    fn new(tasks: &Tasks, index: &TaskIndex) -> Self {
        let world = tasks.world_at(index);
        Self {
            game: world.game(),
            observation: world.observation(),
            reward: 0,
            done: false,
            used: Instant::now(),
        }
    }

    /// Runs a command; `Err` is the text for an error reply and changes nothing.
    pub(super) fn step(&mut self, action: &str) -> Result<(), String> {
        let reply = self.game.step(action)?;
        self.observation = reply.observation;
        self.reward = reply.reward;
        self.done = reply.done;
        Ok(())
    }
}

impl Sessions {
    pub(super) fn new(tasks: Arc<Tasks>, options: ServerOptions) -> Self {
        Self {
            tasks,
            ttl: Duration::from_secs(options.session_ttl_s),
            sessions_max: options.sessions_max,
            next_id: AtomicU64::new(0),
            table: Mutex::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.table).len()
    }

    /// Opens a session on the task whose index is the new id, as the original does. `None`
    /// if there are too many.
    pub(super) fn create(&self) -> Option<(u64, String)> {
        if self.count() >= self.sessions_max {
            self.remove_unused();
            if self.count() >= self.sessions_max {
                return None;
            }
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let index = TaskIndex::from(i64::try_from(id).unwrap_or(i64::MAX));
        let play = Play::new(&self.tasks, &index);
        let observation = play.observation.clone();
        lock(&self.table).insert(id, Arc::new(Mutex::new(play)));
        Some((id, observation))
    }

    /// Starts a session anew on a task.
    pub(super) fn reset<T>(
        &self,
        id: &TaskIndex,
        task: &TaskIndex,
        view: impl FnOnce(&Play) -> T,
    ) -> Option<T> {
        let session = self.find(id)?;
        let play = Play::new(&self.tasks, task);
        let mut session = lock(&session);
        *session = play;
        Some(view(&session))
    }

    /// Uses a session.
    pub(super) fn with<T>(&self, id: &TaskIndex, act: impl FnOnce(&mut Play) -> T) -> Option<T> {
        let session = self.find(id)?;
        let mut play = lock(&session);
        play.used = Instant::now();
        Some(act(&mut play))
    }

    /// Whether there was such a session.
    pub(super) fn close(&self, id: &TaskIndex) -> bool {
        let found = self.find(id).is_some();
        if let Some(id) = id.as_u64() {
            lock(&self.table).remove(&id);
        }
        found
    }

    fn find(&self, id: &TaskIndex) -> Option<Arc<Mutex<Play>>> {
        let session = lock(&self.table).get(&id.as_u64()?).cloned()?;
        let unused = lock(&session).used.elapsed();
        (unused < self.ttl).then_some(session)
    }

    fn remove_unused(&self) {
        let ttl = self.ttl;
        // A session that is in use at this moment is not unused.
        lock(&self.table).retain(|_, play| {
            play.try_lock()
                .map_or(true, |play| play.used.elapsed() < ttl)
        });
    }

    /// Frees the memory of expired sessions, for as long as the server runs.
    pub(super) async fn sweep(self: Arc<Self>) {
        let pause = (self.ttl / 4).clamp(Duration::from_millis(250), Duration::from_secs(30));
        loop {
            tokio::time::sleep(pause).await;
            self.remove_unused();
        }
    }
}
