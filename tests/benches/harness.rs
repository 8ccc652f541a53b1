//! What an agent behind a harness costs beside an environment. `cargo bench --workspace --bench harness` plays
//! 64 recorded conversations twice: once an environment gives the observations, once an agent asks the
//! gateway with them, all conversations at once. It prints the processor's seconds of the program that
//! samples, by sampled token, and their ratio; then how much later an agent gets its answer where each is
//! written to the store before (`jobs.journal_interval_s=0`). Nothing is asserted: timings vary. Needs the
//! built programs.

#![expect(
    clippy::unwrap_used,
    reason = "the requests are those of the program that this bench starts"
)]

use agentgym_storage::{PartKey, RunId, Store};
use agentgym_tests::program::{finish, program};
use anyhow::{Context as _, ensure};
use axum::extract::{Json, State};
use axum::routing::post;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::str::FromStr as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const CONVERSATIONS: usize = 64;
const ROUNDS: usize = 6;
const REPEATS: usize = 7;
/// Ticks of `/proc/self/stat` in a second.
const TICKS: f64 = 100.0;

/// What the user says in a conversation before its `round`th answer.
fn said(item: usize, round: usize) -> String {
    let things = ["a chest", "a red door", "an oak table", "three torches"];
    let thing = |n: usize| things[(item * 7 + round * 3 + n) % things.len()];
    let [a, b] = [thing(0), thing(1)];
    format!("Room {item}, step {round}: you see {a} and {b}. The way north is free.")
}

#[derive(Default)]
struct Recorded {
    sessions: HashMap<u64, Playing>,
    next: u64,
    /// Seconds from a request to its answer.
    waits: Vec<f64>,
}

#[derive(Default)]
struct Playing {
    item: usize,
    round: usize,
    agent: Option<JoinHandle<()>>,
}

type Table = Arc<Mutex<Recorded>>;

async fn create(State(table): State<Table>) -> Json<Value> {
    let mut table = table.lock().unwrap();
    table.next += 1;
    let id = table.next;
    table.sessions.insert(id, Playing::default());
    Json(json!({"id": id}))
}

async fn reset(State(table): State<Table>, Json(asked): Json<Value>) -> Json<Value> {
    let item = asked["data_idx"].as_u64().unwrap() as usize;
    let id = asked["id"].as_u64().unwrap();
    table.lock().unwrap().sessions.insert(
        id,
        Playing {
            item,
            ..Playing::default()
        },
    );
    Json(json!({"observation": said(item, 0)}))
}

async fn close(State(table): State<Table>, Json(asked): Json<Value>) -> Json<Value> {
    let id = asked["id"].as_u64().unwrap();
    table.lock().unwrap().sessions.remove(&id);
    Json(json!(true))
}

/// A step of the environment; or, where the action starts an agent, the wait for its end.
async fn step(State(table): State<Table>, Json(asked): Json<Value>) -> Json<Value> {
    let id = asked["id"].as_u64().unwrap();
    let order: Option<Value> = serde_json::from_str(asked["action"].as_str().unwrap()).ok();
    let order = order.filter(|order| order["base_url"].is_string());
    let Some(order) = order else {
        let mut table = table.lock().unwrap();
        let session = table.sessions.get_mut(&id).unwrap();
        session.round += 1;
        let done = session.round == ROUNDS;
        return Json(
            json!({"observation": said(session.item, session.round), "reward": 0.0, "done": done}),
        );
    };
    let running = {
        let mut all = table.lock().unwrap();
        let session = all.sessions.get_mut(&id).unwrap();
        let item = session.item;
        let agent = session.agent.take();
        agent.unwrap_or_else(|| tokio::spawn(plays(Arc::clone(&table), item, order)))
    };
    running.await.unwrap();
    Json(json!({"observation": "", "reward": 0.0, "done": true}))
}

/// The agent: it sends what it has heard, and the next thing that was said.
async fn plays(table: Table, item: usize, order: Value) {
    let url = format!(
        "{}/v1/chat/completions",
        order["base_url"].as_str().unwrap()
    );
    let http = agentgym_envs::http_client(&url).build().unwrap();
    let mut messages = Vec::new();
    for round in 0..ROUNDS {
        messages.push(json!({"role": "user", "content": said(item, round)}));
        let asked = Instant::now();
        let request = http
            .post(&url)
            .bearer_auth(order["api_key"].as_str().unwrap())
            .json(&json!({"model": "policy", "messages": messages}));
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        let waited = asked.elapsed().as_secs_f64();
        table.lock().unwrap().waits.push(waited);
        messages.push(answer["choices"][0]["message"].clone());
    }
}

