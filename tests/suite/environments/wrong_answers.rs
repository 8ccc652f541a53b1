//! Every tenth call fails, but training continues: the result equals that of a clean run that
//! excludes the same episodes, no session stays on the server, and the faults are counted.

use super::proxy::Proxy;
use super::*;
use agentgym_jobs::episode::Outcome;
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_tests::program::finish;
use tempfile::TempDir;

const ITERATIONS: u32 = 3;
const SHARE: f64 = 0.1;
/// Short, since the test waits for it.
const TTL_S: u32 = 3;
/// A task of the first iterations whose steps always fail.
const DOOMED: i64 = 5;

/// Names and digests of the outputs of the updates.
async fn updates(folder: &Path) -> Vec<(String, String)> {
    let view = view(folder).await;
    let mut found = Vec::new();
    for iteration in 1..=ITERATIONS {
        let id = PartId {
            iteration,
            stage: Stage::Update,
            part: 0,
        };
        for output in view.committed(id).await.unwrap().outputs {
            found.push((
                format!("{iteration}/{}", output.name),
                output.digest.to_string(),
            ));
        }
    }
    found
}

/// Episodes without an outcome of their own, and the total number of episodes.
async fn excluded(folder: &Path) -> (Vec<(u32, u32, u32)>, usize) {
    let all = rollouts(&view(folder).await, ITERATIONS).await;
    let spoiled = all.iter().filter(|(_, e)| e.outcome == Outcome::EnvFault);
    let excluded = spoiled.map(|(iteration, e)| (*iteration, e.group, e.sample));
    (excluded.collect(), all.len())
}

async fn run(command: Command) {
    let output = tokio::task::spawn_blocking(move || finish(command))
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenth_of_the_calls_may_go_wrong() {
    let server = Server::start(TTL_S);
    let proxy = Proxy::start(server.addr, SHARE, DOOMED, 20_261_120).await;
    let spoiled = TempDir::new().unwrap();
    run(train(spoiled.path(), &proxy.url, &[])).await;
    let (calls, wrong) = proxy.counts();
    let total: u64 = wrong.values().sum();
    let (list, episodes) = excluded(spoiled.path()).await;
    println!(
        "{calls} calls, {total} wrong: {wrong:?}; {} of {episodes} episodes excluded",
        list.len()
    );
    assert_eq!(wrong.len(), 8, "every kind has happened");
    assert!(
        total as f64 > 0.07 * calls as f64,
        "a tenth was to go wrong"
    );
    assert!(list.len() >= 4 && 2 * list.len() < episodes, "{list:?}");

    // No session is left on the server once no client can use it.
    let begun = Instant::now();
    while server.sessions() != Some(0) {
        assert!(
            begun.elapsed() < Duration::from_secs(12),
            "{:?} sessions are left",
            server.sessions()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    // The rates are in the metrics.
    let view = view(spoiled.path()).await;
    println!("{}", learnt(&view.store, "tried").await);
    let (mut rate, mut faults) = (0.0, 0.0);
    for iteration in 1..=ITERATIONS {
        let id = PartId {
            iteration,
            stage: Stage::Advantage,
            part: 0,
        };
        let manifest = view.committed(id).await.unwrap();
        let metrics = view.json(&manifest, "metrics.json").await.unwrap();
        rate += metrics["env_fault_rate"].as_f64().unwrap() / f64::from(ITERATIONS);
        faults += metrics["env_faults"].as_f64().unwrap();
    }
    assert_eq!(faults, list.len() as f64);
    assert!((rate - faults / episodes as f64).abs() < 1e-12);
    assert!(stat(spoiled.path(), "env_call_fault_rate") > 0.0);
    assert!(stat(spoiled.path(), "episodes_taken_up") > 0.0);

    // A clean run configured to exclude the same episodes learns the same.
    let server = Server::start(600);
    let clean = TempDir::new().unwrap();
    let told = list.iter().map(|(i, g, s)| format!("[{i}, {g}, {s}]"));
    let told = told.collect::<Vec<_>>().join(", ");
    let exclude = format!("actor_rollout_ref.rollout.exclude=[{told}]");
    run(train(clean.path(), &server.url(), &[&exclude, PATIENT])).await;
    assert_eq!(excluded(clean.path()).await.0, list);
    assert_eq!(stat(clean.path(), "env_call_fault_rate"), 0.0);
    let learnt = updates(spoiled.path()).await;
    assert_eq!(updates(clean.path()).await, learnt);

    // A run that does not exclude them learns something else.
    let whole = TempDir::new().unwrap();
    run(train(whole.path(), &server.url(), &[PATIENT])).await;
    assert_ne!(updates(whole.path()).await, learnt);
}
