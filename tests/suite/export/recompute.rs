//! A policy after its update is recomputed from the policy before it, the optimizer before it, the
//! trajectories and `update.json`; likewise an adapter and a critic.

use super::Exported;
use super::advantages::{Shown, assert_recomputed};
use super::qwen2::{Qwen2, tensors};
use super::update::{Files, Step};
use candle_core::Tensor;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest distance of a parameter's recomputed change from the exported one, relative to its
/// length: the f32 rounding of four steps (4e-4 was observed). AdamW divides by the gradient's own
/// size, so the rounding of a gradient that almost cancels appears at full size.
const CHANGE_ERROR_MAX: f64 = 2e-3;

/// The same for the metrics of a step (1e-5 was observed).
const FIGURE_ERROR_MAX: f64 = 1e-4;

fn length(x: &Tensor) -> f64 {
    let squares = x.sqr().unwrap().sum_all().unwrap();
    squares.to_scalar::<f64>().unwrap().sqrt()
}

pub(super) type Tensors = BTreeMap<String, Tensor>;

/// The parameter whose recomputed value is furthest off, and the error relative to the length of
/// its change.
pub(super) fn furthest(before: &Tensors, after: &Tensors, recomputed: &Qwen2) -> (String, f64) {
    assert!(before.keys().eq(after.keys()));
    let off = after.iter().map(|(name, after)| {
        let change = (after - &before[name]).unwrap();
        let error = (after - recomputed.parameters[name].as_tensor()).unwrap();
        (name.clone(), length(&error) / length(&change))
    });
    off.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap()
}

/// Metrics are of order 1; below a thousandth the absolute error counts.
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
        for (name, recomputed) in step {
            let place = match *name {
                "grad_norm" | "clip_scale" => recorded,
                _ => &recorded["metrics"],
            };
            assert_near(name, &place[name], *recomputed);
        }
    }
    // Otherwise an error in a term could remain undetected.
    let any = |test: &dyn Fn(&Step) -> bool| steps.iter().any(test);
    for name in steps[0].keys().filter(|name| **name != "clip_scale") {
        assert!(any(&|step| step[name] != 0.0), "{name} is always 0");
    }
    assert!(any(&|step| step["clip_scale"] < 1.0));
}

/// A model file of the export, and the update that changes it.
struct Trained {
    exported: Exported,
    /// The file before the update.
    before: PathBuf,
    /// The same after it.
    after: PathBuf,
    load: fn(&Path) -> candle_core::Result<Qwen2>,
    files: fn(&Path) -> Files,
}

/// Changes one thing in `update.json`.
pub(super) type Spoil = fn(&mut Value);

impl Trained {
    fn new(
        exported: Exported,
        [before, after]: [String; 2],
        load: fn(&Path) -> candle_core::Result<Qwen2>,
        files: fn(&Path) -> Files,
    ) -> Self {
        Self {
            before: exported.folder.join(before),
            after: exported.folder.join(after),
            exported,
            load,
            files,
        }
    }

    fn files(&self) -> Files {
        (self.files)(&self.exported.folder)
    }

    fn model(&self) -> Qwen2 {
        (self.load)(&self.exported.folder).unwrap()
    }

    fn assert_recomputed(&self) {
        let (model, files) = (self.model(), self.files());
        let steps = files.replay(&model, usize::MAX).unwrap();
        assert_metrics(&files, &steps);
        let (before, after) = (&self.before, &self.after);
        let (before, after) = (tensors(before).unwrap(), tensors(after).unwrap());
        let (name, error) = furthest(&before, &after, &model);
        println!("recomputed: {name} is furthest off, by {error:.1e} of its change");
        assert!(error < CHANGE_ERROR_MAX, "{name} is off by {error}");
    }

    /// The bound is tight enough to detect a change of any part of one step.
    fn assert_shows(&self, spoils: &[(&str, Spoil)]) {
        let first_step = |files: &Files| {
            let model = self.model();
            files.replay(&model, 1).unwrap();
            model
        };
        let right: Tensors = first_step(&self.files())
            .parameters
            .into_iter()
            .map(|(name, parameter)| (name, parameter.as_detached_tensor()))
            .collect();
        let before = tensors(&self.before).unwrap();
        for (what, spoil) in spoils {
            let mut files = self.files();
            spoil(&mut files.update);
            let (name, error) = furthest(&before, &right, &first_step(&files));
            println!("without the right {what}: {name} is off by {error:.1e}");
            assert!(
                error > 2.0 * CHANGE_ERROR_MAX,
                "{what} does not show: {error}"
            );
        }
    }
}

