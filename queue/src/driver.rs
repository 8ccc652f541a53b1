//! What a backend must be able to do, and what it is given to run. The backends
//! implement it, and the tests' simulation, which holds to the same contract;
//! nothing else sees which one is used.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, future::BoxFuture};
use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::{
    codec::{self, Payload},
    error::Result,
    gate::{Gate, Slot, Turn},
    job::{Enqueued, Handled, Job},
    options::QueueOptions,
};

/// What is so far below the newest note of a board is of no use any more.
pub const BOARD_RANKS: u32 = 16;
/// A board on which nothing was written for so long is forgotten.
pub(crate) const BOARD_TTL: Duration = Duration::from_secs(24 * 3600);

/// A fetch takes milliseconds. A grant that is older has missed its job,
/// because a worker elsewhere was quicker.
pub(crate) const GRANT_MAX: Duration = Duration::from_millis(100);
pub(crate) const BACKOFF_MIN: Duration = Duration::from_millis(50);
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(5);

pub(crate) type Handler = Arc<dyn Fn(Job) -> BoxFuture<'static, Handled> + Send + Sync>;

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
pub(crate) fn missed_heartbeats(options: &QueueOptions) -> usize {
    options.lease_ttl_s.div_ceil(options.heartbeat_s) as usize
}

/// What the parts of one loop share about a lane.
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) turn: Arc<Turn>,
    /// Handlers that run now.
    pub(crate) in_flight: AtomicUsize,
    pub(crate) gate: Gate,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) handler: Handler,
}

impl Lane {
    /// A grant is out, and its job has gone elsewhere.
    pub(crate) fn is_stale(&self) -> bool {
        let age = self.turn.granted_for();
        age.is_some_and(|age| age > GRANT_MAX)
    }

    /// Starts a fetched job. The slot is taken here, before the first await,
    /// so that a fetch and its grant stay together.
    /// A task of its own, since a busy handler must not stop the heartbeats.
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

    async fn handle(&self, job: Job, slot: Option<Slot>) {
        let key = job.idempotency_key();
        let Some(mut slot) = slot else {
            return self.put_back(&job, Duration::ZERO).await;
        };
        if !slot.begin() {
            return self.put_back(&job, Duration::ZERO).await;
        }
        let handled = AssertUnwindSafe(async { (self.handler)(job.clone()).await }).catch_unwind();
        match handled.await {
            Ok(Handled::Done) => {}
            Ok(Handled::PutBack(after)) => self.put_back(&job, after).await,
            Err(_) => {
                error!("the handler of job {key} panicked; the planner will queue it again");
            }
        }
        if let Err(error) = self.driver.ended(&self.name, &key).await {
            debug!("job {key} ended, but: {error}");
        }
    }

    /// A job was fetched and cannot start: its grant had run out, the gate closed,
    /// or it is not for this worker. It goes back without a key, since its key
    /// counts as running.
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

/// A job in its task. Dropping it leaves the job running: apalis drops what is
/// in flight when a backend fails, and the work is not lost with the hint.
#[derive(Debug)]
pub struct Started(JoinHandle<()>);

impl Future for Started {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // An error is a runtime that shuts down: panics were caught.
        self.0.poll_unpin(cx).map(|_| ())
    }
}

/// What a driver needs to run one worker; for those of apalis see `run_apalis`.
pub struct Worker {
    /// apalis refuses a name it has just seen.
    pub(crate) name: String,
    pub(crate) lane: Arc<Lane>,
    pub(crate) end: CancellationToken,
}

impl Worker {
    /// New for each incarnation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lane whose jobs it takes.
    pub fn lane_name(&self) -> &str {
        &self.lane.name
    }

    /// Cancelled when the worker is to end, after its acks.
    pub fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// Waits until one job may be fetched.
    pub async fn granted(&self) {
        self.lane.turn.granted().await;
    }

    /// Starts what was fetched; to be acked when the result is ready.
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
