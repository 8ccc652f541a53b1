//! Supervised steps recomputed from an export: demonstrations, episodes kept by AgentEvol, and
//! preference pairs.

use super::qwen2::{Qwen2, tensors};
use super::recompute::{Spoil, furthest};
use super::update::{Files, Loss, Numbers, Step, add_gradient, backward, ids, number, stream, sum};
use super::{Exported, json_of};
use candle_core::Result;
use serde_json::{Value, json};
use std::path::Path;

/// Like [`super::recompute`]'s, for steps from fresh moments: these divide a gradient by its own
/// size, so where it almost cancels, rounding determines the sign.
const CHANGE_ERROR_MAX: f64 = 0.02;

/// Cross-entropy of the replies, over all of their tokens.
fn cross_entropy(model: &Qwen2, members: &[&Value], settings: &Value) -> Result<(Step, Numbers)> {
    let loss = &settings["loss"];
    assert_eq!(loss["name"], "cross_entropy");
    backward(model, members, loss, |member, _, weight, _| {
        let streams = model.streams(&ids(member), number(&settings["temperature"]))?;
        (streams.log_probs.neg()? * weight)?.sum_all()
    })
}

/// −ln σ(β·Δ) over the pairs (arXiv:2305.18290 eq. 7); the reference's log-probs are stored with
/// the answers.
fn preferences(model: &Qwen2, members: &[&Value], settings: &Value) -> Result<(Step, Numbers)> {
    let loss = &settings["loss"];
    assert_eq!(loss["loss"], "sigmoid");
    let mut gradients = Numbers::new();
    for pair in members {
        let margin = |name: &str| {
            let answer = &pair[name];
            let streams = model.streams(&ids(answer), number(&settings["temperature"]))?;
            let own = (streams.log_probs * stream(answer, "loss_mask")?)?.sum_all()?;
            own - number(&answer["ref_log_prob"])
        };
        let delta = (margin("chosen")? - margin("rejected")?)?;
        let scaled = (delta * -number(&loss["beta"]))?;
        let term = ((scaled.exp()? + 1.0)?.log()? / members.len() as f64)?;
        let store = term.backward()?;
        for (name, parameter) in &model.parameters {
            add_gradient(&mut gradients, name, store.get(parameter));
        }
    }
    Ok((Step::new(), gradients))
}

/// Stores the reference's log-prob with each answer.
fn refer(files: &mut Files, reference: &Qwen2) {
    for pair in &mut files.sequences {
        for name in ["chosen", "rejected"] {
            let answer = &mut pair[name];
            let streams = reference.streams(&ids(answer), 1.0).unwrap();
            let own = (streams.log_probs * stream(answer, "loss_mask").unwrap()).unwrap();
            answer["ref_log_prob"] = json!(sum(&own).unwrap());
        }
    }
}

/// Distance between the steps of `files` and the exported policy.
fn distance(folder: &Path, files: &Files) -> f64 {
    let model = Qwen2::load(&folder.join("policy_before")).unwrap();
    files.replay(&model, usize::MAX).unwrap();
    let [before, after] = ["policy_before", "policy_after"]
        .map(|name| tensors(&folder.join(name).join("model.safetensors")).unwrap());
    furthest(&before, &after, &model).1
}

fn assert_replayed(folder: &Path, phase: &str, loss: Loss, steps: usize) {
    assert_eq!(
        json_of(&folder.join("export.json"))["optimizer_before"],
        "fresh"
    );
    let read = || {
        let mut files = Files::of_lessons(folder, phase, loss);
        if phase == "dpo" {
            refer(&mut files, &Qwen2::load(&folder.join("reference")).unwrap());
        }
        files
    };
    let files = read();
    let minibatches = files.update["minibatches"].as_array().unwrap();
    assert_eq!(minibatches.len(), steps);
    let error = distance(folder, &files);
    println!("{phase}: off by {error:.1e} of the change");
    assert!(error < CHANGE_ERROR_MAX, "{phase}: off by {error}");
    let spoils: [(&str, Spoil); 2] = [
        ("order", |u| {
            u["minibatches"].as_array_mut().unwrap().swap(0, 1)
        }),
        ("learning rate", |u| {
            u["minibatches"][1]["lr"] = u["minibatches"][0]["lr"].clone()
        }),
    ];
    for (what, spoil) in spoils {
        let mut files = read();
        spoil(&mut files.update);
        let error = distance(folder, &files);
        println!("{phase}: without the right {what} off by {error:.1e}");
        assert!(
            error > 2.0 * CHANGE_ERROR_MAX,
            "{what} does not show: {error}"
        );
    }
}

const DEMONSTRATIONS: &str = "sft.sources=[{env: textcraft, ids: 100000..100050}]";

#[test]
fn supervised_steps_are_computed_again() {
    let run = [
        "run.pipeline=sft",
        DEMONSTRATIONS,
        "sft.steps=3",
        "sft.batch_size=3",
        "sft.lr=1e-3",
        "sft.warmup_steps=2",
        "jobs.sft_part_steps=2",
    ];
    let exported = Exported::of(0, &run, &[]);
    assert_replayed(&exported.folder, "sft", cross_entropy, 3);
}

/// An AgentEvol iteration retrains the base on the kept episodes, as they were sampled.
#[test]
fn so_are_those_of_an_evolution() {
    let run = [
        "run.pipeline=agentevol",
        "agentevol.threshold=0",
        "agentevol.keep=all",
        "agentevol.steps=3",
        "sft.batch_size=3",
        "sft.lr=1e-3",
        "sft.warmup_steps=2",
        "jobs.sft_part_steps=2",
        "trainer.total_training_steps=1",
    ];
    let exported = Exported::of(1, &run, &[]);
    assert!(exported.folder.join("lineage.json").exists());
    assert_replayed(&exported.folder, "sft", cross_entropy, 3);
}

#[test]
fn so_are_steps_on_preferences() {
    let run = [
        "run.pipeline=dpo",
        "dpo.expert_file=configs/dpo/expert.json",
        "dpo.experience_file=configs/dpo/experience.jsonl",
        "dpo.prompt_length=1",
        "dpo.beta=0.5",
        "dpo.batch_size=2",
        "dpo.steps=3",
        "dpo.lr=1e-4",
        "dpo.warmup_steps=2",
        "jobs.dpo_part_steps=2",
    ];
    let exported = Exported::of(0, &run, &["--reference"]);
    assert_replayed(&exported.folder, "dpo", preferences, 3);
}
