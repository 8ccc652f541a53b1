//! What retention leaves of the weights that a run has written before its first iteration, and that
//! what is gone was read by nobody.

use crate::durability::{RUN, SHORT, end, said, submit_config};
use agentgym_tests::files::files_below;
use agentgym_tests::program::program;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use tempfile::TempDir;

/// The weights and states of iteration 0, as `stage/part/file`.
fn weights_at_the_start(store: &Path) -> BTreeSet<String> {
    let files = store.join(format!("runs/{RUN}/files/00000000"));
    let tensors = files_below(&files).into_iter().filter(|file| {
        let name = file.file_name().unwrap().to_string_lossy();
        name.ends_with(".safetensors")
    });
    let place = |file: &Path| {
        let names: Vec<_> = file.strip_prefix(&files).unwrap().iter().collect();
        let name = |at: usize| names[at].to_string_lossy().into_owned();
        format!("{}/{}/{}", name(0), name(1), name(3))
    };
    tensors.map(|file| place(&file)).collect()
}

fn left(settings: &[&str]) -> (TempDir, BTreeSet<String>) {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let settings = [&SHORT[..], settings].concat();
    end(submit_config("configs/smoke.yaml", store, &settings), store);
    let left = weights_at_the_start(store);
    (folder, left)
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

/// The smoke run's warm start has two parts: the policy that it begins with and the first part's
/// policy and state go; the run is whole, resumes and can be forked from there.
#[test]
fn weights_that_nobody_reads_go() {
    let (folder, weights) = left(&[]);
    let start = ["sft/000001/optimizer", "sft/000001/policy"];
    assert_eq!(weights, set(start));
    let store = folder.path();
    for words in [
        &["verify", RUN][..],
        &["resume", RUN],
        &["export", RUN, "--iteration", "0", "--to"],
        &[
            "fork",
            RUN,
            "--iteration",
            "0",
            "run.id=child",
            "actor_rollout_ref.actor.optim.lr=2e-4",
        ],
    ] {
        let mut command = program("agentgym-submit");
        command.args(words);
        if words.last() == Some(&"--to") {
            command.arg(store.join("export"));
        }
        command.arg("--store").arg(store);
        said(command);
    }
    let written = |name: &str| store.join("export").join(name).exists();
    assert!(written("policy_after") && written("sft_examples.jsonl"));
    assert!(!written("policy_before"));
    let origin = std::fs::read_to_string(store.join("export/export.json")).unwrap();
    let origin: Value = serde_json::from_str(&origin).unwrap();
    assert_eq!(origin["removed"], json!(["policy_before"]));
}

/// An adapter's base, the start of every AgentEvol iteration and the start policy stay.
#[test]
fn weights_that_are_read_stay() {
    let (_folder, weights) = left(&["actor_rollout_ref.model.lora_rank=4"]);
    let adapters = ["sft/000001/adapter", "sft/000001/optimizer"];
    let base = ["init/000000/policy"];
    // Zero, as it begins.
    let zero = ["init/000000/adapter"];
    assert_eq!(weights, &(&set(base) | &set(zero)) | &set(adapters));
    let evolution = [
        "run.pipeline=agentevol",
        "agentevol.keep=all",
        "agentevol.steps=9",
    ];
    let (_folder, weights) = left(&evolution);
    assert!(weights.is_superset(&set(base)), "{weights:?}");
    let (_folder, weights) = left(&["sft.steps=0", "sft.sources=[]"]);
    assert!(weights.is_superset(&set(base)), "{weights:?}");
}
