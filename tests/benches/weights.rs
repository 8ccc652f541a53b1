//! The way of a policy from its last optimizer step to the next prompt, over a slow line to the store.
//! `cargo bench --workspace --bench weights -- SHAPE WEIGHTS RATE` plays ten iterations with a trainer and
//! two rollout workers, each a process on a machine of its own with a line of a gigabit and 30 ms to an S3
//! server. SHAPE is `2m`, `135m` (SmolLM2's width) or `500m`; WEIGHTS is `f32`, whole, or `bf16`, as differences;
//! RATE is the learning rate; keys and values may follow. `AGENTGYM_PROGRAMS` names a folder with other programs, to compare. For each
//! iteration but the first it prints how long after the update's computing the next episode begins, what
//! was moved, and what part of the iteration the worker that waited longest waited for the store. `chain` in
//! place of all that reads a chain of made-up policies. Nothing is asserted: timings vary. Needs the built
//! programs.

use agentgym_storage::{AttemptId, Inputs, Manifest, Outputs, PartKey, RunId, Store};
use agentgym_tests::link::{Line, line_to};
use agentgym_tests::program::{Running, finish, program};
use agentgym_tests::redis::RedisServer;
use agentgym_tests::s3::S3Server;
use agentgym_tests::tunnel::{pass_on, tunnel};
use anyhow::{Context as _, ensure};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

const RUN: &str = "weights";
const ITERATIONS: u32 = 10;
const POLICY: &str = "policy/model.safetensors";
const GIGABIT: Line = Line {
    bytes_per_s: 125e6,
    one_way: Duration::from_millis(15),
};

/// The model's shape, and how many tasks an iteration plays.
fn shape(name: &str) -> Option<(&'static str, u32)> {
    Some(match name {
        "2m" => (
            "tiny?hidden=128&layers=8&heads=4&kv_heads=2&intermediate=384&vocab=512",
            16,
        ),
        "135m" => (
            "tiny?arch=llama&hidden=576&layers=38&heads=9&kv_heads=3&intermediate=1536&vocab=2048",
            4,
        ),
        "500m" => (
            "tiny?hidden=896&layers=33&heads=14&kv_heads=2&intermediate=4864&vocab=2048",
            2,
        ),
        _ => return None,
    })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // `cargo test --benches` only checks that it runs.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let is_override = |argument: &&String| argument.contains('=');
    let overrides: Vec<&String> = arguments.iter().filter(is_override).collect();
    let mut given = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-') && !is_override(argument));
    let name = given.next().map_or("2m", String::as_str);
    if name == "chain" {
        return made_up().await;
    }
    let weights = given.next().map_or("bf16", String::as_str);
    let rate = given.next().map_or("3e-5", String::as_str);
    let (model, tasks) = shape(name).context("a shape is 2m, 135m or 500m, or it is `chain`")?;
    ensure!(
        ["f32", "bf16"].contains(&weights),
        "weights are f32 or bf16"
    );
    played((model, tasks), weights == "bf16", rate, &overrides).await
}

async fn played(
    (model, tasks): (&str, u32),
    narrow: bool,
    rate: &str,
    overrides: &[&String],
) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let (redis, s3) = (RedisServer::start(), S3Server::start(scratch.path()).await);
    let (env, opened) = environment().await?;
    let own = if narrow { ", dtype: bf16" } else { "" };
    let rhythm = if narrow { ", full_policy_freq: 8" } else { "" };
    let config = format!(
        "run: {{id: {RUN}}}
actor_rollout_ref:
  model: {{path: '{model}'{own}}}
  actor: {{ppo_mini_batch_size: {half}, entropy_coeff: 0.01, optim: {{lr: {rate}, weight_decay: 0.0}}}}
  rollout: {{n: 2, max_tokens: 16, max_model_len: 1024}}
  agentgym: {{task_name: textcraft, env_addr: '{url}'}}
data: {{train_batch_size: {tasks}, max_prompt_length: 768, max_response_length: 256, tasks: [{{env: textcraft, ids: 0..1000}}]}}
algorithm: {{rounds_ctrl: {{rounds: 3}}}}
trainer: {{total_training_steps: {ITERATIONS}, test_freq: 0, save_freq: {ITERATIONS}{rhythm}}}
jobs: {{rollout_part_tasks: {half}, threads: 1, workers: 0}}
queue: {{url: '{queue}'}}
",
        half = tasks / 2,
        url = env.url,
        queue = redis.url(),
    );
    let path = scratch.path().join("weights.yaml");
    std::fs::write(&path, config)?;
    let mut workers = Vec::new();
    for (stages, index) in [("rollout", 0), ("rollout", 1), ("", 2)] {
        let line = line_to(s3.address(), GIGABIT).await;
        let mut worker = program("agentgym-worker");
        worker
            .args(["--threads", "1", "--queue", &redis.url()])
            .args(["--store", &s3.url_by(line)])
            .envs(
                s3.env()
                    .into_iter()
                    .filter(|(name, _)| *name != "AWS_ENDPOINT_URL"),
            );
        if stages.is_empty() {
            let others = ["init", "log_probs", "advantage", "update", "expire"];
            worker.args(["--stages", &others.join(",")]);
        } else {
            worker.args(["--stages", stages]);
        }
        workers.push(Running::start_logged(
            worker,
            &scratch.path().join(format!("worker-{index}")),
        ));
    }
    let mut submit = program("agentgym-submit");
    submit
        .arg(&path)
        .arg("--quiet")
        .args(overrides)
        .args(["--store", &s3.url, "--queue", &redis.url()])
        .envs(s3.env());
    let output = tokio::task::spawn_blocking(|| finish(submit)).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let opened = opened.lock().expect("nobody panics").clone();
    report(&s3, &opened, narrow).await
}

