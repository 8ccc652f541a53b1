//! The interface of a queue backend, and the worker that a backend runs. SQLite, Redis and the
//! tests' simulation implement it under the same contract; the rest of the crate does not know
//! which one is used.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use futures::{FutureExt, future::BoxFuture};
use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::{
    codec::{self, Payload},
    error::Result,
    gate::{Gate, Permit, Turn},
    job::{Enqueued, Handled, Job},
    options::QueueOptions,
};

/// Notes this many ranks below the newest note of a board are obsolete.
pub const BOARD_RANKS: u32 = 16;
/// A board without a new note for this long is deleted.
pub(crate) const BOARD_TTL: Duration = Duration::from_secs(24 * 3600);

/// A worker not heard of for this long is forgotten.
pub(crate) const PRESENCE_TTL: Duration = Duration::from_secs(3600);

/// Time since 1970 on this machine's clock.
pub(crate) fn since_1970() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// A fetch takes milliseconds. If a grant is older than this, another worker has taken its job.
pub(crate) const GRANT_MAX: Duration = Duration::from_millis(100);
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(50);
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(5);

pub(crate) type Handler = Arc<dyn Fn(Job) -> BoxFuture<'static, Handled> + Send + Sync>;

/// One backend. The implementation prefixes names of queues and leases with
/// [`QueueOptions::name_prefix`]; callers pass lanes and bare lease names.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// The longest time until a push by another process is noticed.
    fn poll_every(&self) -> Duration;

    /// Adds a payload to a lane. With a key, only if the key is neither waiting nor running in that
    /// lane and the lane is not full; without a key, always.
    async fn push(
        &self,
        lane: &str,
        payload: Vec<u8>,
        key: Option<&str>,
        delay: Duration,
    ) -> Result<Enqueued>;

    /// The lanes with waiting or running jobs, and how many jobs of each could start now.
    async fn due(&self) -> Result<Vec<(String, usize)>>;

    /// The number of waiting jobs per lane, delayed jobs included.
    async fn depth(&self) -> Result<Vec<(String, usize)>>;

    /// Takes the lease `name`; returns `Some(holder)` if another holder has it.
    async fn lease(&self, name: &str, holder: &str, ttl: Duration) -> Result<Option<String>>;

    /// The holder of the lease `name`, if the lease has not expired.
    async fn holder(&self, name: &str) -> Result<Option<String>>;

    /// Renews a lease; false if `holder` has lost it.
    async fn renew(&self, name: &str, holder: &str, ttl: Duration) -> Result<bool>;

    /// Releases a lease if `holder` has it.
    async fn release(&self, name: &str, holder: &str) -> Result<()>;

    /// Posts `note`, if given, to a board under its rank, and returns the notes of rank `from` and
    /// above. A caller that reads after another caller's write sees that write. Notes more than
    /// [`BOARD_RANKS`] below the newest, and boards without recent notes, may be deleted.
    async fn post(&self, board: &str, note: Option<(u32, &str)>, from: u32) -> Result<Vec<String>>;

    /// Notes that a worker is alive, or that it has ended. A backend of one machine need not: there a
    /// process that is gone is seen to be.
    async fn note_presence(&self, _worker: &str, _is_here: bool) -> Result<()> {
        Ok(())
    }

    /// The workers that have not ended, and how long ago they were last noted, by the backend's clock.
    /// Those not noted for an hour are forgotten.
    async fn last_noted(&self) -> Result<Vec<(String, Duration)>> {
        Ok(Vec::new())
    }

    /// Called when a handler has returned: its key blocks pushes for one more lease, no longer.
    async fn ended(&self, lane: &str, key: &str) -> Result<()>;

    /// Deletes the records of finished jobs and of vanished workers.
    async fn purge(&self) -> Result<usize>;

    /// Runs one apalis worker until its `end` is cancelled or the backend fails.
    async fn run(&self, worker: Worker) -> Result<()>;

    /// Forwards wake-ups from other processes, forever.
    async fn listen(&self, pushed: &watch::Sender<()>);
}

/// Missed heartbeats after which a worker counts as dead. apalis only accepts multiples of the
/// heartbeat, so this is the lease rounded up to whole heartbeats.
pub(crate) fn missed_heartbeats(options: &QueueOptions) -> usize {
    options.lease_ttl_s.div_ceil(options.heartbeat_s) as usize
}

/// The state of one lane that the tasks of a loop share.
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) turn: Arc<Turn>,
    /// Handlers that are running.
    pub(crate) in_flight: AtomicUsize,
    pub(crate) gate: Gate,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) handler: Handler,
}

