//! The client against servers that play back recorded exchanges of the original servers. The client
//! must send the recorded requests and interpret the replies as each environment's documentation
//! says.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Value, json};

use super::*;
use crate::error::FaultKind;
use crate::spec::{CreateBody, IdInReply};
use crate::spec::{Fixed, spec};

fn transcript(name: &str) -> Value {
    let fixtures = std::env::var_os("AGENTGYM_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures"),
        PathBuf::from,
    );
    let path = fixtures.join(format!("transcripts/{name}.json"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).expect("the transcript is JSON")
}

/// Replies by request (path with query, body). Several replies to the same request are given in
/// order, the last one repeatedly.
#[derive(Clone, Default)]
struct Script(Arc<Mutex<BTreeMap<String, VecDeque<Value>>>>);

impl Script {
    fn add(&self, request: &Value, response: &Value) {
        let key = Self::key(
            request["path"].as_str().expect("a path"),
            request.get("json"),
        );
        let mut replies = self.0.lock().expect("not poisoned");
        replies.entry(key).or_default().push_back(response.clone());
    }

    fn key(path: &str, body: Option<&Value>) -> String {
        // Key order does not matter; no body and an empty object are different requests.
        let mut pairs: Vec<String> = body
            .and_then(Value::as_object)
            .map(|body| {
                body.iter()
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect()
            })
            .unwrap_or_default();
        pairs.sort();
        format!("{path} {} {}", body.is_some(), pairs.join("&"))
    }

    fn take(&self, key: &str) -> Option<Value> {
        let mut replies = self.0.lock().expect("not poisoned");
        let queue = replies.get_mut(key)?;
        if queue.len() > 1 {
            queue.pop_front()
        } else {
            queue.front().cloned()
        }
    }

    async fn serve(self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let router = Router::new().fallback(answer).with_state(self);
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }
}

async fn answer(State(script): State<Script>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let path = head.uri.path_and_query().expect("a path").to_string();
    let bytes = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let body: Option<Value> = serde_json::from_slice(&bytes).ok();
    let key = Script::key(&path, body.as_ref());
    let reply = script
        .take(&key)
        .unwrap_or_else(|| json!({"status": 599, "text": format!("not recorded: {key}")}));
    let text = match reply.get("json") {
        Some(json) => json.to_string(),
        None => reply["text"].as_str().unwrap_or_default().to_owned(),
    };
    Response::builder()
        .status(reply["status"].as_u64().expect("a status") as u16)
        .body(Body::from(text))
        .expect("a response")
}

/// The expected result of a recorded step.
enum Expected {
    Output(String, f64, bool, bool),
    Error(FaultKind),
}

/// A reset and the steps after it.
struct Episode {
    item: i64,
    session: Value,
    reset: Value,
    steps: Vec<(String, Value)>,
    script: Script,
}

