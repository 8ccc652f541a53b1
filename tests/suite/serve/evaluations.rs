//! An evaluation played by a chat API: our own server, behind a door that counts what is asked. The same
//! policy, asked greedily by texts or by our own engine, solves the same tasks, and a worker that is
//! killed asks for no turn again that is journalled.

use super::server::Server;
use crate::durability::said;
use agentgym_tests::files::files_below;
use agentgym_tests::program::{Running, finish, program};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::Semaphore;

const BASE: &str = "models/base";
const KEY: &str = "sk-shown-to-the-api-alone";
const PATIENCE: Duration = Duration::from_secs(120);
/// Answers before the kill.
const FIRST: usize = 20;

const CONFIG: &str = "
actor_rollout_ref:
  model: {path: models/base}
  rollout: {max_tokens: 48, max_model_len: 1024}
  agentgym: {task_name: textcraft, env_addr: 'builtin?distractors=4'}
data: {max_prompt_length: 512, max_response_length: 512}
jobs: {lease_ttl_s: 2, journal_interval_s: 0.1, threads: 1}
evaluation:
  samples: 1
  temperature: 0
  max_rounds: 6
  sets: [{name: real, env: textcraft, ids: [1, 7, 13, 19, 25, 59, 65, 71]}]
";

/// In the goal of one of the tasks alone.
const FILTERED: &str = "Goal: craft broom handle.";

/// What went through the door.
struct Door {
    server: String,
    http: reqwest::Client,
    allowed: Semaphore,
    /// Conversations that were answered, with what each took.
    answered: Mutex<Vec<(String, [u64; 2])>>,
}

async fn pass(
    State(door): State<Arc<Door>>,
    headers: HeaderMap,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    let given = headers.get("authorization").map(|v| v.to_str().unwrap());
    if given != Some(&format!("Bearer {KEY}")) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    door.allowed.acquire().await.unwrap().forget();
    let url = format!("{}/v1/chat/completions", door.server);
    let answer = door.http.post(url).json(&body).send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    let count = |name: &str| answer["usage"][name].as_u64().unwrap();
    let usage = [count("prompt_tokens"), count("completion_tokens")];
    let mut answered = door.answered.lock().unwrap();
    answered.push((body["messages"].to_string(), usage));
    (StatusCode::from_u16(status).unwrap(), text).into_response()
}

fn eval(folder: &Path, name: &str, keys: &[String]) -> Command {
    let config = folder.join(format!("{name}.yaml"));
    std::fs::write(&config, CONFIG).unwrap();
    let mut command = program("agentgym-submit");
    command
        .arg("eval")
        .arg(config)
        .arg(format!("run.id={name}"));
    command
        .args(["--json", "--store"])
        .arg(folder.join("store"));
    command.args(keys).env("AGENTGYM_SERVER_KEY", KEY);
    command
}

async fn told(command: Command) -> Value {
    let told = tokio::task::spawn_blocking(move || said(command)).await;
    serde_json::from_str(&told.unwrap()).unwrap()
}

