//! The queue's promises, on real SQLite files and a real Redis: one delivery
//! per key, redelivery after the lease, and a worker process that survives
//! whatever happens to its backend.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use agentgym_jobs::queue::{
    CancellationToken, Claim, Enqueued, Gate, Job, Queue, QueueOptions, Verdict, process_name,
};
use agentgym_tests::redis::RedisServer;
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

const NOW: Duration = Duration::ZERO;
/// Under test a worker is dead after two silent seconds.
const LEASE: Duration = Duration::from_secs(2);
/// Patience of a loaded two-core machine.
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
        started_attempts: 0,
    }
}

/// A backend of the test's own.
enum Bed {
    Sqlite(tempfile::TempDir),
    Redis(RedisServer),
}

impl Bed {
    fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    fn redis() -> Self {
        Self::Redis(RedisServer::start())
    }

    fn url(&self) -> String {
        match self {
            Self::Sqlite(_) => format!("sqlite:{}", self.file().display()),
            Self::Redis(server) => server.url(),
        }
    }

    fn file(&self) -> PathBuf {
        match self {
            Self::Sqlite(folder) => folder.path().join("queue.sqlite"),
            Self::Redis(_) => panic!("Redis has no file"),
        }
    }

    async fn open(&self) -> Queue {
        Queue::open(&self.url(), options()).await.unwrap()
    }
}

/// A worker that reports what it starts and takes `busy` for each job.
struct Hand {
    gate: Gate,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

type Started = mpsc::UnboundedReceiver<(String, Job, Instant)>;
type Report = mpsc::UnboundedSender<(String, Job, Instant)>;

fn hire(queue: &Queue, name: &str, classes: &[&str], busy: Duration, report: &Report) -> Hand {
    let (gate, stop) = (Gate::new(1), CancellationToken::new());
    let handler = {
        let (report, name) = (report.clone(), name.to_owned());
        move |job: Job| {
            let (report, name) = (report.clone(), name.clone());
            async move {
                let _ = report.send((name, job, Instant::now()));
                sleep(busy).await;
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

/// Runs a test on both backends, as two tests.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod sqlite { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::Bed::sqlite()).await }
        )* }
        mod redis { $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(super::Bed::redis()).await }
        )* }
    };
}

on_both!(
    a_key_is_queued_once_at_a_time,
    a_delayed_job_waits,
    a_full_class_says_so,
    two_processes_share_the_jobs,
    a_killed_workers_job_is_delivered_again,
    a_long_job_runs_once_and_a_drain_keeps_its_lease,
    a_closed_gate_starts_nothing,
    two_classes_share_a_slot_without_hoarding,
    slots_run_side_by_side,
    garbage_and_panics_stop_nothing,
    claims_exclude_and_run_out,
    one_planner_per_span,
    finished_jobs_leave_nothing,
    a_lost_backend_comes_back,
);

async fn a_key_is_queued_once_at_a_time(bed: Bed) {
    let queue = bed.open().await;
    let enqueue = |job: Job| {
        let queue = queue.clone();
        async move { queue.enqueue("gpu", &job, NOW).await.unwrap() }
    };
    assert_eq!(enqueue(job(0)).await, Enqueued::Pushed);
    assert_eq!(enqueue(job(0)).await, Enqueued::Duplicate, "while it waits");
    assert_eq!(queue.depth().await.unwrap(), [("gpu".to_owned(), 1)]);

    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], Duration::from_millis(300), &report);
    assert_eq!(next(&mut started).await.1, job(0));
    assert_eq!(enqueue(job(0)).await, Enqueued::Duplicate, "while it runs");
    sleep(Duration::from_millis(600)).await;
    assert_eq!(enqueue(job(0)).await, Enqueued::Duplicate, "just ended");

    let second = Job {
        started_attempts: 1,
        ..job(0)
    };
    assert_eq!(enqueue(second.clone()).await, Enqueued::Pushed);
    assert_eq!(next(&mut started).await.1, second);
    sleep(LEASE + Duration::from_secs(1)).await;
    assert_eq!(enqueue(job(0)).await, Enqueued::Pushed, "a lease later");
    assert_eq!(next(&mut started).await.1, job(0));
    silent(&mut started, Duration::from_millis(500)).await;
    hand.drain().await;
    assert_eq!(queue.depth().await.unwrap(), []);
}

