//! Keys that were given and decide nothing, because another key leaves their part of the program
//! out. They still enter the identity of the run, so a person who sets one is best shown it.

use super::keys::{KEYS, KeySpec, Kind};
use super::tree::{get, yaml};
use super::{Config, KlCtrlType, Pipeline, RolloutEngine, RoundsCtrlType};
use agentgym_algorithms::AdvantageEstimator::Gigpo;
use agentgym_algorithms::LearningRateStyle::Constant;
use serde_json::Value;

/// Keys (or sections), whether a config uses them, and what leaves them out.
type Row = (&'static [&'static str], fn(&Config) -> bool, &'static str);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (&["algorithm.kl_ctrl", "algorithm.kl_penalty"], |c| c.algorithm.use_kl_in_reward, "algorithm.use_kl_in_reward is false"),
    (&["algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.horizon"],
        |c| c.algorithm.kl_ctrl.kind == KlCtrlType::Adaptive, "algorithm.kl_ctrl.type is fixed"),
    (&["actor_rollout_ref.actor.kl_loss_coef", "actor_rollout_ref.actor.kl_loss_type"],
        |c| c.actor_rollout_ref.actor.use_kl_loss, "actor_rollout_ref.actor.use_kl_loss is false"),
    (&["actor_rollout_ref.ref.model.path"],
        |c| c.actor_rollout_ref.actor.use_kl_loss || c.algorithm.use_kl_in_reward || c.run.pipeline == Pipeline::Dpo,
        "no divergence is measured"),
    (&["critic", "algorithm.lam"], Config::has_critic, "algorithm.adv_estimator trains no critic"),
    (&["algorithm.gigpo"], |c| c.algorithm.adv_estimator == Gigpo, "algorithm.adv_estimator is not gigpo"),
    (&["reward.overlong_buffer.penalty_factor"], |c| c.reward.overlong_buffer.len > 0, "reward.overlong_buffer.len is 0"),
    (&["algorithm.rollout_correction.rollout_is_threshold"],
        |c| c.algorithm.rollout_correction.rollout_is.is_some(), "algorithm.rollout_correction.rollout_is is null"),
    (&["algorithm.filter_groups.max_num_gen_batches"],
        |c| c.algorithm.filter_groups.enable, "algorithm.filter_groups.enable is false"),
    (&["algorithm.rounds_ctrl.steps_scaling_inter"],
        |c| c.algorithm.rounds_ctrl.kind == RoundsCtrlType::ScalingInterStepwise, "algorithm.rounds_ctrl.type is fixed"),
    (&["actor_rollout_ref.actor.optim.min_lr_ratio"],
        |c| c.actor_rollout_ref.actor.optim.warmup_style != Constant, "actor_rollout_ref.actor.optim.warmup_style is constant"),
    (&["critic.optim.min_lr_ratio"], |c| c.critic.optim.warmup_style != Constant, "critic.optim.warmup_style is constant"),
    (&["actor_rollout_ref.model.lora_alpha", "actor_rollout_ref.model.target_modules"],
        |c| c.actor_rollout_ref.model.has_adapter(), "actor_rollout_ref.model.lora_rank is 0"),
    (&["actor_rollout_ref.rollout.server"],
        |c| matches!(c.actor_rollout_ref.rollout.engine, RolloutEngine::Server | RolloutEngine::Chat),
        "actor_rollout_ref.rollout.engine asks no server"),
    (&["data.curriculum.iterations"], |c| c.data.curriculum.solved.is_some(), "data.curriculum.solved is null"),
    (&["data.seed"], |c| c.data.shuffle, "data.shuffle is false"),
    (&["trainer.total_epochs"], |c| c.trainer.total_training_steps.is_none(), "trainer.total_training_steps is given"),
    (&["reward.batch_size", "reward.timeout_s", "reward.retries"], |c| c.reward.function.is_some(), "reward.function is null"),
    (&["sft", "jobs.sft_part_steps"],
        |c| c.run.pipeline != Pipeline::Rl || c.sft.steps > 0 || c.sft.epochs.is_some(), "sft.steps is 0"),
    (&["dpo", "jobs.dpo_part_steps"], |c| c.run.pipeline == Pipeline::Dpo, "run.pipeline is not dpo"),
    (&["agentevol"], |c| c.run.pipeline == Pipeline::AgentEvol, "run.pipeline is not agentevol"),
    (&["evaluation.samples", "evaluation.temperature", "evaluation.greedy", "evaluation.max_rounds", "evaluation.k"],
        |c| !c.evaluation.sets.is_empty(), "evaluation.sets is empty"),
];

