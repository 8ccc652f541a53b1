//! `expire`: which artifacts retention keeps. The stage itself writes nothing;
//! deleting is the runtime's, which alone sees the store. What is decided here
//! is a pure function, so `plan` can print what a run will keep.

use agentgym_jobs::plan::Plan;

/// Iterations whose policy and optimizer state are always kept: the newest
/// and the one before, from which an interrupted update starts again.
const ITERATIONS_KEPT: u32 = 2;

/// True if retention keeps the artifact `name` that `iteration` made.
///
/// Kept are: everything that is not a policy, an adapter, a gradient or an
/// optimizer state (trajectories, records, metrics); the last two iterations; and of older
/// policies the start policy (the reference), every `trainer.save_freq`-th,
/// the final one, the best evaluated one, and those still to be evaluated. A
/// critic stays with the policies of `save_freq` and the end, from which a run
/// may be forked.
///
/// `latest` is the newest iteration with a policy, `best` the one with the
/// best evaluation so far, `pending` is true while an evaluation of
/// `iteration` is not committed.
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
    // Its optimizer step is made.
    if kind == "gradient/" {
        return iteration >= latest;
    }
    // Rollouts that lag behind still sample with older policies.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::testing::plan;

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
