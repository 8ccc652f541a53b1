//! AgentEvol as durable jobs, and trajectories that are exported and used for training again.

use crate::durability::{
    RUN, end, no_part_started_after_its_commit, said, submit_config, undisturbed_of,
};
use crate::forks::{equal, fork};
use crate::strikes::{made_good, strikes};
use agentgym_storage::Store;
use agentgym_tests::program::{finish, program};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Two explorations; solved episodes are kept.
const EVOLUTION: [&str; 8] = [
    "run.pipeline=agentevol",
    "agentevol.keep=all",
    "agentevol.steps=9",
    "sft.steps=4",
    "jobs.sft_part_steps=4",
    "trainer.total_training_steps=2",
    "trainer.test_freq=1",
    "trainer.save_freq=1",
];

fn evolve(store: &Path, bindings: &[&str]) -> Command {
    submit_config(
        "configs/smoke.yaml",
        store,
        &[&EVOLUTION, bindings].concat(),
    )
}

fn type_in(store: &Path, words: &[&str]) -> Command {
    let mut command = program("agentgym-submit");
    command.args(words).arg("--store").arg(store);
    command
}

fn records(store: &Path, place: &[&str]) -> Vec<Value> {
    let shown = said(type_in(
        store,
        &[&["inspect", RUN], place, &["--jsonl", "--json"]].concat(),
    ));
    let lines = shown.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evolution_survives_kills_and_every_kept_trajectory_has_its_lineage() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let one = || evolve(store, &["jobs.threads=1"]);
    let struck = strikes((store, RUN), 53, 6, one).await;
    let undisturbed = undisturbed_of("configs/smoke.yaml", &EVOLUTION);
    assert_eq!(end(evolve(store, &[]), store), undisturbed, "{struck:?}");
    no_part_started_after_its_commit(store).await;
    made_good(
        &Store::open(&store.display().to_string()).await.unwrap(),
        &struck,
    )
    .await;

    let kept = records(store, &["2", "filter"]);
    let of = |record: &Value, name: &str| record["lineage"][name].as_u64().unwrap();
    let iterations: BTreeSet<u64> = kept.iter().map(|r| of(r, "iteration")).collect();
    assert_eq!(
        iterations,
        BTreeSet::from([1, 2]),
        "what was kept before is kept"
    );
    for record in &kept {
        let place = [
            of(record, "iteration").to_string(),
            of(record, "part").to_string(),
        ];
        let played = records(store, &[&place[0], "rollout", &place[1]]);
        let played = &played[of(record, "episode") as usize];
        for name in ["task", "reward", "turns", "sequences"] {
            if name == "sequences" {
                let ids = |r: &Value| r[name][0]["token_ids"].clone();
                assert_eq!(ids(played), ids(record), "ids as sampled");
            } else {
                assert_eq!(played[name], record[name], "{name}");
            }
        }
        assert_eq!(record["lineage"]["item_id"], record["task"]);
    }
    said(fork(store, &["--iteration", "1", "run.id=same"]));
    for part in [(2, "rollout", 0), (2, "filter", 0), (2, "sft", 2)] {
        assert!(equal(store, "same", part).await, "{part:?}");
    }
    // Every iteration trains the base, never the previous policy.
    let shown = said(type_in(store, &["inspect", RUN, "2", "sft", "0"]));
    assert!(shown.contains("policy = 0/init/0"), "{shown}");
    assert!(shown.contains("kept = 2/filter/0"), "{shown}");
}

#[test]
fn without_demonstrations_an_iteration_that_keeps_nothing_says_so() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let bindings = [
        "agentevol.threshold=2",
        "agentevol.add_original_data=false",
        "jobs.failures_max=1",
    ];
    let output = finish(evolve(store, &bindings));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(
        complaint.contains("iteration 1 keeps no trajectory"),
        "{complaint}"
    );
    assert!(complaint.contains("agentevol.threshold"), "{complaint}");
}

/// A file of conversations works for both kinds of runs that learn from files.
#[test]
fn exported_trajectories_train_other_runs() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let short = ["trainer.total_training_steps=1", "sft.steps=0"];
    end(submit_config("configs/smoke.yaml", store, &short), store);
    let file = folder.path().join("out").join("played.json");
    let name = file.display().to_string();
    let shown = said(type_in(store, &["export", RUN, "--trajectories", &name]));
    assert!(
        shown.contains("32 trajectories"),
        "8 tasks × 4 samples: {shown}"
    );
    let rows: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(rows.len(), 32);
    let roles = |row: &Value| -> Vec<String> {
        let lines = row["conversations"].as_array().unwrap().iter();
        lines
            .map(|l| l["from"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(roles(&rows[0])[..2], ["human", "gpt"]);

    let refused = |words: &[&str], code: i32, word: &str| {
        let output = finish(type_in(
            store,
            &[&["export", RUN, "--trajectories"], words].concat(),
        ));
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {complaint}");
        assert!(complaint.contains(word), "{words:?}: {complaint}");
    };
    refused(&[&name], 2, "is there already");
    let other = folder.path().join("other.json").display().to_string();
    refused(
        &[&other, "--reward-min", "2"],
        4,
        "32 are below the threshold",
    );
    refused(&[&other, "--stage", "update"], 2, "holds no episodes");
    refused(&[&other, "--iteration", "7"], 4, "iterations 0 to 1");
    assert!(!Path::new(&other).exists());

    let learn = |pipeline: &str, options: &[String]| {
        let mut command = submit_config("configs/smoke.yaml", &folder.path().join(pipeline), &[]);
        command.args([
            "evaluation.sets=[]".to_owned(),
            format!("run.pipeline={pipeline}"),
        ]);
        command.args(options);
        said(command);
    };
    learn(
        "sft",
        &[
            format!("sft.sources=[{{file: {name:?}}}]"),
            "sft.steps=2".into(),
        ],
    );
    let files = ["expert", "experience"].map(|side| format!("dpo.{side}_file={name:?}"));
    let options = [
        "steps=2",
        "prompt_length=1",
        "reward_gap=0",
        "expert_threshold=0",
    ];
    let options = options.map(|option| format!("dpo.{option}"));
    learn(
        "dpo",
        &[&files[..], &options[..], &["sft.steps=0".to_owned()]].concat(),
    );
}
