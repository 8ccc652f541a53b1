//! The queue as its users see it.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    backends::redis::Redis,
    backends::sqlite::Sqlite,
    codec,
    driver::{Driver, Handler},
    error::{self, Error, Result},
    gate::Gate,
    holder::is_gone,
    job::{Enqueued, Handled, Job},
    names::{claim_name, holder_name, lane_name, lane_parts, nonce},
    options::QueueOptions,
    work,
};

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
            "sqlite" | "memory" => Arc::new(Sqlite::open(url, &options).await?),
            "redis" | "rediss" => Arc::new(Redis::open(url, &options).await?),
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
        let handler: Handler = Arc::new(move |job| handler(job).map(Into::into).boxed());
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

fn encode(job: &Job) -> Result<Vec<u8>> {
    codec::encode(job).map_err(|reason| Error::Payload {
        key: job.key(),
        reason,
    })
}
