//! How many jobs a worker may hold at once: slots behind a gate, claims that expire, and planning
//! turns.

use super::*;

on_all!(
    a_closed_gate_starts_nothing,
    two_classes_share_a_slot_without_hoarding,
    runs_take_turns_and_the_urgent_go_first,
    slots_run_side_by_side,
    claims_exclude_and_run_out,
    one_planner_per_span,
    the_fleet_is_told,
);

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
    // A job that was not started is available to other workers immediately.
    let other = hire(&queue, "other", &["gpu"], NOW, &report);
    let begun = Instant::now();
    let (_, _, at) = next(&mut started).await;
    assert!(at - begun < LEASE);
    other.drain().await;
}

/// The reason for granted fetches: a busy worker takes no job of another class off the queue, and
/// its connection blocks no writer.
async fn two_classes_share_a_slot_without_hoarding(bed: Bed) {
    let (one, two) = (bed.open().await, bed.open().await);
    let (report, mut started) = mpsc::unbounded_channel();
    // Longer than the test, on any machine.
    let busy = LONG * 10;
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
    let mut stages = Vec::new();
    for _ in 0..7 {
        let (worker, job, _) = next(&mut started).await;
        assert_eq!(worker, "second");
        stages.push(job.stage);
    }
    let updates = stages.iter().position(|stage| stage == "rollout").unwrap();
    assert!(updates >= 3, "the first class goes first: {stages:?}");
    second.drain().await;
    first.task.abort();
}

/// A run with many parts must not starve a run with few parts or an urgent one.
async fn runs_take_turns_and_the_urgent_go_first(bed: Bed) {
    let queue = bed.open().await;
    let of = |run: &str, part| Job {
        run: run.to_owned(),
        ..job(part)
    };
    for part in 0..40 {
        queue.enqueue("gpu", &of("many", part), NOW).await.unwrap();
    }
    for part in 0..3 {
        queue.enqueue("gpu", &of("few", part), NOW).await.unwrap();
        let urgent = queue.enqueue_at("gpu", 1, &of("urgent", part), NOW).await;
        assert_eq!(urgent.unwrap(), Enqueued::Pushed);
        let last = queue.enqueue_at("gpu", -1, &of("last", part), NOW).await;
        assert_eq!(last.unwrap(), Enqueued::Pushed);
    }
    assert_eq!(queue.depth().await.unwrap(), [("gpu".to_owned(), 49)]);
    let (report, mut started) = mpsc::unbounded_channel();
    let hand = hire(&queue, "w", &["gpu"], Duration::from_millis(5), &report);
    let mut order = Vec::new();
    for _ in 0..49 {
        order.push(next(&mut started).await.1.run);
    }
    assert_eq!(order[..3], ["urgent"; 3]);
    let few = order[3..9].iter().filter(|run| *run == "few").count();
    assert_eq!(few, 3, "every other job: {order:?}");
    assert_eq!(order[46..], ["last"; 3]);
    hand.drain().await;
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
    // The next attempt counts as the same job.
    let next = Job { offer: 1, ..job(0) };
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

    // A dead process of this machine holds nothing.
    let own = process_name();
    let Claim::Held(_dead) = one.claim(&job(2), &dead_process()).await.unwrap() else {
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

async fn the_fleet_is_told(bed: Bed) {
    let (one, two) = (bed.open().await, bed.open().await);
    assert_eq!(two.plan_told("maze").await.unwrap(), None);
    for revision in [1, 9, 2] {
        one.tell_plan("maze", revision).await.unwrap();
    }
    assert_eq!(two.plan_told("maze").await.unwrap(), Some(9));
    assert_eq!(two.plan_told("other").await.unwrap(), None);
    let mut told = one.tell("maze", (3, "3/update/0"), 3).await.unwrap();
    assert_eq!(told, ["3/update/0"]);
    told = two.tell("maze", (4, "4/rollout/1"), 3).await.unwrap();
    assert_eq!(told, ["3/update/0", "4/rollout/1"]);
    told = one.tell("maze", (4, "4/rollout/1"), 4).await.unwrap();
    assert_eq!(told, ["4/rollout/1"], "told twice, heard once");
    assert_eq!(two.told("other", 0).await.unwrap(), [""; 0]);
    // Announcements far behind are purged.
    one.tell("maze", (40, "40/rollout/0"), 40).await.unwrap();
    one.purge_done().await.unwrap();
    assert_eq!(two.told("maze", 0).await.unwrap(), ["40/rollout/0"]);
}
