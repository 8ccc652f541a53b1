//! A run whose rewards come from an HTTP function: the function's numbers reach the advantages, a
//! function that is down stops the run without a loss, and a resumed run asks nothing twice.

use crate::evidence;
use agentgym_tests::program::{Running, finish, program};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A judge: half a point for each reply. One that wavers never answers the same twice; the other says what
/// a reward is made of, and takes its time.
struct Judge {
    address: String,
    /// Trajectories judged.
    judged: Arc<AtomicUsize>,
}

impl Judge {
    fn start(wavers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let judged = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&judged);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &count, wavers);
            }
        });
        Self { address, judged }
    }
}

fn answer(stream: TcpStream, judged: &AtomicUsize, wavers: bool) {
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
        let reward = replies.count() as f64 * 0.5;
        match wavers {
            true => json!(reward + noise),
            false => json!({
                "reward": reward,
                "item_id": one["item_id"],
                "components": {"replies": reward, "solved": one["success"]},
                "reason": format!("it says {:?}", replies_of(one)),
            }),
        }
    };
    if !wavers {
        std::thread::sleep(Duration::from_millis(100));
    }
    let rewards: Vec<Value> = (asked["trajectories"].as_array().unwrap().iter())
        .map(reward)
        .collect();
    let text = json!({ "rewards": rewards }).to_string();
    let length = text.len();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = reader.into_inner().write_all((head + &text).as_bytes());
}

fn replies_of(one: &Value) -> &Value {
    &one["conversations"][1]["value"]
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

    let judge = Judge::start(true);
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

/// A proxy that is dead: an address of this machine is reached without it, and a message about any
/// other one names it.
#[test]
fn this_machine_is_reached_without_the_proxy_and_others_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = agentgym_tests::program::workspace().join("configs/smoke.yaml");
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = free.local_addr().unwrap().to_string();
    drop(free);
    let judge = Judge::start(true);
    let run = |id: &str, words: &[&str]| {
        let mut command = program("agentgym-submit");
        command.args(["--quiet", "--store"]).arg(folder.path());
        command.arg(&config).arg(format!("run.id={id}")).args([
            "reward.function=turns-1",
            "reward.retries=0",
            "trainer.total_training_steps=1",
            "evaluation.sets=[]",
            "jobs.backoff_s=0.05",
        ]);
        command.args(words);
        for other in ["http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY"] {
            command.env_remove(other);
        }
        command.env("HTTP_PROXY", format!("http://user:topsecret@{proxy}"));
        let ended = finish(command);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!said.contains("topsecret"), "{said}");
        (ended.status.code(), said)
    };
    let (code, said) = run("own", &[&format!("reward.url=http://{}/", judge.address)]);
    assert_eq!(code, Some(0), "{said}");
    let elsewhere = "http://judge.example:80/judge";
    let (code, said) = run("other", &[&format!("reward.url={elsewhere}")]);
    assert_eq!(code, Some(5), "{said}");
    let environment = "actor_rollout_ref.agentgym.env_addr=http://games.example:80";
    let judged = format!("reward.url=http://{}/", judge.address);
    let (code, asked) = run("games", &[environment, &judged]);
    assert_eq!(code, Some(5), "{asked}");
    for said in [&said, &asked] {
        for word in [proxy.as_str(), "HTTP_PROXY", "NO_PROXY", ".example:80"] {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}

#[test]
fn a_run_that_is_killed_while_it_is_judged_ends_equal_and_says_why() {
    let config = agentgym_tests::program::workspace().join("configs/smoke.yaml");
    let run = |kills: usize| {
        let folder = tempfile::tempdir().unwrap();
        let judge = Judge::start(false);
        let start = || {
            let mut command = program("agentgym-submit");
            command.args(["--quiet", "--store"]).arg(folder.path());
            command.arg(&config).args([
                "run.id=judged",
                "reward.function=turns-1",
                "reward.batch_size=2",
                "trainer.total_training_steps=2",
                "evaluation.sets=[]",
                "jobs.backoff_s=0.05",
                &format!("reward.url=http://{}/", judge.address),
            ]);
            command
        };
        for kill in 1..=kills {
            // Sixteen requests judge an iteration, so some are under way.
            let begun = Instant::now();
            let mut running = Running::start(start());
            while judge.judged.load(SeqCst) < kill * 12 && !running.has_ended() {
                assert!(begun.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(!running.has_ended());
            running.kill();
        }
        let ended = finish(start());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "{said}");
        println!("{}", evidence::learnt_now(folder.path(), "judged"));
        let told = |words: &[&str]| submit(folder.path(), words).stdout;
        let words = ["inspect", "judged", "1", "reward", "0", "--group", "0"];
        let shown = String::from_utf8(told(&words)).unwrap();
        // Its heading tells the attempt and its time; the records are the same whoever wrote them.
        let records = told(&[&words[..], &["--jsonl"]].concat());
        assert!(!records.is_empty());
        let judged = judge.judged.load(SeqCst);
        ((told(&["digest", "judged"]), records), shown, judged)
    };
    let (whole, shown, judged) = run(0);
    assert_eq!(judged, 64);
    assert!(
        shown.contains("judged: replies ")
            && shown.contains(", solved ")
            && shown.contains("it says"),
        "{shown}"
    );
    let (broken, _, judged) = run(3);
    assert_eq!(broken, whole);
    // What a killed attempt had been told is asked for again, and nothing that was committed.
    assert!((65..=64 + 3 * 16).contains(&judged), "{judged}");
}