fn episodes(name: &str) -> Vec<Episode> {
    let spec = spec(name).expect("known");
    let mut episodes: Vec<Episode> = Vec::new();
    for section in transcript(name)["sections"].as_array().expect("sections") {
        let mut current: Option<Episode> = None;
        if (name, &section["name"]) == ("searchqa", &json!("actions")) {
            // Its session was created on item 0;  the text is the same everywhere.
            let first = episodes.iter().find(|episode| episode.item == 0);
            let reset = first.expect("item 0 was recorded").reset.clone();
            let script = Script::default();
            let request = json!({"path": "/reset", "json": {"env_idx": 2, "id": 0}});
            script.add(&request, &reset);
            current = Some(Episode {
                item: 0,
                session: json!(2),
                reset,
                steps: Vec::new(),
                script,
            });
        }
        for call in section["calls"].as_array().expect("calls") {
            let (request, response) = (&call["request"], &call["response"]);
            let body = &request["json"];
            let path = request["path"].as_str().expect("a path");
            let session = body[spec.id_key].clone();
            match path {
                "/reset" => {
                    episodes.extend(current.take());
                    // Skip requests that this client never sends.
                    let sent = body.as_object().map_or(0, |body| body.len());
                    let fixed = spec.reset_fixed.iter().all(|(key, value)| match value {
                        Fixed::Int(number) => body[*key] == *number,
                        Fixed::Text(text) => body[*key] == *text,
                    });
                    let ours = session.is_u64() && fixed && sent == 2 + spec.reset_fixed.len();
                    let Some(item) = body[spec.reset_key].as_i64().filter(|_| ours) else {
                        continue;
                    };
                    let script = Script::default();
                    script.add(request, response);
                    current = Some(Episode {
                        item,
                        session,
                        reset: response.clone(),
                        steps: Vec::new(),
                        script,
                    });
                }
                "/step" => {
                    let (Some(action), Some(episode)) = (body["action"].as_str(), &mut current)
                    else {
                        continue;
                    };
                    if episode.session == session {
                        episode.script.add(request, response);
                        episode.steps.push((action.to_owned(), response.clone()));
                    }
                }
                _ if path.starts_with("/observation?") => {
                    if let Some(episode) = &current
                        && episode.steps.is_empty()
                    {
                        episode.script.add(request, response);
                    }
                }
                "/create" | "/close" => episodes.extend(current.take()),
                _ => {}
            }
        }
        episodes.extend(current.take());
    }
    episodes
}

fn create_request(spec: &EnvSpec, item: i64) -> Value {
    match spec.create_body {
        CreateBody::Nothing => json!({"path": "/create"}),
        CreateBody::EmptyObject => json!({"path": "/create", "json": {}}),
        CreateBody::Item(key) => json!({"path": "/create", "json": {key: item}}),
    }
}

/// Plays every recorded episode. Returns how many steps were compared, and which ones were not sent
/// because the client's own cleaning never sends them.
async fn play(
    name: &str,
    model_text: impl Fn(&str) -> String,
    expected: impl Fn(&Value) -> Expected,
    first: impl Fn(&Episode) -> Option<String>,
) -> (usize, usize, usize) {
    let spec = spec(name).expect("known");
    let (mut steps, mut errors, mut unsent) = (0, 0, 0);
    for episode in episodes(name) {
        let id = match spec.id_in_reply {
            IdInReply::Bare => episode.session.clone(),
            IdInReply::Key(key) => json!({ key: episode.session }),
        };
        let created = json!({"status": 200, "json": id});
        episode
            .script
            .add(&create_request(spec, episode.item), &created);
        let close = json!({"path": "/close", "json": {spec.id_key: episode.session}});
        episode
            .script
            .add(&close, &json!({"status": 200, "json": true}));
        let url = episode.script.clone().serve().await;
        let options = ClientOptions {
            attempts_max: 1,
            ..ClientOptions::default()
        };
        let client = EnvClient::new(spec, &[url], options).expect("a valid address");
        let context = format!("{name} item {}", episode.item);
        let first = first(&episode);
        let mut session = match (client.open(episode.item).await, first) {
            (Ok(session), Some(first)) => {
                assert_eq!(session.observation(), first, "{context}");
                session
            }
            (Err(error), None) => {
                assert!(
                    !error.to_string().contains("not recorded"),
                    "{context}: {error}"
                );
                errors += 1;
                continue;
            }
            (Ok(_), None) => panic!("{context}: a failed reset was taken for a good one"),
            (Err(error), Some(_)) => panic!("{context}: {error}"),
        };
        for (action, response) in &episode.steps {
            let text = model_text(action);
            if spec.parse(&text).action.as_ref() != Some(action) {
                unsent += 1;
                continue;
            }
            let context = format!("{context}, {action:?}");
            match (session.step(&text).await, expected(response)) {
                (Ok(step), Expected::Output(observation, reward, done, success)) => {
                    assert_eq!(step.observation, observation, "{context}");
                    assert_eq!((step.done, step.success), (done, success), "{context}");
                    assert!(
                        (step.reward - reward).abs() < 1e-12,
                        "{context}: {}",
                        step.reward
                    );
                    assert!(
                        !step.local && step.action.as_ref() == Some(action),
                        "{context}"
                    );
                    steps += 1;
                    if done {
                        // Some servers continue after the end; this client never asks them to.
                        session.close().await.expect("closed");
                        session = client.open(episode.item).await.expect("opened again");
                    }
                }
                (Err(error), Expected::Error(kind)) => {
                    assert_eq!(error.kind(), kind, "{context}: {error}");
                    errors += 1;
                    session.close().await.expect("closed");
                    session = client.open(episode.item).await.expect("opened again");
                }
                (found, _) => panic!("{context}: {found:?}\nrecorded {response}"),
            }
        }
        session.close().await.expect("closed");
        client.drain().await;
        assert_eq!(client.counters().open(), 0, "{context}");
    }
    eprintln!("{name}: {steps} steps and {errors} errors compared, {unsent} never sent");
    (steps, errors, unsent)
}

