//! The watchdog: a run that collapses is named wherever somebody looks at it, a rule can pause it, and
//! the remedy that the message names goes on.

use agentgym_tests::program::{Running, finish, program, workspace};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

/// A learning rate of ten, for three iterations.
const COLLAPSE: [&str; 4] = [
    "actor_rollout_ref.actor.optim.lr=10",
    "sft.steps=0",
    "trainer.total_training_steps=3",
    "evaluation.sets=[]",
];

fn submit(store: &Path, words: &[&str]) -> Output {
    let mut command = program("agentgym-submit");
    command.args(words).arg("--store").arg(store);
    finish(command)
}

fn smoke(store: &Path, words: &[&str]) -> Output {
    let config = workspace().join("configs/smoke.yaml");
    let run = ["run", config.to_str().unwrap(), "run.id=r"];
    submit(store, &[&run, &COLLAPSE[..], words].concat())
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

fn asked(store: &Path, words: &[&str]) -> (String, Value) {
    let text = submit(store, words);
    assert!(text.status.success(), "{words:?}: {}", said(&text));
    let document = submit(store, &[words, &["--json"]].concat());
    let document = serde_json::from_slice(&document.stdout).unwrap();
    (said(&text), document)
}

const KL: &str = "warning: kl in iteration 1 (update): the update moved the policy by a KL of ";

#[test]
fn a_collapse_is_named_wherever_somebody_looks() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let mut worker = program("agentgym-worker");
    worker
        .args(["--metrics", &address, "--threads", "1", "--store"])
        .arg(store);
    let worker = Running::start(worker);
    let ended = smoke(store, &["jobs.workers=0"]);
    assert!(ended.status.success(), "{}", said(&ended));
    let followed = String::from_utf8_lossy(&ended.stderr).into_owned();
    let told = followed.matches("warning: kl in iteration").count();
    assert_eq!(told, 1, "{followed}");

    for words in [&["status", "r"][..], &["inspect", "r"]] {
        let (text, document) = asked(store, words);
        let row = "warning: kl in iterations 1 to 3 (update): ";
        assert!(text.contains(row), "{words:?}: {text}");
        assert!(text.contains("lower actor_rollout_ref.actor.optim.lr, which is 10.0"));
        assert!(text.contains("warning: entropy in iterations 2 to 3 (advantage): "));
        let first = &document["warnings"][0];
        assert_eq!((&first["name"], &first["since"]), (&"kl".into(), &1.into()));
        assert_eq!(first["pauses"], false, "{document}");
        assert!(text.contains(first["line"].as_str().unwrap()), "{document}");
    }
    // An iteration is seen as it was seen then.
    let (text, _) = asked(store, &["inspect", "r", "1"]);
    assert!(text.contains(KL), "{text}");
    let (list, _) = asked(store, &["status"]);
    assert!(list.contains("warnings: kl, entropy"), "{list}");

    let deadline = Instant::now() + Duration::from_secs(60);
    let counted = loop {
        let mut text = String::new();
        let mut stream = TcpStream::connect(&address).unwrap();
        let request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        stream.read_to_string(&mut text).unwrap();
        if text.contains("agentgym_warnings_total") || Instant::now() > deadline {
            break text;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(
        counted.contains("agentgym_warnings_total{name=\"kl\"} 1"),
        "{counted}"
    );
    drop(worker);
}

#[test]
fn a_warning_can_pause_and_its_remedies_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    let paused = smoke(store, &["guard.pause=[entropy,kl]"]);
    assert_eq!(paused.status.code(), Some(1), "{}", said(&paused));
    let text = said(&paused);
    assert!(
        text.contains("paused by the guard after iteration 1: kl: "),
        "{text}"
    );
    let (status, document) = asked(store, &["status", "r"]);
    assert!(status.contains(KL), "{status}");
    assert_eq!(document["warnings"][0]["pauses"], true);
    let remedies = text
        .split('`')
        .filter(|w| w.starts_with("agentgym-submit "));
    let remedies: Vec<Vec<&str>> = remedies
        .map(|line| line.split(' ').skip(1).map(|w| w.trim_matches('\'')))
        .map(Iterator::collect)
        .collect();
    let [fork, resume] = &remedies[..] else {
        panic!("{text}")
    };
    let run = |words: &[&str]| {
        let mut command = program("agentgym-submit");
        command.args(words);
        finish(command)
    };
    // Without this warning's name the run goes on to the next one's.
    assert_eq!(resume.last(), Some(&"guard.pause=[entropy]"));
    let next = said(&run(resume));
    assert!(
        next.contains("paused by the guard after iteration 2: entropy: "),
        "{next}"
    );
    let lower = ["actor_rollout_ref.actor.optim.lr=1e-4", "run.id=child"];
    let forked = run(&[&fork[..], &lower].concat());
    assert!(forked.status.success(), "{}", said(&forked));
    assert!(!said(&forked).contains("warning: "), "{}", said(&forked));
}

/// What a shipped config shows is sound.
#[test]
fn a_sound_run_hears_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path();
    let sound = ["actor_rollout_ref.actor.optim.lr=1e-4"];
    let ended = smoke(store, &sound);
    assert!(ended.status.success(), "{}", said(&ended));
    assert!(!said(&ended).contains("warning: "), "{}", said(&ended));
    let (_, document) = asked(store, &["status", "r"]);
    assert_eq!(document["warnings"], serde_json::json!([]));
}
