//! Estimators that compare the episodes of a group: [`grpo`] and [`rloo`].

use super::episode::{AdvantageOptions, EpisodeTokens, TokenAdvantages};
use super::tokens::broadcast;
use crate::error::{Error, all_finite};
use crate::groups;

/// Keeps GRPO's division defined where all scores of a group are equal.
const GRPO_EPSILON: f64 = 1e-6;

pub(super) fn estimate_grpo(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    by_score(episodes, |scores, groups| {
        grpo(scores, groups, options.norm_by_std)
    })
}

pub(super) fn estimate_rloo(
    episodes: &[EpisodeTokens<'_>],
    _: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    by_score(episodes, rloo)
}

/// One advantage per episode, on each of its policy tokens.
fn by_score(
    episodes: &[EpisodeTokens<'_>],
    estimator: impl FnOnce(&[f64], &[u64]) -> Result<Vec<f64>, Error>,
) -> Result<TokenAdvantages, Error> {
    let scores = episodes.iter().map(EpisodeTokens::score);
    let scores = scores.collect::<Result<Vec<_>, _>>()?;
    let groups: Vec<u64> = episodes.iter().map(|episode| episode.group).collect();
    let per_episode = estimator(&scores, &groups)?;
    let rows = per_episode.iter().zip(episodes);
    let advantages: Vec<_> = rows
        .map(|(&advantage, episode)| broadcast(advantage, episode.loss_mask))
        .collect();
    Ok(TokenAdvantages {
        returns: advantages.clone(),
        advantages,
    })
}

/// GRPO: `A_i = (s_i − mean) / (std + 1e-6)` within the group, std unbiased.
///
/// `scores` and `groups` are per episode; absent members are not passed.
/// `norm_by_std: false` leaves out the division (arXiv:2503.20783). A group of
/// equal scores gives exact zeros; a single member has mean 0 and std 1, as in
/// AgentGym-RL (drop it with [`groups::has_company`] where that is not wanted).
///
/// Source: DeepSeekMath, arXiv:2402.03300 §4.1.
pub fn grpo(scores: &[f64], groups: &[u64], norm_by_std: bool) -> Result<Vec<f64>, Error> {
    let mut advantages = vec![0.0; scores.len()];
    for group in groups::collect(scores, groups)? {
        let (mean, std) = if group.members.len() == 1 {
            (0.0, 1.0)
        } else {
            (group.mean, group.std)
        };
        // A standard deviation that overflows would make every advantage 0.
        all_finite(
            "mean or standard deviation of a group's scores",
            &[mean, std],
        )?;
        let scale = if norm_by_std { std + GRPO_EPSILON } else { 1.0 };
        for member in group.members {
            advantages[member] = (scores[member] - mean) / scale;
        }
    }
    Ok(advantages)
}

/// RLOO: the score minus the mean of the *other* members, `A_i = (s_i − mean) · k / (k − 1)`
/// for a group of `k`; a single member keeps its score. Shapes as in [`grpo`].
///
/// Source: arXiv:2402.14740 §3.
pub fn rloo(scores: &[f64], groups: &[u64]) -> Result<Vec<f64>, Error> {
    let mut advantages = vec![0.0; scores.len()];
    for group in groups::collect(scores, groups)? {
        let size = group.members.len() as f64;
        for &member in &group.members {
            advantages[member] = if size > 1.0 {
                (scores[member] - group.mean) * size / (size - 1.0)
            } else {
                scores[member]
            };
        }
    }
    Ok(advantages)
}
