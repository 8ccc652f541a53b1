//! A run whose rewards come from an HTTP function: the function's numbers reach the advantages, a
//! function that is down stops the run without a loss, and a resumed run asks nothing twice.

use crate::evidence;
use agentgym_tests::program::{finish, program};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A judge that never answers the same twice: half a point for each reply, plus noise.
struct Judge {
    address: String,
    /// Trajectories judged.
    judged: Arc<AtomicUsize>,
}

impl Judge {
    fn start(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let judged = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&judged);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &count);
            }
        });
        Self { address, judged }
    }
}

fn answer(stream: TcpStream, judged: &AtomicUsize) {
    let mut reader = BufReader::new(stream);
    let (mut length, mut line) = (0, String::new());
    while reader.read_line(&mut line).unwrap_or(0) > 2 {
        if let Some(digits) = line.to_lowercase().strip_prefix("content-length:") {
            length = digits.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    if length == 0 || reader.read_exact(&mut body).is_err() {
        return;
    }
    let asked: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(asked["function"], "turns-1");
    let reward = |one: &Value| {
        let noise = judged.fetch_add(1, SeqCst) as f64 * 1e-4;
        let replies = one["conversations"].as_array().unwrap();
        let replies = replies.iter().filter(|line| line["from"] == "gpt");
        replies.count() as f64 * 0.5 + noise
    };
    let rewards: Vec<f64> = (asked["trajectories"].as_array().unwrap().iter())
        .map(reward)
        .collect();
    let text = json!({ "rewards": rewards }).to_string();
    let length = text.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = reader.into_inner().write_all((head + &text).as_bytes());
}

fn submit(store: &std::path::Path, words: &[&str]) -> Output {
    let mut command = program("agentgym-submit");
    command.args(["--quiet", "--store"]).arg(store).args(words);
    finish(command)
}

#[test]
fn a_functions_rewards_are_learnt_from_and_asked_for_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = agentgym_tests::program::workspace().join("configs/smoke.yaml");
    // Nothing listens there yet.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let url = format!("reward.url=http://{address}/judge");
    let run = [
        "run",
        config.to_str().unwrap(),
        "run.id=judged",
        "reward.function=turns-1",
        url.as_str(),
        "reward.retries=0",
        "trainer.total_training_steps=2",
        "evaluation.sets=[]",
        "jobs.backoff_s=0.05",
    ];
    let ended = submit(folder.path(), &run);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(5), "{said}");
    for word in ["reward", "turns-1", &address, "reward.url"] {
        assert!(said.contains(word), "{word}: {said}");
    }

    let judge = Judge::start("127.0.0.1:0");
    let url = format!("reward.url=http://{}/", judge.address);
    let ended = submit(folder.path(), &["resume", "judged", &url]);
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success(), "{said}");
    // Two iterations of eight groups of four, each episode once: no episode is faulted here.
    assert_eq!(judge.judged.load(SeqCst), 64);
    // Its advantages follow from the function's rewards, and all groups are mixed.
    let found = evidence::learnt_now(folder.path(), "judged");
    assert_eq!(found.groups_mixed.values().sum::<usize>(), 16, "{found}");

    let digest = || submit(folder.path(), &["digest", "judged"]).stdout;
    let before = digest();
    assert!(
        submit(folder.path(), &["resume", "judged"])
            .status
            .success()
    );
    assert_eq!(judge.judged.load(SeqCst), 64);
    assert_eq!(before, digest());
}
