//! A fork continues from its parent's state: bit for bit equal without changes, and different with
//! them.

use crate::durability::{RUN, end, said, submit_config};
use crate::evidence::learnt_now;
use agentgym_storage::{Manifest, PartKey, RunId, Store};
use agentgym_tests::program::{finish, program};
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use tempfile::TempDir;

pub(super) fn fork(store: &Path, words: &[&str]) -> Command {
    let mut command = program("agentgym-submit");
    command
        .args(["fork", RUN])
        .args(words)
        .arg("--store")
        .arg(store);
    command
}

async fn commit(store: &Path, run: &str, iteration: u32, stage: &str, part: u32) -> Manifest {
    let store = Store::open(&store.display().to_string()).await.unwrap();
    let slot = PartKey {
        run: RunId::from_str(run).unwrap(),
        iteration,
        stage: stage.into(),
        part,
    };
    let found = store.manifest(&slot).await.unwrap();
    found.unwrap_or_else(|| panic!("{slot} is not committed"))
}

/// Whether two runs committed outputs with equal names and digests for the same part.
pub(super) async fn equal(
    store: &Path,
    child: &str,
    (iteration, stage, part): (u32, &str, u32),
) -> bool {
    let outputs = |manifest: Manifest| -> Vec<_> {
        let all = manifest.outputs.into_iter();
        all.map(|o| (o.name, o.digest)).collect()
    };
    let parent = outputs(commit(store, RUN, iteration, stage, part).await);
    parent == outputs(commit(store, child, iteration, stage, part).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_without_changes_repeats_its_parent_and_with_them_it_does_not() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    // Seven runs go on from it, so it is a small one.
    let small = [
        "jobs.threads=2",
        "data.train_batch_size=4",
        "data.tasks=[{env: worlds, ids: 0..1000}]",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    ];
    end(submit_config("configs/smoke.yaml", store, &small), store);
    learnt_now(store, RUN);
    let dry = ["--iteration", "3", "run.id=same", "--dry-run"];
    let told = said(fork(store, &dry));
    assert!(
        told.contains("3/update/0") && told.contains("nothing was written"),
        "{told}"
    );
    assert!(!store.join("runs/same").exists() && !store.join("runs/smoke/pins").exists());
    said(fork(store, &["--iteration", "3", "run.id=same"]));
    for part in [
        (4, "rollout", 1),
        (4, "advantage", 0),
        (4, "update", 0),
        (4, "evaluate", 0),
    ] {
        assert!(equal(store, "same", part).await, "{part:?}");
    }
    assert!(store.join("runs/smoke/pins/same.json").exists());
    // Inherited outputs stay where the parent stored them.
    let taken = commit(store, "same", 3, "update", 0).await;
    assert!(taken.outputs.iter().all(|o| o.key.run().as_str() == RUN));
    // The same command again finds the existing run.
    said(fork(store, &["--iteration", "3", "run.id=same"]));

    let lr = "actor_rollout_ref.actor.optim.lr=1e-3";
    said(fork(store, &["--iteration", "3", "run.id=other", lr]));
    assert!(equal(store, "other", (4, "rollout", 1)).await);
    assert!(!equal(store, "other", (4, "update", 0)).await);

    // Retention kept the policy of iteration 2 but not its optimizer state.
    let refused = |words: &[&str], code: i32, word: &str| {
        let output = finish(fork(store, words));
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {complaint}");
        assert!(complaint.contains(word), "{words:?}: {complaint}");
    };
    refused(&["--iteration", "2"], 4, "--iteration 2 --fresh-optimizer");
    said(fork(
        store,
        &["--iteration", "2", "--fresh-optimizer", "run.id=fresh"],
    ));
    assert!(equal(store, "fresh", (3, "rollout", 0)).await);
    assert!(!equal(store, "fresh", (3, "update", 0)).await);
    // An export says what happened to the optimizer state that an update started from.
    let exported = |run: &str, n: &str| {
        let to = store.join(format!("{run}-{n}"));
        let mut export = program("agentgym-submit");
        export.args(["export", run, "--iteration", n, "--to"]);
        export.arg(&to).arg("--store").arg(store);
        said(export);
        let text = std::fs::read(to.join("export.json")).unwrap();
        let export: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let is_there = to.join("optimizer_before").exists();
        (
            export["optimizer_before"].as_str().unwrap().to_owned(),
            is_there,
        )
    };
    let carried = "carried on".to_owned();
    assert_eq!(exported(RUN, "4"), (carried.clone(), true));
    let removed = format!("{carried}, and removed by retention since");
    assert_eq!(exported(RUN, "3"), (removed, false));
    assert_eq!(exported(RUN, "1"), ("fresh".to_owned(), false));
    assert_eq!(exported("fresh", "3"), ("fresh".to_owned(), false));
    refused(
        &["--iteration", "1", "--fresh-optimizer"],
        4,
        "trainer.save_freq = 2",
    );
    // Every command that a refusal proposes works.
    for iteration in ["1", "2"] {
        let id = format!("run.id=advised-{iteration}");
        let given = ["--iteration", iteration, &id];
        let complaint = finish(fork(store, &[&given[..], &[lr]].concat())).stderr;
        let complaint = String::from_utf8_lossy(&complaint).into_owned();
        let advised = complaint.split('`').nth(1).expect(&complaint);
        let mut words = advised.split(' ');
        assert_eq!(words.next(), Some("agentgym-submit"), "{complaint}");
        let mut command = program("agentgym-submit");
        command.args(words);
        let output = finish(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{advised}: {said}");
    }
    refused(&["--iteration", "4"], 2, "trainer.total_training_steps=N");
    refused(&["--iteration", "9"], 4, "iterations 0 to 4");
    refused(
        &["--iteration", "3", "actor_rollout_ref.model.path=tiny"],
        2,
        "actor_rollout_ref.model",
    );
    refused(
        &["--iteration", "3", "algorithm.adv_estimator=gae"],
        2,
        "critic",
    );
    refused(
        &["--iteration", "3", "actor_rollout_ref.agentgym.rules=1"],
        2,
        "actor_rollout_ref.agentgym.rules",
    );
    refused(
        &["--iteration", "3", "run.id=other"],
        4,
        "with another plan",
    );
    // A fork may be forked, and continue beyond its parent's end.
    let mut again = program("agentgym-submit");
    again.args(["fork", "same", "--iteration", "4", "run.id=longer"]);
    again
        .args(["trainer.total_training_steps=5", "--store"])
        .arg(store);
    said(again);
    assert!(
        !commit(store, "longer", 5, "update", 0)
            .await
            .outputs
            .is_empty()
    );
}

/// The critic, its optimizer and the state of the KL controller are inherited.
#[tokio::test(flavor = "multi_thread")]
async fn a_critic_and_a_kl_controller_are_taken_over() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    end(
        submit_config("configs/ppo.yaml", store, &["jobs.threads=2"]),
        store,
    );
    learnt_now(store, RUN);
    said(fork(store, &["--iteration", "2", "run.id=same"]));
    for stage in ["log_probs", "advantage", "update", "critic_update"] {
        assert!(equal(store, "same", (3, stage, 0)).await, "{stage}");
    }
}

/// An adapter needs its base; a lag reaches back to before the fork.
#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_with_a_lag_is_taken_over() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let options = [
        "algorithm.lag=1",
        "algorithm.rollout_correction.rollout_is=token",
        "jobs.threads=2",
    ];
    end(submit_config("configs/lora.yaml", store, &options), store);
    learnt_now(store, RUN);
    said(fork(store, &["--iteration", "2", "run.id=same"]));
    for stage in ["rollout", "update"] {
        assert!(equal(store, "same", (3, stage, 0)).await, "{stage}");
    }
}

