//! The loop behind [`super::Queue::work`]: one apalis worker per class, each
//! rebuilt whenever its backend fails, and a scout that grants them fetches.
//!
//! The scout looks which classes have jobs that are due, with one read for all
//! of them, and only while a slot is free: a busy process leaves the queue
//! alone, an idle one does not take SQLite's write lock fifty times a second,
//! and jobs for which there is no slot stay where others find them.

use std::{
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::{
    Handled, Job, codec,
    codec::Payload,
    driver::Driver,
    error::Result,
    gate::{Gate, Slot, Turn},
    nonce,
};

pub(super) type Handler = Arc<dyn Fn(Job) -> BoxFuture<'static, Handled> + Send + Sync>;

/// A fetch takes milliseconds. A grant that is older has missed its job,
/// because a worker elsewhere was quicker.
const GRANT_MAX: Duration = Duration::from_millis(100);
/// How long acks may take at the end; then the jobs are delivered again, found
/// committed and skipped.
const ACK_MAX: Duration = Duration::from_secs(10);
/// How long a worker that starts waits for its backends before it takes jobs of
/// those that are there. Otherwise the quickest class, not the first, begins.
const ATTACH_MAX: Duration = Duration::from_secs(2);
const PURGE_EVERY: Duration = Duration::from_secs(60);
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What the parts of one loop share about a class.
pub(super) struct Class {
    name: String,
    turn: Arc<Turn>,
    gate: Gate,
    driver: Arc<dyn Driver>,
    handler: Handler,
}

impl Class {
    /// A grant is out, and its job has gone elsewhere.
    fn is_stale(&self) -> bool {
        let age = self.turn.granted_for();
        age.is_some_and(|age| age > GRANT_MAX)
    }

    /// Starts a fetched job. The slot is taken here, before the first await,
    /// so that a fetch and its grant stay together.
    /// A task of its own, since a busy handler must not stop the heartbeats.
    fn start(self: Arc<Self>, payload: Payload) -> Started {
        let slot = self.turn.take().or_else(|| self.gate.reserve());
        Started(tokio::spawn(async move {
            match payload {
                Payload::Job(job) => self.handle(job, slot).await,
                Payload::Poison { bytes, reason } => error!(
                    "queue class {}: {bytes} bytes are not a job ({reason}); dropped. Another \
                     program or a newer release uses the same queue.name_prefix",
                    self.name
                ),
            }
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
    pub(super) name: String,
    pub(super) class: Arc<Class>,
    pub(super) end: CancellationToken,
}

impl Worker {
    /// New for each incarnation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The class whose jobs it takes.
    pub fn class_name(&self) -> &str {
        &self.class.name
    }

    /// Cancelled when the worker is to end, after its acks.
    pub fn end(&self) -> &CancellationToken {
        &self.end
    }

    /// Waits until one job may be fetched.
    pub async fn granted(&self) {
        self.class.turn.granted().await;
    }

    /// Starts what was fetched; to be acked when the result is ready.
    pub fn start(&self, payload: &[u8]) -> Started {
        Arc::clone(&self.class).start(codec::decode(payload))
    }

    pub(super) fn turn(&self) -> Arc<Turn> {
        Arc::clone(&self.class.turn)
    }

    pub(super) fn handler(&self) -> impl FnMut(Payload) -> Started + Clone + use<> {
        let class = Arc::clone(&self.class);
        move |payload| Arc::clone(&class).start(payload)
    }
}

/// Runs an apalis worker over any backend. A macro, because a function would
/// repeat a dozen of apalis' associated types in its bounds.
macro_rules! run_apalis {
    ($backend:expr, $worker:expr) => {{
        use apalis::prelude::WorkerBuilder;
        let worker: $crate::queue::work::Worker = $worker;
        let end = worker.end.clone();
        WorkerBuilder::new(worker.name.as_str())
            .backend($crate::queue::gate::Gated::new($backend, worker.turn()))
            .build(worker.handler())
            .run_until(async move {
                end.cancelled().await;
                Ok::<(), std::io::Error>(())
            })
            .await
    }};
}
pub(super) use run_apalis;

/// One call of [`super::Queue::work`].
pub(super) struct Loop {
    driver: Arc<dyn Driver>,
    worker: String,
    classes: Vec<Arc<Class>>,
    gate: Gate,
}

impl Loop {
    pub(super) fn new(
        driver: Arc<dyn Driver>,
        worker: &str,
        classes: &[&str],
        gate: Gate,
        handler: Handler,
    ) -> Result<Self> {
        let classes = classes.iter().map(|name| {
            Arc::new(Class {
                name: (*name).to_owned(),
                turn: Arc::default(),
                gate: gate.clone(),
                driver: Arc::clone(&driver),
                handler: Arc::clone(&handler),
            })
        });
        Ok(Self {
            classes: classes.collect(),
            worker: format!("{worker}/{}", nonce()?),
            driver,
            gate,
        })
    }

    pub(super) async fn run(
        self,
        pushed: watch::Sender<()>,
        stop: CancellationToken,
    ) -> Result<()> {
        let end = CancellationToken::new();
        // Whatever way this future ends, its workers end with it.
        let _end_on_drop = end.clone().drop_guard();
        let mut workers = JoinSet::new();
        for class in &self.classes {
            let name = format!("{}/{}", self.worker, class.name);
            workers.spawn(supervise(name, Arc::clone(class), end.clone()));
        }
        let mut helpers = JoinSet::new();
        let (driver, sender) = (Arc::clone(&self.driver), pushed.clone());
        helpers.spawn(async move { driver.listen(&sender).await });
        helpers.spawn(purge(Arc::clone(&self.driver), self.worker.clone()));

        // No receiver of an older push matters: the first tick looks anyway.
        let wakes = pushed.subscribe();
        if stop.run_until_cancelled(self.scout(wakes)).await.is_none() {
            debug!("worker {} drains", self.worker);
        }
        self.gate.close();
        for class in &self.classes {
            drop(class.turn.take());
        }
        self.gate.idle().await;
        end.cancel();
        let joined = async { while workers.join_next().await.is_some() {} };
        if timeout(ACK_MAX, joined).await.is_err() {
            warn!(
                "worker {}: the queue takes no acks; its jobs will be delivered again and skipped",
                self.worker
            );
        }
        Ok(())
    }

    /// Until every class has a backend that polls, or [`ATTACH_MAX`].
    async fn attached(&self) {
        let all = async {
            while !self.classes.iter().all(|class| class.turn.is_attached()) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        if timeout(ATTACH_MAX, all).await.is_err() {
            debug!("worker {} starts without some of its classes", self.worker);
        }
    }

    /// Grants fetches, for ever.
    async fn scout(&self, mut pushed: watch::Receiver<()>) {
        self.attached().await;
        let names: Vec<String> = self.classes.iter().map(|c| c.name.clone()).collect();
        let mut tick = interval(self.driver.poll_every());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut freed = self.gate.changes();
        let mut backoff = BACKOFF_MIN;
        loop {
            tokio::select! {
                biased;
                _ = tick.tick() => {}
                // Never fails: `run` holds a sender.
                _ = pushed.changed() => {}
                () = freed.next() => {}
            }
            if !self.wants_to_look() {
                continue;
            }
            match self.driver.due(&names).await {
                Ok(due) => {
                    self.grant(&due);
                    backoff = BACKOFF_MIN;
                }
                Err(error) => {
                    warn!("{error}");
                    sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    /// A look that could lead to nothing is not taken.
    fn wants_to_look(&self) -> bool {
        self.gate.has_room() || self.classes.iter().any(|class| class.is_stale())
    }

    fn grant(&self, due: &[usize]) {
        // First the slots that were granted in vain: a class further up may
        // wait for one, and nobody else would ever free it.
        for (class, &due) in self.classes.iter().zip(due) {
            if due == 0 && class.is_stale() {
                drop(class.turn.take());
            }
        }
        for (class, &due) in self.classes.iter().zip(due) {
            match class.turn.granted_for() {
                Some(_) if class.is_stale() => class.turn.renew(),
                Some(_) => {}
                None if due > 0 && class.turn.is_attached() => match self.gate.reserve() {
                    Some(slot) => class.turn.grant(slot),
                    None => return,
                },
                None => {}
            }
        }
    }
}

/// Keeps one class served: apalis ends a worker at the first backend error.
async fn supervise(name: String, class: Arc<Class>, end: CancellationToken) {
    let mut backoff = BACKOFF_MIN;
    for incarnation in 0_u64.. {
        let begun = Instant::now();
        let worker = Worker {
            name: format!("{name}/{incarnation}"),
            class: Arc::clone(&class),
            end: end.clone(),
        };
        let ended = class.driver.run(worker).await;
        class.turn.detach();
        if end.is_cancelled() {
            return;
        }
        // One that lived is no sign of a backend that is gone, even if another
        // wiped it soon after.
        if begun.elapsed() > backoff {
            backoff = BACKOFF_MIN;
        }
        match ended {
            Ok(()) => info!("worker {name} ended; it is built again"),
            Err(error) => warn!("worker {name} is built again: {error}"),
        }
        if end.run_until_cancelled(sleep(backoff)).await.is_none() {
            return;
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// One worker of the fleet tidies up once a minute.
async fn purge(driver: Arc<dyn Driver>, worker: String) {
    let mut tick = interval(PURGE_EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let purged = async {
            match driver.lease("purge", &worker, PURGE_EVERY).await? {
                None => driver.purge().await,
                Some(_) => Ok(0),
            }
        };
        if let Err(error) = purged.await {
            debug!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{QueueOptions, sqlite::Sqlite};

    /// Found by simulated worlds: the job went elsewhere, and the only slot
    /// stayed with a class that had no other.
    #[tokio::test]
    async fn a_slot_granted_in_vain_goes_to_a_class_further_up() {
        let options = QueueOptions::default();
        let driver = Arc::new(Sqlite::open("memory:", &options).await.unwrap());
        let handler: Handler = Arc::new(|_| async { Handled::Done }.boxed());
        let classes = ["first", "second"];
        let looking = Loop::new(driver, "w", &classes, Gate::new(1), handler).unwrap();
        let turns: Vec<_> = looking.classes.iter().map(|c| &c.turn).collect();
        for turn in &turns {
            assert!(turn.granted().now_or_never().is_none());
        }
        looking.grant(&[0, 1]);
        assert!(turns[1].granted().now_or_never().is_some());
        sleep(GRANT_MAX * 2).await;
        looking.grant(&[1, 0]);
        assert!(turns[1].granted_for().is_none());
        assert!(turns[0].granted().now_or_never().is_some());
    }
}