fn reset_text(episode: &Episode) -> Option<String> {
    Some(episode.reset["json"]["observation"].as_str()?.to_owned())
}

/// A soft error, or the reply under these keys, with success as a function of the reward.
fn soft(key: &'static str, scale: f64, success: fn(f64) -> bool) -> impl Fn(&Value) -> Expected {
    move |response| {
        let body = &response["json"];
        if let Some(text) = body["error"].as_str() {
            return Expected::Error(match text.contains("has finished") {
                true => FaultKind::Finished,
                false => FaultKind::Faulted,
            });
        }
        let reward = body[key].as_f64().expect("a number") * scale;
        Expected::Output(
            body["observation"].as_str().expect("a text").to_owned(),
            reward,
            body["done"].as_bool().expect("a flag"),
            success(reward),
        )
    }
}

fn after_marker(action: &str) -> String {
    format!("Thought: as recorded.\nAction: {action}")
}

#[tokio::test]
async fn textcraft_as_recorded() {
    let expected = soft("reward", 1.0, |reward| reward >= 1.0);
    let (steps, _, _) = play("textcraft", after_marker, expected, reset_text).await;
    assert!(steps > 40, "{steps}");
}

#[tokio::test]
async fn babyai_as_recorded() {
    let expected = soft("score", 1.0, |score| score > 0.0);
    let (steps, errors, _) = play("babyai", after_marker, expected, reset_text).await;
    assert!(steps > 60 && errors >= 4, "{steps} {errors}");
}

#[tokio::test]
async fn sciworld_as_recorded() {
    let expected = soft("score", 0.01, |score| score >= 1.0);
    let first = |episode: &Episode| {
        let body = &episode.reset["json"];
        let task = body["task_description"].as_str()?;
        Some(format!("{task}\n{}", body["observation"].as_str()?))
    };
    let (steps, errors, _) = play("sciworld", after_marker, expected, first).await;
    assert!(steps > 35 && errors >= 1, "{steps} {errors}");
}

#[tokio::test]
async fn searchqa_as_recorded() {
    let expected = |response: &Value| match response["status"].as_u64() {
        Some(200) => soft("reward", 1.0, |reward| reward == 1.0)(response),
        _ => Expected::Error(FaultKind::Refused),
    };
    let first = |episode: &Episode| Some(episode.reset["json"].as_str()?.to_owned());
    let (steps, errors, _) = play("searchqa", str::to_owned, expected, first).await;
    assert!(steps > 40 && errors >= 8, "{steps} {errors}");
}

