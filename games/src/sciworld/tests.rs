//! The protocol's reader, what is refused, and, where Java and the JAR are (scripts/sciworld.sh),
//! the server against recorded exchanges of the original.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::gateway::Reply;
use super::simulator::{Launch, Simulator};
use agentgym_envs::doctor::{DoctorOptions, Verdict, examine};
use agentgym_envs::server::ServerHandle;
use agentgym_envs::spec::spec;
use agentgym_envs::{ClientOptions, EnvClient};

#[test]
fn an_answer_is_read_by_its_letters() {
    let read = |line: &str| Reply::read(line).expect(line);
    assert_eq!(read("!ysa\\nb\\\\c\n"), Reply::Text("a\nb\\c".into()));
    assert_eq!(read("!yi-7\n"), Reply::Whole(-7));
    assert_eq!(read("!yd0.25\n"), Reply::Real(0.25));
    assert_eq!(read("!ybtrue\n"), Reply::Flag(true));
    assert_eq!(read("!ylo3\n"), Reply::Object("o3".into()));
    assert_eq!(read("!yv\n"), Reply::Nothing);
    assert_eq!(read("!xswrong\n"), Reply::Failed("wrong".into()));
    assert_eq!(read("!xro5\n"), Reply::Thrown("o5".into()));
    for line in [
        "", "\n", "!y\n", "!yq\n", "!yix\n", "ys\n", "!ysa", "\u{e9}\n", "!yé\n",
    ] {
        let message = Reply::read(line).expect_err(line);
        assert!(message.contains("no answer of a Py4J gateway"), "{message}");
    }
}

#[test]
fn no_java_and_no_jar_are_named() {
    let launch = |java: &str, jar: &Path| Launch {
        java: java.into(),
        jar: jar.to_owned(),
        memory_mb: 64,
    };
    let message = Simulator::start(&launch("no-such-java", Path::new("x.jar"))).unwrap_err();
    assert!(
        message.contains("no Java called no-such-java") && message.contains("--java"),
        "{message}"
    );
    // Any program that ends without opening a gateway.
    let message = Simulator::start(&launch("true", Path::new("x.jar"))).unwrap_err();
    assert!(
        message.contains("opened no gateway with x.jar") && message.contains("1.2.3"),
        "{message}"
    );
    let parse = |address: &str| crate::parse(address);
    let missing = parse("builtin:sciworld?jar=/nowhere/x.jar").expect("an address");
    let message = missing.source.check_files().unwrap_err().to_string();
    assert!(
        message.contains("/nowhere/x.jar cannot be read"),
        "{message}"
    );
    for (address, words) in [
        ("builtin:sciworld", "option \"jar\" is needed"),
        (
            "builtin:sciworld?jar=x&java=/bin/sh",
            "not for an address to say",
        ),
        ("builtin:sciworld?jar=x&processes=0", "expected 1 to 256"),
        ("builtin:sciworld?jar=x&memory_mb=1", "at least 64"),
    ] {
        let message = parse(address).expect_err(address).to_string();
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn an_address_runs_no_file_but_the_published_one() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "another program").unwrap();
    let address = format!("builtin:sciworld?jar={}", file.path().display());
    let started = crate::start(&address).await;
    let message = started.err().expect("refused").to_string();
    assert!(message.contains("no other program is run"), "{message}");
}

fn jar() -> PathBuf {
    let path = std::env::var_os("SCIENCEWORLD_JAR");
    path.expect("SCIENCEWORLD_JAR names scienceworld.jar; scripts/sciworld.sh sets it")
        .into()
}

async fn server(more: &str) -> ServerHandle {
    let address = format!("builtin:sciworld?jar={}{more}", jar().display());
    let started = crate::start(&address);
    started.await.expect("a server")
}

/// What differs: the listing order of the original comes from identity hashes, so lines are
/// compared as a set; the trace of an exception has the line numbers of another Py4J.
fn same(found: &Value, recorded: &Value) -> bool {
    match (found, recorded) {
        (Value::String(found), Value::String(recorded)) => {
            let lines = |text: &str| {
                let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
                lines.sort_unstable();
                lines
            };
            let head = "An error occurred while calling ";
            lines(found) == lines(recorded)
                || (recorded.starts_with(head)
                    && found.starts_with(head)
                    && lines(found)
                        .contains(&": java.util.NoSuchElementException: None.get".into()))
        }
        (Value::Object(found), Value::Object(recorded)) => {
            found.len() == recorded.len()
                && recorded
                    .iter()
                    .all(|(key, value)| found.get(key).is_some_and(|found| same(found, value)))
        }
        _ => found == recorded,
    }
}

