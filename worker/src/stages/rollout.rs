//! `rollout`: plays the tasks that a part draws, each `rollout.n` times, with
//! the policy it is given, and writes `episodes.bin`. Where the estimator
//! compares with a greedy episode, each task is played once more that way, and
//! these stand in `baseline.bin`: nothing trains on them.

use super::{play, write};
use crate::episode::Request;
use crate::{Report, Result, StageContext};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::random::{Purpose, StreamKey};
use agentgym_model::Sampling;
use agentgym_storage::Outputs;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let id = context.part.id;
    let requests = requests(&context.plan, id.iteration, id.part);
    let rules = play::rules(context, context.plan.rounds_max(id.iteration));
    let (mut episodes, report) = play::all(context, requests, rules).await?;
    let config = &context.plan.config;
    if config.algorithm.adv_estimator.needs_baseline() {
        let n = config.actor_rollout_ref.rollout.n;
        let baseline;
        (baseline, episodes) = episodes.into_iter().partition(|e| e.sample == n);
        write(
            outputs,
            "baseline.bin",
            "episodes",
            &play::checked(baseline)?,
        )
        .await?;
    }
    write(
        outputs,
        "episodes.bin",
        "episodes",
        &play::checked(episodes)?,
    )
    .await?;
    Ok(report)
}

/// The episodes of a part: a pure function of the plan.
fn requests(plan: &Plan, iteration: u32, part: u32) -> Vec<Request> {
    let rollout = &plan.config.actor_rollout_ref.rollout;
    let sampling = Sampling {
        temperature: rollout.temperature,
        top_k: usize::try_from(rollout.top_k).unwrap_or(0),
        top_p: rollout.top_p,
        greedy: false,
    };
    let tasks = plan.tasks.draws(iteration);
    // The sample after the group's own is its greedy baseline.
    let baselines = u32::from(plan.config.algorithm.adv_estimator.needs_baseline());
    plan.rollout_draws(part)
        .flat_map(|draw| (0..rollout.n + baselines).map(move |sample| (draw, sample)))
        .map(|(draw, sample)| {
            let is_baseline = sample == rollout.n;
            Request {
                task: tasks[draw].clone(),
                group: draw as u32,
                sample,
                stream: StreamKey {
                    seed: plan.config.run.seed,
                    purpose: match is_baseline {
                        true => Purpose::Baseline,
                        false => Purpose::Rollout,
                    },
                    iteration,
                    draw: draw as u64,
                    sample,
                }
                .stream(),
                sampling: Sampling {
                    greedy: is_baseline,
                    ..sampling
                },
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::testing::plan;
    use std::collections::BTreeSet;

    #[test]
    fn baselines_are_greedy_and_have_keys_of_their_own() {
        let plain = requests(&plan(&[]), 3, 0);
        let all = requests(&plan(&["algorithm.adv_estimator=remax"]), 3, 0);
        let (greedy, sampled): (Vec<_>, Vec<_>) = all.iter().partition(|r| r.sampling.greedy);
        assert_eq!((greedy.len(), sampled.len(), plain.len()), (4, 8, 8));
        let streams: BTreeSet<_> = all.iter().map(|r| r.stream).collect();
        assert_eq!(streams.len(), 12);
        assert!(greedy.iter().all(|r| r.sample == 2));
        assert!(
            sampled
                .iter()
                .zip(&plain)
                .all(|(a, b)| a.stream == b.stream)
        );
    }
}
