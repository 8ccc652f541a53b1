//! The overhead of a run besides its computation. `cargo bench --workspace --bench pipeline` runs
//! configs with the real programs and prints, per stage, wall time, the time inside the policy and
//! the environments, and peak memory; then the share of the worker's time that is neither; then the
//! number of requests to an S3 server per commit. `-- PART` runs one of `smoke`, `quickstart` and
//! `s3`. Nothing is asserted: the numbers depend on the machine.

use agentgym_jobs::pipeline::Stage;
use agentgym_storage::{RunId, Store, Work};
use agentgym_tests::program::{finish, program};
use agentgym_tests::redis::RedisServer;
use agentgym_tests::s3::S3Server;
use anyhow::{Context as _, ensure};
use std::collections::BTreeMap;
use std::process::Command;
use std::str::FromStr as _;
use std::time::Instant;

const RUN: &str = "bench";

/// Some iterations of the quickstart with realistic parts of a second and more: the parts are
/// larger, and there are few evaluations, which take half a second.
const QUICKSTART: [&str; 6] = [
    "configs/quickstart.yaml",
    "trainer.total_training_steps=5",
    "trainer.test_freq=0",
    "jobs.rollout_part_tasks=16",
    "evaluation.samples=1",
    "evaluation.sets=[{name: d1, env: worlds, ids: 1000000..1000006}]",
];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // `cargo test --benches` only checks that it runs.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let part = arguments.iter().find(|argument| !argument.starts_with('-'));
    let wanted = |name: &str| part.is_none_or(|part| part == name);
    if wanted("smoke") {
        folder(&["configs/smoke.yaml"], None).await?;
    }
    if wanted("quickstart") {
        folder(&QUICKSTART, None).await?;
        folder(&QUICKSTART, Some(&RedisServer::start())).await?;
    }
    if wanted("s3") {
        s3(&["configs/smoke.yaml"]).await?;
    }
    Ok(())
}

fn submit(store: &str, arguments: &[&str]) -> Command {
    let mut command = program("agentgym-submit");
    command.args(arguments).arg("--quiet");
    command
        .arg(format!("run.id={RUN}"))
        .args(["--store", store]);
    command
}

/// Runs a command to its end; returns the seconds.
async fn played(command: Command) -> anyhow::Result<f64> {
    let begun = Instant::now();
    let output = tokio::task::spawn_blocking(|| finish(command)).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(begun.elapsed().as_secs_f64())
}

async fn works(store: &Store) -> anyhow::Result<Vec<(Stage, Work)>> {
    let mut works = Vec::new();
    for slot in store.all_commits(&RunId::from_str(RUN)?).await? {
        let stage = Stage::from_str(&slot.stage).map_err(anyhow::Error::msg)?;
        let manifest = store.manifest(&slot).await?.context("it is committed")?;
        works.push((stage, manifest.work.context("a commit says how it went")?));
    }
    Ok(works)
}

/// Runs in a folder store, with the queue in a file next to it or in Redis.
async fn folder(arguments: &[&str], redis: Option<&RedisServer>) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let path = scratch.path().join("store").display().to_string();
    let mut command = submit(&path, arguments);
    if let Some(redis) = redis {
        command.arg(format!("queue.url={}", redis.url()));
    }
    let whole_s = played(command).await?;
    let store = Store::open(&path).await?;
    let mut stages: BTreeMap<Stage, Row> = BTreeMap::new();
    for (stage, work) in works(&store).await? {
        stages.entry(stage).or_default().add(&work);
    }
    let queue = redis.map_or("SQLite", |_| "Redis");
    println!("\n{}, folder store, {queue}, one worker", arguments[0]);
    println!("stage          parts      wall      busy   beside   per part   peak memory");
    let mut all = Row::default();
    for (stage, row) in &stages {
        println!("{stage:<13} {row}");
        all.merge(row);
    }
    println!("{:<13} {all}", "attempts");
    let share = |busy_s: f64, wall_s: f64| 100.0 * (1.0 - busy_s / wall_s);
    println!(
        "whole process {whole_s:>11.2} s, of which policy and environments {:.2} s: pipeline share {:.1} %",
        all.busy_s,
        share(all.busy_s, whole_s)
    );
    // Process start, planning and the queue are included here.
    let mut short = Row::default();
    let rows = stages.values().filter(|row| row.wall_s < row.parts as f64);
    rows.for_each(|row| short.merge(row));
    if short.parts < all.parts {
        println!(
            "without the stages whose parts take less than a second: {:.1} %",
            share(all.busy_s - short.busy_s, whole_s - short.wall_s)
        );
    }
    Ok(())
}

async fn s3(arguments: &[&str]) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let server = S3Server::start(scratch.path()).await;
    let queue = format!(
        "queue.url=sqlite:{}",
        scratch.path().join("queue").display()
    );
    let mut command = submit(&server.url, arguments);
    command.arg(&queue).envs(server.env());
    let whole_s = played(command).await?;
    let requests = server.requests_by_folder();
    let store = Store::open_with(&server.url, &server.env()).await?;
    let commits = store.all_commits(&RunId::from_str(RUN)?).await?.len() as f64;
    println!(
        "\n{}, S3 store in {whole_s:.1} s: requests per commit, of {commits} commits",
        arguments[0]
    );
    let (mut control, mut data) = (0.0, 0.0);
    for (name, count) in &requests {
        let each = *count as f64 / commits;
        println!("{name:<16} {count:>6} {each:>7.2}");
        // Artifacts and journals are data of the run, not control traffic.
        match name.ends_with(" files") || name.ends_with(" journal") {
            true => data += each,
            false => control += each,
        }
    }
    println!("{:<16} {control:>14.2}", "control");
    println!("{:<16} {data:>14.2}", "artifacts");
    requests.get("PUT commits").context("a run commits")?;
    Ok(())
}

/// The attempts of one stage.
#[derive(Default)]
struct Row {
    parts: usize,
    wall_s: f64,
    busy_s: f64,
    peak_bytes: f64,
}

impl Row {
    fn add(&mut self, work: &Work) {
        let stat = |name: &str| work.stats.get(name).and_then(|v| v.as_f64()).unwrap_or(0.0);
        self.merge(&Self {
            parts: 1,
            wall_s: work.wall_s,
            busy_s: stat("busy_s"),
            peak_bytes: stat("peak_memory_bytes"),
        });
    }

    fn merge(&mut self, other: &Self) {
        self.parts += other.parts;
        self.wall_s += other.wall_s;
        self.busy_s += other.busy_s;
        self.peak_bytes = self.peak_bytes.max(other.peak_bytes);
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:>6} {:>7.2} s {:>7.2} s {:>6.1} % {:>7.0} ms {:>10.0} MB",
            self.parts,
            self.wall_s,
            self.busy_s,
            100.0 * (1.0 - self.busy_s / self.wall_s.max(1e-9)),
            1e3 * (self.wall_s - self.busy_s) / self.parts.max(1) as f64,
            self.peak_bytes / 1e6,
        )
    }
}
