//! Separate worker processes, a real Redis and a real S3 server, with random kills, stops and
//! wipes: the run ends with the bytes of an undisturbed one.

use crate::durability::{said, undisturbed_of};
use crate::strikes::{Chance, made_good, strike};
use agentgym_storage::{AttemptOutcome, AttemptRecord, PartKey, Store};
use agentgym_tests::fleet::{Fleet, RUN};
use agentgym_tests::program::Running;
use agentgym_tests::proxy::{Manner, Proxy};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Two iterations of the smoke run: about thirty parts.
const SMALL: [&str; 4] = [
    "trainer.total_training_steps=2",
    "sft.steps=6",
    "evaluation.samples=1",
    "jobs.failures_max=50",
];
const LEASE_S: u64 = 2;
/// Timeout that is long enough for a loaded two-core machine.
const LONG: Duration = Duration::from_secs(240);

fn undisturbed() -> String {
    undisturbed_of("configs/smoke.yaml", &SMALL)
}

async fn fleet(folder: &TempDir, workers: usize) -> Fleet {
    Fleet::of(folder.path(), workers, LEASE_S).await
}

async fn store(fleet: &Fleet) -> Store {
    Store::open_with(&fleet.s3.url, &fleet.s3.env())
        .await
        .unwrap()
}

async fn attempts(store: &Store) -> BTreeMap<PartKey, Vec<AttemptRecord>> {
    store.all_attempts(&RUN.parse().unwrap()).await.unwrap()
}

/// No part was made again after its commit: attempts after the committing one were superseded or
/// have no end.
async fn nothing_finished_was_redone(store: &Store) {
    for (slot, attempts) in attempts(store).await {
        let Some(manifest) = store.manifest(&slot).await.unwrap() else {
            continue;
        };
        let later = attempts.iter().filter(|a| a.number > manifest.attempt);
        for attempt in later {
            let outcome = attempt.end.as_ref().map(|end| end.outcome);
            assert!(
                matches!(outcome, None | Some(AttemptOutcome::Superseded)),
                "{slot}: attempt {} committed it, then attempt {} ended as {outcome:?}",
                manifest.attempt,
                attempt.number
            );
        }
    }
}