#[tokio::test]
async fn webarena_as_recorded() {
    let expected = |response: &Value| {
        let body = &response["json"];
        let text = body["observation"].as_str().expect("a text").to_owned();
        let blames_model = ["Cannot parse action", "Invalid ", "list index out of range"]
            .iter()
            .any(|start| text.starts_with(start));
        if body["info"].is_null() && !blames_model {
            return Expected::Error(FaultKind::Faulted);
        }
        let done = body["terminated"].as_bool().expect("a flag");
        let reward = if done {
            body["reward"].as_f64().expect("a number")
        } else {
            0.0
        };
        Expected::Output(text, reward, done, reward == 1.0)
    };
    // The first message is the prompt of GET /observation, which was recorded once.
    let first = |episode: &Episode| {
        let body = &episode.reset["json"];
        if body["sites"] == "Error" {
            return None;
        }
        let key = Script::key(&format!("/observation?env_idx={}", episode.session), None);
        match episode.script.take(&key) {
            Some(reply) => Some(reply["json"].as_str()?.to_owned()),
            None => {
                let prompt = format!("OBSERVATION:\n{}", body["observation"].as_str()?);
                let path = format!("/observation?env_idx={}", episode.session);
                episode.script.add(
                    &json!({"path": path}),
                    &json!({"status": 200, "json": prompt}),
                );
                Some(prompt)
            }
        }
    };
    let (steps, errors, _) = play("webarena", str::to_owned, expected, first).await;
    assert!(steps > 15 && errors >= 3, "{steps} {errors}");
}

/// Environments without recordings, tested with the documented reply shapes.
#[tokio::test]
async fn documented_shapes_are_read() {
    struct Case {
        name: &'static str,
        created: Value,
        reset: Value,
        reset_request: Value,
        extra: Vec<(&'static str, Value)>,
        first: &'static str,
        model_text: &'static str,
        action: &'static str,
        step: Value,
        output: (&'static str, f64, bool),
        actions: Option<Vec<&'static str>>,
    }
    let indexed = |name, model_text: &'static str, action| Case {
        name,
        created: json!(5),
        reset: json!("goal"),
        reset_request: json!({"env_idx": 5, "id": 3}),
        extra: vec![],
        first: "goal",
        model_text,
        action,
        step: json!({"observation": "o", "reward": 0.5, "done": false}),
        output: ("o", 0.5, false),
        actions: None,
    };
    let tool = "Action: get_weather with Action Input: {}";
    let mut cases: Vec<Case> = ["weather", "movie", "academia", "sheet", "todo"]
        .map(|name| indexed(name, tool, tool))
        .into();
    cases.push(Case {
        reset: json!(["page", null]),
        reset_request: json!({"env_idx": 5, "session_id": 3}),
        extra: vec![(
            "/available_actions?env_idx=5",
            json!({"has_search_bar": true, "clickables": ["buy now"]}),
        )],
        first: "page",
        step: json!({"state": "bought", "reward": 1.0, "done": true, "info": null}),
        output: ("bought", 1.0, true),
        actions: Some(vec!["search[KEYWORDS]", "click[buy now]"]),
        ..indexed("webshop", "Action:\nclick[buy now]", "click[buy now]")
    });
    cases.push(Case {
        reset: json!(["tables", null]),
        reset_request: json!({"env_idx": 5, "item_id": 3}),
        first: "tables",
        step: json!({"state": "[(1,)]", "reward": 1.0, "done": true, "info": {}}),
        output: ("[(1,)]", 1.0, true),
        ..indexed("sqlgym", "```sql\nSELECT 1\n```", "SELECT 1")
    });
    cases.push(Case {
        created: json!({"id": 5}),
        reset: json!({"id": 5, "observation": "a room", "available_actions": ["look", "go to bed 1"], "task_type": "x"}),
        reset_request: json!({"id": 5, "game": 3, "world_type": "Text"}),
        first: "a room\nAVAILABLE ACTIONS: look, go to bed 1",
        step: json!({"observation": "done", "reward": 1.0, "available_actions": ["look"], "done": true}),
        output: ("done", 1.0, true),
        actions: Some(vec!["look"]),
        ..indexed("alfworld", "Action:\nlook", "look")
    });
    cases.push(Case {
        created: json!({"id": 5}),
        reset: json!({"observation": "You are lost."}),
        reset_request: json!({"id": 5, "game": 3}),
        extra: vec![("/available_actions", json!(["move up"]))],
        first: "You are lost.",
        step: json!({"observation": "Failure\n", "reward": -1.0, "done": true}),
        output: ("Failure\n", -1.0, true),
        actions: Some(vec!["move up"]),
        ..indexed("maze", "Action: move up", "move up")
    });
    cases.push(Case {
        created: json!({"id": 5}),
        reset: json!({"id": 5, "observation": "Let's start Wordle!"}),
        reset_request: json!({"id": 5, "seed": 3}),
        extra: vec![("/filtered_vocab?id=5", json!(["crane", "slate"]))],
        first: "Let's start Wordle!\nWords: crane, slate",
        step: json!({"observation": "b b y y b\n", "reward": 0, "done": false}),
        output: ("b b y y b\n", 0.0, false),
        actions: Some(vec!["crane", "slate"]),
        ..indexed("wordle", "Action: c r a n e", "c r a n e")
    });
    for case in cases {
        let name = case.name;
        let spec = spec(name).expect("known");
        let script = Script::default();
        let ok = |body: &Value| json!({"status": 200, "json": body});
        script.add(&create_request(spec, 3), &ok(&case.created));
        script.add(
            &json!({"path": "/reset", "json": case.reset_request}),
            &ok(&case.reset),
        );
        let step = json!({spec.id_key: 5, "action": case.action});
        script.add(&json!({"path": "/step", "json": step}), &ok(&case.step));
        for (path, reply) in &case.extra {
            script.add(&json!({"path": path}), &ok(reply));
        }
        let url = script.serve().await;
        let client = EnvClient::new(spec, &[url], ClientOptions::default()).expect("valid");
        let mut session = client
            .open(3)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(session.observation(), case.first, "{name}");
        let step = session.step(case.model_text).await;
        let step = step.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (step.observation.as_str(), step.reward, step.done),
            case.output,
            "{name}"
        );
        let actions = session.available_actions().await.expect(name);
        let actions: Option<Vec<&str>> = actions
            .as_ref()
            .map(|list| list.iter().map(String::as_str).collect());
        assert_eq!(actions, case.actions, "{name}");
        session.close().await.expect("kept");
        // None of these servers can close a session.
        client.drain().await;
        assert_eq!(client.counters().leaked, 1, "{name}");
    }
}