async fn a_delayed_job_waits(bed: Bed) {
    let queue = bed.open().await;
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], NOW, &report);
    let pushed = Instant::now();
    let delay = Duration::from_secs(2);
    queue.enqueue("gpu", &job(0), delay).await.unwrap();
    assert_eq!(queue.depth().await.unwrap(), [("gpu".to_owned(), 1)]);
    let (_, _, at) = next(&mut started).await;
    let waited = at - pushed;
    assert!(waited >= delay, "{waited:?}");
    assert!(waited < delay + Duration::from_secs(3), "{waited:?}");
    hand.drain().await;
}

async fn a_full_class_says_so(bed: Bed) {
    let queue = bed.open().await;
    for part in 0..50 {
        let delay = Duration::from_secs(u64::from(part % 2) * 100);
        let pushed = queue.enqueue("gpu", &job(part), delay).await.unwrap();
        assert_eq!(pushed, Enqueued::Pushed);
    }
    let full = queue.enqueue("gpu", &job(50), NOW).await.unwrap();
    assert_eq!(full, Enqueued::Full);
    let known = queue.enqueue("gpu", &job(7), NOW).await.unwrap();
    assert_eq!(known, Enqueued::Duplicate);
    let other = queue.enqueue("cpu", &job(50), NOW).await.unwrap();
    assert_eq!(other, Enqueued::Pushed);
    let depth = queue.depth().await.unwrap();
    assert_eq!(depth, [("cpu".to_owned(), 1), ("gpu".to_owned(), 50)]);
}

async fn two_processes_share_the_jobs(bed: Bed) {
    let (one, two, producer) = (bed.open().await, bed.open().await, bed.open().await);
    let (report, mut started) = mpsc::unbounded_channel();
    let busy = Duration::from_millis(20);
    let hands = [
        hire(&one, "one", &["gpu"], busy, &report),
        hire(&two, "two", &["gpu"], busy, &report),
    ];
    for part in 0..40 {
        producer.enqueue("gpu", &job(part), NOW).await.unwrap();
    }
    let mut by_worker: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for _ in 0..40 {
        let (worker, job, _) = next(&mut started).await;
        by_worker.entry(worker).or_default().push(job.part);
    }
    silent(&mut started, Duration::from_millis(300)).await;
    let mut parts: Vec<u32> = by_worker.values().flatten().copied().collect();
    parts.sort_unstable();
    assert_eq!(parts, (0..40).collect::<Vec<_>>());
    assert!(
        by_worker.values().all(|parts| parts.len() >= 5),
        "{by_worker:?}"
    );
    for hand in hands {
        hand.drain().await;
    }
}

/// Starts a worker in a runtime of its own and drops that runtime mid-job,
/// which ends heartbeats and handler together, as `kill -9` does.
async fn a_killed_workers_job_is_delivered_again(bed: Bed) {
    let (report, mut started) = mpsc::unbounded_channel();
    let url = bed.url();
    let doomed_report = report.clone();
    let doomed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let queue = Queue::open(&url, options()).await.unwrap();
            queue.enqueue("gpu", &job(0), NOW).await.unwrap();
            let _hand = hire(&queue, "doomed", &["gpu"], LONG, &doomed_report);
            while doomed_report.strong_count() > 0 && !queue.depth().await.unwrap().is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
            sleep(Duration::from_millis(300)).await;
        });
        runtime.shutdown_background();
        Instant::now()
    });
    assert_eq!(next(&mut started).await.0, "doomed");
    let killed = tokio::task::spawn_blocking(|| doomed.join().unwrap())
        .await
        .unwrap();

    let queue = bed.open().await;
    let heir = hire(&queue, "heir", &["gpu"], NOW, &report);
    let (worker, delivered, at) = next(&mut started).await;
    assert_eq!((worker.as_str(), delivered), ("heir", job(0)));
    let after = at - killed;
    assert!(after > LEASE / 2, "before the lease ran out: {after:?}");
    assert!(after < LEASE * 3, "{after:?}");
    heir.drain().await;
}

