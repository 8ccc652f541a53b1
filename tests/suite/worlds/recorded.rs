//! What was recorded of original servers: WebArena's exchanges as a server, and episodes as
//! demonstrations.

use agentgym_envs::spec;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// The calls of a section of a recorded file.
///
/// # Panics
/// If there is no such section.
fn calls(file: &str, section: &str) -> Vec<Value> {
    let fixtures = std::env::var_os("AGENTGYM_FIXTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures"),
        PathBuf::from,
    );
    let path = fixtures.join("transcripts").join(file);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let recorded: Value = serde_json::from_slice(&bytes).expect("a transcript is JSON");
    let sections = recorded["sections"].as_array().expect("sections");
    let found = sections.iter().find(|found| found["name"] == section);
    let found = found.unwrap_or_else(|| panic!("{file} has no section {section}"));
    found["calls"].as_array().expect("calls").clone()
}

/// The action's own text, which alone decides what WebArena does: the first block between fences.
fn fenced(action: &str) -> Option<&str> {
    action.split("```").nth(1)
}

/// The first episode of a section as a demonstration of at most `turns` turns.
pub(super) fn demonstration(env: &str, file: &str, section: &str, turns: usize) -> Value {
    let instruction = spec(env).expect("a known environment").instruction;
    let line = |from: &str, value: String| json!({"from": from, "value": value, "loss": null});
    let (mut lines, mut item) = (Vec::new(), Value::Null);
    for call in calls(file, section) {
        let (request, reply) = (&call["request"], &call["response"]["json"]);
        let path = request["path"].as_str().expect("a path");
        let first = match (path, reply["task_description"].as_str()) {
            ("/reset", _) if !lines.is_empty() => break,
            ("/reset", Some(task)) => Some(format!("{task}\n{}", text(&reply["observation"]))),
            ("/observation?env_idx=0", _) if lines.is_empty() => Some(text(reply).to_owned()),
            _ => None,
        };
        if path == "/reset" {
            item = ["data_idx", "idx"]
                .iter()
                .map(|key| request["json"][key].clone())
                .find(|item| item.is_i64())
                .expect("an item");
        }
        if let Some(first) = first {
            lines.push(line("human", format!("{instruction}\n\n{first}")));
        }
        if path != "/step" || lines.len() >= 2 * turns {
            continue;
        }
        let action = text(&request["json"]["action"]);
        let said = match (env, fenced(action)) {
            ("webarena", None) => continue,
            ("webarena", Some(_)) => action.to_owned(),
            _ => format!("Action: {action}"),
        };
        lines.push(line("gpt", said));
        lines.push(line("human", text(&reply["observation"]).to_owned()));
    }
    // What the environment said last is answered by nothing.
    lines.pop();
    json!({"item_id": format!("{env}_{item}"), "conversations": lines})
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a recorded text")
}

/// An item and what was done since its reset.
type Place = (i64, Vec<String>);

/// Answers to what was recorded, and to nothing else: any other request is a fault of the server
/// (status 500), which the client never counts as a reward.
#[derive(Default)]
struct Recorded {
    resets: BTreeMap<i64, Value>,
    /// `GET /observation` after a reset.
    prompts: BTreeMap<i64, Value>,
    steps: BTreeMap<Place, Value>,
    sessions: Mutex<Vec<Option<Place>>>,
}

impl Recorded {
    fn of(sections: &[(&str, &str)]) -> Self {
        let mut recorded = Self::default();
        for (file, section) in sections {
            let mut at: Option<Place> = None;
            for call in calls(file, section) {
                let (request, reply) = (&call["request"], &call["response"]);
                let body = &request["json"];
                if reply["status"] != 200 {
                    continue;
                }
                match (request["path"].as_str().expect("a path"), &mut at) {
                    ("/reset", at) => {
                        *at = body["idx"].as_i64().map(|item| (item, Vec::new()));
                        if let Some((item, _)) = at {
                            recorded.resets.insert(*item, reply["json"].clone());
                        }
                    }
                    ("/step", Some(place)) => {
                        let Some(action) = fenced(text(&body["action"])) else {
                            continue;
                        };
                        place.1.push(action.to_owned());
                        let reply = reply["json"].clone();
                        let ended = reply["terminated"] == true;
                        recorded.steps.insert(place.clone(), reply);
                        if ended {
                            at = None;
                        }
                    }
                    (path, Some(place))
                        if path.starts_with("/observation?") && place.1.is_empty() =>
                    {
                        recorded.prompts.insert(place.0, reply["json"].clone());
                    }
                    _ => {}
                }
            }
        }
        recorded
    }

    fn answer(&self, uri: &Uri, body: &Value) -> Option<Value> {
        let mut sessions = self.sessions.lock().expect("not poisoned");
        let asked = uri
            .query()
            .and_then(|query| query.split('=').nth(1)?.parse().ok());
        let session = body["env_idx"].as_u64().or(asked);
        let mut place = session.and_then(|index| sessions.get_mut(usize::try_from(index).ok()?));
        match (uri.path(), &mut place) {
            ("/create", _) => {
                sessions.push(None);
                Some(json!({"env_idx": sessions.len() - 1}))
            }
            ("/close", Some(place)) => {
                **place = None;
                Some(json!({"closed": "closed"}))
            }
            ("/reset", Some(place)) => {
                let item = body["idx"].as_i64()?;
                let reply = self.resets.get(&item)?;
                **place = Some((item, Vec::new()));
                Some(reply.clone())
            }
            ("/observation", Some(Some((item, done)))) if done.is_empty() => {
                self.prompts.get(item).cloned()
            }
            ("/step", Some(Some(place))) => {
                place.1.push(fenced(body["action"].as_str()?)?.to_owned());
                self.steps.get(place).cloned()
            }
            _ => None,
        }
    }
}

async fn answer(
    State(recorded): State<Arc<Recorded>>,
    uri: Uri,
    body: Bytes,
) -> (StatusCode, String) {
    let body = serde_json::from_slice(&body).unwrap_or_default();
    match recorded.answer(&uri, &body) {
        Some(reply) => (StatusCode::OK, reply.to_string()),
        None => {
            let said = format!("not recorded: {uri} {body}");
            (StatusCode::INTERNAL_SERVER_ERROR, said)
        }
    }
}

/// Serves these sections until the runtime ends.
pub(super) async fn serve(sections: &[(&str, &str)]) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let router = Router::new()
        .fallback(answer)
        .with_state(Arc::new(Recorded::of(sections)));
    tokio::spawn(async move { axum::serve(listener, router).await });
    addr
}