impl Lane {
    /// True if a grant is out and another worker has taken its job.
    pub(crate) fn is_stale(&self) -> bool {
        let age = self.turn.granted_for();
        age.is_some_and(|age| age > GRANT_MAX)
    }

    /// Starts a fetched job. The slot is taken here, before the first await, so that a fetch and
    /// its grant stay together. The job gets its own task, since a busy handler must not stop the
    /// heartbeats.
    fn start(self: Arc<Self>, payload: Payload) -> Started {
        let slot = self.turn.take().or_else(|| self.gate.reserve());
        self.in_flight.fetch_add(1, SeqCst);
        Started(tokio::spawn(async move {
            match payload {
                Payload::Job(job) => self.handle(job, slot).await,
                Payload::Poison { bytes, reason } => error!(
                    "queue lane {}: {bytes} bytes are not a job ({reason}); dropped. Another \
                     program or a newer release uses the same queue: give each a Redis database \
                     or a file of its own with queue.url",
                    self.name
                ),
            }
            self.in_flight.fetch_sub(1, SeqCst);
        }))
    }

    async fn handle(&self, job: Job, slot: Option<Permit>) {
        let key = job.idempotency_key();
        let Some(mut slot) = slot else {
            return self.put_back(&job, Duration::ZERO).await;
        };
        if !slot.begin() {
            return self.put_back(&job, Duration::ZERO).await;
        }
        let handled = AssertUnwindSafe(async { (self.handler)(job.clone()).await }).catch_unwind();
        let handled = handled.await;
        // A queue that takes nothing back must not hold a drain up.
        drop(slot);
        match handled {
            Ok(Handled::Done) => {}
            Ok(Handled::PutBack(after)) => self.put_back(&job, after).await,
            Ok(Handled::Leave(span)) => {
                self.gate.avoid(&self.name, span);
                self.put_back(&job, Duration::ZERO).await;
            }
            Err(_) => {
                error!("the handler of job {key} panicked; the planner will queue it again");
            }
        }
        if let Err(error) = self.driver.ended(&self.name, &key).await {
            debug!("job {key} ended, but: {error}");
        }
    }

    /// Returns a job that was fetched but cannot start: its grant was withdrawn, the gate closed,
    /// or the job is not for this worker. It is pushed without a key, since its key counts as
    /// running.
    async fn put_back(&self, job: &Job, after: Duration) {
        let mut delay = BACKOFF_MIN;
        loop {
            let pushed = match codec::encode(job) {
                Ok(bytes) => {
                    let push = self.driver.push(&self.name, bytes, None, after);
                    push.await.map_err(|error| error.to_string())
                }
                Err(reason) => return error!("job {} cannot go back: {reason}", job.key()),
            };
            match pushed {
                Ok(_) => return debug!("job {} went back: no slot for it here", job.key()),
                Err(error) => warn!("job {} cannot go back yet: {error}", job.key()),
            }
            sleep(delay).await;
            delay = (delay * 2).min(BACKOFF_MAX);
        }
    }
}

/// A job running in its own task. Dropping this handle leaves the job running: apalis drops its
/// futures when a backend fails, and the work must not be lost with the queue.
#[derive(Debug)]
pub struct Started(JoinHandle<()>);

impl Future for Started {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // An error means that the runtime is shutting down: panics were caught.
        self.0.poll_unpin(cx).map(|_| ())
    }
}

/// The inputs of a driver for one worker; drivers over apalis pass it to `run_apalis`.
pub struct Worker {
    /// apalis refuses a name it has just seen.
    pub(crate) name: String,
    pub(crate) lane: Arc<Lane>,
    pub(crate) end: CancellationToken,
}

impl Worker {
    /// The worker's name, new for each incarnation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lane whose jobs this worker takes.
    pub fn lane_name(&self) -> &str {
        &self.lane.name
    }

    /// Cancelled when the worker has to end, after its acks.
    pub fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// Waits until one job may be fetched.
    pub async fn granted(&self) {
        self.lane.turn.granted().await;
    }

    /// Starts a fetched payload; ack it when the returned future is ready.
    pub fn start(&self, payload: &[u8]) -> Started {
        Arc::clone(&self.lane).start(codec::decode(payload))
    }

    pub(crate) fn turn(&self) -> Arc<Turn> {
        Arc::clone(&self.lane.turn)
    }

    pub(crate) fn handler(&self) -> impl FnMut(Payload) -> Started + Clone + use<> {
        let lane = Arc::clone(&self.lane);
        move |payload| Arc::clone(&lane).start(payload)
    }
}
