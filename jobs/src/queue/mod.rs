//! The queue: a hint at which jobs can run, over SQLite or Redis.
//!
//! Nothing here is the truth. What is done is decided by commits in the object
//! store, so the queue may lose jobs, deliver them twice or vanish as a whole,
//! and a run still ends with the same digest. What it does promise: a job that
//! is queued under a key is not queued twice while it waits or runs; a job
//! whose worker died is delivered again after the lease; a pushed job starts
//! within milliseconds; nothing found in it stops a worker; jobs of a higher
//! priority are taken first, and runs of the same priority take turns.
//!
//! Only this module knows apalis. Of apalis it uses the worker loop, the
//! heartbeats and the redelivery of a dead worker's jobs; it does not use its
//! retries, priorities and counts. Handlers always count as successful, and
//! who wants another attempt enqueues the next idempotency key.

mod codec;
mod driver;
mod error;
mod gate;
mod holder;
mod lanes;
mod redis;
mod sqlite;
mod work;

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use futures::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
pub use tokio_util::sync::CancellationToken;

pub use driver::{BOARD_RANKS, Driver};
use driver::{lane_name, lane_parts};
pub use error::{Error, Result, Source, Verdict};
pub use gate::Gate;
use holder::is_gone;
pub use holder::process_name;
pub use work::{Started, Worker};

/// One part of one stage of one iteration of one run. Everything else about
/// it is in the object store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
    /// The run id.
    pub run: String,
    /// The iteration, 0 for what comes before the first.
    pub iteration: u32,
    /// The stage.
    pub stage: String,
    /// The part of the stage.
    pub part: u32,
    /// How often the part has got a chance, as the planner saw it: a greater
    /// number is a new key, which the queue has never seen.
    pub offer: u32,
}

impl Job {
    /// `run/iteration/stage/part`: the same for every attempt.
    pub fn key(&self) -> String {
        format!(
            "{}/{}/{}/{}",
            self.run, self.iteration, self.stage, self.part
        )
    }

    /// `key#offer`: what may be queued once at a time.
    pub fn idempotency_key(&self) -> String {
        format!("{}#{}", self.key(), self.offer)
    }
}

/// How a queue behaves. All processes of a fleet should agree on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// A worker that was silent for so long is dead and its jobs go to others.
    pub lease_ttl_s: u64,
    /// How often a worker says that it lives; at most half a lease.
    pub heartbeat_s: u64,
    /// Jobs of one run that may wait in a class. Redis under apalis breaks for good near
    /// 8 000, and a planner refills a short queue anyway.
    pub length_max: usize,
    /// How often to look for jobs that another process pushed; 0 for what
    /// suits the backend (SQLite 20 ms; Redis 200 ms, since a push is also
    /// published there).
    pub poll_ms: u64,
    /// Comes before every name, so that fleets can share a server.
    pub name_prefix: String,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            lease_ttl_s: 60,
            heartbeat_s: 20,
            length_max: 1000,
            poll_ms: 0,
            name_prefix: "agentgym".into(),
        }
    }
}

impl QueueOptions {
    /// The defaults with a lease of so many seconds, and a heartbeat that goes
    /// with it.
    pub fn leasing(lease_ttl_s: u64) -> Self {
        Self {
            lease_ttl_s,
            heartbeat_s: (lease_ttl_s / 3).max(1),
            ..Self::default()
        }
    }

    fn check(&self) -> Result<()> {
        if self.heartbeat_s == 0 || self.lease_ttl_s < 2 * self.heartbeat_s {
            return Err(Error::Options(format!(
                "jobs.lease_ttl_s (a worker's --lease-ttl-s) is {} and a heartbeat {} s: the lease \
                 must be at least two heartbeats of a second or more, or one late heartbeat hands \
                 running jobs to others",
                self.lease_ttl_s, self.heartbeat_s
            )));
        }
        Ok(())
    }
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is queued.
    Pushed,
    /// Its key waits or runs already, or ended less than a lease ago.
    Duplicate,
    /// The class holds [`QueueOptions::length_max`] jobs of this run; plan again later.
    Full,
}

/// What a handler says of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// Its work is done, or not worth doing: the queue forgets it.
    Done,
    /// It is for somebody else, who finds it again after this time.
    PutBack(Duration),
}

