//! What a backend must be able to do. [`super::sqlite`] and [`super::redis`]
//! implement it, and the tests' simulation, which holds to the same contract;
//! nothing outside this module sees which one is used.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Enqueued, QueueOptions, error::Result, work::Worker};

/// What is so far below the newest note of a board is of no use any more.
pub const BOARD_RANKS: u32 = 16;
/// A board on which nothing was written for so long is forgotten.
pub(super) const BOARD_TTL: Duration = Duration::from_secs(24 * 3600);

/// The name of a lane: the jobs of one class, run and priority, which wait for each other and
/// for nobody else.
pub(super) fn lane_name(class: &str, run: &str, priority: i32) -> String {
    format!("{class}@{run}@{priority}")
}

/// The class, run and priority of a lane. What another program has made up is a class.
pub(super) fn lane_parts(lane: &str) -> (&str, &str, i32) {
    let mut pieces = lane.split('@');
    let class = pieces.next().unwrap_or_default();
    let run = pieces.next().unwrap_or_default();
    let priority = pieces.next().and_then(|p| p.parse().ok()).unwrap_or(0);
    (class, run, priority)
}

/// One backend. Names of queues and leases are made by the implementation from
/// [`QueueOptions::name_prefix`]; callers pass lanes and bare lease names.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// How long a push of another process may go unnoticed.
    fn poll_every(&self) -> Duration;

    /// Adds a payload to a lane. With a key, only if no such key is waiting or
    /// running there and the lane has room; without one, always.
    async fn push(
        &self,
        lane: &str,
        payload: Vec<u8>,
        key: Option<&str>,
        delay: Duration,
    ) -> Result<Enqueued>;

    /// The lanes with a job that waits or runs, and how many of each could start now.
    async fn due(&self) -> Result<Vec<(String, usize)>>;

    /// How many jobs of each lane wait, those that are delayed included.
    async fn depth(&self) -> Result<Vec<(String, usize)>>;

    /// Takes the lease `name`; `Some(holder)` if another one has it.
    async fn lease(&self, name: &str, holder: &str, ttl: Duration) -> Result<Option<String>>;

    /// Who has the lease `name`, if it has not run out.
    async fn holder(&self, name: &str) -> Result<Option<String>>;

    /// Prolongs a lease; false if `holder` has lost it.
    async fn renew(&self, name: &str, holder: &str, ttl: Duration) -> Result<bool>;

    /// Gives a lease up, if `holder` has it.
    async fn release(&self, name: &str, holder: &str) -> Result<()>;

    /// Puts a note of some rank on a board, if there is one, and reads those of rank `from` and
    /// above. Who reads after another one has written sees what it wrote. Notes more than
    /// [`BOARD_RANKS`] below the newest, and boards that nobody writes on, may be forgotten.
    async fn post(&self, board: &str, note: Option<(u32, &str)>, from: u32) -> Result<Vec<String>>;

    /// A handler has returned: its key blocks for one more lease and no longer.
    async fn ended(&self, lane: &str, key: &str) -> Result<()>;

    /// Deletes what finished jobs and vanished workers leave behind.
    async fn purge(&self) -> Result<usize>;

    /// Runs one apalis worker until its end is called for or the backend fails.
    async fn run(&self, worker: Worker) -> Result<()>;

    /// Passes on wake-ups from other processes, for ever.
    async fn listen(&self, pushed: &watch::Sender<()>);
}

/// Heartbeats that may be missed before a worker counts as dead: as many as
/// fill a lease, since apalis only knows multiples of the heartbeat.
pub(super) fn missed_heartbeats(options: &QueueOptions) -> usize {
    options.lease_ttl_s.div_ceil(options.heartbeat_s) as usize
}
