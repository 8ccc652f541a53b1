//! Every recorded reply of a published server is its own environment's, and no other one's.

use super::*;
use crate::spec::spec;
use serde_json::Value;
use std::path::PathBuf;

fn recorded(name: &str) -> Value {
    let fixtures = std::env::var_os("AGENTGYM_FIXTURES").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures")),
        PathBuf::from,
    );
    let path = fixtures.join(format!("transcripts/{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Greetings and first observations of a recording.
fn said(name: &str) -> (Vec<String>, Vec<String>) {
    let (mut greetings, mut firsts) = (Vec::new(), Vec::new());
    for section in recorded(name)["sections"].as_array().unwrap() {
        for call in section["calls"].as_array().unwrap() {
            let reply = &call["response"];
            let (path, ok) = (
                call["request"]["path"].as_str().unwrap(),
                reply["status"] == 200 && call["request"]["method"] != "HEAD",
            );
            let body = &reply["json"];
            if path == "/" && ok {
                let text = body.as_str().or(reply["text"].as_str());
                greetings.extend(text.map(str::to_owned));
            } else if path.ends_with("/reset") && ok {
                let keys = ["task_description", "observation"];
                let told = keys.iter().filter_map(|key| body[key].as_str());
                let told: Vec<&str> = body.as_str().into_iter().chain(told).collect();
                if !told.is_empty() && body["error"].is_null() {
                    firsts.push(told.join("\n"));
                }
            }
        }
    }
    (greetings, firsts)
}

#[test]
fn what_a_published_server_says_is_its_own() {
    let mut refused = 0;
    for name in [
        "babyai",
        "babyai-levels",
        "maze",
        "sciworld",
        "sciworld-more",
        "searchqa",
        "textcraft",
        "webarena",
        "webarena-more",
        "wordle",
    ] {
        let own = spec(name.split('-').next().unwrap()).unwrap();
        let (greetings, firsts) = said(name);
        assert!(!firsts.is_empty(), "{name}");
        for other in all() {
            for greeting in &greetings {
                let found = greeted_as_another(other, greeting);
                if other.name == own.name || greeting == "ok" {
                    assert_eq!(found, None, "{name} as {}", other.name);
                }
            }
            for first in &firsts {
                let found = begins_as_another(other, first);
                if other.name == own.name {
                    assert_eq!(found, None, "{name}: {first}");
                } else if !own.signs.first.is_empty() && !other.signs.first.is_empty() {
                    assert_eq!(
                        found,
                        Some(format!("`{}`", own.name)),
                        "{name} as {}: {first}",
                        other.name
                    );
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn a_greeting_names_what_is_there() {
    let as_of = |name, greeting| greeted_as_another(spec(name).unwrap(), greeting);
    let babyai = "This is environment BabyAI.";
    assert_eq!(as_of("textcraft", babyai).as_deref(), Some("`babyai`"));
    assert_eq!(as_of("webarena", babyai).as_deref(), Some("`babyai`"));
    assert_eq!(as_of("babyai", babyai), None);
    // Both games are served by one program.
    let both = "This is environment LMRL-Gym.";
    assert_eq!(
        as_of("textcraft", both).as_deref(),
        Some("`maze` or `wordle`")
    );
    assert_eq!((as_of("maze", both), as_of("wordle", both)), (None, None));
    for unknown in ["", "ok", "hello", "{\"detail\":\"Not Found\"}"] {
        assert_eq!(as_of("textcraft", unknown), None, "{unknown}");
    }
    // A person's server may be a copy of a known one.
    let own = EnvSpec {
        name: "mygame",
        ..spec("textcraft").unwrap().clone()
    };
    assert_eq!(greeted_as_another(&own, babyai), None);
}
