//! The policy after an update follows from the policy before it, the optimizer
//! before it, the trajectories and `update.json`.

use super::Exported;
use super::qwen2::{Qwen2, tensors};
use super::update::{Files, Step};
use candle_core::Tensor;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Largest distance of the recomputed change of a parameter from the exported
/// one, relative to its length: what f32 costs in four steps (4e-4 was seen).
/// AdamW divides by the gradient's own size, so the rounding of a gradient that
/// almost cancels shows at full size.
const CHANGE_ERROR_MAX: f64 = 2e-3;

/// The same for the figures of a step (1e-5 was seen).
const FIGURE_ERROR_MAX: f64 = 1e-4;

fn length(x: &Tensor) -> f64 {
    let squares = x.sqr().unwrap().sum_all().unwrap();
    squares.to_scalar::<f64>().unwrap().sqrt()
}

type Tensors = BTreeMap<String, Tensor>;

/// The parameter whose recomputed value is furthest off, and how far, relative
/// to the length of its change.
fn furthest(before: &Tensors, after: &Tensors, recomputed: &Qwen2) -> (String, f64) {
    assert!(before.keys().eq(after.keys()));
    let off = after.iter().map(|(name, after)| {
        let change = (after - &before[name]).unwrap();
        let error = (after - recomputed.parameters[name].as_tensor()).unwrap();
        (name.clone(), length(&error) / length(&change))
    });
    off.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap()
}

/// Figures are of order 1; below a thousandth the distance counts.
fn assert_near(what: &str, recorded: &Value, recomputed: f64) {
    let recorded = recorded.as_f64().unwrap();
    let error = (recorded - recomputed).abs();
    assert!(
        error <= FIGURE_ERROR_MAX * recorded.abs().max(1e-3),
        "{what}: update.json has {recorded}, recomputed {recomputed}"
    );
}

fn assert_metrics(files: &Files, steps: &[Step]) {
    let recorded = files.update["minibatches"].as_array().unwrap();
    assert_eq!((recorded.len(), steps.len()), (4, 4));
    for (recorded, step) in recorded.iter().zip(steps) {
        let metrics = &recorded["metrics"];
        for (what, recorded, recomputed) in [
            ("policy_loss", &metrics["policy_loss"], step.policy_loss),
            ("entropy", &metrics["entropy"], step.entropy),
            ("kl_loss", &metrics["kl_loss"], step.kl_loss),
            (
                "clip_fraction",
                &metrics["clip_fraction"],
                step.clip_fraction,
            ),
            ("grad_norm", &recorded["grad_norm"], step.grad_norm),
            ("clip_scale", &recorded["clip_scale"], step.clip_scale),
        ] {
            assert_near(what, recorded, recomputed);
        }
    }
    // Otherwise a term could be wrong without a trace.
    let any = |test: fn(&Step) -> bool| steps.iter().any(test);
    assert!(any(|s| s.clip_fraction > 0.0) && any(|s| s.kl_loss > 0.0));
    assert!(any(|s| s.clip_scale < 1.0) && any(|s| s.policy_loss.abs() > 0.0));
}

#[test]
fn an_update_is_computed_again_from_the_exported_files_alone() {
    let exported = Exported::make();
    let folder = |name: &str| exported.folder.join(name);
    let read = |name: &str| tensors(&folder(name).join("model.safetensors")).unwrap();
    let load = || Qwen2::load(&folder("policy_before")).unwrap();
    let before = read("policy_before");
    let files = Files::read(&exported.folder);
    let policy = load();
    let steps = files.replay(&policy, usize::MAX).unwrap();
    assert_metrics(&files, &steps);
    let (name, error) = furthest(&before, &read("policy_after"), &policy);
    println!("recomputed: {name} is furthest off, by {error:.1e} of its change");
    assert!(error < CHANGE_ERROR_MAX, "{name} is off by {error}");

    // The bound is tight enough to see each part of one step.
    let first_step = |files: &Files| {
        let policy = load();
        files.replay(&policy, 1).unwrap();
        policy
    };
    let right: Tensors = first_step(&files)
        .parameters
        .into_iter()
        .map(|(name, parameter)| (name, parameter.as_detached_tensor()))
        .collect();
    type Spoil = fn(&mut Value);
    let spoils: [(&str, Spoil); 3] = [
        ("decay", |u| u["settings"]["weight_decay"] = json!(0.0)),
        ("divergence", |u| u["settings"]["loss"]["kl"] = Value::Null),
        ("order", |u| {
            u["minibatches"].as_array_mut().unwrap().swap(0, 1);
        }),
    ];
    for (what, spoil) in spoils {
        let mut files = Files::read(&exported.folder);
        spoil(&mut files.update);
        let (name, error) = furthest(&before, &right, &first_step(&files));
        println!("without the right {what}: {name} is off by {error:.1e}");
        assert!(
            error > 2.0 * CHANGE_ERROR_MAX,
            "{what} does not show: {error}"
        );
    }
}