/// Times at which episodes were opened, seconds since 1970.
type Opened = Arc<Mutex<Vec<f64>>>;

struct Environment {
    url: String,
    _server: Running,
}

/// TextCraft, behind a proxy that notes when an episode is opened.
async fn environment() -> anyhow::Result<(Environment, Opened)> {
    let server = SocketAddr::from(([127, 0, 0, 1], agentgym_tests::ports::free_port()));
    let mut command = program("agentgym-env");
    command.args([
        "textcraft",
        "--worlds",
        "1-2",
        "--port",
        &server.port().to_string(),
    ]);
    let running = Running::start(command);
    let begun = SystemTime::now();
    while TcpStream::connect(server).await.is_err() {
        ensure!(begun.elapsed()?.as_secs() < 20, "the server does not start");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let opened = Opened::default();
    let notes = Arc::clone(&opened);
    let asks = move |mut asks: OwnedReadHalf, mut takes: OwnedWriteHalf| {
        let notes = Arc::clone(&notes);
        async move {
            let mut piece = vec![0; 1 << 16];
            loop {
                let length = asks.read(&mut piece).await?;
                if length == 0 {
                    return takes.shutdown().await;
                }
                if piece[..length].starts_with(b"POST /create") {
                    notes.lock().expect("nobody panics").push(unix_s());
                }
                takes.write_all(&piece[..length]).await?;
            }
        }
    };
    let address = tunnel(server.to_string(), asks, pass_on).await?;
    let url = format!("http://{address}");
    let environment = Environment {
        url,
        _server: running,
    };
    Ok((environment, opened))
}

fn unix_s() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

async fn report(s3: &S3Server, opened: &[f64], narrow: bool) -> anyhow::Result<()> {
    let store = Store::open_with(&s3.url, &s3.env()).await?;
    let run = RunId::from_str(RUN)?;
    let mut begun = BTreeMap::new();
    for (slot, attempts) in store.all_attempts(&run).await? {
        let last = attempts.last().context("a commit has an attempt")?;
        begun.insert(slot, last.start.began_unix_s());
    }
    let first = |after: f64| opened.iter().copied().find(|at| *at >= after);
    let (mut gaps, mut reads, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    println!(
        "iteration  seconds  update: computing, else  its commit to the next episode  waited for the store  \
         put MB  got MB  a player's, of a policy in f32"
    );
    for iteration in 2..ITERATIONS {
        let (mut waited, mut put, mut got) = (BTreeMap::<String, f64>::new(), 0.0, 0.0);
        let (mut update, mut rollout, mut policy) = (None, f64::MAX, 1.0);
        let mut read = BTreeMap::<String, f64>::new();
        for (slot, began) in begun.iter().filter(|(slot, _)| slot.iteration == iteration) {
            let manifest = store.manifest(slot).await?.context("it is committed")?;
            let weights = manifest
                .output("policy/model.safetensors")
                .map_or(0, |a| a.size);
            let work = manifest.work.context("a commit says how it went")?;
            let stat = |name: &str| work.stats.get(name).and_then(|v| v.as_f64()).unwrap_or(0.0);
            put += stat("put_bytes") + stat("put_after_bytes");
            let own = stat("got_bytes") + stat("got_ahead_bytes");
            got += own;
            *waited.entry(work.worker.clone()).or_default() += stat("store_waited_s");
            match slot.stage.as_str() {
                "update" => {
                    update = Some((*began, stat("busy_s"), work.wall_s));
                    policy = weights as f64 * if narrow { 2.0 } else { 1.0 };
                }
                "rollout" => {
                    rollout = rollout.min(*began);
                    *read.entry(work.worker.clone()).or_default() += own;
                }
                _ => {}
            }
        }
        let (began, busy, wall) = update.context("an iteration has an update")?;
        let next = first(began).context("episodes follow")?;
        let all = next - first(rollout).context("episodes were played")?;
        let gap = next - began - busy;
        let longest = waited.values().copied().fold(0.0, f64::max);
        let (rest, on_the_way) = (wall - busy, next - began - wall);
        let most = read.values().copied().fold(0.0, f64::max) / policy;
        println!(
            "{iteration:9}  {all:7.1}  {busy:17.1}, {rest:4.1}  {on_the_way:29.2}  {longest:9.2} s ({:4.1} %)  {:6.1}  {:6.1}  {most:.4}",
            100.0 * longest / all,
            put / 1e6,
            got / 1e6
        );
        gaps.push(gap);
        reads.push(4.0 * most);
        waits.push(longest / all);
    }
    println!(
        "on average {:.2} s from computing to the next episode, {:.3} bytes a parameter read by a player, {:.1} % waited",
        mean(&gaps),
        mean(&reads),
        100.0 * mean(&waits)
    );
    let last = store.manifest(&update(run, ITERATIONS)).await?;
    let last = last.context("it is committed")?;
    read_the_chain(s3, &last).await
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn update(run: RunId, iteration: u32) -> PartKey {
    PartKey {
        run,
        iteration,
        stage: "update".to_owned(),
        part: 0,
    }
}

/// A chain of policies as large as those of 135m, of which each changes one number in two hundred.
async fn made_up() -> anyhow::Result<()> {
    const BYTES: usize = 270 << 20;
    let scratch = tempfile::tempdir()?;
    let s3 = S3Server::start(scratch.path()).await;
    let store = Store::open_with(&s3.url, &s3.env()).await?;
    let mut state = 1_u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize
    };
    let mut policy: Vec<u8> = (0..BYTES).map(|_| random() as u8).collect();
    let path = scratch.path().join("model.safetensors");
    let cache = scratch.path().join("cache");
    let mut last: Option<Manifest> = None;
    for iteration in 1..=ITERATIONS + 1 {
        std::fs::write(&path, &policy)?;
        let slot = update(RUN.parse()?, iteration);
        let attempt = AttemptId::new(1);
        let mut outputs = Outputs::new(store.clone(), slot.clone(), attempt.clone());
        let made = match &last {
            None => outputs.file(POLICY, "policy", &path).await?,
            Some(before) => {
                let commits = vec![("policy".to_owned(), before.clone())];
                let inputs = Inputs::new(store.clone(), commits, &cache);
                let base = before.output(POLICY).context("it is there")?;
                (outputs.differing(POLICY, "policy", &path, base, 2, &inputs)).await?
            }
        };
        last = Some(Manifest::new(slot, attempt, vec![made.clone()]));
        for _ in 0..BYTES / 2 / 200 {
            let at = random() % (BYTES / 2) * 2;
            policy[at] = policy[at].wrapping_add(1);
        }
    }
    read_the_chain(&s3, &last.context("there is one")?).await
}

/// How long a machine without any policy reads the last one over the line, and one that is stored whole.
async fn read_the_chain(s3: &S3Server, manifest: &Manifest) -> anyhow::Result<()> {
    let slot = manifest.slot();
    let policy = manifest.output(POLICY);
    let policy = policy.context("an update has a policy")?;
    let whole = policy.links().last().unwrap_or(policy);
    let by_line = s3.url_by(line_to(s3.address(), GIGABIT).await);
    let env = s3.env();
    let env: Vec<_> = (env
        .into_iter()
        .filter(|(name, _)| *name != "AWS_ENDPOINT_URL"))
    .collect();
    for (what, artifact) in [("whole", whole), ("last", policy), ("whole", whole)] {
        let store = Store::open_with(&by_line, &env).await?;
        let attempt = AttemptId::new(1);
        let commit = Manifest::new(slot.clone(), attempt, vec![artifact.clone()]);
        let cache = tempfile::tempdir()?;
        let begun = Instant::now();
        let inputs = Inputs::new(store, vec![("policy".to_owned(), commit)], cache.path());
        inputs.folder("policy", "policy").await?;
        println!(
            "the {what} policy, {} links, is read in {:.2} s",
            artifact.links().count(),
            begun.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