/// A recorded request with the number of the session that stands for the recorded one.
fn renumbered(request: &Value, numbers: &[(u64, u64)]) -> Value {
    let mut request = request.clone();
    for (recorded, own) in numbers {
        if request["json"]["id"] == json!(recorded) {
            request["json"]["id"] = json!(own);
        }
        let path = request["path"].as_str().unwrap_or_default().to_owned();
        if let Some(base) = path.strip_suffix(&format!("?id={recorded}")) {
            request["path"] = json!(format!("{base}?id={own}"));
        }
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Java and scienceworld.jar: scripts/sciworld.sh runs it"]
async fn recorded_experiments_are_answered_alike() {
    let server = server("").await;
    let (mut compared, mut differing, mut left_out) = (0, Vec::new(), 0);
    for name in ["sciworld", "sciworld-more"] {
        let transcript = crate::tests::servers::transcript(name);
        let mut numbers: Vec<(u64, u64)> = Vec::new();
        for section in transcript["sections"].as_array().expect("sections") {
            for call in section["calls"].as_array().expect("calls") {
                let recorded = &call["response"];
                let expected = recorded.get("json").unwrap_or(&recorded["text"]);
                // Not served; and session 1, whose state was not recorded.
                let path = call["request"]["path"].as_str().expect("a path");
                if path.starts_with("/object_tree") || call["request"]["json"]["id"] == true {
                    left_out += 1;
                    continue;
                }
                // A session that was opened before the recording began.
                if let Some(id) = call["request"]["json"]["id"].as_u64()
                    && id < 1000
                    && !numbers.iter().any(|(recorded, _)| *recorded == id)
                {
                    let opened = json!({"method": "POST", "path": "/create"});
                    let (.., body) = crate::tests::servers::replay(&server.url, &opened).await;
                    numbers.push((id, body["id"].as_u64().expect("a number")));
                }
                let request = renumbered(&call["request"], &numbers);
                let (status, _, body) = crate::tests::servers::replay(&server.url, &request).await;
                if request["path"] == "/create" {
                    let id = expected["id"].as_u64().expect("a number");
                    numbers.push((id, body["id"].as_u64().expect("a number")));
                    continue;
                }
                compared += 1;
                let mut text = body.to_string();
                for (recorded, own) in &numbers {
                    text = text.replace(
                        &format!("environment {own} "),
                        &format!("environment {recorded} "),
                    );
                }
                let body: Value = serde_json::from_str(&text).expect("JSON");
                if status != recorded["status"] || !same(&body, expected) {
                    differing.push(format!("{request}\nfound    {body}\nrecorded {expected}"));
                }
            }
        }
    }
    eprintln!(
        "{compared} compared, {} differ, {left_out} left out",
        differing.len()
    );
    assert!(differing.is_empty(), "{}", differing.join("\n\n"));
    assert!(compared > 150, "{compared}");
    server.stop().await;
}

/// The shortest finishing sequence of the recording, played by our client.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Java and scienceworld.jar: scripts/sciworld.sh runs it"]
async fn the_recorded_sequence_solves_and_repeats_itself_among_others() {
    let transcript = crate::tests::servers::transcript("sciworld");
    let sections = transcript["sections"].as_array().expect("sections");
    let gold = sections
        .iter()
        .find(|s| s["name"] == "one_full_gold_episode");
    let calls = gold.expect("recorded")["calls"].as_array().expect("calls");
    let reset = |call: &&Value| call["request"]["path"] == "/reset";
    let item = calls.iter().find(reset).expect("a reset")["request"]["json"]["data_idx"].clone();
    let item = item.as_i64().expect("a number");
    let actions: Vec<String> = calls
        .iter()
        .filter(|call| {
            call["request"]["path"] == "/step" && call["response"]["json"].get("error").is_none()
        })
        .map(|call| {
            call["request"]["json"]["action"]
                .as_str()
                .expect("a text")
                .to_owned()
        })
        .collect();
    let server = server("").await;
    let known = spec("sciworld").expect("known");
    let client = EnvClient::new(
        known,
        std::slice::from_ref(&server.url),
        ClientOptions::default(),
    );
    let client = client.expect("an address");
    // At once, since steps at once are what the simulator itself does not bear.
    let plays = (0..6).map(|_| {
        let (client, actions) = (client.clone(), actions.clone());
        tokio::spawn(async move {
            let mut session = client.open(item).await.expect("a session");
            let mut told = vec![session.observation().to_owned()];
            let mut rewards = Vec::new();
            for action in &actions {
                let step = session
                    .step(&format!("Action: {action}"))
                    .await
                    .expect("a step");
                told.push(step.observation.clone());
                rewards.push((step.reward, step.done));
            }
            session.close().await.expect("closed");
            (told, rewards)
        })
    });
    let mut all = Vec::new();
    for play in plays.collect::<Vec<_>>() {
        all.push(play.await.expect("no panic"));
    }
    let rewards: Vec<f64> = all[0].1.iter().map(|(reward, _)| *reward).collect();
    assert_eq!(rewards, [0.08, 0.25, 0.25, 0.75, 1.0], "{actions:?}");
    assert!(all[0].1.last().expect("some").1, "the last step ends it");
    for other in &all[1..] {
        assert_eq!(other, &all[0], "equal bytes, whoever plays beside");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Java and scienceworld.jar: scripts/sciworld.sh runs it"]
async fn its_server_is_fit() {
    let server = server("").await;
    let options = DoctorOptions {
        leaks: 20,
        clients: vec![1, 8],
        measure_s: 3.0,
        ..DoctorOptions::default()
    };
    let report = examine(
        spec("sciworld").expect("known"),
        &server.url,
        &options,
        |_| {},
    );
    let report = report.await.expect("a report");
    eprintln!("{report}");
    assert_ne!(report.verdict(), Verdict::Bad, "{report}");
    server.stop().await;
}

#[test]
#[ignore = "needs Java: scripts/sciworld.sh runs it"]
fn a_file_that_is_no_jar_is_named_with_what_java_says() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let launch = Launch {
        java: "java".into(),
        jar: file.path().to_owned(),
        memory_mb: 64,
    };
    let message = Simulator::start(&launch).unwrap_err();
    assert!(
        message.contains("GatewayServer") && message.contains("opened no gateway"),
        "{message}"
    );
}

/// Any template with any objects in view, twenty rounds: what chance earns, and how fast.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Java and scienceworld.jar: scripts/sciworld.sh runs it"]
async fn a_random_policy_earns_little() {
    use crate::draws::Draws;
    const ITEMS: i64 = 92;
    let server = server("").await;
    let url = server.url.clone();
    let ask = async |method: &str, path: String, body: Value| {
        let mut request = json!({"method": method, "path": path});
        if !body.is_null() {
            request["json"] = body;
        }
        crate::tests::servers::replay(&url, &request).await.2
    };
    let opened = ask("POST", "/create".into(), Value::Null).await;
    let id = opened["id"].as_u64().expect("a number");
    let (mut solved, mut failed, mut score, mut steps) = (0, 0, 0, 0);
    for number in 0..ITEMS {
        let item = number * 4639 / ITEMS;
        let mut draws = Draws::new("random policy", &[b"sciworld", &item.to_le_bytes()]);
        ask("POST", "/reset".into(), json!({"id": id, "data_idx": item})).await;
        let mut last = 0;
        for _ in 0..20 {
            let hint = ask("GET", format!("/action_hint?id={id}"), Value::Null).await;
            let of = |key: &str| -> Vec<String> {
                serde_json::from_value(hint[key].clone()).expect("a list of texts")
            };
            let (mut actions, objects) = (of("possible_actions"), of("possible_objects"));
            // Begins the task anew.
            actions.retain(|action| action != "reset task");
            let mut action = actions[draws.below(actions.len())].clone();
            while action.contains("OBJ") {
                action = action.replacen("OBJ", &objects[draws.below(objects.len())], 1);
            }
            let reply = ask("POST", "/step".into(), json!({"id": id, "action": action})).await;
            last = reply["score"].as_i64().expect("a number");
            steps += 1;
            if reply["done"] == true {
                break;
            }
        }
        solved += i32::from(last == 100);
        failed += i32::from(last < 0);
        score += last.max(0);
    }
    eprintln!(
        "sciworld: random solves {solved} of {ITEMS}, fails {failed}, mean score without failures {:.1}, {steps} steps",
        score as f64 / ITEMS as f64
    );
    assert!(solved <= 2 && failed > 0);
    server.stop().await;
}
