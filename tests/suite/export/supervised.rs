//! Supervised training as a user runs it: epochs over a file, and the loss on held-out rows,
//! recomputed in f64 from the files of the policies.

use super::qwen2::Qwen2;
use super::succeed;
use crate::durability::{RUN, end, no_part_started_after_its_commit, said, submit_config};
use crate::strikes::{made_good, strikes};
use agentgym_model::{Device, Message, Policy, Role};
use agentgym_storage::Store;
use agentgym_tests::program::program;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen2-tiny")
}

/// Question and answer of a row.
fn words(row: usize) -> (String, String) {
    (format!("what is {row} and {row}?"), format!("{}", 2 * row))
}

fn write(file: &Path, rows: std::ops::Range<usize>) {
    let rows: Vec<Value> = rows
        .map(|row| {
            let (question, answer) = words(row);
            let lines = [("human", question), ("gpt", answer)]
                .map(|(from, value)| json!({"from": from, "value": value, "loss": null}));
            json!({"item_id": format!("sum_{row}"), "conversations": lines})
        })
        .collect();
    std::fs::write(file, serde_json::to_vec(&rows).unwrap()).unwrap();
}

/// A folder with two files of rows and a config that trains on the first; `more` is added to the
/// section.
fn scene(more: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    write(&at("train.json"), 0..19);
    write(&at("held.json"), 40..46);
    let text = format!(
        "
run: {{pipeline: sft, seed: 4}}
actor_rollout_ref: {{model: {{path: {}}}}}
sft:
  batch_size: 4
  lr: 1.0e-2
  warmup_steps: 2
  sources: [{{file: {}}}]
  {}
jobs: {{sft_part_steps: 4, unit_tokens: 256}}
",
        model().display(),
        at("train.json").display(),
        more.replace("HELD", &at("held.json").display().to_string()),
    );
    std::fs::write(at("run.yaml"), text).unwrap();
    let config = at("run.yaml");
    (folder, config)
}

/// −Σ ln π / tokens over the answers of the second file, in f64, by an independent implementation.
fn recomputed(policy: &Path) -> f64 {
    let (reader, network) = (
        Policy::load(&model(), &Device::cpu()).unwrap(),
        Qwen2::load(policy).unwrap(),
    );
    let (tokenizer, chat) = (reader.tokenizer(), reader.chat());
    let (mut sum, mut tokens) = (0.0, 0);
    for row in 40..46 {
        let (question, answer) = words(row);
        let message = Message::new(Role::User, question);
        let mut ids = chat.prompt_ids(tokenizer, &[message]).unwrap();
        let prompt = ids.len();
        ids.extend(tokenizer.encode_ordinary(&answer).unwrap());
        ids.push(chat.end_of_turn_id(tokenizer).unwrap());
        let log_probs = network.streams(&ids, 1.0).unwrap().log_probs;
        // The log-prob of token t is at t − 1.
        let own: Vec<f64> = log_probs.to_vec1::<f64>().unwrap()[prompt - 1..].to_vec();
        tokens += own.len();
        sum -= own.iter().sum::<f64>();
    }
    sum / tokens as f64
}

#[test]
fn the_validation_loss_is_what_the_files_say() {
    let (folder, config) = scene("epochs: 3\n  validation_sources: [{file: HELD}]");
    let store = folder.path().join("store");
    said(submit_config(&config.display().to_string(), &store, &[]));
    let look = |words: &[&str]| {
        let mut command = program("agentgym-submit");
        command.args(words).arg("--store").arg(&store);
        command
    };
    let report: Value = serde_json::from_str(&said(look(&["metrics", RUN, "--json"]))).unwrap();
    let points = report["validation"].as_array().unwrap();
    let steps: Vec<u64> = points.iter().map(|p| p["step"].as_u64().unwrap()).collect();
    // Five steps per epoch, four per part.
    assert_eq!(steps, [0, 4, 5, 8, 10, 12, 15]);
    assert_eq!(points[2]["epoch"], 1.0);
    let after = folder.path().join("after");
    let mut export = look(&["export", RUN, "--iteration", "0"]);
    export.arg("--to").arg(&after);
    succeed(export);
    for (point, policy) in [(0, model()), (6, after.join("policy_after"))] {
        let (recorded, own) = (points[point]["loss"].as_f64().unwrap(), recomputed(&policy));
        assert!(
            (recorded - own).abs() < 1e-5 * own,
            "{point}: {recorded}, recomputed {own}"
        );
    }
    let loss = |point: usize| points[point]["loss"].as_f64().unwrap();
    assert!(loss(6) < 0.9 * loss(0), "{points:?}");
    let status: Value = serde_json::from_str(&said(look(&["status", RUN, "--json"]))).unwrap();
    assert_eq!(status["sft"]["validation_loss"], points[6]["loss"]);
    assert_eq!(status["sft"]["step"], 15);
    let table = said(look(&["metrics", RUN]));
    assert!(
        table.contains("loss on what is held out") && table.contains("3.00"),
        "{table}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_change_nothing_of_passes_with_a_part_held_out() {
    let (folder, config) = scene("epochs: 60\n  validation_share: 0.3");
    let config = config.display().to_string();
    let [calm, rough] = ["calm", "rough"].map(|name| folder.path().join(name));
    let undisturbed = end(submit_config(&config, &calm, &["jobs.threads=2"]), &calm);
    let one = || submit_config(&config, &rough, &["jobs.threads=1"]);
    let struck = strikes((&rough, RUN), 17, 5, one).await;
    assert_eq!(
        end(submit_config(&config, &rough, &[]), &rough),
        undisturbed
    );
    no_part_started_after_its_commit(&rough).await;
    let store = Store::open(&rough.display().to_string()).await.unwrap();
    made_good(&store, &struck).await;
}