fn successes(store: &Path, run: &str) -> Vec<(String, bool)> {
    let items = store.join(format!("exports/{run}/items.jsonl"));
    let lines = std::fs::read_to_string(items).unwrap();
    let read = |line: &str| {
        let item: Value = serde_json::from_str(line).unwrap();
        (
            item["task"].to_string(),
            item["samples"][0]["success"] == true,
        )
    };
    lines.lines().map(read).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_behind_a_chat_api_solves_what_it_solves_here_and_no_answer_is_asked_for_twice() {
    let folder = TempDir::new().unwrap();
    let store = folder.path().join("store");
    let server = Server::of(BASE, &[]).await;
    let door = Arc::new(Door {
        server: server.url.clone(),
        http: agentgym_envs::http_client(&server.url).build().unwrap(),
        allowed: Semaphore::new(FIRST),
        answered: Mutex::default(),
    });
    let app = axum::Router::new()
        .route("/v1/chat/completions", axum::routing::post(pass))
        .with_state(Arc::clone(&door));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });

    let own = told(eval(folder.path(), "own", &[])).await;
    let keys = [
        "engine=chat".to_owned(),
        format!("server.url={url}"),
        format!("server.model={}", server.model),
        "server.price_input=1.5".to_owned(),
        "server.price_output=6".to_owned(),
    ];
    let keys = keys.map(|key| format!("actor_rollout_ref.rollout.{key}"));
    let log = folder.path().join("chat.log");
    let mut running = Running::start_logged(eval(folder.path(), "chat", &keys), &log);
    let begun = Instant::now();
    while door.answered.lock().unwrap().len() < FIRST {
        let log = || std::fs::read_to_string(&log).unwrap();
        assert!(
            begun.elapsed() < PATIENCE && !running.has_ended(),
            "{}",
            log()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The door is shut: what was answered is journalled, and the worker waits for more.
    tokio::time::sleep(Duration::from_secs(2)).await;
    running.kill();
    let first: Vec<_> = door.answered.lock().unwrap().drain(..).collect();
    assert_eq!(first.len(), FIRST);
    door.allowed.add_permits(10_000);
    let chat = told(eval(folder.path(), "chat", &keys)).await;
    let second = door.answered.lock().unwrap().clone();
    let again: Vec<_> = second.iter().filter(|one| first.contains(one)).collect();
    assert!(again.is_empty(), "asked again: {again:?}");

    assert_eq!(successes(&store, "own"), successes(&store, "chat"));
    let score = &chat["sets"]["real"]["score"]["pass"]["1"]["mean"];
    assert_eq!(*score, own["sets"]["real"]["score"]["pass"]["1"]["mean"]);
    let solved = score.as_f64().unwrap();
    assert!(0.0 < solved && solved < 1.0, "{solved}");
    // A third time nothing is asked, and the report is the same.
    assert_eq!(
        told(eval(folder.path(), "chat", &keys)).await["sets"],
        chat["sets"]
    );
    assert_eq!(door.answered.lock().unwrap().len(), second.len());

    // Each answer is counted once, whichever attempt got it.
    let sum = |which: usize| {
        first
            .iter()
            .chain(&second)
            .map(|(_, usage)| usage[which])
            .sum::<u64>()
    };
    let usage = &chat["sets"]["real"]["usage"];
    assert_eq!(usage["answers"], first.len() + second.len());
    assert_eq!(
        (&usage["tokens_in"], &usage["tokens_out"]),
        (&sum(0).into(), &sum(1).into())
    );
    let cost = (sum(0) as f64 * 1.5 + sum(1) as f64 * 6.0) / 1e6;
    assert!((usage["cost"].as_f64().unwrap() - cost).abs() < 1e-12);
    assert!(own["sets"]["real"].get("usage").is_none());

    let mut inspect = program("agentgym-submit");
    inspect.args(["inspect", "chat", "0", "evaluate", "0", "--json", "--store"]);
    let shown = told({
        inspect.arg(&store);
        inspect
    });
    let shown = shown.await;
    let mut turns = 0;
    for record in shown["records"].as_array().unwrap() {
        turns += record["turns"].as_array().unwrap().len();
        for sequence in record["sequences"].as_array().unwrap() {
            let all = sequence["loss_mask"].as_array().unwrap().iter();
            let all = all.zip(sequence["sampled_log_probs"].as_array().unwrap());
            for (mask, log_prob) in all {
                assert!(if *mask == 1 {
                    log_prob.is_null()
                } else {
                    *log_prob == 0.0
                });
            }
        }
    }
    assert_eq!(turns, first.len() + second.len());
    let mut tokens = program("agentgym-submit");
    tokens.args([
        "inspect", "chat", "0", "evaluate", "0", "--tokens", "--group", "0", "--store",
    ]);
    tokens.arg(&store);
    assert!(!said(tokens).contains("NaN"));
    let mut compare = program("agentgym-submit");
    compare
        .args(["compare", "own", "chat", "--store"])
        .arg(&store);
    let compared = said(compare);
    assert!(
        compared.contains("0 gained, 0 lost, 8 the same"),
        "{compared}"
    );
    for file in files_below(folder.path()) {
        let bytes = std::fs::read(&file).unwrap();
        let found = bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes());
        assert!(!found, "{} holds the key", file.display());
    }
    // Another model is another run: it is not answered from what this one said.
    let other = keys.clone().map(|key| match key.contains("server.model") {
        true => format!("{key}-other"),
        false => key,
    });
    let refused = finish(eval(folder.path(), "chat", &other));
    let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && complaint.contains("server.model"),
        "{complaint}"
    );
    server.end().await;
}

/// An API that says the same to everybody and filters one task: that episode is left out, and the others
/// are judged.
#[tokio::test(flavor = "multi_thread")]
async fn an_episode_that_an_api_filters_is_in_no_mean() {
    let answered = |axum::Json(body): axum::Json<Value>| async move {
        let words = body["messages"][0]["content"].as_str().unwrap();
        let is_filtered = words.contains(FILTERED);
        let (text, finish) = match is_filtered {
            true => (Value::Null, "content_filter"),
            false => ("Action: look".into(), "stop"),
        };
        axum::Json(serde_json::json!({
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        }))
    };
    let app = axum::Router::new().route("/v1/chat/completions", axum::routing::post(answered));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let folder = TempDir::new().unwrap();
    let keys = [
        "engine=chat".to_owned(),
        format!("server.url={url}"),
        "server.model=m".to_owned(),
    ];
    let keys = keys.map(|key| format!("actor_rollout_ref.rollout.{key}"));
    let found = told(eval(folder.path(), "filtered", &keys)).await;
    let set = &found["sets"]["real"];
    assert_eq!(set["outcomes"]["no_message"], 1, "{set}");
    assert_eq!(set["score"]["items_lost"], 1);
    assert_eq!(set["score"]["pass"]["1"]["of"], 7, "{set}");
    assert_eq!(set["usage"]["answers_uncounted"], set["usage"]["answers"]);
    assert!(set["usage"]["cost"].is_null());
    let mut inspect = program("agentgym-submit");
    inspect.args([
        "inspect", "filtered", "0", "evaluate", "0", "--json", "--store",
    ]);
    inspect.arg(folder.path().join("store"));
    let shown = told(inspect).await;
    let faults = shown["records"].as_array().unwrap().iter();
    let faults: Vec<&str> = faults
        .filter_map(|record| record["fault"].as_str())
        .collect();
    assert!(
        faults.len() == 1 && faults[0].contains("content_filter"),
        "{faults:?}"
    );
}
