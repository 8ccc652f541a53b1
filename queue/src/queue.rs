//! The public interface of the queue.

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
    /// No other worker works on the job, as far as the queue knows.
    Held(ClaimGuard),
    /// Another worker works on it, or died less than a lease ago.
    Taken {
        /// The worker's name.
        by: String,
    },
}

/// An open queue. Clones are the same queue.
#[derive(Clone)]
pub struct Queue {
    pub(crate) driver: Arc<dyn Driver>,
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
    /// Opens `sqlite:PATH` (created if missing), `redis://…`, `rediss://…`, or `memory:`, a private
    /// queue that lives as long as its clones.
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

    /// A queue over an open backend.
    pub fn over(driver: Arc<dyn Driver>, options: QueueOptions) -> Result<Self> {
        options.check()?;
        Ok(Self {
            driver,
            pushed: watch::Sender::new(()),
            options: Arc::new(options),
        })
    }

    /// The options of this queue.
    pub fn options(&self) -> &QueueOptions {
        &self.options
    }

    /// Queues a job, to start after `delay` (rounded up to whole seconds).
    pub async fn enqueue(&self, class: &str, job: &Job, delay: Duration) -> Result<Enqueued> {
        self.enqueue_at(class, 0, job, delay).await
    }

    /// [`Queue::enqueue`] with a priority other than 0.
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

    /// Claims a job exclusively, for one lease unless renewed. Only a hint: after a flush two
    /// workers may hold the claim, and the first commit wins. A claim held by a dead process of
    /// this machine counts as free.
    pub async fn claim(&self, job: &Job, worker: &str) -> Result<Claim> {
        let name = claim_name(job);
        let ttl = Duration::from_secs(self.options.lease_ttl_s);
        // Two claims of one worker are two holders, so each gets its own name.
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

    /// The worker that holds a job's claim, if it may still be alive.
    pub async fn holder(&self, job: &Job) -> Result<Option<String>> {
        let holder = self.driver.holder(&claim_name(job)).await?;
        Ok(holder
            .map(|h| holder_name(&h).to_owned())
            .filter(|h| !is_gone(h)))
    }

    /// Announces to the fleet that a part of a run is committed, and returns the announcements of
    /// iteration `from` and later. Of two concurrent callers at least one sees both announcements.
    /// Only a hint, since a queue may be wiped or be older than its store.
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

    /// The announced commits of iteration `from` and later.
    pub async fn told(&self, run: &str, from: u32) -> Result<Vec<String>> {
        self.driver
            .post(&format!("commits/{run}"), None, from)
            .await
    }

    /// Announces to the fleet which revision of a run's plan is in force.
    pub async fn tell_plan(&self, run: &str, revision: u32) -> Result<()> {
        let (board, text) = (format!("plan/{run}"), revision.to_string());
        let note = Some((revision, text.as_str()));
        self.driver.post(&board, note, u32::MAX).await.map(|_| ())
    }

    /// The newest announced revision.
    pub async fn plan_told(&self, run: &str) -> Result<Option<u32>> {
        let told = self.driver.post(&format!("plan/{run}"), None, 0).await?;
        Ok(told.iter().filter_map(|note| note.parse().ok()).max())
    }

    /// True for at most one caller in the whole fleet per run and per `every`.
    pub async fn planning_turn(&self, run: &str, every: Duration) -> Result<bool> {
        let name = format!("plan/{run}");
        Ok(self.driver.lease(&name, "planner", every).await?.is_none())
    }

    /// Gives a planning turn back, so that another worker takes it at once.
    pub async fn give_back_turn(&self, run: &str) -> Result<()> {
        self.driver.release(&format!("plan/{run}"), "planner").await
    }

    /// Waiting jobs per class, delayed jobs included; classes sorted by name.
    pub async fn depth(&self) -> Result<Vec<(String, usize)>> {
        let mut by_class: BTreeMap<String, usize> = BTreeMap::new();
        for (lane, waiting) in self.driver.depth().await? {
            *by_class.entry(lane_parts(&lane).0.to_owned()).or_default() += waiting;
        }
        Ok(by_class.into_iter().collect())
    }

    /// Deletes the records of finished jobs, and returns how many jobs were deleted. Workers do
    /// this themselves once a minute.
    pub async fn purge_done(&self) -> Result<usize> {
        self.driver.purge().await
    }

    /// Works on `classes` until `stop` is cancelled. Due jobs of the highest priority are taken
    /// first; runs of equal priority take turns; within a run the classes are taken in the order
    /// given. After `stop` the gate closes, running handlers finish, their jobs are acked, and this
    /// returns. Backend failures are logged and survived.
    ///
    /// Each handler runs in its own task. A handler that panics counts as ended. Dropping this
    /// future does not stop running handlers.
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

/// A claim that is held. If dropped, the claim stays until its lease expires.
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
    /// Holds the claim for another lease; takes it again if it was given back, or lost to a flush or
    /// to a pause longer than the lease. False if another worker has it.
    pub async fn renew(&self) -> Result<bool> {
        let renewed = self
            .driver
            .renew(&self.name, &self.holder, self.ttl)
            .await?;
        let own = Some(self.holder.as_str());
        Ok(renewed || {
            let other = self
                .driver
                .lease(&self.name, &self.holder, self.ttl)
                .await?;
            other.is_none() || other.as_deref() == own
        })
    }

    /// Lets another worker claim the job, although this one may still end it.
    pub async fn give_back(&self) -> Result<()> {
        self.driver.release(&self.name, &self.holder).await
    }

    /// Releases the claim, so that the next attempt can start at once.
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
