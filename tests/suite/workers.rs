//! What a person is told of workers that work, stand still and die, and what they cost.

use agentgym_tests::program::{Running, finish, program};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const LEASE_S: u64 = 4;
/// What the commands themselves may take on a loaded machine.
const SLACK: Duration = Duration::from_secs(4);
const LONG: Duration = Duration::from_secs(120);
/// A warm start of one part that lasts longer than the test.
const ENDLESS: [&str; 6] = [
    "run.id=r",
    "jobs.workers=0",
    "evaluation.sets=[]",
    "sft.steps=100000",
    "jobs.sft_part_steps=100000",
    "jobs.lease_ttl_s=4",
];

fn asked(store: &Path, words: &[&str]) -> Value {
    let mut command = program("agentgym-submit");
    command.args(words).arg("--json").arg("--store").arg(store);
    let output = finish(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn worker(store: &Path, more: &[&str]) -> Running {
    let mut command = program("agentgym-worker");
    command.arg("--store").arg(store).args(["--run", "r"]);
    command.args(["--lease-ttl-s", &LEASE_S.to_string(), "--threads", "1"]);
    Running::start({
        command.args(more);
        command
    })
}

/// Waits until the warm start's part is in this state, made by this process.
fn becomes(store: &Path, state: &str, worker: &Running) -> Duration {
    let begun = Instant::now();
    loop {
        let status = asked(store, &["status", "r"]);
        let in_flight = status["in_flight"].as_array().unwrap().clone();
        let part = in_flight.into_iter().find(|p| p["part"] == "0/sft/0");
        let is = part.is_some_and(|p| {
            let name = p["worker"].as_str().unwrap_or_default();
            p["state"] == state && name.contains(&format!(":{}:", worker.id()))
        });
        if is {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < LONG, "never {state}: {status}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_worker_that_dies_or_stands_still_is_named_within_a_lease_and_has_a_price() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let mut submit = program("agentgym-submit");
    submit.arg("configs/smoke.yaml").args(ENDLESS);
    submit.arg("--store").arg(&store);
    let _following = Running::start(submit);
    let plan = store.join("runs/r/plan/0000.json");
    let begun = Instant::now();
    while !plan.exists() {
        assert!(begun.elapsed() < LONG, "the run is never submitted");
        std::thread::sleep(Duration::from_millis(50));
    }

    // Only the lease can tell that a process which is still there does nothing.
    let first = worker(&store, &["--label", "room=7", "--price", "3.6"]);
    becomes(&store, "running", &first);
    first.pause();
    let told = becomes(&store, "lost", &first);
    assert!(told < Duration::from_secs(LEASE_S) + SLACK, "{told:?}");
    first.kill();

    let second = worker(&store, &[]);
    becomes(&store, "running", &second);
    second.signal("KILL");
    let told = becomes(&store, "lost", &second);
    assert!(told < Duration::from_secs(LEASE_S) + SLACK, "{told:?}");

    let workers = asked(&store, &["workers", "r"]);
    let of = |place: &str| -> Value {
        let all = workers["workers"].as_array().unwrap().iter();
        let mut found = all.filter(|w| w["labels"]["room"] == place);
        found.next().cloned().unwrap_or_default()
    };
    let labelled = of("7");
    assert_eq!(labelled["price"], 3.6, "{workers}");
    assert_eq!(labelled["device"], "cpu", "{workers}");
    // Its part is another one's by now, and nothing was heard of it since.
    assert_eq!(labelled["state"], "vanished", "{workers}");
    let states: Vec<&str> = workers["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["state"].as_str().unwrap())
        .collect();
    assert!(states.contains(&"lost"), "{workers}");

    let ledger = asked(&store, &["ledger", "r"]);
    let lost_s = ledger["total"]["lost_s"].as_f64().unwrap();
    let cost = ledger["total"]["lost_cost"].as_f64().unwrap();
    assert!(lost_s > 1.0, "{ledger}");
    assert!((cost - lost_s * 3.6 / 3600.0).abs() < 1e-4, "{ledger}");
}

#[test]
fn labels_prices_and_addresses_that_mean_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (words, said) in [
        (&["--label", "gpu"][..], "KEY=VALUE"),
        (&["--label", "a b=c"], "letters, digits"),
        (&["--price", "-1"], "from 0 to"),
        (&["--price", "NaN"], "from 0 to"),
        (&["--metrics", "9464"], "--metrics"),
        (&["--metrics", "0.0.0.0:0"], "--metrics-public"),
        (&["--metrics-public"], "--metrics"),
    ] {
        let mut command = program("agentgym-worker");
        command
            .args(words)
            .arg("--store")
            .arg(folder.path().join("s"));
        let output = finish(command);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains(said), "{words:?}: {told}");
    }
}
