//! Damaged or malicious server replies: the client reads or refuses them and never panics.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, Uri};
use serde_json::{Value, json};

use crate::mutations::mutated;
use crate::spec::{EnvSpec, FirstObservation, IdInReply};
use crate::{ClientOptions, EnvClient, spec};

/// Every distinct answer in the recorded exchanges of an environment, and some of other servers.
fn answers(name: &str) -> Vec<Vec<u8>> {
    let fixtures = std::env::var_os("AGENTGYM_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures"),
        PathBuf::from,
    );
    let path = fixtures.join(format!("transcripts/{name}.json"));
    let mut answers: Vec<String> = [
        "3",
        "\"text\"",
        "{\"id\": 7}",
        "{\"env_idx\": 7, \"env_id\": 7}",
        "{\"error\": \"no such game\"}",
        "{\"observation\": \"a\", \"state\": \"a\", \"reward\": 0.5, \"done\": false, \"info\": {}}",
        "{\"observation\": \"a\", \"available_actions\": {\"has_search_bar\": true, \"clickables\": [\"x\"]}}",
        "[\"first\", {\"a\": 1}]",
    ]
    .map(str::to_owned)
    .into();
    if let Ok(bytes) = std::fs::read(path) {
        let recorded: Value = serde_json::from_slice(&bytes).unwrap();
        let sections = recorded["sections"].as_array().unwrap().iter();
        let calls = sections.flat_map(|section| section["calls"].as_array().unwrap());
        let replies = calls.map(|call| call["response"]["json"].to_string());
        answers.extend(replies.filter(|reply| reply.len() < 20_000));
    }
    answers.sort();
    answers.dedup();
    answers.into_iter().map(String::into_bytes).collect()
}

#[derive(Clone)]
struct Liar {
    spec: &'static EnvSpec,
    answers: Arc<Vec<Vec<u8>>>,
    calls: Arc<AtomicU64>,
}

/// The reply of a correct server to a request for this path.
fn truth(spec: &EnvSpec, path: &str) -> Value {
    match path.rsplit('/').next().unwrap_or_default() {
        "create" => match spec.id_in_reply {
            IdInReply::Bare => json!(7),
            IdInReply::Key(key) => json!({ key: 7 }),
        },
        "close" => json!(true),
        "observation" => json!("You see a chest."),
        "reset" => match spec.first_observation {
            FirstObservation::Observe => json!({}),
            FirstObservation::Bare => json!(["You see a chest.", {}]),
            FirstObservation::Keys(keys) => {
                let texts = keys
                    .iter()
                    .map(|key| ((*key).to_owned(), json!("A chest.")));
                Value::Object(texts.collect())
            }
        },
        "step" => json!({
            spec.observation_key: "It is empty.", spec.reward_key: 0, spec.done_key: false,
        }),
        _ => json!(["open chest", "go north"]),
    }
}

async fn answer(State(liar): State<Liar>, uri: Uri) -> Response<Body> {
    let call = liar.calls.fetch_add(1, Ordering::Relaxed);
    let answers = &liar.answers;
    // Episodes send requests in a fixed rhythm; the answers must not follow the same rhythm.
    let draw = call.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let body = match draw % 8 {
        0 => answers[(draw / 8) as usize % answers.len()].clone(),
        1 | 2 => mutated(call, answers),
        // Often enough that sessions are opened and played.
        _ => truth(liar.spec, uri.path()).to_string().into_bytes(),
    };
    let status = if call % 29 == 7 { 500 } else { 200 };
    let response = Response::builder().status(status).body(Body::from(body));
    response.expect("a response")
}

/// Single-threaded, so that a panic in any task fails the test.
#[tokio::test]
async fn answers_of_servers() {
    const EPISODES: i64 = 60;
    for spec in spec::all() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "http://{}{}",
            listener.local_addr().unwrap(),
            spec.path_prefix
        );
        let liar = Liar {
            spec,
            answers: Arc::new(answers(spec.name)),
            calls: Arc::default(),
        };
        let calls = Arc::clone(&liar.calls);
        let router = Router::new().fallback(answer).with_state(liar);
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let options = ClientOptions {
            attempts_max: 1,
            backoff_first_s: 0.001,
            avoid_s: 0.0,
            ..ClientOptions::default()
        };
        let client = EnvClient::new(spec, &[url], options).unwrap();
        let mut steps = 0;
        for item in 0..EPISODES {
            let Ok(mut session) = client.open(item).await else {
                continue;
            };
            let _ = session.available_actions().await;
            for text in ["Action: go north", "Thought: x\nAction:\nclick[b]", "\u{0}"] {
                if let Ok(output) = session.step(text).await {
                    assert!(output.reward.is_finite(), "{}", spec.name);
                    steps += 1;
                }
            }
            let _ = session.close().await;
        }
        client.drain().await;
        assert!(calls.load(Ordering::Relaxed) >= EPISODES as u64);
        assert!(steps > 0, "{} never took a step", spec.name);
        server.abort();
    }
}
