//! `select`: which groups of an iteration are trained on, after a round of rollouts. A group whose
//! members all got the same reward has no gradient under a group estimator, so the next round plays
//! a new task in its place, up to `algorithm.filter_groups.max_num_gen_batches` rounds. Slots that
//! are then still missing stay empty.
//!
//! Rounds are ordinary parts of the plan, planned whether or not they will be needed; a round that
//! is not needed plays nothing. So the planner depends on no decision, and the parts of a run are
//! known in advance.
//!
//! Source: dynamic sampling, arXiv:2503.14476 §3.2.

use super::artifacts::read;
use crate::metrics::{self, write_json};
use crate::{Report, Result, StageContext};
use agentgym_algorithms::groups::{collect, count};
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_record::documents::{self, Selection};
use agentgym_record::metrics::SelectMetrics;
use agentgym_record::rewards::Rewards;
use agentgym_storage::Outputs;

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let (plan, round) = (&context.plan, context.part.id.part);
    let before = match round {
        0 => Selection {
            groups: Vec::new(),
            missing: plan.config.data.train_batch_size,
        },
        _ => documents::read(&context.inputs, "before").await?,
    };
    let per_round = plan.rollout_parts();
    let mut episodes = Vec::new();
    for part in round * per_round..(round + 1) * per_round {
        let input = format!("rollout.{part}");
        let own = read::<Episodes>(&context.inputs, &input, artifact_names::EPISODES).await?;
        episodes.extend(own.into_vec());
    }
    let rewards = Rewards::of(plan)?;
    let score = |episode: &Episode| rewards.earned(episode);
    let (after, metrics) = select(before, &episodes, round, score)?;
    write_json(outputs, artifact_names::SELECTION, "selection", &after).await?;
    metrics::write(outputs, &metrics).await?;
    Ok(Report::default())
}

fn select(
    before: Selection,
    episodes: &[Episode],
    round: u32,
    score: impl Fn(&Episode) -> f64,
) -> Result<(Selection, SelectMetrics)> {
    let usable = || episodes.iter().filter(|e| e.usable());
    let ids: Vec<u64> = usable().map(|e| u64::from(e.group)).collect();
    let rewards: Vec<f64> = usable().map(score).collect();
    let groups = collect(&rewards, &ids)?;
    let counts = count(&groups);
    let mut after = before;
    let chosen: Vec<u32> = groups
        .iter()
        .filter(|group| group.is_informative())
        .take(after.missing)
        .map(|group| group.id as u32)
        .collect();
    after.missing -= chosen.len();
    after.groups.extend(chosen);
    let metrics = SelectMetrics {
        round: round + 1,
        groups: counts.groups,
        groups_mixed: counts.informative,
        groups_uniform: counts.uniform,
        groups_selected: after.groups.len(),
        groups_missing: after.missing,
    };
    Ok((after, metrics))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::testing::episode;
    use agentgym_jobs::episode::Outcome;

    fn last_reward(episode: &Episode) -> f64 {
        episode.reward
    }

    fn pair(group: u32, rewards: [f64; 2]) -> Vec<Episode> {
        let play = |sample: u32| {
            let reward = rewards[sample as usize];
            let outcome = match reward > 0.0 {
                true => Outcome::Solved,
                false => Outcome::Failed,
            };
            episode(group, sample, outcome, reward)
        };
        vec![play(0), play(1)]
    }

    #[test]
    fn groups_that_teach_fill_the_batch_round_by_round() {
        let start = Selection {
            groups: vec![],
            missing: 3,
        };
        let mut first = [
            pair(0, [1.0, 1.0]),
            pair(1, [0.0, 1.0]),
            pair(2, [0.0, 0.0]),
        ]
        .concat();
        let (after, metrics) = select(start, &first, 0, last_reward).unwrap();
        assert_eq!((after.groups.as_slice(), after.missing), (&[1][..], 2));
        assert_eq!((metrics.groups_mixed, metrics.groups_uniform), (1, 2));
        // More groups than are missing: the first ones are taken.
        let second = [
            pair(3, [1.0, 0.0]),
            pair(4, [0.0, 1.0]),
            pair(5, [1.0, 0.0]),
        ]
        .concat();
        let (last, _) = select(after.clone(), &second, 1, last_reward).unwrap();
        assert_eq!((last.groups.as_slice(), last.missing), (&[1, 3, 4][..], 0));
        // A round that is not needed plays nothing.
        assert_eq!(select(last.clone(), &[], 2, last_reward).unwrap().0, last);
        // A fault does not count as a different reward.
        first[2].outcome = Outcome::EnvFault;
        let (after, metrics) = select(after, &first[2..4], 1, last_reward).unwrap();
        assert_eq!((after.groups.len(), metrics.groups_mixed), (1, 0));
    }
}
