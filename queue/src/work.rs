//! The loop behind [`crate::Queue::work`]: one apalis worker per lane, rebuilt whenever its backend
//! fails, and a scout that grants fetches to them. A lane holds the jobs of one class, run and
//! priority, so choosing the lane that may fetch is choosing the run that goes next
//! ([`crate::lanes`]).
//!
//! The scout finds the lanes that have due jobs with one read for all lanes, and only while a slot
//! is free. So a busy process does not load the queue, an idle process does not take SQLite's write
//! lock fifty times a second, and jobs without a free slot here stay available to other workers.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures::FutureExt;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    driver::{BACKOFF_MAX, BACKOFF_MIN, Driver, Handler, Lane, Worker},
    error::Result,
    gate::Gate,
    lanes::Lanes,
    names::nonce,
};

/// The longest wait for acks at the end. Jobs without an ack are delivered again, found committed
/// and skipped.
const ACK_MAX: Duration = Duration::from_secs(10);
/// How often to check whether the worker of a lane has attached, which takes milliseconds.
const ATTACH_EVERY: Duration = Duration::from_millis(5);
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// One call of [`crate::Queue::work`].
pub(crate) struct Loop {
    driver: Arc<dyn Driver>,
    worker: String,
    gate: Gate,
    handler: Handler,
    lanes: Mutex<Lanes>,
    /// One task per served lane.
    workers: Mutex<JoinSet<()>>,
    /// Ends all of these tasks.
    end: CancellationToken,
    /// Lanes served so far: a lane that is served again needs a new worker name.
    served: AtomicU64,
}

