//! Three worker processes under preemption: how much work is lost, and how long recovery takes.

use crate::{journal, spread};
use agentgym_storage::{AttemptOutcome, Key, PartKey, Store};
use agentgym_tests::fleet::{Fleet, RUN};
use agentgym_tests::program::Running;
use anyhow::{Context as _, ensure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::time::sleep;

const WORKERS: usize = 3;
const LEASE_S: u64 = 6;
/// Time is compressed by this factor: an hour of a fleet takes 30 seconds.
const FACTOR: f64 = 120.0;
/// Preemptions per worker and hour.
const RATES: [f64; 4] = [0.0, 1.0, 4.0, 12.0];
/// Runs for each rate, unless specified otherwise.
pub(crate) const REPEATS: u64 = 3;
const LONG: Duration = Duration::from_secs(900);
const MORE: [&str; 1] = ["jobs.failures_max=50"];

/// The result of one run with preemptions.
#[derive(Default)]
struct Played {
    digest: String,
    wall_s: f64,
    kills: u64,
    attempts: u64,
    redone: u64,
    /// Tokens that the run's episodes needed: sampled or replayed by the attempts that committed.
    needed: u64,
    /// Tokens of all messages that any process finished sampling.
    sampled: u64,
}

/// Digests, repeated work and goodput at several preemption rates.
pub(crate) async fn kills(repeats: u64) -> anyhow::Result<()> {
    println!(
        "\nconfigs/smoke.yaml, {WORKERS} workers of one thread, Redis, S3, lease {LEASE_S} s; SIGKILL at random,\n\
         a new worker at once; one hour of a worker is {:.0} s ({FACTOR} times less); {repeats} runs each",
        3600.0 / FACTOR
    );
    println!(
        "per worker-hour   kills   digests equal   redone   attempts   wall      goodput   sampled twice per kill"
    );
    let mut calm = Played::default();
    for rate in RATES {
        let (mut all, mut equal) = (Played::default(), 0);
        for repeat in 0..repeats {
            let played = play(rate, 7 + repeat).await?;
            if calm.digest.is_empty() {
                calm.digest.clone_from(&played.digest);
            }
            equal += u64::from(played.digest == calm.digest);
            all.wall_s += played.wall_s / repeats as f64;
            all.kills += played.kills;
            all.attempts += played.attempts;
            all.redone += played.redone;
            all.sampled += played.sampled;
            all.needed += played.needed;
        }
        if rate == 0.0 {
            calm.wall_s = all.wall_s;
        }
        println!(
            "{rate:>15} {:>7} {:>12}/{repeats} {:>8} {:>10} {:>6.1} s {:>9.0} % {:>13.0} tokens of {:.0}",
            all.kills,
            equal,
            all.redone,
            all.attempts,
            all.wall_s,
            100.0 * calm.wall_s / all.wall_s,
            all.sampled.saturating_sub(all.needed) as f64 / all.kills.max(1) as f64,
            all.needed as f64 / repeats as f64,
        );
        ensure!(equal == repeats && all.redone == 0, "a promise is broken");
    }
    Ok(())
}

async fn play(rate: f64, seed: u64) -> anyhow::Result<Played> {
    let folder = TempDir::new()?;
    let mut fleet = Fleet::of(folder.path(), 0, LEASE_S).await;
    let store = open(&fleet).await?;
    let mut chance = Chance(seed);
    let begun = Instant::now();
    let mut follower = Running::start(fleet.submit(&MORE));
    let mut played = Played::default();
    let log = folder.path().join("sampled");
    let logged = |fleet: &Fleet| {
        let mut command = fleet.worker_command(&[]);
        command.env("AGENTGYM_LOG", journal::LOG);
        Running::start_logged(command, &log)
    };
    fleet.workers = (0..WORKERS).map(|_| logged(&fleet)).collect();
    let per_s = rate * WORKERS as f64 * FACTOR / 3600.0;
    let mut next = begun + chance.wait(per_s);
    while !follower.has_ended() {
        ensure!(begun.elapsed() < LONG, "the run does not end");
        sleep(Duration::from_millis(20)).await;
        if Instant::now() >= next {
            let victim = chance.below(WORKERS);
            let new = logged(&fleet);
            std::mem::replace(&mut fleet.workers[victim], new).kill();
            played.kills += 1;
            next = Instant::now() + chance.wait(per_s);
        }
    }
    played.wall_s = begun.elapsed().as_secs_f64();
    played.digest = fleet.digest();
    for (slot, attempts) in store.all_attempts(&RUN.parse()?).await? {
        let commit = store.manifest(&slot).await?.context("it has a commit")?;
        played.attempts += attempts.len() as u64;
        for attempt in attempts.iter().filter(|a| a.number > commit.attempt) {
            let end = attempt.end.as_ref().map(|end| end.outcome);
            played.redone += u64::from(end.is_some_and(|e| e != AttemptOutcome::Superseded));
        }
        let of = |name| journal::stat(&commit, name);
        played.needed += of("sampled_tokens") + of("taken_up_tokens");
    }
    // The workers are stopped with the fleet; their logs stay as long as the folder.
    fleet.workers.clear();
    played.sampled = journal::logged(&log)?;
    Ok(played)
}

/// Time from a fault to the next attempt: of the same part after a worker's death, of any part
/// after a fault of the queue.
pub(crate) async fn recovery() -> anyhow::Result<()> {
    const BLOWS: usize = 12;
    println!("\nrecovery, 2 workers of one thread, Redis, S3, lease {LEASE_S} s");
    let folder = TempDir::new()?;
    let mut fleet = Fleet::of(folder.path(), 2, LEASE_S).await;
    let store = open(&fleet).await?;
    let _follower =
        Running::start(fleet.submit(&[&MORE[..], &["trainer.total_training_steps=60"]].concat()));
    let mut spans: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for blow in 0..3 * BLOWS {
        sleep(Duration::from_millis(300)).await;
        let victim = blow % 2;
        let (slot, number) = caught(&store, fleet.workers[victim].id()).await?;
        let begun = Instant::now();
        let role = match blow / BLOWS {
            0 => "a worker is killed",
            1 => "a worker falls silent",
            _ if blow % 2 == 0 => "the queue is wiped",
            _ => "redis-server is restarted empty",
        };
        match blow / BLOWS {
            0 => fleet.replace(victim),
            1 => fleet.workers[victim].pause(),
            _ if blow % 2 == 0 => _ = fleet.redis.command(&[b"FLUSHALL"])?,
            _ => fleet.redis.restart(),
        }
        let starts = starts(&store).await?;
        loop {
            ensure!(begun.elapsed() < LONG, "{role}: no recovery");
            let again = match blow / BLOWS {
                0 | 1 => store.attempts(&slot).await?.len() as u32 > number,
                _ => self::starts(&store).await? > starts,
            };
            if again {
                spans.entry(role).or_default().push(begun.elapsed());
                break;
            }
            // A write in flight has still arrived: there is nothing to recover from.
            if blow / BLOWS < 2 && store.manifest(&slot).await?.is_some() {
                break;
            }
            sleep(Duration::from_millis(5)).await;
        }
        if blow / BLOWS == 1 {
            fleet.workers[victim].signal("CONT");
        }
    }
    for (role, spans) in spans {
        println!("{role:<32} {}", spread(spans));
    }
    Ok(())
}

/// Time from SIGTERM, in the middle of a part, to the end of the process.
pub(crate) async fn drain() -> anyhow::Result<()> {
    const DRAINS: usize = 12;
    let folder = TempDir::new()?;
    let mut fleet = Fleet::of(folder.path(), 2, LEASE_S).await;
    let store = open(&fleet).await?;
    let _follower =
        Running::start(fleet.submit(&[&MORE[..], &["trainer.total_training_steps=60"]].concat()));
    let mut spans = Vec::new();
    for turn in 0..DRAINS {
        let index = turn % 2;
        caught(&store, fleet.workers[index].id()).await?;
        let begun = Instant::now();
        fleet.workers[index].signal("TERM");
        while !fleet.workers[index].has_ended() {
            ensure!(begun.elapsed() < LONG, "no drain");
            sleep(Duration::from_millis(2)).await;
        }
        spans.push(begun.elapsed());
        fleet.workers[index] = fleet.worker(&[]);
    }
    println!("\n{:<32} {}", "SIGTERM to exit", spread(spans));
    Ok(())
}

async fn open(fleet: &Fleet) -> anyhow::Result<Store> {
    Ok(Store::open_with(&fleet.s3.url, &fleet.s3.env()).await?)
}

/// Number of attempts begun so far.
async fn starts(store: &Store) -> anyhow::Result<usize> {
    let keys = store.list(&format!("runs/{RUN}/attempts")).await?;
    let starts = keys
        .iter()
        .filter(|(key, _)| matches!(key, Key::AttemptStart { .. }));
    Ok(starts.count())
}

/// Waits until a process is in the middle of a part.
async fn caught(store: &Store, pid: u32) -> anyhow::Result<(PartKey, u32)> {
    let begun = Instant::now();
    loop {
        ensure!(begun.elapsed() < LONG, "process {pid} begins nothing");
        if let Some((slot, _)) = Fleet::in_flight(store, pid).await {
            let attempts = store.attempts(&slot).await?.len() as u32;
            return Ok((slot, attempts));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Random numbers that are the same in every run.
struct Chance(u64);

impl Chance {
    fn share(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        (self.share() * n as f64) as usize
    }

    /// Time until the next event of a Poisson process.
    fn wait(&mut self, per_s: f64) -> Duration {
        if per_s <= 0.0 {
            return LONG;
        }
        Duration::from_secs_f64((-(1.0 - self.share()).ln() / per_s).min(LONG.as_secs_f64()))
    }
}