#[tokio::test]
async fn babyai_lists_actions_in_its_text_and_adds_to_no_reward() {
    let script = Script::default();
    let ok = |body: Value| json!({"status": 200, "json": body});
    let text = "In front of you …\nAvailable actions: [\"turn left\", \"go to red ball 1\"]";
    script.add(&json!({"path": "/create"}), &ok(json!({"id": 1})));
    script.add(
        &json!({"path": "/reset", "json": {"id": 1, "data_idx": 0}}),
        &ok(json!({"observation": text, "reward": 0, "score": 0, "deleted": false, "done": false})),
    );
    for (action, score) in [
        ("turn left", 0.0),
        ("go to red ball 1", 0.325),
        ("nonsense", 0.65),
    ] {
        script.add(
            &json!({"path": "/step", "json": {"id": 1, "action": action}}),
            &ok(json!({"observation": text, "reward": 0.325, "score": score, "done": false})),
        );
    }
    let url = script.serve().await;
    let spec = spec("babyai").expect("known");
    let client = EnvClient::new(spec, &[url], ClientOptions::default()).expect("valid");
    let mut session = client.open(0).await.expect("opened");
    let actions = session.available_actions().await.expect("a text");
    assert_eq!(actions.expect("a list"), ["turn left", "go to red ball 1"]);
    for (action, reward) in [
        ("turn left", 0.0),
        ("go to red ball 1", 0.325),
        ("nonsense", 0.325),
    ] {
        let step = session.step(&after_marker(action)).await.expect("a reply");
        assert_eq!((step.reward, step.success), (reward, reward > 0.0));
    }
}