async fn a_long_job_runs_once_and_a_drain_keeps_its_lease(bed: Bed) {
    let (one, two) = (bed.open().await, bed.open().await);
    let (report, mut started) = mpsc::unbounded_channel();
    one.enqueue("gpu", &job(0), NOW).await.unwrap();
    let slow = hire(&one, "slow", &["gpu"], LEASE * 4, &report);
    assert_eq!(next(&mut started).await.0, "slow");
    let idle = hire(&two, "idle", &["gpu"], NOW, &report);
    sleep(LEASE).await;
    slow.stop.cancel();
    silent(&mut started, LEASE * 2).await;
    slow.drain().await;
    // Acked, so nobody gets it later either.
    silent(&mut started, LEASE * 2).await;
    idle.drain().await;
}

async fn a_closed_gate_starts_nothing(bed: Bed) {
    let queue = bed.open().await;
    let (report, mut started) = mpsc::unbounded_channel();
    let busy = Duration::from_millis(500);
    let hand = hire(&queue, "w", &["gpu"], busy, &report);
    queue.enqueue("gpu", &job(0), NOW).await.unwrap();
    queue.enqueue("gpu", &job(1), NOW).await.unwrap();
    next(&mut started).await;
    hand.gate.close();
    assert!(hand.gate.is_closed());
    assert_eq!(hand.gate.in_flight(), 1);
    hand.gate.idle().await;
    silent(&mut started, busy).await;
    hand.drain().await;
    // What was not started is where another worker finds it, and at once.
    let other = hire(&queue, "other", &["gpu"], NOW, &report);
    let begun = Instant::now();
    let (_, _, at) = next(&mut started).await;
    assert!(at - begun < LEASE);
    other.drain().await;
}

/// The reason for granted fetches: a busy worker takes no job of another
/// class off the queue, and its connection blocks no writer.
async fn two_classes_share_a_slot_without_hoarding(bed: Bed) {
    let (one, two) = (bed.open().await, bed.open().await);
    let (report, mut started) = mpsc::unbounded_channel();
    let busy = Duration::from_secs(3);
    let first = hire(&one, "first", &["update", "rollout"], busy, &report);
    for part in 0..4 {
        for class in ["rollout", "update"] {
            let (stage, job) = (class.to_owned(), job(part));
            one.enqueue(class, &Job { stage, ..job }, NOW)
                .await
                .unwrap();
        }
    }
    next(&mut started).await;
    silent(&mut started, Duration::from_millis(500)).await;
    let left: usize = one.depth().await.unwrap().iter().map(|(_, n)| n).sum();
    assert_eq!(left, 7, "a job that cannot start stays in the queue");

    let second = hire(&two, "second", &["update", "rollout"], NOW, &report);
    let begun = Instant::now();
    let mut stages = Vec::new();
    for _ in 0..7 {
        let (worker, job, _) = next(&mut started).await;
        assert_eq!(worker, "second");
        stages.push(job.stage);
    }
    assert!(begun.elapsed() < busy, "{:?}", begun.elapsed());
    let updates = stages.iter().position(|stage| stage == "rollout").unwrap();
    assert!(updates >= 3, "the first class goes first: {stages:?}");
    first.drain().await;
    second.drain().await;
}

