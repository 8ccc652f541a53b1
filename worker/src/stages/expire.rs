//! `expire`: which artifacts retention keeps. The stage itself writes nothing; the runtime, which
//! alone has access to the store, deletes. The rule here is a pure function, so `plan` can print
//! what a run will keep.

use agentgym_jobs::plan::Plan;

/// Iterations whose policy and optimizer state are always kept: the newest one and the one before,
/// from which an interrupted update restarts.
const ITERATIONS_KEPT: u32 = 2;

/// True if retention keeps the artifact `name` of `iteration`.
///
/// Retention keeps everything that is not a policy, an adapter, a critic, a gradient or an
/// optimizer state (trajectories, records, metrics). Of these it keeps the last two iterations,
/// policies and adapters `algorithm.lag` iterations longer, gradients only of the newest one. Of
/// older policies it keeps the start policy (the reference), every `trainer.save_freq`-th, the
/// final one, the best evaluated one, and those still to be evaluated. Critics are kept for the
/// iterations of `save_freq` and the last one, from which a run may be forked.
///
/// `latest` is the newest iteration with a policy, `best` the one with the best evaluation so far;
/// `pending` is true until the evaluation of `iteration` is committed.
pub fn retained(
    plan: &Plan,
    iteration: u32,
    name: &str,
    latest: u32,
    best: Option<u32>,
    pending: bool,
) -> bool {
    let heavy = ["policy/", "adapter/", "optimizer/", "critic/", "gradient/"]
        .into_iter()
        .find(|prefix| name.starts_with(prefix));
    let Some(kind) = heavy else { return true };
    // Not needed once its optimizer step is made.
    if kind == "gradient/" {
        return iteration >= latest;
    }
    // With a lag, rollouts still sample with older policies.
    let kept = ITERATIONS_KEPT
        + if matches!(kind, "policy/" | "adapter/") {
            plan.config.algorithm.lag
        } else {
            0
        };
    if iteration + kept > latest {
        return true;
    }
    if kind == "optimizer/" {
        return false;
    }
    let every = plan.config.trainer.save_freq;
    let is_saved = iteration == 0
        || iteration == plan.iterations
        || (every > 0 && iteration.is_multiple_of(every));
    if kind == "critic/" {
        return is_saved;
    }
    is_saved || best == Some(iteration) || pending
}

/// How many iterations back a policy may still be waiting for its evaluation.
const WINDOW: u32 = 64;

/// The iterations whose artifacts are looked at as of `latest`: those that were evaluated lately,
/// and of the others the ones that [`retained`] has just let go of, at two updates each.
pub(crate) fn examined(plan: &Plan, latest: u32) -> impl Iterator<Item = u32> + '_ {
    let lag = plan.config.algorithm.lag;
    let fresh = ITERATIONS_KEPT + 1 + lag;
    (latest.saturating_sub(WINDOW + lag)..latest)
        .filter(move |&iteration| plan.evaluates(iteration) || iteration + fresh >= latest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::testing::plan;
    use std::collections::BTreeSet;

    const ITERATIONS: u32 = 60;

    fn kept(name: &str, iteration: u32, latest: u32, pending: bool) -> bool {
        let plan = plan(&[
            &format!("trainer.total_training_steps={ITERATIONS}"),
            "trainer.save_freq=25",
        ]);
        retained(&plan, iteration, name, latest, Some(31), pending)
    }

    #[test]
    fn policies_of_special_iterations_stay() {
        let stay: Vec<u32> = (0..=58)
            .filter(|n| kept("policy/model.safetensors", *n, 58, false))
            .collect();
        assert_eq!(stay, [0, 25, 31, 50, 57, 58]);
    }

    #[test]
    fn an_adapter_stays_where_its_policy_would() {
        for n in 0..=58 {
            for pending in [false, true] {
                let [policy, adapter] = ["policy/model.safetensors", "adapter/adapter_config.json"]
                    .map(|name| kept(name, n, 58, pending));
                assert_eq!(policy, adapter, "iteration {n}");
            }
        }
    }

    #[test]
    fn only_the_newest_optimizer_states_stay() {
        let stay: Vec<u32> = (0..=58)
            .filter(|n| kept("optimizer/state.safetensors", *n, 58, false))
            .collect();
        assert_eq!(stay, [57, 58]);
    }

    #[test]
    fn critics_stay_where_a_run_may_be_forked() {
        let stay: Vec<u32> = (0..=58)
            .filter(|n| kept("critic/model.safetensors", *n, 58, *n == 40))
            .collect();
        assert_eq!(stay, [0, 25, 50, 57, 58]);
    }

    #[test]
    fn whatever_is_not_kept_is_looked_at_once_it_is_not() {
        for lag in [0, 1, 2, 5, 100] {
            let plan = plan(&[
                "trainer.total_training_steps=300",
                "algorithm.rollout_correction.rollout_is=token",
                &format!("algorithm.lag={lag}"),
            ]);
            let mut deleted = BTreeSet::new();
            for latest in 1..=200 {
                deleted.extend(examined(&plan, latest).filter(|&iteration| {
                    let name = "policy/model.safetensors";
                    !retained(&plan, iteration, name, latest, None, false)
                }));
            }
            let kept = |n: &u32| retained(&plan, *n, "policy/model.safetensors", 200, None, false);
            let expected: BTreeSet<u32> = (1..=200).filter(|n| !kept(n)).collect();
            assert_eq!(deleted, expected, "lag {lag}");
            assert!(!expected.is_empty());
            let looked_at = |latest| examined(&plan, latest).any(|iteration| iteration == 0);
            assert!(looked_at(1) && looked_at(2) && looked_at(3) && !looked_at(200));
        }
    }

    #[test]
    fn trajectories_and_metrics_are_never_touched() {
        for name in [
            "episodes.bin",
            "log_probs.bin",
            "batch.bin",
            "update.json",
            "metrics.json",
            "sft/0.json",
        ] {
            assert!(kept(name, 3, 58, false), "{name}");
        }
    }

    #[test]
    fn a_policy_waits_for_its_evaluation() {
        assert!(kept("policy/config.json", 10, 58, true));
        assert!(!kept("optimizer/state.safetensors", 10, 58, true));
        assert!(!kept("policy/config.json", 10, 58, false));
    }

    #[test]
    fn the_last_policy_stays() {
        assert!(kept(
            "policy/config.json",
            ITERATIONS,
            ITERATIONS + 5,
            false
        ));
    }
}
