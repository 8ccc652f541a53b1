//! How much an interrupted rollout samples again: a long one against a slow environment.

use agentgym_jobs::codec::decode;
use agentgym_jobs::journal::{Event, Segment};
use agentgym_storage::{Journal, Manifest, PartKey, RunId, Store};
use agentgym_tests::ports::free_port;
use agentgym_tests::program::{Running, program};
use agentgym_tests::slow::slow_way;
use anyhow::{Context as _, ensure};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::time::sleep;

const CONFIG: &str = "
run: {id: journal}
actor_rollout_ref:
  model: {path: models/base}
  actor: {ppo_mini_batch_size: 4}
  rollout: {n: 4, max_tokens: 64, max_model_len: 4096}
  agentgym: {task_name: textcraft}
data: {train_batch_size: 4, max_prompt_length: 1024, max_response_length: 3000, tasks: [{env: textcraft, ids: 400..440}]}
algorithm: {rounds_ctrl: {rounds: 30}}
trainer: {total_training_steps: 1, test_freq: 0}
jobs: {rollout_part_tasks: 4, threads: 2, lease_ttl_s: 2}
";
const STEP: Duration = Duration::from_millis(700);
/// Time into a rollout of about 24 s.
const AT: Duration = Duration::from_secs(18);
const LONG: Duration = Duration::from_secs(900);
/// One line of the log for each message that a process has sampled.
pub(crate) const LOG: &str = "off,agentgym_worker::decoder=trace";

/// SIGTERM and SIGKILL in the middle of a rollout.
pub(crate) async fn journal() -> anyhow::Result<()> {
    println!(
        "\n16 episodes of 30 rounds of TextCraft, {STEP:?} for each answer, a segment every 5 s; {AT:?} into the rollout"
    );
    println!(
        "signal        rollout   exit after   journalled   sampled by then   sampled twice   taken up   tokens   digest"
    );
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut server = program("agentgym-env");
    server.args(["textcraft", "--port", &address.port().to_string()]);
    let _server = Running::start(server);
    let begun = Instant::now();
    while tokio::net::TcpStream::connect(address).await.is_err() {
        ensure!(begun.elapsed() < LONG, "the server does not start");
        sleep(Duration::from_millis(50)).await;
    }
    let slow = slow_way(address, STEP).await?;
    let mut undisturbed = None;
    for signal in [None, Some("TERM"), Some("KILL")] {
        let folder = TempDir::new()?;
        let log = folder.path().join("log");
        let store = Store::open(&folder.path().join("store").display().to_string()).await?;
        let slot = PartKey {
            run: "journal".parse::<RunId>()?,
            iteration: 1,
            stage: "rollout".to_owned(),
            part: 0,
        };
        let mut running = Running::start_logged(command(folder.path(), &slow)?, &log);
        let mut row = "        –".to_owned();
        if let Some(signal) = signal {
            let begun = Instant::now();
            while store.attempts(&slot).await.map_or(0, |all| all.len()) == 0 {
                ensure!(begun.elapsed() < LONG, "the rollout does not begin");
                sleep(Duration::from_millis(20)).await;
            }
            sleep(AT).await;
            let asked = Instant::now();
            running.signal(signal);
            running.wait();
            let left = asked.elapsed();
            ensure!(store.manifest(&slot).await?.is_none(), "too late");
            row = format!("{:>8.1} s", left.as_secs_f64());
            running = Running::start_logged(
                command(folder.path(), &slow)?,
                &folder.path().join("resumed"),
            );
        }
        let journalled = journalled(&store, &slot, signal.is_some()).await?;
        ensure!(running.wait() == Some(0), "the run fails");
        let commit = store.manifest(&slot).await?.context("it is committed")?;
        let (digest, _) = store.run_digest(&slot.run).await?;
        let expected = undisturbed.get_or_insert(digest);
        let [sampled, taken_up] =
            ["sampled_tokens", "taken_up_tokens"].map(|name| stat(&commit, name));
        let by_then = if signal.is_some() { logged(&log)? } else { 0 };
        println!(
            "{:<10} {:>8.1} s {row:>12} {journalled:>12} {by_then:>17} {:>15} {taken_up:>10} {:>8}   {}",
            signal.unwrap_or("none"),
            commit.work.as_ref().map_or(0.0, |work| work.wall_s),
            by_then.saturating_sub(taken_up),
            sampled + taken_up,
            if digest == *expected {
                "equal"
            } else {
                "DIFFERS"
            }
        );
        ensure!(digest == *expected, "a promise is broken");
        ensure!(
            signal != Some("TERM") || by_then == taken_up,
            "finished turns are sampled twice"
        );
    }
    Ok(())
}

fn command(folder: &Path, url: &str) -> anyhow::Result<Command> {
    let config = folder.join("journal.yaml");
    std::fs::write(&config, CONFIG)?;
    let mut command = program("agentgym-submit");
    command
        .arg(config)
        .args(["--quiet", "--store"])
        .arg(folder.join("store"))
        .arg(format!("actor_rollout_ref.agentgym.env_addr={url}"))
        .env("AGENTGYM_LOG", LOG);
    Ok(command)
}

/// Tokens in a part's journal.
async fn journalled(store: &Store, slot: &PartKey, wanted: bool) -> anyhow::Result<u64> {
    let mut tokens = 0;
    if wanted {
        for segment in Journal::replay(store, slot).await? {
            let Segment::V1(segment) = decode(&segment)?;
            let events = segment.records.iter().flat_map(|record| &record.events);
            tokens += events.map(Event::sampled_tokens).sum::<u64>();
        }
    }
    Ok(tokens)
}

/// Tokens of the messages that a process finished sampling, whatever happened to them.
pub(crate) fn logged(log: &Path) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(log)?;
    let tokens = text
        .lines()
        .filter_map(|line| line.split("sampled tokens=").nth(1));
    let tokens = tokens.filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(tokens.sum())
}

pub(crate) fn stat(commit: &Manifest, name: &str) -> u64 {
    let work = commit.work.as_ref();
    let value = work.and_then(|work| work.stats.get(name));
    value
        .and_then(serde_json::Value::as_u64)
        .unwrap_or_default()
}