async fn slots_run_side_by_side(bed: Bed) {
    let queue = bed.open().await;
    let (stop, gate) = (CancellationToken::new(), Gate::new(3));
    let peak = Arc::new(AtomicUsize::new(0));
    let ended = Arc::new(AtomicUsize::new(0));
    let handler = {
        let (gate, peak, ended) = (gate.clone(), peak.clone(), ended.clone());
        move |_| {
            let (gate, peak, ended) = (gate.clone(), peak.clone(), ended.clone());
            async move {
                peak.fetch_max(gate.in_flight(), SeqCst);
                sleep(Duration::from_millis(300)).await;
                ended.fetch_add(1, SeqCst);
            }
        }
    };
    let work = {
        let (queue, gate, stop) = (queue.clone(), gate.clone(), stop.clone());
        tokio::spawn(async move { queue.work("w", &["a", "b"], gate, handler, stop).await })
    };
    for part in 0..9 {
        let class = ["a", "b"][part as usize % 2];
        queue.enqueue(class, &job(part), NOW).await.unwrap();
    }
    while ended.load(SeqCst) < 9 {
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(peak.load(SeqCst), 3);
    stop.cancel();
    work.await.unwrap().unwrap();
}

async fn garbage_and_panics_stop_nothing(bed: Bed) {
    let queue = bed.open().await;
    queue.enqueue("gpu", &job(0), NOW).await.unwrap();
    for n in 0..3_u8 {
        push_garbage(&bed, &[0xff, n, 0xfe, 0x01]).await;
    }
    let (stop, gate) = (CancellationToken::new(), Gate::new(1));
    let (report, mut started) = mpsc::unbounded_channel();
    let handler = move |job: Job| {
        let report = report.clone();
        async move {
            report
                .send((String::new(), job.clone(), Instant::now()))
                .unwrap();
            assert_eq!(job.part, 1, "a handler panics");
        }
    };
    let work = {
        let (queue, gate, stop) = (queue.clone(), gate.clone(), stop.clone());
        tokio::spawn(async move { queue.work("w", &["gpu"], gate, handler, stop).await })
    };
    assert_eq!(next(&mut started).await.1.part, 0);
    queue.enqueue("gpu", &job(1), NOW).await.unwrap();
    assert_eq!(next(&mut started).await.1.part, 1);
    while !queue.depth().await.unwrap().is_empty() {
        sleep(Duration::from_millis(20)).await;
    }
    // Neither is delivered again.
    silent(&mut started, LEASE * 2).await;
    assert_eq!(gate.in_flight(), 0);
    stop.cancel();
    work.await.unwrap().unwrap();
}

async fn push_garbage(bed: &Bed, bytes: &[u8]) {
    let id = format!("01ARZ3NDEKTSV4RRFFQ69G5F{:02X}", bytes[1]);
    match bed {
        Bed::Sqlite(_) => {
            let options = sqlx::sqlite::SqliteConnectOptions::new().filename(bed.file());
            let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
            sqlx::query("INSERT INTO Jobs (job, id, job_type) VALUES (?1, ?2, 'agentgym:gpu')")
                .bind(bytes)
                .bind(id)
                .execute(&pool)
                .await
                .unwrap();
        }
        Bed::Redis(server) => {
            let id = id.as_bytes();
            let meta = format!("agentgym:gpu:meta:01ARZ3NDEKTSV4RRFFQ69G5F{:02X}", bytes[1]);
            let commands: [&[&[u8]]; 3] = [
                &[b"HSET", b"agentgym:gpu:data", id, bytes],
                &[
                    b"HSET",
                    meta.as_bytes(),
                    b"attempts",
                    b"0",
                    b"max_attempts",
                    b"25",
                    b"status",
                    b"Pending",
                ],
                &[b"RPUSH", b"agentgym:gpu:active", id],
            ];
            for command in commands {
                let answer = server.command(command).unwrap();
                assert!(answer.starts_with(':'), "{answer}");
            }
        }
    }
}

async fn claims_exclude_and_run_out(bed: Bed) {
    let (one, two) = (bed.open().await, bed.open().await);
    let Claim::Held(guard) = one.claim(&job(0), "one").await.unwrap() else {
        panic!("nobody has it");
    };
    let taken = |claim: Claim| match claim {
        Claim::Taken { by } => by,
        Claim::Held(_) => panic!("it is taken"),
    };
    assert_eq!(taken(two.claim(&job(0), "two").await.unwrap()), "one");
    assert_eq!(taken(one.claim(&job(0), "one").await.unwrap()), "one");
    assert_eq!(two.holder(&job(0)).await.unwrap().as_deref(), Some("one"));
    assert_eq!(two.holder(&job(1)).await.unwrap(), None);
    // The next attempt is the same job.
    let next = Job {
        started_attempts: 1,
        ..job(0)
    };
    assert_eq!(taken(two.claim(&next, "two").await.unwrap()), "one");
    assert!(matches!(
        two.claim(&job(1), "two").await.unwrap(),
        Claim::Held(_)
    ));

    sleep(LEASE / 2).await;
    assert!(guard.renew().await.unwrap());
    sleep(LEASE * 2 / 3).await;
    assert_eq!(taken(two.claim(&job(0), "two").await.unwrap()), "one");
    guard.release().await.unwrap();
    let Claim::Held(guard) = two.claim(&job(0), "two").await.unwrap() else {
        panic!("it was released");
    };
    sleep(LEASE + Duration::from_millis(200)).await;
    let Claim::Held(_third) = one.claim(&job(0), "one").await.unwrap() else {
        panic!("it has run out");
    };
    assert!(!guard.renew().await.unwrap(), "lost to one");

    // A process of this machine that is gone holds nothing: its name has this
    // process's host and pid and another start.
    let own = process_name();
    let dead = format!("{}1/0", own.split('/').next().unwrap());
    let Claim::Held(_dead) = one.claim(&job(2), &dead).await.unwrap() else {
        panic!("nobody has it");
    };
    assert_eq!(two.holder(&job(2)).await.unwrap(), None);
    assert!(matches!(
        two.claim(&job(2), &own).await.unwrap(),
        Claim::Held(_)
    ));
    assert_eq!(taken(one.claim(&job(2), "one").await.unwrap()), own);
}

async fn one_planner_per_span(bed: Bed) {
    let (one, two) = (bed.open().await, bed.open().await);
    let every = Duration::from_millis(700);
    assert!(one.planning_turn("maze", every).await.unwrap());
    assert!(!two.planning_turn("maze", every).await.unwrap());
    assert!(!one.planning_turn("maze", every).await.unwrap());
    assert!(two.planning_turn("other", every).await.unwrap());
    sleep(every + Duration::from_millis(100)).await;
    assert!(two.planning_turn("maze", every).await.unwrap());
}

async fn finished_jobs_leave_nothing(bed: Bed) {
    let queue = bed.open().await;
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], NOW, &report);
    for part in 0..30 {
        queue.enqueue("gpu", &job(part), NOW).await.unwrap();
        next(&mut started).await;
    }
    hand.drain().await;
    sleep(LEASE + Duration::from_secs(1)).await;
    assert_eq!(queue.purge_done().await.unwrap(), 30);
    assert_eq!(queue.purge_done().await.unwrap(), 0);
    if let Bed::Redis(server) = &bed {
        // Workers, classes, the purge lease: none of them per job.
        let keys = server.command(&[b"DBSIZE"]).unwrap();
        let keys: usize = keys.trim_start_matches(':').parse().unwrap();
        assert!(keys <= 8, "{keys} keys are left");
    }
}