const DECAY: (&str, Spoil) = ("decay", |u| u["settings"]["weight_decay"] = json!(0.0));
const ORDER: (&str, Spoil) = ("order", |u| {
    u["minibatches"].as_array_mut().unwrap().swap(0, 1);
});

#[test]
fn an_update_is_computed_again_from_the_exported_files_alone() {
    let trained = Trained::new(
        Exported::make(""),
        ["policy_before", "policy_after"].map(|f| f.to_owned() + "/model.safetensors"),
        |folder| Qwen2::load(&folder.join("policy_before")),
        Files::of_policy,
    );
    trained.assert_recomputed();
    let divergence: Spoil = |u| u["settings"]["loss"]["kl"] = Value::Null;
    trained.assert_shows(&[DECAY, ("divergence", divergence), ORDER]);
}

/// The advantages, and then the update that uses them.
fn assert_whole(overrides: &str) -> Shown {
    let trained = Trained::new(
        Exported::make(overrides),
        ["policy_before", "policy_after"].map(|f| f.to_owned() + "/model.safetensors"),
        |folder| Qwen2::load(&folder.join("policy_before")),
        Files::of_policy,
    );
    let shown = assert_recomputed(&trained.exported.folder);
    trained.assert_recomputed();
    shown
}

#[test]
fn so_are_advantages_with_a_penalty_masks_and_a_cut_distribution() {
    let shown = assert_whole(
        "algorithm.adv_estimator=rloo algorithm.overlong=mask algorithm.use_kl_in_reward=true \
         algorithm.kl_penalty=low_var_kl algorithm.kl_ctrl.type=adaptive algorithm.kl_ctrl.kl_coef=0.05 \
         algorithm.kl_ctrl.target_kl=0.01 algorithm.kl_ctrl.horizon=50 \
         algorithm.rollout_correction.rollout_is=token actor_rollout_ref.rollout.top_k=40 \
         actor_rollout_ref.rollout.top_p=0.98",
    );
    assert!(shown.masked > 0 && shown.weighed);
}

#[test]
fn so_are_advantages_over_greedy_episodes_with_rewards_of_turns() {
    assert_whole("algorithm.adv_estimator=remax algorithm.turn_rewards=true");
}

#[test]
fn so_are_whitened_returns() {
    let shown = assert_whole(
        "algorithm.adv_estimator=reinforce_plus_plus algorithm.gamma=0.95 algorithm.overlong=mask \
         algorithm.use_kl_in_reward=true algorithm.kl_penalty=kl algorithm.kl_ctrl.kl_coef=0.05 \
         algorithm.rollout_correction.rollout_is=sequence actor_rollout_ref.rollout.top_p=0.98",
    );
    assert!(shown.left_out > 0 && shown.weighed);
}

#[test]
fn so_is_that_of_an_adapter() {
    let trained = Trained::new(
        Exported::make(
            "actor_rollout_ref.model.lora_rank=4 actor_rollout_ref.actor.grad_clip=0.02",
        ),
        ["adapter_before", "adapter_after"].map(|f| f.to_owned() + "/adapter_model.safetensors"),
        |folder| {
            Qwen2::load_adapted(
                &folder.join("policy_before"),
                &folder.join("adapter_before"),
            )
        },
        Files::of_policy,
    );
    trained.assert_recomputed();
    trained.assert_shows(&[DECAY, ORDER]);
}

#[test]
fn so_is_that_of_a_critic() {
    let trained = Trained::new(
        Exported::make(
            "algorithm.adv_estimator=gae algorithm.gamma=0.98 algorithm.lam=0.9 critic.optim.lr=1e-3 \
             critic.cliprange_value=0.02 actor_rollout_ref.actor.grad_clip=0.02 critic.grad_clip=0.02",
        ),
        ["critic_before", "critic_after"].map(|f| f.to_owned() + "/model.safetensors"),
        |folder| Qwen2::load(&folder.join("critic_before")),
        Files::of_critic,
    );
    assert_recomputed(&trained.exported.folder);
    trained.assert_recomputed();
    let weights: Spoil = |u| u["settings"]["loss"]["aggregation"] = json!("token_mean");
    trained.assert_shows(&[DECAY, ("weights", weights), ORDER]);
}