impl Loop {
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        worker: &str,
        classes: &[&str],
        gate: Gate,
        handler: Handler,
    ) -> Result<Self> {
        Ok(Self {
            worker: format!("{worker}/{}", nonce()?),
            lanes: Mutex::new(Lanes::new(worker, classes)),
            workers: Mutex::default(),
            end: CancellationToken::new(),
            served: AtomicU64::new(0),
            driver,
            gate,
            handler,
        })
    }

    pub(crate) async fn run(
        self,
        pushed: watch::Sender<()>,
        stop: CancellationToken,
    ) -> Result<()> {
        // However this future ends, its workers end with it.
        let _end_on_drop = self.end.clone().drop_guard();
        let mut helpers = JoinSet::new();
        let (driver, sender) = (Arc::clone(&self.driver), pushed.clone());
        helpers.spawn(async move { driver.listen(&sender).await });
        helpers.spawn(purge(Arc::clone(&self.driver), self.worker.clone()));

        // A push before this subscription needs no wake-up: the first tick looks anyway.
        let wakes = pushed.subscribe();
        if stop.run_until_cancelled(self.scout(wakes)).await.is_none() {
            debug!("worker {} drains", self.worker);
        }
        self.gate.close();
        self.lanes().give_back();
        self.gate.idle().await;
        self.end.cancel();
        let mut workers = std::mem::take(&mut *lock(&self.workers));
        let joined = async { while workers.join_next().await.is_some() {} };
        if timeout(ACK_MAX, joined).await.is_err() {
            warn!(
                "worker {}: the queue takes no acks; its jobs will be delivered again and skipped",
                self.worker
            );
        }
        Ok(())
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        lock(&self.lanes)
    }

    /// Grants fetches, forever.
    async fn scout(&self, mut pushed: watch::Receiver<()>) {
        let mut tick = interval(self.driver.poll_every());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut freed = self.gate.changes();
        let mut backoff = BACKOFF_MIN;
        let mut attaching = false;
        loop {
            tokio::select! {
                biased;
                _ = tick.tick() => {}
                // Never fails: `run` holds a sender.
                _ = pushed.changed() => {}
                () = freed.next() => {}
                () = sleep(ATTACH_EVERY), if attaching => {}
            }
            // Skip a read that cannot lead to a grant.
            if !self.gate.has_room() && !self.lanes().has_stale() {
                attaching = false;
                continue;
            }
            match self.driver.due().await {
                Ok(due) => {
                    attaching = self.look_at(&due);
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

    /// Starts serving new lanes and grants fetches; true if the next lane in the order still waits
    /// for its worker to attach.
    fn look_at(&self, due: &[(String, usize)]) -> bool {
        let (mut lanes, mut workers) = (self.lanes(), lock(&self.workers));
        for (name, _) in due {
            if lanes.is_new(name) {
                let (lane, end) = (self.lane(name), self.end.child_token());
                let number = self.served.fetch_add(1, SeqCst);
                let worker = format!("{}/{number}/{name}", self.worker);
                lanes.add(Arc::clone(&lane), end.clone());
                workers.spawn(supervise(worker, lane, end));
            }
        }
        while workers.try_join_next().is_some() {}
        lanes.grant(&self.gate, due)
    }

    fn lane(&self, name: &str) -> Arc<Lane> {
        Arc::new(Lane {
            name: name.to_owned(),
            turn: Arc::default(),
            in_flight: AtomicUsize::new(0),
            gate: self.gate.clone(),
            driver: Arc::clone(&self.driver),
            handler: Arc::clone(&self.handler),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps one lane served: apalis ends a worker at the first backend error.
async fn supervise(name: String, lane: Arc<Lane>, end: CancellationToken) {
    let mut backoff = BACKOFF_MIN;
    for incarnation in 0_u64.. {
        let begun = Instant::now();
        let worker = Worker {
            name: format!("{name}/{incarnation}"),
            lane: Arc::clone(&lane),
            end: end.clone(),
        };
        // A backend that panics is treated as one that ended.
        let ended = AssertUnwindSafe(lane.driver.run(worker))
            .catch_unwind()
            .await;
        lane.turn.detach();
        if end.is_cancelled() {
            return;
        }
        // A worker that ran longer than the backoff shows that the backend is up, even if another
        // process wiped it soon after.
        if begun.elapsed() > backoff {
            backoff = BACKOFF_MIN;
        }
        match ended {
            Ok(Ok(())) => info!("worker {name} ended; it is built again"),
            Ok(Err(error)) => warn!("worker {name} is built again: {error}"),
            Err(_) => error!("worker {name} panicked; it is built again"),
        }
        if end.run_until_cancelled(sleep(backoff)).await.is_none() {
            return;
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Purges once a minute, on one worker of the fleet.
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
    use crate::backends::sqlite::Sqlite;
    use crate::driver::GRANT_MAX;
    use crate::{Handled, QueueOptions};

    async fn looking(lanes: &[&str]) -> (Loop, Vec<Arc<Lane>>) {
        let options = QueueOptions::default();
        let driver = Arc::new(Sqlite::open("memory:", &options).await.unwrap());
        let handler: Handler = Arc::new(|_| async { Handled::Done }.boxed());
        let looking = Loop::new(driver, "w", &["first", "second"], Gate::new(1), handler).unwrap();
        let lanes: Vec<_> = lanes.iter().map(|name| looking.lane(name)).collect();
        for lane in &lanes {
            assert!(lane.turn.granted().now_or_never().is_none());
            looking
                .lanes()
                .add(Arc::clone(lane), CancellationToken::new());
        }
        (looking, lanes)
    }

    fn due(lanes: &[Arc<Lane>], counts: &[usize]) -> Vec<(String, usize)> {
        let names = lanes.iter().map(|lane| lane.name.clone());
        names.zip(counts.iter().copied()).collect()
    }

    /// The lane that may fetch; also consumes its grant.
    fn granted(lanes: &[Arc<Lane>]) -> &str {
        let mut granted = lanes
            .iter()
            .filter(|lane| lane.turn.granted_for().is_some());
        let lane = granted.next().expect("one may fetch");
        assert!(granted.next().is_none());
        assert!(lane.turn.granted().now_or_never().is_some());
        drop(lane.turn.take());
        &lane.name
    }

    /// Found by the simulation: another process took the job, and the only slot stayed with a class
    /// that had no other job.
    #[tokio::test]
    async fn a_slot_granted_in_vain_goes_to_a_class_further_up() {
        let (looking, lanes) = looking(&["first@r@0", "second@r@0"]).await;
        looking.look_at(&due(&lanes, &[0, 1]));
        assert!(lanes[1].turn.granted().now_or_never().is_some());
        sleep(GRANT_MAX * 2).await;
        looking.look_at(&due(&lanes, &[1, 0]));
        assert!(lanes[1].turn.granted_for().is_none());
        assert!(lanes[0].turn.granted().now_or_never().is_some());
    }

    /// A fetch finds nothing; then both classes have jobs.
    #[tokio::test]
    async fn a_slot_granted_in_vain_goes_further_up_although_its_class_has_jobs_again() {
        let (looking, lanes) = looking(&["first@r@0", "second@r@0"]).await;
        looking.look_at(&due(&lanes, &[0, 1]));
        assert!(lanes[1].turn.granted().now_or_never().is_some());
        looking.look_at(&due(&lanes, &[1, 1]));
        assert!(
            lanes[0].turn.granted_for().is_none(),
            "the fetch is under way"
        );
        sleep(GRANT_MAX * 2).await;
        looking.look_at(&due(&lanes, &[1, 1]));
        assert!(lanes[1].turn.granted_for().is_none());
        assert!(lanes[0].turn.granted().now_or_never().is_some());
        // If only this class has jobs, it fetches once more under its existing grant.
        sleep(GRANT_MAX * 2).await;
        looking.look_at(&due(&lanes, &[1, 0]));
        assert!(lanes[0].turn.granted().now_or_never().is_some());
    }

    #[tokio::test]
    async fn priority_goes_first_then_runs_take_turns_then_classes_have_an_order() {
        let names = ["second@a@0", "first@a@0", "second@b@0", "second@c@1"];
        let (looking, lanes) = looking(&names).await;
        let next = |counts: &[usize]| {
            looking.look_at(&due(&lanes, counts));
            granted(&lanes).to_owned()
        };
        assert_eq!(next(&[1000, 1, 2, 1]), "second@c@1");
        let first = next(&[1000, 1, 2, 0]);
        let second = next(&[1000, 1, 2, 0]);
        let mut runs = [first.as_str(), second.as_str()];
        runs.sort_unstable();
        assert_eq!(runs, ["first@a@0", "second@b@0"], "one turn for each");
        let third = next(&[1000, 0, 1, 0]);
        let fourth = next(&[1000, 0, 1, 0]);
        let mut runs = [third.as_str(), fourth.as_str()];
        runs.sort_unstable();
        assert_eq!(runs, ["second@a@0", "second@b@0"]);
    }
}