/// A paused run is forked from before the problem; then it continues, and its retention reaches the
/// objects that the fork needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_outlives_the_retention_of_the_parent() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let limits = ["guard.entropy_min=100", "guard.patience=2"];
    let output = finish(submit_config("configs/smoke.yaml", store, &limits));
    assert_eq!(output.status.code(), Some(1));
    let off = "guard.entropy_min=null";
    said(fork(store, &["--iteration", "1", "run.id=child", off]));
    end(submit_config("configs/smoke.yaml", store, &[off]), store);
    learnt_now(store, RUN);
    let taken = commit(store, "child", 1, "update", 0).await;
    let names: Vec<&str> = taken.outputs.iter().map(|o| o.name.as_str()).collect();
    assert!(names.contains(&"optimizer/state.safetensors"), "{names:?}");
    for artifact in &taken.outputs {
        assert!(
            store.join(artifact.key.path()).exists(),
            "{} is gone",
            artifact.name
        );
    }
    // Objects without a pin were removed as usual.
    let other = commit(store, RUN, 2, "update", 0).await;
    let state = other
        .outputs
        .iter()
        .find(|o| o.name.starts_with("optimizer/"));
    assert!(!store.join(state.unwrap().key.path()).exists());
    for iteration in 2..=4 {
        assert!(
            equal(store, "child", (iteration, "update", 0)).await,
            "{iteration}"
        );
    }
}