/// The index of a worker that is in the middle of a part.
async fn busy(fleet: &Fleet, store: &Store) -> usize {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < LONG, "no worker has a part");
        for (index, worker) in fleet.workers.iter().enumerate() {
            if Fleet::in_flight(store, worker.id()).await.is_some() {
                return index;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the run has so many commits.
async fn committed(store: &Store, wanted: usize) {
    let begun = Instant::now();
    while store
        .all_commits(&RUN.parse().unwrap())
        .await
        .unwrap()
        .len()
        < wanted
    {
        assert!(begun.elapsed() < LONG, "nothing is committed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Rapid kills, under which only safety can be required, kills in the middle of a part, and a queue
/// that is started anew and wiped: one of them after every second commit. Two users follow the run,
/// so there are two planners.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_under_fire_ends_equal() {
    // About sixty parts: on a busy machine a part takes less time than the store takes to tell who is
    // at work, and some must be left behind the last shot.
    let longer = [&["trainer.total_training_steps=4"], &SMALL[1..]].concat();
    let folder = TempDir::new().unwrap();
    let mut fleet = fleet(&folder, 3).await;
    let mut followers = [
        Running::start(fleet.submit(&longer)),
        Running::start(fleet.submit(&longer)),
    ];
    let store = store(&fleet).await;
    let mut fire = Chance::new(97);
    let mut struck = Vec::new();
    for shot in 0..9 {
        committed(&store, 2 * shot).await;
        match shot {
            0 | 3 | 6 => {
                for rapid in 0..10 {
                    let pause = Duration::from_millis(30 + fire.up_to(220));
                    tokio::time::sleep(pause).await;
                    fleet.replace(rapid % 3);
                }
                nothing_finished_was_redone(&store).await;
            }
            4 => fleet.redis.restart(),
            7 => _ = fleet.redis.command(&[b"FLUSHALL"]),
            _ => {
                let (victim, new) = (busy(&fleet, &store).await, fleet.worker(&[]));
                let victim = std::mem::replace(&mut fleet.workers[victim], new);
                let wait = Duration::from_millis(fire.up_to(200));
                struck.push(strike((&store, RUN), victim, wait).await);
            }
        }
    }
    let begun = Instant::now();
    while !followers[0].has_ended() {
        assert!(begun.elapsed() < LONG, "the run does not end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(
        fleet.digest(),
        undisturbed_of("configs/smoke.yaml", &longer)
    );
    nothing_finished_was_redone(&store).await;
    made_good(&store, &struck).await;
}

/// The queue is wiped after every few commits.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_wiped_all_the_time_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let fleet = fleet(&folder, 2).await;
    let store = store(&fleet).await;
    let mut follower = Running::start(fleet.submit(&SMALL));
    let (begun, mut wipes, mut seen) = (Instant::now(), 0, 0);
    while !follower.has_ended() {
        assert!(begun.elapsed() < LONG, "the run does not end");
        let commits = store.all_commits(&RUN.parse().unwrap()).await.unwrap();
        if commits.len() >= seen + 3 {
            assert_eq!(fleet.redis.command(&[b"FLUSHALL"]).unwrap(), "+OK");
            (wipes, seen) = (wipes + 1, commits.len());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("ended after {wipes} wipes");
    assert!(wipes >= 4, "the run was over after {wipes} wipes");
    assert_eq!(fleet.digest(), undisturbed());
    nothing_finished_was_redone(&store).await;
}

/// A worker is stopped in the middle of a part for longer than its lease. The part is made
/// elsewhere; when the worker wakes up, it finds that it was superseded, and its outputs are not
/// used.
#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_is_superseded() {
    let folder = TempDir::new().unwrap();
    let fleet = fleet(&folder, 2).await;
    let mut follower = Running::start(fleet.submit(&SMALL));
    let store = store(&fleet).await;
    let zombie = &fleet.workers[0];
    let begun = Instant::now();
    let (slot, number) = 'caught: loop {
        assert!(begun.elapsed() < LONG, "nothing was caught in flight");
        let ended = follower.has_ended();
        assert!(!ended, "the run ended before a worker was caught");
        let Some((slot, attempt)) = Fleet::in_flight(&store, zombie.id()).await else {
            continue;
        };
        let number = attempt.number;
        zombie.pause();
        let stopped = Instant::now();
        // A commit in flight may still arrive: then the worker is no zombie.
        while stopped.elapsed() < LONG {
            if let Some(manifest) = store.manifest(&slot).await.unwrap() {
                if manifest.attempt != number {
                    break 'caught (slot, number);
                }
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        zombie.signal("CONT");
    };
    zombie.signal("CONT");
    let first = store.manifest(&slot).await.unwrap().unwrap();
    loop {
        assert!(
            begun.elapsed() < LONG,
            "the zombie does not say how it ended"
        );
        let attempts = store.attempts(&slot).await.unwrap();
        let own = attempts.iter().find(|a| a.number == number).unwrap();
        if let Some(end) = &own.end {
            assert_eq!(end.outcome, AttemptOutcome::Superseded, "{}", end.message);
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(store.manifest(&slot).await.unwrap().unwrap(), first);
    while !follower.has_ended() {
        assert!(begun.elapsed() < LONG, "the run does not end");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(fleet.digest(), undisturbed());
    nothing_finished_was_redone(&store).await;
}

/// The store is unavailable for longer than its client retries. A single counted failure would stop
/// the run; attempts wait instead and commit their results afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_no_failure() {
    let folder = TempDir::new().unwrap();
    let fleet = fleet(&folder, 2).await;
    let strict = [&SMALL[..3], &["jobs.failures_max=1"]].concat();
    let mut follower = Running::start(fleet.submit(&strict));
    let store = store(&fleet).await;
    let begun = Instant::now();
    for commits in [3, 12] {
        committed(&store, commits).await;
        fleet.s3.set_away(true);
        tokio::time::sleep(Duration::from_secs(12)).await;
        fleet.s3.set_away(false);
    }
    while !follower.has_ended() {
        assert!(begun.elapsed() < LONG, "the run does not end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(fleet.digest(), undisturbed());
    for (slot, attempts) in attempts(&store).await {
        for end in attempts.iter().filter_map(|attempt| attempt.end.as_ref()) {
            let blamed = end.outcome == AttemptOutcome::Failed && !end.excused;
            assert!(!blamed, "{slot}: {}", end.message);
        }
    }
    nothing_finished_was_redone(&store).await;
}

/// An S3 server's refusal.
fn refusal(status: &str, code: &str) -> String {
    let body = format!("<Error><Code>{code}</Code><Message>no</Message></Error>");
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// One worker's store refuses it, for good: its clock is wrong; then no request of it is answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_sick_worker_stops_nobody() {
    let skewed = refusal("403 Forbidden", "RequestTimeTooSkewed");
    sick(
        |_| Manner::Answers(skewed),
        "the clock of this machine is wrong",
    )
    .await;
    sick(|_| Manner::Hangs, "no answer within").await;
}

/// Six more kinds.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes some minutes; scripts/chaos.sh starts it"]
async fn a_worker_sick_in_other_ways_stops_nobody() {
    let denied = || refusal("403 Forbidden", "AccessDenied");
    let expired = refusal("400 Bad Request", "ExpiredToken");
    sick(|_| Manner::Answers(expired), "expired").await;
    sick(
        |to| Manner::AnswersOnly("PUT", denied(), to),
        "AccessDenied",
    )
    .await;
    sick(
        |to| Manner::AnswersOnly("GET", denied(), to),
        "AccessDenied",
    )
    .await;
    sick(|_| Manner::Answers(denied()), "AccessDenied").await;
    let slow = refusal("503 Service Unavailable", "SlowDown");
    sick(|_| Manner::Answers(slow), "SlowDown").await;
    sick(|_| Manner::Ends, "").await;
}

/// A worker is heard of at least this often: [`agentgym_queue::PRESENCE_EVERY`], and some time for
/// a machine that is busy.
const HEARD_WITHIN: Duration = Duration::from_secs(25);

/// The other worker ends the run, and `status` names the sick one, with cause and cure.
async fn sick(manner: impl FnOnce(String) -> Manner, cure: &str) {
    let folder = TempDir::new().unwrap();
    let mut fleet = fleet(&folder, 1).await;
    let proxy = Proxy::start(Manner::To(fleet.s3.address())).await;
    let endpoint = format!("http://{}", proxy.address);
    let log = folder.path().join("sick.log");
    let mut sick = agentgym_tests::program::program("agentgym-worker");
    sick.args(["--threads", "1", "--lease-ttl-s", &LEASE_S.to_string()])
        .args(["--store", &fleet.s3.url_by(proxy.address)])
        .args(["--queue", &fleet.redis.url()])
        .envs(fleet.s3.env())
        .env("AWS_ENDPOINT_URL", endpoint);
    let sick = Running::start_logged(sick, &log);
    let name = format!(":{}:", sick.id());
    fleet.workers.push(sick);
    let mut follower = Running::start(fleet.submit(&SMALL));
    let store = store(&fleet).await;
    let begun = Instant::now();
    while Fleet::in_flight(&store, fleet.workers[1].id())
        .await
        .is_none()
    {
        assert!(begun.elapsed() < LONG, "it takes no part");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    proxy.set(manner(fleet.s3.address()));
    proxy.cut();
    let url = fleet.redis.url();
    let queue = agentgym_queue::Queue::open(&url, Default::default());
    let queue = queue.await.unwrap();
    while !follower.has_ended() {
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(
            begun.elapsed() < LONG,
            "{cure}: the run does not end:\n{said}"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(fleet.digest(), undisturbed());
    nothing_finished_was_redone(&store).await;
    let told = loop {
        // A worker whose store fails it is not silent.
        let told = queue.in_trouble_or_silent(HEARD_WITHIN).await.unwrap();
        if !told.is_empty() {
            break told;
        }
        assert!(begun.elapsed() < LONG, "nobody is told");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(
        told[0].0.contains(&name) && told[0].1.why.contains(cure),
        "{told:?}"
    );
    let waiting = Running::start(fleet.submit_as("next", &["trainer.total_training_steps=50"]));
    let shown = loop {
        // The run is unknown until its plan is written.
        let output = fleet.type_in(&["status", "next"]).output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        if shown.contains("parts committed") {
            break shown;
        }
        assert!(begun.elapsed() < LONG, "{shown}");
    };
    assert!(
        shown.contains("takes no part") && shown.contains(cure),
        "{shown}"
    );
    waiting.signal("TERM");
    waiting.wait();
}

/// SIGTERM in the middle of a part: the worker hands the part back and exits in time, whatever the
/// stage. Tested on three parts of different stages.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_leave_hands_its_part_back() {
    const NOTICE: Duration = Duration::from_secs(30);
    let folder = TempDir::new().unwrap();
    let mut fleet = fleet(&folder, 1).await;
    let mut follower = Running::start(fleet.submit(&SMALL));
    let store = store(&fleet).await;
    let begun = Instant::now();
    let mut stages = BTreeSet::new();
    let mut drained = 0;
    while !follower.has_ended() {
        assert!(begun.elapsed() < LONG, "the run does not end");
        let caught = Fleet::in_flight(&store, fleet.workers[0].id()).await;
        let is_new = |(slot, _): &(PartKey, _)| stages.len() < 3 && !stages.contains(&slot.stage);
        let Some((slot, attempt)) = caught.filter(is_new) else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let asked = Instant::now();
        fleet.workers[0].signal("TERM");
        while !fleet.workers[0].has_ended() {
            assert!(asked.elapsed() < NOTICE, "{slot} holds its worker back");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let attempts = store.attempts(&slot).await.unwrap();
        let own = attempts.iter().find(|a| a.number == attempt.number);
        match own.and_then(|own| own.end.as_ref()) {
            Some(end) => {
                let message = &end.message;
                assert_eq!(end.outcome, AttemptOutcome::Drained, "{slot}: {message}");
                drained += 1;
            }
            // A part that was nearly done is committed before the exit.
            None => {
                let commit = store.manifest(&slot).await.unwrap();
                assert_eq!(commit.unwrap().attempt, attempt.number, "{slot}");
            }
        }
        stages.insert(slot.stage);
        fleet.workers[0] = fleet.worker(&[]);
    }
    println!("asked to leave during {stages:?}; {drained} parts were handed back");
    assert!(drained > 0, "{stages:?} were all but done");
    assert_eq!(fleet.digest(), undisturbed());
    nothing_finished_was_redone(&store).await;
}

/// A policy is committed while the worker that will use it is busy with a long part of another run:
/// it fetches the policy in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_policy_is_fetched_while_another_part_is_made() {
    let folder = TempDir::new().unwrap();
    let mut fleet = fleet(&folder, 0).await;
    let log = folder.path().join("player.log");
    let mut player = fleet.worker_command(&["--stages", "rollout,evaluate,evaluate_init"]);
    player.env("AGENTGYM_LOG", "info,agentgym_worker=debug");
    fleet.workers = vec![
        Running::start_logged(player, &log),
        fleet.worker(&["--stages", "init,log_probs,advantage,update,expire"]),
    ];
    // The runs take turns. An evaluation takes several times as long as making a policy.
    let sets: Vec<String> = (0..5)
        .map(|set| format!("{{name: s{set}, env: worlds, ids: {set}0..{set}6}}"))
        .collect();
    let long = format!("evaluation.sets=[{}]", sets.join(", "));
    let evaluation = ["run.pipeline=eval", "evaluation.samples=128", &long];
    let training = [
        "sft.steps=0",
        "evaluation.sets=[]",
        "jobs.rollout_part_tasks=8",
    ];
    let _evaluated = Running::start(fleet.submit_as("judged", &evaluation));
    let mut follower = Running::start(fleet.submit(&training));
    let begun = Instant::now();
    while !follower.has_ended() {
        assert!(begun.elapsed() < LONG, "the run does not end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let log = std::fs::read_to_string(&log).unwrap();
    let line_of = |words: &[&str]| {
        let holds = |line: &str| words.iter().all(|word| line.contains(word));
        log.lines().position(holds)
    };
    let in_time = (2..=4).filter(|n| {
        let policy = format!("policy={}/update/0", n - 1);
        let rollout = format!("part={n}/rollout/");
        let fetched = line_of(&["fetched ahead", &policy]);
        let needed = line_of(&["begins", &rollout]).expect("the player plays every rollout");
        fetched.is_some_and(|fetched| fetched < needed)
    });
    assert!(in_time.count() > 0, "no policy was there in time:\n{log}");
}

/// Two runs share one worker. A priority given to a running one applies to all parts begun
/// afterwards: the other run waits until the first has finished, and then continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_priority_takes_effect_between_two_runs_under_way() {
    /// This close to its end, in parts, the urgent run has long been alone.
    const PARTS_LEFT: usize = 12;
    let folder = TempDir::new().unwrap();
    let fleet = fleet(&folder, 1).await;
    let store = store(&fleet).await;
    let commits = async |run: &str| {
        store
            .all_commits(&run.parse().unwrap())
            .await
            .unwrap()
            .len()
    };
    let length = [
        "trainer.total_training_steps=12",
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "sft.steps=0",
        "evaluation.sets=[]",
    ];
    let (patient, urgent) = ("patient", "urgent");
    let mut followers = [patient, urgent].map(|run| Running::start(fleet.submit_as(run, &length)));
    let begun = Instant::now();
    while commits(patient).await < 4 || commits(urgent).await < 4 {
        assert!(begun.elapsed() < LONG, "the runs take no turns");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let resume = fleet.type_in(&["resume", urgent, "jobs.priority=3", "--quiet"]);
    let mut resumed = Running::start(resume);
    // The commits of both runs at each look; the patient run is read first.
    let mut seen = Vec::new();
    while !resumed.has_ended() {
        assert!(begun.elapsed() < LONG, "the urgent run does not end");
        seen.push((commits(patient).await, commits(urgent).await));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let all = commits(urgent).await;
    assert_eq!(resumed.wait(), Some(0));
    let alone = seen
        .iter()
        .filter(|(_, urgent)| (all - PARTS_LEFT..all).contains(urgent));
    let waited: BTreeSet<usize> = alone.map(|(patient, _)| *patient).collect();
    let (first, last) = (waited.first().unwrap(), waited.last().unwrap());
    // A part in progress may still be committed.
    assert!(last - first <= 1, "{seen:?}");
    assert!(*last < all, "the patient run was as quick: {seen:?}");
    while !followers.iter_mut().all(Running::has_ended) {
        assert!(begun.elapsed() < LONG, "the patient run does not go on");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let shown = said(fleet.type_in(&["status", patient]));
    assert!(shown.contains("every part is committed"), "{shown}");
}