/// The queue is wiped under an idle worker and again under a busy one. Both
/// times the job that is pushed afterwards runs, without a lease of waiting.
async fn a_lost_backend_comes_back(mut bed: Bed) {
    let queue = bed.open().await;
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], Duration::from_millis(700), &report);
    queue.enqueue("gpu", &job(0), NOW).await.unwrap();
    next(&mut started).await;
    for (part, busy) in [(1, false), (2, true), (3, false)] {
        let pause = if busy { 100 } else { 1000 };
        sleep(Duration::from_millis(pause)).await;
        match &mut bed {
            Bed::Sqlite(folder) => {
                for entry in std::fs::read_dir(folder.path()).unwrap() {
                    std::fs::remove_file(entry.unwrap().path()).unwrap();
                }
            }
            Bed::Redis(server) if part == 3 => server.restart(),
            Bed::Redis(server) => {
                assert_eq!(server.command(&[b"FLUSHALL"]).unwrap(), "+OK");
            }
        }
        let mut pushed = queue.enqueue("gpu", &job(part), NOW).await;
        let begun = Instant::now();
        while pushed.is_err() && begun.elapsed() < LONG {
            sleep(Duration::from_millis(50)).await;
            pushed = queue.enqueue("gpu", &job(part), NOW).await;
        }
        assert_eq!(pushed.unwrap(), Enqueued::Pushed);
        let (_, got, at) = next(&mut started).await;
        assert_eq!(got, job(part));
        let after = at - begun;
        assert!(after < Duration::from_secs(4), "part {part}: {after:?}");
        // A second process finds the same queue.
        let other = bed.open().await;
        assert_eq!(other.depth().await.unwrap(), []);
    }
    hand.drain().await;
}

