//! Estimators that compare the episodes of a group: [`grpo`] and [`rloo`].

use super::episode::{AdvantageOptions, EpisodeTokens, TokenAdvantages};
use super::explain::Reasons;
use super::tokens::broadcast;
use crate::error::{Error, all_finite};
use crate::groups::{self, Group};

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

pub(super) fn explain_grpo(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
    index: usize,
) -> Result<Reasons, Error> {
    let (score, group, mut reasons) = compared("GRPO", episodes, index)?;
    Against::grpo(&group, options.norm_by_std)?.explain(score, &mut reasons);
    Ok(reasons)
}

pub(super) fn explain_rloo(
    episodes: &[EpisodeTokens<'_>],
    _: &AdvantageOptions,
    index: usize,
) -> Result<Reasons, Error> {
    let (score, group, mut reasons) = compared("RLOO", episodes, index)?;
    let against = Against::rloo(&group);
    let (mean, advantage) = (against.mean, against.advantage(score));
    reasons.number([("mean", mean)]);
    match against.leave_one_out {
        Some(k) => {
            let line = format!("({score} − {mean}) · {k} / {} = {advantage}", k - 1);
            reasons.say(line);
            reasons.number([("size", k as f64)]);
        }
        None => reasons.say(format!("{score}")),
    }
    Ok(reasons)
}

/// The score of an episode, its group, and what is said of both.
pub(super) fn compared(
    estimator: &str,
    episodes: &[EpisodeTokens<'_>],
    index: usize,
) -> Result<(f64, Group, Reasons), Error> {
    let scores = scores(episodes)?;
    let ids: Vec<u64> = episodes.iter().map(|episode| episode.group).collect();
    let mut groups = groups::collect(&scores, &ids)?.into_iter();
    let group = groups.find(|group| group.id == ids[index]);
    let group = group.expect("every episode has a group");
    let all: Vec<String> = (group.members.iter())
        .map(|&member| scores[member].to_string())
        .collect();
    let mut reasons = Reasons::default();
    reasons.say(format!("{estimator}: group scores {}", all.join(" ")));
    Ok((scores[index], group, reasons))
}

/// The score of each episode.
pub(super) fn scores(episodes: &[EpisodeTokens<'_>]) -> Result<Vec<f64>, Error> {
    episodes.iter().map(EpisodeTokens::score).collect()
}

/// One advantage per episode, on each of its policy tokens.
fn by_score(
    episodes: &[EpisodeTokens<'_>],
    estimator: impl FnOnce(&[f64], &[u64]) -> Result<Vec<f64>, Error>,
) -> Result<TokenAdvantages, Error> {
    let scores = scores(episodes)?;
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
        let against = Against::grpo(&group, norm_by_std)?;
        for member in group.members {
            advantages[member] = against.advantage(scores[member]);
        }
    }
    Ok(advantages)
}

/// What a score is compared with inside its group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Against {
    /// Is subtracted from the score.
    pub(super) mean: f64,
    /// Standard deviation of the group, if it is divided by.
    pub(super) std: Option<f64>,
    /// What is added to the standard deviation.
    epsilon: f64,
    /// For a leave-one-out baseline, the size of the group: the difference is
    /// multiplied by k / (k − 1).
    leave_one_out: Option<usize>,
}

impl Against {
    /// GRPO's comparison.
    pub(super) fn grpo(group: &Group, norm_by_std: bool) -> Result<Self, Error> {
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
        Ok(Self {
            mean,
            std: norm_by_std.then_some(std),
            epsilon: GRPO_EPSILON,
            leave_one_out: None,
        })
    }

    /// RLOO's comparison.
    fn rloo(group: &Group) -> Self {
        let size = group.members.len();
        Self {
            mean: if size > 1 { group.mean } else { 0.0 },
            std: None,
            epsilon: 0.0,
            leave_one_out: (size > 1).then_some(size),
        }
    }

    /// GRPO's formula with the numbers of a score; returns the advantage.
    pub(super) fn explain(&self, score: f64, reasons: &mut Reasons) -> f64 {
        let (mean, advantage) = (self.mean, self.advantage(score));
        match self.std {
            Some(std) => {
                let epsilon = self.epsilon;
                let line = format!("({score} − {mean}) / ({std} + {epsilon}) = {advantage}");
                reasons.say(line);
                reasons.number([("mean", mean), ("std", std), ("epsilon", epsilon)]);
            }
            None => {
                reasons.say(format!("{score} − {mean} = {advantage}"));
                reasons.number([("mean", mean)]);
            }
        }
        advantage
    }

    /// The advantage of a score.
    pub(super) fn advantage(&self, score: f64) -> f64 {
        match (self.leave_one_out, self.std) {
            (Some(size), _) => {
                let size = size as f64;
                (score - self.mean) * size / (size - 1.0)
            }
            (None, Some(std)) => (score - self.mean) / (std + self.epsilon),
            (None, None) => score - self.mean,
        }
    }
}

/// RLOO: the score minus the mean of the *other* members, `A_i = (s_i − mean) · k / (k − 1)`
/// for a group of `k`; a single member keeps its score. Shapes as in [`grpo`].
///
/// Source: arXiv:2402.14740 §3.
pub fn rloo(scores: &[f64], groups: &[u64]) -> Result<Vec<f64>, Error> {
    let mut advantages = vec![0.0; scores.len()];
    for group in groups::collect(scores, groups)? {
        let against = Against::rloo(&group);
        for member in group.members {
            advantages[member] = against.advantage(scores[member]);
        }
    }
    Ok(advantages)
}
