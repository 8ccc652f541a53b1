//! The effect of one slow environment on a rollout.
//! `cargo bench --workspace --bench slow_environment` plays the same tasks over four environments,
//! each behind a proxy that delays every answer: first all by the same time, then one of them by a
//! hundred times as much. It prints the wall time and the time of the slow episodes alone, a lower
//! bound for the rollout. Nothing is asserted: timings vary. Needs the built programs.

use agentgym_storage::{PartKey, RunId, Store};
use agentgym_tests::program::{Running, finish, program};
use agentgym_tests::slow::slow_way;
use anyhow::{Context as _, ensure};
use std::net::{SocketAddr, TcpListener};
use std::str::FromStr as _;
use std::time::{Duration, Instant};
use tokio::net;

const ANSWER: Duration = Duration::from_millis(5);
const SLOWER: u32 = 100;
const ROUNDS: u32 = 6;
const ENVIRONMENTS: usize = 4;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // `cargo test --benches` only checks that it runs.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let addr = free_address()?;
    let mut server = program("agentgym-env");
    server.args([
        "textcraft",
        "--worlds",
        "1-2",
        "--port",
        &addr.port().to_string(),
    ]);
    let _server = Running::start(server);
    let begun = Instant::now();
    while net::TcpStream::connect(addr).await.is_err() {
        ensure!(begun.elapsed().as_secs() < 20, "the server does not start");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{ENVIRONMENTS} environments, 32 tasks × 4 samples, {ROUNDS} rounds, two threads");
    let even = played(addr, ANSWER).await?;
    println!("each answers after {ANSWER:?}: rollout {even:.2} s");
    let uneven = played(addr, ANSWER * SLOWER).await?;
    // Opening takes two calls, each round takes one.
    let alone = (ANSWER * SLOWER * (ROUNDS + 2)).as_secs_f64();
    println!(
        "one of them after {:?}: rollout {uneven:.2} s; one of its episodes alone waits {alone:.2} s",
        ANSWER * SLOWER
    );
    println!(
        "ratio {:.2}, over what it cannot avoid {:.2} s",
        uneven / even,
        uneven - alone
    );
    Ok(())
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Seconds of a rollout in which the last environment answers after `last`.
async fn played(server: SocketAddr, last: Duration) -> anyhow::Result<f64> {
    let (mut envs, mut tasks) = (Vec::new(), Vec::new());
    for index in 0..ENVIRONMENTS {
        let wait = if index + 1 == ENVIRONMENTS {
            last
        } else {
            ANSWER
        };
        let url = slow_way(server, wait).await?;
        envs.push(format!(
            "e{index}: {{task_name: textcraft, env_addr: '{url}'}}"
        ));
        tasks.push(format!("{{env: e{index}, ids: 0..1000, share: 0.25}}"));
    }
    let scratch = tempfile::tempdir()?;
    let config = format!(
        "run: {{id: slow}}
actor_rollout_ref:
  model: {{path: 'tiny?hidden=64&layers=2&vocab=512'}}
  actor: {{ppo_mini_batch_size: 32}}
  rollout: {{n: 4, max_tokens: 16, max_model_len: 2048}}
  agentgym: {{task_name: e0, env_addr: builtin, envs: {{{}}}}}
data: {{train_batch_size: 32, max_prompt_length: 768, max_response_length: 1024, tasks: [{}]}}
algorithm: {{rounds_ctrl: {{rounds: {ROUNDS}}}}}
trainer: {{total_training_steps: 1, test_freq: 0}}
jobs: {{rollout_part_tasks: 32, threads: 2}}
",
        envs.join(", "),
        tasks.join(", ")
    );
    let path = scratch.path().join("slow.yaml");
    std::fs::write(&path, config)?;
    let store = scratch.path().join("store").display().to_string();
    let mut command = program("agentgym-submit");
    command.arg(&path).arg("--quiet").args(["--store", &store]);
    let output = tokio::task::spawn_blocking(|| finish(command)).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let slot = PartKey {
        run: RunId::from_str("slow")?,
        iteration: 1,
        stage: "rollout".into(),
        part: 0,
    };
    let store = Store::open(&store).await?;
    let manifest = store
        .manifest(&slot)
        .await?
        .context("the rollout is committed")?;
    Ok(manifest.work.context("a commit says how it went")?.wall_s)
}