/// What a run has cost.
struct Cost {
    cpu_s: f64,
    tokens: f64,
    wall_s: f64,
}

fn children_cpu_s() -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').context("no name in stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // The 16th and 17th of all, which are counted from 1; two come before the parenthesis closes.
    let ticks = |at: usize| fields[at - 3].parse::<f64>();
    Ok((ticks(16)? + ticks(17)?) / TICKS)
}

async fn played(url: &str, harness: bool, more: &[&str]) -> anyhow::Result<Cost> {
    let scratch = tempfile::tempdir()?;
    let spec = scratch.path().join("recorded.yaml");
    let kind = if harness { "harness: true\n" } else { "" };
    std::fs::write(&spec, format!("name: recorded\n{kind}"))?;
    let config = format!(
        "run: {{id: recorded, pipeline: eval}}
actor_rollout_ref:
  model: {{path: 'tiny?hidden=128&layers=4&vocab=512'}}
  rollout: {{max_tokens: 48, max_model_len: 4096}}
  agentgym: {{task_name: recorded, env_addr: '{url}', specs: ['{}']}}
data: {{max_prompt_length: 512, max_response_length: 2048}}
algorithm: {{rounds_ctrl: {{rounds: {ROUNDS}}}}}
evaluation: {{samples: 1, max_rounds: {ROUNDS}, sets: [{{name: all, env: recorded, ids: '0..{CONVERSATIONS}'}}]}}
jobs: {{threads: 1, decode_rows: {CONVERSATIONS}}}
",
        spec.display()
    );
    let path = scratch.path().join("recorded.run.yaml");
    std::fs::write(&path, config)?;
    let store = scratch.path().join("store").display().to_string();
    let mut command = program("agentgym-submit");
    command.arg(&path).args(more).arg("--quiet");
    command.args(["--store", &store]);
    let before = children_cpu_s()?;
    let output = tokio::task::spawn_blocking(|| finish(command)).await?;
    let cpu_s = children_cpu_s()? - before;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let slot = PartKey {
        run: RunId::from_str("recorded")?,
        iteration: 0,
        stage: "evaluate".into(),
        part: 0,
    };
    let store = Store::open(&store).await?;
    let manifest = store.manifest(&slot).await?;
    let manifest = manifest.context("the evaluation is committed")?;
    let work = manifest.work.context("a commit says how it went")?;
    let tokens = work.stats["sampled_tokens"].as_f64();
    Ok(Cost {
        cpu_s,
        tokens: tokens.context("tokens are counted")?,
        wall_s: work.wall_s,
    })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // `cargo test --benches` only checks that it runs.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let table = Table::default();
    let router = axum::Router::new()
        .route("/create", post(create))
        .route("/reset", post(reset))
        .route("/step", post(step))
        .route("/close", post(close))
        .with_state(Arc::clone(&table));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    println!("{CONVERSATIONS} conversations of {ROUNDS} answers at once, one thread that samples");
    let mut ratios = Vec::new();
    for _ in 0..REPEATS {
        let mut by_token = Vec::new();
        for (kind, harness) in [("environment", false), ("agent", true)] {
            let cost = played(&url, harness, &[]).await?;
            by_token.push(1e6 * cost.cpu_s / cost.tokens);
            println!(
                "{kind:11}: {:.0} tokens, {:.1} CPU-seconds, {:.1} µs a token, {:.1} s",
                cost.tokens,
                cost.cpu_s,
                by_token[by_token.len() - 1],
                cost.wall_s
            );
        }
        ratios.push(by_token[1] / by_token[0]);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "CPU-seconds a token, agent over environment: {:.3} (median of {REPEATS} pairs, {:.3} to {:.3})",
        ratios[REPEATS / 2],
        ratios[0],
        ratios[REPEATS - 1]
    );
    for (name, interval) in [("5 s", "5"), ("before each answer", "0")] {
        table.lock().unwrap().waits.clear();
        let option = format!("jobs.journal_interval_s={interval}");
        let cost = played(&url, true, &[&option]).await?;
        let mut waits = std::mem::take(&mut table.lock().unwrap().waits);
        waits.sort_by(f64::total_cmp);
        let median = Duration::from_secs_f64(waits[waits.len() / 2]);
        let mean = Duration::from_secs_f64(waits.iter().sum::<f64>() / waits.len() as f64);
        println!(
            "journalled {name}: an answer after {median:.0?} (median), {mean:.0?} (mean), {:.1} s in all",
            cost.wall_s
        );
    }
    Ok(())
}
