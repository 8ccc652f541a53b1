//! The guarantees of the queue, tested on real SQLite files, a real Redis and the queue of the
//! simulated worlds (whose results are only meaningful if it passes): one delivery per key,
//! redelivery after the lease, and a worker process that survives any failure of its backend. This
//! module has what the tests share: a separate backend for each test, and a worker that reports the
//! jobs it starts.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use agentgym_queue::{
    CancellationToken, Claim, Enqueued, Error, Gate, Handled, Job, Queue, QueueOptions, Trouble,
    process_name,
};
use agentgym_tests::proxy::{Manner, Proxy};
use agentgym_tests::redis::RedisServer;

use crate::simulation::{Server, SimulatedDriver};
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

const NOW: Duration = Duration::ZERO;
/// In tests a worker is considered dead after three silent seconds: as by default, two heartbeats may
/// be late.
const LEASE: Duration = Duration::from_secs(3);
/// Timeout that is long enough for a loaded two-core machine.
const LONG: Duration = Duration::from_secs(20);

fn options() -> QueueOptions {
    QueueOptions {
        lease_ttl_s: LEASE.as_secs(),
        heartbeat_s: 1,
        length_max: 50,
        ..QueueOptions::default()
    }
}

fn job(part: u32) -> Job {
    Job {
        run: "maze".into(),
        iteration: 3,
        stage: "rollout".into(),
        part,
        offer: 0,
    }
}

/// A backend used by one test only.
enum Bed {
    Sqlite(tempfile::TempDir),
    Redis(RedisServer),
    Simulated(Arc<Server>),
}

/// How a process reaches a [`Bed`].
#[derive(Clone)]
enum Address {
    Url(String),
    Simulated(Arc<Server>),
}

impl Address {
    async fn open(&self) -> Queue {
        match self {
            Self::Url(url) => Queue::open(url, options()).await,
            Self::Simulated(server) => {
                let driver = SimulatedDriver::calm(Arc::clone(server));
                Queue::over(Arc::new(driver), options())
            }
        }
        .unwrap()
    }
}

impl Bed {
    fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    fn redis() -> Self {
        Self::Redis(RedisServer::start())
    }

    fn simulated() -> Self {
        Self::Simulated(Server::new(options()))
    }

    fn address(&self) -> Address {
        match self {
            Self::Sqlite(_) => Address::Url(format!("sqlite:{}", self.file().display())),
            Self::Redis(server) => Address::Url(server.url()),
            Self::Simulated(server) => Address::Simulated(Arc::clone(server)),
        }
    }

    fn file(&self) -> PathBuf {
        match self {
            Self::Sqlite(folder) => folder.path().join("queue.sqlite"),
            _ => panic!("it has no file"),
        }
    }

    async fn open(&self) -> Queue {
        self.address().open().await
    }
}

/// The name of a worker whose process is gone: this process's host and pid, another start time.
fn dead_process() -> String {
    format!("{}1/0", process_name())
}

/// A worker that reports the jobs it starts and takes `busy` for each.
struct Hand {
    gate: Gate,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

type Started = mpsc::UnboundedReceiver<(String, Job, Instant)>;
type Report = mpsc::UnboundedSender<(String, Job, Instant)>;

fn hire(queue: &Queue, name: &str, classes: &[&str], busy: Duration, report: &Report) -> Hand {
    hire_to((queue, name, classes), busy, Handled::Done, report)
}

/// A worker whose every job ends so.
fn hire_to(
    (queue, name, classes): (&Queue, &str, &[&str]),
    busy: Duration,
    end: Handled,
    report: &Report,
) -> Hand {
    let (gate, stop) = (Gate::new(1), CancellationToken::new());
    let handler = {
        let (report, name) = (report.clone(), name.to_owned());
        move |job: Job| {
            let (report, name) = (report.clone(), name.clone());
            async move {
                let _ = report.send((name, job, Instant::now()));
                sleep(busy).await;
                end
            }
        }
    };
    let task = {
        let (queue, name, gate, stop) =
            (queue.clone(), name.to_owned(), gate.clone(), stop.clone());
        let classes: Vec<String> = classes.iter().map(|&class| class.to_owned()).collect();
        tokio::spawn(async move {
            let classes: Vec<&str> = classes.iter().map(String::as_str).collect();
            let worked = queue.work(&name, &classes, gate, handler, stop).await;
            worked.unwrap();
        })
    };
    Hand { gate, stop, task }
}

impl Hand {
    async fn drain(self) {
        self.stop.cancel();
        let drained = tokio::time::timeout(LONG, self.task).await;
        drained.expect("the worker drains").unwrap();
        assert_eq!(self.gate.in_flight(), 0);
    }
}

async fn next(started: &mut Started) -> (String, Job, Instant) {
    let next = tokio::time::timeout(LONG, started.recv()).await;
    next.expect("a job starts").expect("a worker lives")
}

async fn silent(started: &mut Started, span: Duration) {
    if let Ok(Some(next)) = tokio::time::timeout(span, started.recv()).await {
        panic!("nothing should start, but {next:?} did");
    }
}

/// Runs a test on every backend, as three separate tests.
macro_rules! on_all {
    ($($name:ident),* $(,)?) => {
        mod sqlite { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::Bed::sqlite()).await }
        )* }
        mod redis { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::Bed::redis()).await }
        )* }
        mod simulated { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::Bed::simulated()).await }
        )* }
    };
}

mod delivery;
mod slots;
mod trouble;
