//! Kills that hit an attempt. A process is killed while the store shows an attempt of its own in
//! flight, a random time after that was observed. The number of parts that are committed before a
//! kill is drawn from the remaining ones, so that kills are spread over the run at any speed.

use agentgym_jobs::pipeline::parts;
use agentgym_storage::{PartKey, RunId, Store};
use agentgym_submit::runs::RunView;
use agentgym_tests::fleet::in_flight;
use agentgym_tests::program::Running;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Latest time of a kill after the start of a part, in milliseconds.
const INTO_PART_MS: u64 = 120;
/// How long a request in flight from a stopped process may still take effect.
const ON_ITS_WAY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(120);

/// An attempt that was interrupted by a kill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Strike {
    pub(crate) slot: PartKey,
    pub(crate) attempt: u32,
}

/// Pseudo-random numbers, the same in every test run.
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uniform in `0..=most`.
    pub(crate) fn up_to(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % (most + 1)
    }
}

/// Starts a command repeatedly and kills each process in the middle of a part, until `count` kills
/// have hit an attempt.
///
/// # Panics
/// If the run ends before that.
pub(crate) async fn strikes(
    (folder, run): (&Path, &str),
    seed: u64,
    count: usize,
    command: impl Fn() -> Command,
) -> Vec<Strike> {
    let store = Store::open(&folder.display().to_string()).await.unwrap();
    let id: RunId = run.parse().unwrap();
    let mut chance = Chance::new(seed);
    let mut struck: Vec<Strike> = Vec::new();
    while struck.len() < count {
        let left = (count - struck.len()) as u64;
        let mut running = Running::start(command());
        let all = parts_of(&store, &id, &mut running).await;
        let commits = async || store.all_commits(&id).await.unwrap().len();
        let before = commits().await;
        let first = chance.up_to((all.saturating_sub(before) as u64) / (left + 2)) as usize;
        let begun = Instant::now();
        while commits().await < before + first {
            assert!(begun.elapsed() < PATIENCE, "nothing is committed");
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        let wait = Duration::from_millis(chance.up_to(INTO_PART_MS));
        struck.push(strike((&store, run), running, wait).await);
    }
    struck
}

/// Kills a process some time after it has begun a part.
///
/// # Panics
/// If the process ends before that, or never begins a part.
pub(crate) async fn strike(
    (store, run): (&Store, &str),
    mut running: Running,
    mut wait: Duration,
) -> Strike {
    let (run, begun) = (run.parse().unwrap(), Instant::now());
    loop {
        assert!(begun.elapsed() < PATIENCE, "no part is under way");
        assert!(!running.has_ended(), "it ended before it was struck");
        if in_flight(store, &run, running.id()).await.is_none() {
            tokio::time::sleep(Duration::from_millis(3)).await;
            continue;
        }
        tokio::time::sleep(wait).await;
        // Stopped first, so that the attempt cannot end between the check and the kill. Reading a
        // store may take longer than a part: what counts is the attempt in which it stands still.
        running.pause();
        if store.local_root().is_none() {
            tokio::time::sleep(ON_ITS_WAY).await;
        }
        if let Some((slot, attempt)) = in_flight(store, &run, running.id()).await {
            running.kill();
            let attempt = attempt.number;
            return Strike { slot, attempt };
        }
        // It was between two attempts; the next one is hit earlier.
        running.signal("CONT");
        wait /= 2;
    }
}

/// Number of parts of the plan, once it exists.
async fn parts_of(store: &Store, run: &RunId, running: &mut Running) -> usize {
    let begun = Instant::now();
    while store.plans(run).await.unwrap().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "no plan is written");
        assert!(!running.has_ended(), "it ended before there was a plan");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let plan = RunView::open(store, run.as_str()).await.unwrap().plan;
    (0..=plan.iterations).map(|n| parts(&plan, n).len()).sum()
}

pub(crate) async fn is_under_way(store: &Store, strike: &Strike) -> bool {
    let attempts = store.attempts(&strike.slot).await.unwrap();
    let own = attempts.iter().find(|a| a.number == strike.attempt);
    let has_ended = own.is_none_or(|own| own.end.is_some());
    !has_ended && store.manifest(&strike.slot).await.unwrap().is_none()
}

/// Every interrupted attempt has a record without an end, and a later attempt committed its part.
pub(crate) async fn made_good(store: &Store, struck: &[Strike]) {
    for strike in struck {
        let (slot, number) = (&strike.slot, strike.attempt);
        let attempts = store.attempts(slot).await.unwrap();
        let own = attempts.iter().find(|a| a.number == number);
        let own = own.unwrap_or_else(|| panic!("{slot}: attempt {number} is not on record"));
        assert_eq!(own.end, None, "{slot}: attempt {number} was not cut off");
        let commit = store.manifest(slot).await.unwrap();
        let commit = commit.unwrap_or_else(|| panic!("{slot} has no commit"));
        assert!(
            commit.attempt > number,
            "{slot}: attempt {number} was struck, attempt {} committed",
            commit.attempt
        );
    }
}