#[tokio::test]
async fn a_dropped_connection_is_survived() {
    let bed = Bed::redis();
    let queue = bed.open().await;
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], NOW, &report);
    for part in 0..3 {
        queue.enqueue("gpu", &job(part), NOW).await.unwrap();
        next(&mut started).await;
        let Bed::Redis(server) = &bed else {
            unreachable!()
        };
        for kind in ["normal", "pubsub"] {
            let kill: [&[u8]; 4] = [b"CLIENT", b"KILL", b"TYPE", kind.as_bytes()];
            server.command(&kill).unwrap();
        }
        while queue.depth().await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    }
    hand.drain().await;
}

#[tokio::test]
async fn memory_serves_one_process() {
    let queue = Queue::open("memory:", options()).await.unwrap();
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu", "cpu"], NOW, &report);
    for part in 0..20 {
        queue.enqueue("gpu", &job(part), NOW).await.unwrap();
    }
    for _ in 0..20 {
        next(&mut started).await;
    }
    hand.drain().await;
    let other = Queue::open("memory:", options()).await.unwrap();
    assert_eq!(other.depth().await.unwrap(), []);
}

#[tokio::test]
async fn errors_say_what_to_do_and_no_password() {
    let closed = "redis://me:secret@127.0.0.1:1/0";
    let plain = RedisServer::start();
    let not_tls = plain.url().replace("redis://", "rediss://me:secret@");
    for (url, hint, verdict) in [
        ("kafka://me:secret@host", "sqlite:PATH", Verdict::GiveUp),
        ("sqlite:", "names no file", Verdict::GiveUp),
        ("sqlite:/no/such/folder/q", "folder exists", Verdict::Retry),
        (closed, "Check that Redis runs", Verdict::Retry),
        (&not_tls, "Check that Redis runs", Verdict::Retry),
    ] {
        let error = Queue::open(url, options()).await.unwrap_err();
        let message = error.to_string();
        assert!(message.contains(hint), "{message}");
        assert!(!message.contains("secret"), "{message}");
        assert_eq!(error.verdict(), verdict, "{message}");
    }
    let hasty = QueueOptions {
        lease_ttl_s: 3,
        heartbeat_s: 2,
        ..options()
    };
    let error = Queue::open("memory:", hasty).await.unwrap_err();
    assert!(error.to_string().contains("heartbeat_s"), "{error}");
}
