//! A curriculum: sources of tasks enter one by one, by what earlier iterations committed alone.

use crate::durability::{RUN, end, said, submit_config};
use crate::evidence::learnt_now;
use crate::forks::{equal, fork};
use agentgym_jobs::pipeline::batch_of;
use agentgym_storage::Store;
use agentgym_submit::runs::RunView;
use agentgym_tests::program::finish;
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// Plays three iterations of the smoke config with these keys; returns the digest.
fn play(store: &Path, keys: &[&str]) -> String {
    let alone = [
        "sft.steps=0",
        "sft.sources=[]",
        "evaluation.sets=[]",
        "trainer.total_training_steps=3",
    ];
    let keys = [&alone, keys].concat();
    end(submit_config("configs/smoke.yaml", store, &keys), store)
}

/// The metrics of an iteration's episodes.
async fn metrics(store: &Path, iteration: u32) -> Value {
    let store = Store::open(&store.display().to_string()).await.unwrap();
    let view = RunView::open(&store, RUN).await.unwrap();
    let batch = view.committed(batch_of(iteration)).await.unwrap();
    view.json(&batch, "metrics.json").await.unwrap()
}

fn played(metrics: &Value) -> Vec<&str> {
    let by_env = metrics["success_by_env"].as_object().unwrap();
    by_env.keys().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_source_enters_when_those_before_it_are_solved() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let keys = ["data.curriculum={solved: 0.2, iterations: 1}"];
    let digest = play(store, &keys);
    learnt_now(store, RUN);
    let first = metrics(store, 1).await;
    // The base solves some of the worlds.
    assert_eq!(played(&first), ["worlds"], "{first}");
    assert_eq!(first["sources_entered"], 2, "{first}");
    for iteration in [2, 3] {
        let later = metrics(store, iteration).await;
        assert_eq!(played(&later), ["textcraft", "worlds"], "{later}");
    }
    // A fork goes on with what had entered.
    said(fork(store, &["--iteration", "2", "run.id=same"]));
    for part in [(3, "rollout", 3), (3, "advantage", 0), (3, "update", 0)] {
        assert!(equal(store, "same", part).await, "{part:?}");
    }
    // Two workers draw the same tasks.
    let again = TempDir::new().unwrap();
    assert_eq!(play(again.path(), &[keys[0], "jobs.workers=2"]), digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_not_solved_stays_alone() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let keys = [
        "data.curriculum={solved: 1.0, iterations: 1}",
        "algorithm.lag=1",
        "algorithm.rollout_correction.rollout_is=token",
    ];
    play(store, &keys);
    let last = metrics(store, 3).await;
    assert_eq!(
        (played(&last), &last["sources_entered"]),
        (vec!["worlds"], &1.into())
    );
    // Other sources have no record to go on with.
    let one = "data.tasks=[{env: worlds, ids: 0..9}, {env: worlds, ids: 9..20}, {env: worlds, ids: 20..30}]";
    let refused = finish(fork(store, &["--iteration", "2", one]));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{why}");
    assert!(
        why.contains("`data.curriculum.solved`") && why.contains("3 sources"),
        "{why}"
    );
}
