//! `rollout`: plays the tasks of a part, each `rollout.n` times, with the input policy, and writes
//! `episodes.bin`. If the estimator uses a greedy baseline, each task is also played once greedily;
//! these episodes go into `baseline.bin` and are not trained on.

use super::{advantage, play};
use crate::episode::{Request, Rules};
use crate::{Report, Result, StageContext};
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::{Episode, Outcome};
use agentgym_jobs::pipeline::PartId;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::random::{Purpose, StreamKey};
use agentgym_model::Sampling;
use agentgym_record::documents::{self, Selection};
use agentgym_storage::Outputs;
use std::sync::Arc;

/// The input of a later round: how many groups the earlier rounds left to play.
const SELECT: &str = "select";

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let id = context.part.id;
    let plan = Arc::clone(&context.plan);
    let later = context.part.inputs.iter().any(|i| i.name == SELECT);
    let wanted = match later {
        true => {
            documents::read::<Selection>(&context.inputs, SELECT)
                .await?
                .missing
        }
        false => plan.config.data.train_batch_size,
    };
    let entered = match plan.has_curriculum() {
        true => Some(advantage::curriculum(context).await?.entered),
        false => None,
    };
    let requests = requests(&plan, id, wanted, entered);
    let (left_out, requests): (Vec<Request>, Vec<Request>) = requests
        .into_iter()
        .partition(|request| is_excluded(&plan, id.iteration, request));
    let (mut episodes, report) = if requests.is_empty() {
        let mut report = Report::default();
        report.stats.sampled_tokens = Some(0);
        (Vec::new(), report)
    } else {
        let rules = Rules {
            records_entropies: plan.samples_are_scores(),
            ..play::rules(context, plan.rounds_max(id.iteration))
        };
        play::all(context, requests, rules).await?
    };
    episodes.extend(left_out.iter().map(excluded));
    episodes.sort_by_key(|episode| (episode.group, episode.sample));
    let config = &plan.config;
    if plan.plays_baselines() {
        let n = config.actor_rollout_ref.rollout.n;
        let baseline;
        (baseline, episodes) = episodes.into_iter().partition(|e| e.sample == n);
        play::write(outputs, artifact_names::BASELINES, baseline).await?;
    }
    play::write(outputs, artifact_names::EPISODES, episodes).await?;
    Ok(report)
}

fn is_excluded(plan: &Plan, iteration: u32, request: &Request) -> bool {
    let list = &plan.config.actor_rollout_ref.rollout.exclude;
    list.contains(&(iteration, request.group, request.sample))
}

/// Replaces an episode that the config excludes: it is not trained on, and no other episode moves.
fn excluded(request: &Request) -> Episode {
    let why = "left out by actor_rollout_ref.rollout.exclude";
    request.empty(Outcome::EnvFault, why.to_owned())
}

/// The episodes of a part: a pure function of the plan, of the number of groups that the round plays,
/// and of the sources that have entered under a curriculum.
pub(super) fn requests(
    plan: &Plan,
    id: PartId,
    wanted: usize,
    entered: Option<usize>,
) -> Vec<Request> {
    let (iteration, part) = (id.iteration, id.part);
    let rollout = &plan.config.actor_rollout_ref.rollout;
    let sampling = Sampling {
        temperature: rollout.temperature,
        top_k: usize::try_from(rollout.top_k).unwrap_or(0),
        top_p: rollout.top_p,
        greedy: false,
    };
    let (round, part) = (part / plan.rollout_parts(), part % plan.rollout_parts());
    let tasks = plan.round_tasks(iteration, round, entered);
    let first_group = round as usize * plan.config.data.train_batch_size;
    // The sample after the group's samples is its greedy baseline.
    let baselines = u32::from(plan.plays_baselines());
    plan.rollout_draws(part)
        .filter(|draw| *draw < wanted)
        .flat_map(|draw| (0..rollout.n + baselines).map(move |sample| (draw, sample)))
        .map(|(draw, sample)| {
            let is_baseline = sample == rollout.n;
            let group = first_group + draw;
            Request {
                task: tasks[draw].clone(),
                group: group as u32,
                sample,
                stream: StreamKey {
                    seed: plan.config.run.seed,
                    purpose: match is_baseline {
                        true => Purpose::Baseline,
                        false => Purpose::Rollout,
                    },
                    iteration,
                    draw: group as u64,
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
    use agentgym_jobs::pipeline::Stage;
    use std::collections::BTreeSet;

    fn requests(plan: &Plan, iteration: u32, part: u32, wanted: usize) -> Vec<Request> {
        let stage = Stage::Rollout;
        let id = PartId {
            iteration,
            stage,
            part,
        };
        super::requests(plan, id, wanted, None)
    }

    #[test]
    fn a_later_round_plays_what_is_missing_with_other_tasks_and_keys() {
        let plan = plan(&[
            "algorithm.filter_groups.enable=true",
            "jobs.rollout_part_tasks=2",
        ]);
        let (first, last) = (requests(&plan, 1, 0, 4), requests(&plan, 2, 3, 3));
        // Part 3 is the second half of the second round: draw 2 of 0..3.
        let groups: BTreeSet<u32> = last.iter().map(|r| r.group).collect();
        assert_eq!(groups, BTreeSet::from([6]));
        assert!(requests(&plan, 2, 3, 2).is_empty());
        let all = (1..=2).flat_map(|n| (0..4).flat_map(move |part| [(n, part)]));
        let tasks: BTreeSet<i64> = all
            .flat_map(|(n, part)| requests(&plan, n, part, 4))
            .map(|r| r.task.item_id)
            .collect();
        assert_eq!(tasks.len(), 16, "no task twice in a pass");
        let streams: BTreeSet<_> = first.iter().chain(&last).map(|r| r.stream).collect();
        assert_eq!(streams.len(), first.len() + last.len());
    }

    #[test]
    fn baselines_are_greedy_and_have_keys_of_their_own() {
        let plain = requests(&plan(&[]), 3, 0, 4);
        let all = requests(&plan(&["algorithm.adv_estimator=remax"]), 3, 0, 4);
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