/// A line about the keys of `given` without effect, if there are any; `tree` is the resolved config.
pub(super) fn note(given: &Value, tree: &Value, config: &Config) -> Option<String> {
    if config.run.pipeline == Pipeline::Eval {
        // The config of a training run, most of which an evaluation does not read.
        return None;
    }
    let mut named: Vec<String> = Vec::new();
    let set = KEYS.iter().filter(|key| {
        key.kind != Kind::Unused && get(given, key.path).is_some() && !is_default(tree, key)
    });
    for key in set {
        let below = |head: &&str| {
            let rest = key.path.strip_prefix(*head);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let idle = |(heads, used, _): &&Row| heads.iter().any(&below) && !used(config);
        if let Some((.., because)) = ROWS.iter().find(idle) {
            named.push(format!("{} ({because})", key.path));
        }
    }
    (!named.is_empty()).then(|| format!("without effect: {}", named.join(", ")))
}

/// A default that is written out changes nothing, not even the identity.
fn is_default(tree: &Value, key: &KeySpec) -> bool {
    let reference = key.default.strip_prefix("${");
    let default = match reference.and_then(|path| path.strip_suffix('}')) {
        Some(path) => get(tree, path).cloned(),
        None => yaml(key.default).ok(),
    };
    default.as_ref() == get(tree, key.path)
}

#[cfg(test)]
mod tests {
    use super::super::keys::find;
    use super::*;
    use crate::config::ResolvedConfig;
    use std::path::Path;

    fn notes(overrides: &[&str]) -> String {
        let text =
            "{data: {tasks: [{env: textcraft, ids: 0..4}]}, actor_rollout_ref: {rollout: {n: 2}}}";
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let read = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &overrides);
        read.unwrap().notes.join("\n")
    }

    #[test]
    fn keys_without_effect_are_named_together() {
        let said = notes(&[
            "algorithm.kl_ctrl.kl_coef=0.5",
            "actor_rollout_ref.actor.kl_loss_coef=0.5",
            "trainer.total_training_steps=2",
            "trainer.total_epochs=7",
            "dpo.lr=1e-3",
        ]);
        assert_eq!(said.lines().count(), 1, "{said}");
        for key in [
            "without effect: ",
            "trainer.total_epochs (trainer.total_training_steps is given)",
            "algorithm.kl_ctrl.kl_coef (algorithm.use_kl_in_reward is false)",
            "actor_rollout_ref.actor.kl_loss_coef (actor_rollout_ref.actor.use_kl_loss is false)",
            "dpo.lr (run.pipeline is not dpo)",
        ] {
            assert!(said.contains(key), "{key}: {said}");
        }
    }

    #[test]
    fn keys_with_an_effect_and_defaults_are_not() {
        for given in [
            &[
                "actor_rollout_ref.actor.kl_loss_coef=0.5",
                "actor_rollout_ref.actor.use_kl_loss=true",
            ][..],
            &[
                "algorithm.kl_ctrl.kl_coef=0.5",
                "algorithm.use_kl_in_reward=true",
            ],
            &["algorithm.kl_ctrl.kl_coef=0.001", "critic.optim.lr=1e-5"],
            &["trainer.total_epochs=7"],
            &[
                "run.pipeline=eval",
                "dpo.lr=1e-3",
                "evaluation.sets=[{name: a, env: textcraft, ids: 4..6}]",
            ],
        ] {
            assert_eq!(notes(given), "", "{given:?}");
        }
    }

    #[test]
    fn every_row_names_keys() {
        for (heads, ..) in ROWS {
            for head in *heads {
                let below = |path: &str| path.starts_with(&format!("{head}."));
                let known = find(head).is_some() || KEYS.iter().any(|key| below(key.path));
                assert!(known, "{head}");
            }
        }
    }
}
