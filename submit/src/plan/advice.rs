//! Better values for a pretrained model, as keys to paste. The defaults of some keys suit models of a
//! million parameters, and a config that was written for one goes wrong in silence with a larger one.

use crate::plan::model_size::ModelSize;
use crate::plan::sizes::narrow;
use crate::text::count;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::plan::Plan;

/// A model with more parameters has been trained before it comes here.
const PRETRAINED: u128 = 20_000_000;
/// Rates above these undo what a pretrained model has learnt, and the ones to take instead.
const LESSONS: (f64, &str) = (3e-4, "1e-4");
const REWARDS: (f64, &str) = (1e-4, "1e-5");
/// A turn of fewer tokens than this holds no action of most environments.
const TURN_MIN: usize = 16;

/// What would be better, a key with its value and the reason each.
pub(crate) fn advice(plan: &Plan, model: &ModelSize) -> Vec<String> {
    let config = &plan.config;
    let (actor, pipeline) = (&config.actor_rollout_ref, config.run.pipeline);
    let mut lines = Vec::new();
    let adapts = model.adapter_rank.is_some();
    let steps = plan.sft_parts(0) > 0 || pipeline == Pipeline::AgentEvol;
    let rates = [
        (steps, "sft.lr", config.sft.lr, LESSONS),
        (pipeline == Pipeline::Dpo, "dpo.lr", config.dpo.lr, REWARDS),
        (
            pipeline == Pipeline::Rl && plan.iterations > 0,
            "actor_rollout_ref.actor.optim.lr",
            actor.actor.optim.lr,
            REWARDS,
        ),
    ];
    for (is_used, key, rate, (most, better)) in rates {
        if is_used && model.parameters > PRETRAINED && !adapts && rate > most {
            lines.push(format!(
                "{key}={better}: {rate:e} is a rate for models of a million parameters, and undoes what one of {} has learnt",
                count(narrow(model.parameters))
            ));
        }
    }
    let (turn, all) = (actor.rollout.max_tokens, actor.rollout.response_length);
    let rounds = (1..=plan.iterations).map(|n| plan.rounds_max(n)).max();
    let rounds = rounds.unwrap_or(1) as usize;
    let better = (all / (2 * rounds)).max(TURN_MIN);
    let is_whole = actor.agentgym.context_turns.is_none();
    if pipeline != Pipeline::Sft && rounds > 1 && is_whole && 2 * turn > all && 2 * better <= all {
        lines.push(format!(
            "actor_rollout_ref.rollout.max_tokens={better}: a reply of {turn} tokens leaves no room for a second as long in \
             the {all} of data.max_response_length, and episodes have up to {rounds} rounds"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::model_size;
    use agentgym_jobs::config::ResolvedConfig;
    use std::path::Path;

    fn advised(overrides: &[&str]) -> String {
        let text = "
run: {id: r}
data: {tasks: [{env: textcraft, ids: 0..8}], max_response_length: 600}
actor_rollout_ref: {rollout: {n: 2, max_tokens: 32}}
sft: {sources: [{env: textcraft, ids: 0..4}], steps: 2}
trainer: {total_training_steps: 3}
";
        let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &overrides).unwrap();
        let plan = Plan::new(config, Path::new("")).unwrap();
        let model = model_size::of(&plan.config.actor_rollout_ref.model).unwrap();
        advice(&plan, &model).join("\n")
    }

    const LARGE: &str = "actor_rollout_ref.model.path=tiny?hidden=1024&layers=8&heads=16&kv_heads=16&intermediate=4096&vocab=1024";

    #[test]
    fn a_rate_for_tiny_models_is_named_for_a_large_one_alone() {
        assert_eq!(advised(&[]), "");
        let said = advised(&[LARGE]);
        assert!(said.starts_with("sft.lr=1e-4: 1e-3 is a rate"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let rate = "actor_rollout_ref.actor.optim.lr=0.001";
        let said = advised(&[LARGE, "sft.lr=1e-4", rate]);
        assert!(
            said.starts_with("actor_rollout_ref.actor.optim.lr=1e-5"),
            "{said}"
        );
        let adapter = "actor_rollout_ref.model.lora_rank=8";
        assert_eq!(advised(&[LARGE, adapter]), "");
    }

    #[test]
    fn replies_that_fill_the_context_are_named_with_a_size_that_does_not() {
        let said = advised(&["actor_rollout_ref.rollout.max_tokens=301"]);
        assert!(
            said.starts_with("actor_rollout_ref.rollout.max_tokens="),
            "{said}"
        );
        let better = said.split(':').next().unwrap();
        assert_eq!(advised(&[better]), "");
        assert_eq!(advised(&["actor_rollout_ref.rollout.max_tokens=300"]), "");
        // Where even short replies fill it, no value would do.
        let small = "data.max_response_length=20";
        assert_eq!(
            advised(&[small, "actor_rollout_ref.rollout.max_tokens=12"]),
            ""
        );
    }
}