impl From<()> for Handled {
    fn from((): ()) -> Self {
        Self::Done
    }
}

/// The answer to [`Queue::claim`].
#[derive(Debug)]
pub enum Claim {
    /// Nobody else works on the job, as far as the queue knows.
    Held(ClaimGuard),
    /// Somebody does, or died less than a lease ago.
    Taken {
        /// The worker's name.
        by: String,
    },
}

/// An open queue. Clones are the same queue.
#[derive(Clone)]
pub struct Queue {
    driver: Arc<dyn Driver>,
    /// Wakes the workers of this process.
    pushed: watch::Sender<()>,
    options: Arc<QueueOptions>,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Queue {
    /// Opens `sqlite:PATH` (created if missing), `redis://…`, `rediss://…`, or
    /// `memory:`, a queue of its own that lives as long as its clones.
    pub async fn open(url: &str, options: QueueOptions) -> Result<Self> {
        options.check()?;
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        let driver: Arc<dyn Driver> = match scheme {
            "sqlite" | "memory" => Arc::new(sqlite::Sqlite::open(url, &options).await?),
            "redis" | "rediss" => Arc::new(redis::Redis::open(url, &options).await?),
            _ => return Err(error::bad_url(url, "no queue has this scheme")),
        };
        Self::over(driver, options)
    }

    /// A queue over a backend that is open already.
    pub fn over(driver: Arc<dyn Driver>, options: QueueOptions) -> Result<Self> {
        options.check()?;
        Ok(Self {
            driver,
            pushed: watch::Sender::new(()),
            options: Arc::new(options),
        })
    }

    /// How this queue was opened.
    pub fn options(&self) -> &QueueOptions {
        &self.options
    }

    /// Queues a job, to start after `delay` (rounded up to whole seconds).
    pub async fn enqueue(&self, class: &str, job: &Job, delay: Duration) -> Result<Enqueued> {
        self.enqueue_at(class, 0, job, delay).await
    }

    /// [`Queue::enqueue`] with another priority than 0.
    pub async fn enqueue_at(
        &self,
        class: &str,
        priority: i32,
        job: &Job,
        delay: Duration,
    ) -> Result<Enqueued> {
        let payload = encode(job)?;
        let (key, lane) = (job.idempotency_key(), lane_name(class, &job.run, priority));
        let enqueued = self.driver.push(&lane, payload, Some(&key), delay).await?;
        if enqueued == Enqueued::Pushed {
            self.pushed.send_replace(());
        }
        Ok(enqueued)
    }

    /// Asks to be the only one to work on a job, for one lease unless renewed.
    /// Only a hint: after a flush two may hold it, and the first commit wins.
    /// What a dead process of this machine holds is free.
    pub async fn claim(&self, job: &Job, worker: &str) -> Result<Claim> {
        let name = claim_name(job);
        let ttl = Duration::from_secs(self.options.lease_ttl_s);
        // Two claims of one worker are two holders, so each needs its own name.
        let own = format!("{worker}\n{}", nonce()?);
        let mut other = self.driver.lease(&name, &own, ttl).await?;
        if let Some(dead) = other.as_deref().filter(|other| is_gone(holder_name(other))) {
            self.driver.release(&name, dead).await?;
            other = self.driver.lease(&name, &own, ttl).await?;
        }
        Ok(match other {
            None => Claim::Held(ClaimGuard {
                driver: Arc::clone(&self.driver),
                name,
                holder: own,
                ttl,
            }),
            Some(other) => Claim::Taken {
                by: holder_name(&other).to_owned(),
            },
        })
    }

    /// The worker that holds a job's claim and may still be alive.
    pub async fn holder(&self, job: &Job) -> Result<Option<String>> {
        let holder = self.driver.holder(&claim_name(job)).await?;
        Ok(holder
            .map(|h| holder_name(&h).to_owned())
            .filter(|h| !is_gone(h)))
    }

    /// Tells the fleet that a part of a run is committed, and returns what it was told of
    /// iteration `from` and later. Two who tell at once: at least one of them hears of both.
    /// Only a hint, since a queue may be wiped, or be older than its store.
    pub async fn tell(
        &self,
        run: &str,
        (iteration, part): (u32, &str),
        from: u32,
    ) -> Result<Vec<String>> {
        let board = format!("commits/{run}");
        self.driver
            .post(&board, Some((iteration, part)), from)
            .await
    }

    /// What the fleet was told of commits of iteration `from` and later.
    pub async fn told(&self, run: &str, from: u32) -> Result<Vec<String>> {
        self.driver
            .post(&format!("commits/{run}"), None, from)
            .await
    }

    /// Tells the fleet which revision of a run's plan is in force.
    pub async fn tell_plan(&self, run: &str, revision: u32) -> Result<()> {
        let (board, text) = (format!("plan/{run}"), revision.to_string());
        let note = Some((revision, text.as_str()));
        self.driver.post(&board, note, u32::MAX).await.map(|_| ())
    }

    /// The newest revision that the fleet was told of.
    pub async fn plan_told(&self, run: &str) -> Result<Option<u32>> {
        let told = self.driver.post(&format!("plan/{run}"), None, 0).await?;
        Ok(told.iter().filter_map(|note| note.parse().ok()).max())
    }

    /// True for at most one caller of the whole fleet per run and `every`.
    pub async fn planning_turn(&self, run: &str, every: Duration) -> Result<bool> {
        let name = format!("plan/{run}");
        Ok(self.driver.lease(&name, "planner", every).await?.is_none())
    }

    /// Jobs that wait, by class, delayed ones included; classes in order of name.
    pub async fn depth(&self) -> Result<Vec<(String, usize)>> {
        let mut by_class: BTreeMap<String, usize> = BTreeMap::new();
        for (lane, waiting) in self.driver.depth().await? {
            *by_class.entry(lane_parts(&lane).0.to_owned()).or_default() += waiting;
        }
        Ok(by_class.into_iter().collect())
    }

    /// Deletes what finished jobs left behind. Workers do this by themselves
    /// once a minute; returns how many jobs were deleted.
    pub async fn purge_done(&self) -> Result<usize> {
        self.driver.purge().await
    }

    /// Works on `classes` until `stop` is cancelled. Of the jobs that are due it
    /// takes those of the highest priority first; among runs of one priority it
    /// takes turns, and of each run it takes the first class first. At the end
    /// the gate closes, running handlers end, their jobs are acked, and
    /// this returns. Backend failures are logged and survived.
    ///
    /// Each handler runs in a task of its own. A handler that panics counts
    /// as ended. Dropping this future leaves running handlers alone.
    pub async fn work<H, Fut>(
        &self,
        worker: &str,
        classes: &[&str],
        gate: Gate,
        handler: H,
        stop: CancellationToken,
    ) -> Result<()>
    where
        H: Fn(Job) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output: Into<Handled>> + Send + 'static,
    {
        let handler: work::Handler = Arc::new(move |job| handler(job).map(Into::into).boxed());
        let driver = Arc::clone(&self.driver);
        work::Loop::new(driver, worker, classes, gate, handler)?
            .run(self.pushed.clone(), stop)
            .await
    }
}

/// A claim that is held. Dropping it leaves the claim to run out.
pub struct ClaimGuard {
    driver: Arc<dyn Driver>,
    name: String,
    holder: String,
    ttl: Duration,
}

impl std::fmt::Debug for ClaimGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClaimGuard").field(&self.name).finish()
    }
}

impl ClaimGuard {
    /// Holds the claim for another lease. False if it was lost, to a flush or
    /// to a pause longer than the lease: somebody else may be at work.
    pub async fn renew(&self) -> Result<bool> {
        self.driver.renew(&self.name, &self.holder, self.ttl).await
    }

    /// Lets the next attempt start at once.
    pub async fn release(self) -> Result<()> {
        self.driver.release(&self.name, &self.holder).await
    }
}

fn claim_name(job: &Job) -> String {
    format!("claim/{}", job.key())
}

/// The worker's part of a holder's name.
fn holder_name(holder: &str) -> &str {
    holder.split('\n').next().unwrap_or_default()
}

fn encode(job: &Job) -> Result<Vec<u8>> {
    codec::encode(job).map_err(|reason| Error::Payload {
        key: job.key(),
        reason,
    })
}

/// Distinguishes holders and workers with the same name.
fn nonce() -> Result<String> {
    let nonce = getrandom::u64().map_err(|source| {
        Error::Options(format!(
            "the system gives no random numbers ({source}); mount /dev/urandom"
        ))
    })?;
    Ok(format!("{nonce:016x}"))
}
