//! Which worker gets a job, when, and how often.

use super::*;

on_all!(
    a_key_is_queued_once_at_a_time,
    a_delayed_job_waits,
    a_full_class_says_so,
    two_processes_share_the_jobs,
    a_job_that_others_leave_reaches_the_one_that_takes_it,
    a_killed_workers_job_is_delivered_again,
    a_long_job_runs_once_and_a_drain_keeps_its_lease,
    finished_jobs_leave_nothing,
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

    let second = Job { offer: 1, ..job(0) };
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

/// Each of three workers is asked once, and then leaves the lane alone.
async fn a_job_that_others_leave_reaches_the_one_that_takes_it(bed: Bed) {
    let (report, mut started) = mpsc::unbounded_channel();
    let mut hands = Vec::new();
    for name in ["one", "two", "three"] {
        let (queue, end) = (bed.open().await, Handled::Leave(LONG));
        hands.push(hire_to((&queue, name, &["gpu"]), NOW, end, &report));
    }
    let queue = bed.open().await;
    hands.push(hire(&queue, "holder", &["gpu"], NOW, &report));
    let mut left: BTreeMap<String, u32> = BTreeMap::new();
    for part in 0..12 {
        queue.enqueue("gpu", &job(part), NOW).await.unwrap();
        loop {
            let (worker, started, _) = next(&mut started).await;
            assert_eq!(started, job(part));
            if worker == "holder" {
                break;
            }
            *left.entry(worker).or_default() += 1;
        }
    }
    assert!(left.values().all(|&times| times == 1), "{left:?}");
    for hand in hands {
        hand.drain().await;
    }
}

/// Starts a worker in its own runtime and drops that runtime in the middle of `job(0)`, which ends
/// heartbeats and handler together, like `kill -9`. Returns when that was.
async fn killed_at_work(bed: &Bed, name: &str, report: &Report, started: &mut Started) -> Instant {
    let (address, own, worker) = (bed.address(), report.clone(), name.to_owned());
    let doomed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let queue = address.open().await;
            queue.enqueue("gpu", &job(0), NOW).await.unwrap();
            let _hand = hire(&queue, &worker, &["gpu"], LONG, &own);
            while !queue.depth().await.unwrap().is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
            sleep(Duration::from_millis(300)).await;
        });
        runtime.shutdown_background();
        Instant::now()
    });
    assert_eq!(next(started).await.0, name);
    let join = tokio::task::spawn_blocking(|| doomed.join().unwrap());
    join.await.unwrap()
}

async fn a_killed_workers_job_is_delivered_again(bed: Bed) {
    let (report, mut started) = mpsc::unbounded_channel();
    let killed = killed_at_work(&bed, "doomed", &report, &mut started).await;
    let queue = bed.open().await;
    let pushed = queue.enqueue("gpu", &job(0), NOW).await.unwrap();
    assert_eq!(pushed, Enqueued::Duplicate, "it may live elsewhere");
    let heir = hire(&queue, "heir", &["gpu"], NOW, &report);
    let (worker, delivered, at) = next(&mut started).await;
    assert_eq!((worker.as_str(), delivered), ("heir", job(0)));
    let after = at - killed;
    assert!(after > LEASE / 2, "before the lease ran out: {after:?}");
    assert!(after < LEASE * 3, "{after:?}");
    heir.drain().await;
}

/// Who runs the same command again does not wait for the lease of the process that was killed, not
/// even if that had fetched a job and begun no attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_process_of_this_machine_fetched_is_pushed_again() {
    let bed = Bed::sqlite();
    let (report, mut started) = mpsc::unbounded_channel();
    killed_at_work(&bed, &dead_process(), &report, &mut started).await;
    let queue = bed.open().await;
    for expected in [Enqueued::Pushed, Enqueued::Duplicate] {
        assert_eq!(queue.enqueue("gpu", &job(0), NOW).await.unwrap(), expected);
    }
    let begun = Instant::now();
    let heir = hire(&queue, "heir", &["gpu"], NOW, &report);
    assert_eq!(next(&mut started).await.1, job(0));
    assert!(begun.elapsed() < LEASE / 2, "it waited for the lease");
    silent(&mut started, LEASE * 2).await;
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
    // It is acked, so it is not delivered later either.
    silent(&mut started, LEASE * 2).await;
    idle.drain().await;
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
        // Workers, classes, the purge lease: no key per job.
        let keys = server.command(&[b"DBSIZE"]).unwrap();
        let keys: usize = keys.trim_start_matches(':').parse().unwrap();
        assert!(keys <= 8, "{keys} keys are left");
    }
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
