//! Our client and an oracle against running original servers, started by the recipes of
//! `deploy/envs`. `AGENTGYM_ORIGINAL_SERVERS` names them: `textcraft=URL babyai=URL …`;
//! `AGENTGYM_ORIGINALS` the clone, whose recipe files tell how goals of TextCraft are reached.

use std::path::Path;

use serde_json::Value;

use crate::tests::servers::transcript as recorded;
use crate::textcraft::{RecipeBook, solve};
use agentgym_envs::spec::spec;
use agentgym_envs::{ClientOptions, EnvClient, Session};

/// Plays what `next` says until it says nothing more or the episode is over; the last reward.
async fn played(
    session: &mut Session,
    mut next: impl FnMut(usize) -> Option<String>,
) -> (f64, bool) {
    let mut last = (0.0, false);
    let mut turn = 0;
    while let Some(text) = next(turn) {
        let step = session.step(&text).await.expect("a step");
        last = (step.reward, step.success);
        turn += 1;
        if step.done {
            break;
        }
    }
    last
}

/// The actions of a recorded episode that ends with this reward, and its item.
fn recorded_solution(name: &str, key: &str, reward: f64) -> (i64, Vec<String>) {
    let transcript = recorded(name);
    for section in transcript["sections"].as_array().expect("sections") {
        let (mut item, mut actions) = (None, Vec::new());
        for call in section["calls"].as_array().expect("calls") {
            let (sent, reply) = (&call["request"]["json"], &call["response"]["json"]);
            let path = call["request"]["path"].as_str().expect("a path");
            if path.ends_with("/reset") {
                (item, actions) = (sent[key].as_i64(), Vec::new());
            } else if path.ends_with("/step") && reply.get("error").is_none() {
                actions.push(sent["action"].as_str().unwrap_or_default().to_owned());
                let score = reply.get("score").unwrap_or(&reply["reward"]);
                if score.as_f64() == Some(reward)
                    && let (Some(item), &Value::Bool(true)) = (item, &reply["done"])
                {
                    return (item, actions);
                }
            }
        }
    }
    panic!("{name}: no recorded episode ends with {reward}");
}

async fn solved(name: &str, client: &EnvClient) -> bool {
    match name {
        "textcraft" => {
            let clone = std::env::var_os("AGENTGYM_ORIGINALS").expect("the clone");
            let folder = Path::new(&clone).join("agentenv-textcraft/agentenv_textcraft/recipes");
            let mut order: Vec<String> = std::fs::read_dir(&folder)
                .expect("recipes")
                .map(|entry| {
                    entry
                        .expect("a file")
                        .file_name()
                        .to_string_lossy()
                        .into_owned()
                })
                .filter(|file| file.ends_with(".json"))
                .collect();
            order.sort();
            let book = RecipeBook::from_files(&folder, &order).expect("readable");
            let mut session = client.open(130).await.expect("a session");
            let first = session.observation().to_owned();
            let (_, goal) = first.rsplit_once("Goal: craft ").expect("a goal");
            let goal = goal.trim().trim_end_matches('.').replace(' ', "_");
            let goal = book
                .find(&goal)
                .or_else(|| book.find(&format!("minecraft:{goal}")));
            let moves = solve(&book, goal.expect("a goal of the book")).expect("a solution");
            let next = |turn: usize| moves.get(turn).map(|action| format!("Action: {action}"));
            let (_, success) = played(&mut session, next).await;
            session.close().await.expect("closed");
            success
        }
        "babyai" => {
            let source = crate::parse("builtin:babyai").expect("valid");
            let solver = source.source.solver("").expect("a solver");
            // Level 0, seed 3.
            let shown = solver.demonstrate(120, "").expect("a solution");
            let said: Vec<String> = shown
                .conversations
                .into_iter()
                .filter(|line| line.from == "gpt")
                .map(|line| line.value)
                .collect();
            let mut session = client.open(120).await.expect("a session");
            let (_, success) = played(&mut session, |turn| said.get(turn).cloned()).await;
            session.close().await.expect("closed");
            success
        }
        "sciworld" | "maze" => {
            let (key, reward) = match name {
                "maze" => ("game", 1.0),
                _ => ("data_idx", 100.0),
            };
            let (item, actions) = recorded_solution(name, key, reward);
            let mut session = client.open(item).await.expect("a session");
            let next = |turn: usize| actions.get(turn).map(|action| format!("Action: {action}"));
            let (_, success) = played(&mut session, next).await;
            session.close().await.expect("given back");
            success
        }
        "wordle" => {
            // Any word still possible; six guesses are nearly always enough.
            for item in 0..10 {
                let mut session = client.open(item).await.expect("a session");
                loop {
                    let words = session.available_actions().await.expect("words");
                    let word = words.expect("a list").first().expect("one").clone();
                    let letters: Vec<String> = word.chars().map(String::from).collect();
                    let step = session
                        .step(&format!("Action: {}", letters.join(" ")))
                        .await;
                    let step = step.expect("a step");
                    if step.success {
                        return true;
                    }
                    if step.done {
                        break;
                    }
                }
                session.close().await.expect("given back");
            }
            false
        }
        other => panic!("no oracle for {other}"),
    }
}

#[tokio::test]
#[ignore = "needs original servers: deploy/envs starts them"]
async fn originals_are_solved() {
    let named = std::env::var("AGENTGYM_ORIGINAL_SERVERS").expect("AGENTGYM_ORIGINAL_SERVERS");
    for entry in named.split_whitespace() {
        let (name, url) = entry.split_once('=').expect("name=URL");
        let known = spec(name).expect("a known environment");
        let client = EnvClient::new(known, &[url.to_owned()], ClientOptions::default());
        let client = client.expect("an address");
        assert!(solved(name, &client).await, "{name} at {url} is not solved");
        eprintln!("{name} at {url}: solved");
    }
}
