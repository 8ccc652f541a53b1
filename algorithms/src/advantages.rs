//! How much credit each token gets.
//!
//! An estimator turns the rewards of an iteration's episodes into one advantage
//! per token. GRPO and RLOO compare the episodes of a group; ReMax compares with
//! a greedy episode; GAE and REINFORCE++ run backwards over the tokens.
//!
//! Two rules hold for all of them. The score of an episode sits on the last
//! token that the policy produced ([`place_score`]), or that of each turn on the
//! turn's last one ([`place_turn_rewards`]), never on an observation, where a
//! masked recursion would lose it. And observation tokens are outside
//! time: value and return are carried across them undiscounted, and a policy
//! token bootstraps from the value of the next *policy* token. Advantages and
//! returns are exactly 0 on tokens with loss mask 0.
//!
//! An episode whose context was rewritten has several token sequences; pass
//! them as one, joined in the order of time.

use crate::error::{Error, all_finite, finite_where, parameter, same_length};
use crate::groups;
use crate::names::named;
use std::ops::Range;

/// Keeps GRPO's division defined where all members of a group agree.
const GRPO_EPSILON: f64 = 1e-6;
/// Added to the variance by [`whiten`].
const WHITEN_EPSILON: f64 = 1e-8;

named! {
    /// Which estimator a run uses; the names are those of AgentGym-RL.
    pub enum AdvantageEstimator, called "advantage estimator" {
        /// Group-relative: [`grpo`].
        Grpo = "grpo",
        /// Generalised advantage estimation with a critic: [`gae`].
        Gae = "gae",
        /// Whitened discounted returns: [`reinforce_plus_plus`].
        ReinforcePlusPlus = "reinforce_plus_plus",
        /// Leave-one-out: [`rloo`].
        Rloo = "rloo",
        /// Return less the reward of a greedy episode: [`remax`].
        Remax = "remax",
    }
}

impl AdvantageEstimator {
    /// Whether the estimator reads token values, so that the run has a critic.
    pub fn needs_values(self) -> bool {
        self == Self::Gae
    }

    /// Whether the estimator compares the episodes of a group, so that a group
    /// with a single member left says nothing.
    pub fn needs_groups(self) -> bool {
        matches!(self, Self::Grpo | Self::Rloo)
    }

    /// Whether the estimator needs the reward of a greedy episode per task.
    pub fn needs_baseline(self) -> bool {
        self == Self::Remax
    }
}

/// One episode as the estimators see it. Slices are `[tokens]`.
#[derive(Debug, Clone, Copy)]
pub struct EpisodeTokens<'a> {
    /// Which group the episode belongs to.
    pub group: u64,
    /// True where the policy produced the token.
    pub loss_mask: &'a [bool],
    /// Reward per token, KL penalty included. What stands outside the loss mask
    /// is not read; their sum inside it is the episode's score.
    pub rewards: &'a [f64],
    /// The critic's value per token (GAE).
    pub values: Option<&'a [f64]>,
    /// Reward of the greedy episode of the same task (ReMax).
    pub baseline: Option<f64>,
}

/// The constants of the estimators.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdvantageOptions {
    /// Discount γ from one policy token to the next.
    pub gamma: f64,
    /// GAE's λ.
    pub lam: f64,
    /// Whether GRPO divides by the group's standard deviation.
    pub norm_by_std: bool,
}

impl Default for AdvantageOptions {
    fn default() -> Self {
        Self {
            gamma: 1.0,
            lam: 1.0,
            norm_by_std: true,
        }
    }
}

/// Per episode and token, in the order given; 0 where the loss mask is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenAdvantages {
    /// What the policy loss multiplies the ratio with.
    pub advantages: Vec<Vec<f64>>,
    /// What the critic is trained towards; for group estimators the advantages.
    pub returns: Vec<Vec<f64>>,
}

/// Runs `estimator` over all episodes of an iteration.
///
/// # Errors
/// Parameters or slices that do not fit, or rewards so large that an advantage or a
/// return is no finite number of 32 bits, which is what a policy is trained with.
pub fn estimate(
    estimator: AdvantageEstimator,
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    let found = estimated(estimator, episodes, options)?;
    for (rows, what) in [
        (&found.advantages, "advantage (of 32 bits)"),
        (&found.returns, "return (of 32 bits)"),
    ] {
        for row in rows {
            let narrow: Vec<f64> = row.iter().map(|&x| f64::from(x as f32)).collect();
            all_finite(what, &narrow)?;
        }
    }
    Ok(found)
}

fn estimated(
    estimator: AdvantageEstimator,
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    let AdvantageOptions {
        gamma,
        lam,
        norm_by_std,
    } = *options;
    parameter(
        "gamma",
        gamma,
        (0.0..=1.0).contains(&gamma),
        "between 0 and 1",
    )?;
    parameter("lam", lam, (0.0..=1.0).contains(&lam), "between 0 and 1")?;
    let masks: Vec<&[bool]> = episodes.iter().map(|episode| episode.loss_mask).collect();
    match estimator {
        AdvantageEstimator::Grpo | AdvantageEstimator::Rloo => {
            let scores = episodes.iter().map(score).collect::<Result<Vec<_>, _>>()?;
            let groups: Vec<u64> = episodes.iter().map(|episode| episode.group).collect();
            let per_episode = match estimator {
                AdvantageEstimator::Grpo => grpo(&scores, &groups, norm_by_std)?,
                _ => rloo(&scores, &groups)?,
            };
            let advantages: Vec<_> = per_episode
                .iter()
                .zip(&masks)
                .map(|(&advantage, mask)| broadcast(advantage, mask))
                .collect();
            Ok(TokenAdvantages {
                returns: advantages.clone(),
                advantages,
            })
        }
        AdvantageEstimator::Gae => {
            let (mut advantages, mut returns) = (Vec::new(), Vec::new());
            for (index, episode) in episodes.iter().enumerate() {
                let values = episode.values.ok_or(Error::Missing {
                    estimator: "gae",
                    what: "values",
                    index,
                })?;
                let one = gae(episode.rewards, values, episode.loss_mask, gamma, lam)?;
                advantages.push(one.advantages);
                returns.push(one.returns);
            }
            whiten(&mut advantages, &masks)?;
            Ok(TokenAdvantages {
                advantages,
                returns,
            })
        }
        AdvantageEstimator::ReinforcePlusPlus => {
            let returns = episodes
                .iter()
                .map(|episode| discounted_returns(episode.rewards, episode.loss_mask, gamma))
                .collect::<Result<Vec<_>, _>>()?;
            let mut advantages = returns.clone();
            whiten(&mut advantages, &masks)?;
            Ok(TokenAdvantages {
                advantages,
                returns,
            })
        }
        AdvantageEstimator::Remax => {
            let (mut advantages, mut returns) = (Vec::new(), Vec::new());
            for (index, episode) in episodes.iter().enumerate() {
                let baseline = episode.baseline.ok_or(Error::Missing {
                    estimator: "remax",
                    what: "a greedy baseline",
                    index,
                })?;
                advantages.push(remax(episode.rewards, episode.loss_mask, baseline)?);
                returns.push(discounted_returns(episode.rewards, episode.loss_mask, 1.0)?);
            }
            Ok(TokenAdvantages {
                advantages,
                returns,
            })
        }
    }
}

fn score(episode: &EpisodeTokens<'_>) -> Result<f64, Error> {
    same_length("loss_mask", episode.loss_mask.len(), episode.rewards.len())?;
    let tokens = episode.rewards.iter().zip(episode.loss_mask);
    Ok(tokens
        .filter(|&(_, &kept)| kept)
        .map(|(&reward, _)| reward)
        .sum())
}

/// GRPO: `A_i = (s_i − mean) / (std + 1e-6)` within the group, std unbiased.
///
/// `scores` and `groups` are per episode, absent members are not passed.
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
        // Rewards beyond all bounds would make every advantage 0.
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

/// RLOO: the score less the mean of the *other* members,
/// `A_i = (s_i − mean) · k / (k − 1)` for a group of `k`; a single member keeps
/// its score. Shapes as in [`grpo`].
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

/// The advantage of an episode on each of its policy tokens, 0 elsewhere.
pub fn broadcast(advantage: f64, loss_mask: &[bool]) -> Vec<f64> {
    loss_mask
        .iter()
        .map(|&kept| if kept { advantage } else { 0.0 })
        .collect()
}

/// Token rewards `[tokens]` with `score` on the last token of the loss mask; all
/// zeros for an empty mask.
pub fn place_score(score: f64, loss_mask: &[bool]) -> Vec<f64> {
    let mut rewards = vec![0.0; loss_mask.len()];
    if let Some(last) = loss_mask.iter().rposition(|&kept| kept) {
        rewards[last] = score;
    }
    rewards
}

/// Token rewards `[tokens]` with the reward of each turn on the last token of the
/// loss mask within its range, in the order of time. Where a range holds none,
/// its reward goes to the last such token before it, or if there is none to the
/// first one after, so that the rewards' sum is kept; an empty mask gives zeros.
///
/// # Errors
/// A range that reaches beyond the mask, or a reward that is not finite.
pub fn place_turn_rewards(
    turns: &[(Range<usize>, f64)],
    loss_mask: &[bool],
) -> Result<Vec<f64>, Error> {
    let mut rewards = vec![0.0; loss_mask.len()];
    for (range, reward) in turns {
        all_finite("turn reward", &[*reward])?;
        if range.end > loss_mask.len() {
            same_length("loss_mask", loss_mask.len(), range.end)?;
        }
        let own = loss_mask[..range.end].iter().rposition(|&kept| kept);
        let place = own.or_else(|| loss_mask.iter().position(|&kept| kept));
        if let Some(place) = place {
            rewards[place] += reward;
        }
    }
    Ok(rewards)
}

/// GAE of one episode before whitening.
#[derive(Debug, Clone, PartialEq)]
pub struct Gae {
    /// `A_t`, 0 outside the loss mask.
    pub advantages: Vec<f64>,
    /// `A_t + V_t`, 0 outside the loss mask.
    pub returns: Vec<f64>,
}

/// Generalised advantage estimation over the policy tokens of one episode, not
/// whitened. All slices `[tokens]`.
///
/// With `t'` the next policy token after `t` (nothing after the last: V and A
/// are 0 there): `δ_t = r_t + γ·V_t' − V_t`, `A_t = δ_t + γλ·A_t'`.
///
/// Source: arXiv:1506.02438 eq. 16, on the sub-sequence of policy tokens.
pub fn gae(
    rewards: &[f64],
    values: &[f64],
    loss_mask: &[bool],
    gamma: f64,
    lam: f64,
) -> Result<Gae, Error> {
    same_length("values", values.len(), rewards.len())?;
    same_length("loss_mask", loss_mask.len(), rewards.len())?;
    finite_where("reward", rewards, loss_mask)?;
    finite_where("value", values, loss_mask)?;
    let mut advantages = vec![0.0; rewards.len()];
    let mut returns = vec![0.0; rewards.len()];
    let (mut value_next, mut advantage_next) = (0.0, 0.0);
    for t in (0..rewards.len()).rev().filter(|&t| loss_mask[t]) {
        let delta = rewards[t] + gamma * value_next - values[t];
        advantage_next = delta + gamma * lam * advantage_next;
        value_next = values[t];
        advantages[t] = advantage_next;
        returns[t] = advantage_next + values[t];
    }
    Ok(Gae {
        advantages,
        returns,
    })
}

/// Returns of one episode, `R_t = r_t + γ·R_t'` over policy tokens (`t'` the
/// next one), 0 outside the loss mask. Slices `[tokens]`.
pub fn discounted_returns(
    rewards: &[f64],
    loss_mask: &[bool],
    gamma: f64,
) -> Result<Vec<f64>, Error> {
    same_length("loss_mask", loss_mask.len(), rewards.len())?;
    finite_where("reward", rewards, loss_mask)?;
    let mut returns = vec![0.0; rewards.len()];
    let mut running = 0.0;
    for t in (0..rewards.len()).rev().filter(|&t| loss_mask[t]) {
        running = rewards[t] + gamma * running;
        returns[t] = running;
    }
    Ok(returns)
}

/// REINFORCE++: [`discounted_returns`], whitened over the policy tokens of all
/// episodes. One row of rewards and mask per episode.
///
/// Source: arXiv:2501.03262 §3.
pub fn reinforce_plus_plus(
    rewards: &[&[f64]],
    loss_masks: &[&[bool]],
    gamma: f64,
) -> Result<TokenAdvantages, Error> {
    same_length("loss_masks", loss_masks.len(), rewards.len())?;
    let returns = rewards
        .iter()
        .zip(loss_masks)
        .map(|(rewards, mask)| discounted_returns(rewards, mask, gamma))
        .collect::<Result<Vec<_>, _>>()?;
    let mut advantages = returns.clone();
    whiten(&mut advantages, loss_masks)?;
    Ok(TokenAdvantages {
        advantages,
        returns,
    })
}

/// ReMax of one episode: undiscounted return less `baseline`, the reward of the
/// greedy episode of the same task. Slices `[tokens]`.
///
/// Source: arXiv:2310.10505 §4.
pub fn remax(rewards: &[f64], loss_mask: &[bool], baseline: f64) -> Result<Vec<f64>, Error> {
    all_finite("baseline", &[baseline])?;
    let mut advantages = discounted_returns(rewards, loss_mask, 1.0)?;
    for (advantage, _) in advantages
        .iter_mut()
        .zip(loss_mask)
        .filter(|&(_, &kept)| kept)
    {
        *advantage -= baseline;
    }
    Ok(advantages)
}

/// Shifts and scales the policy tokens of all rows to mean 0 and variance 1:
/// `(x − mean) / √(var + 1e-8)`, var unbiased; tokens outside the masks become 0.
/// One token has no variance and becomes 0.
pub fn whiten(rows: &mut [Vec<f64>], loss_masks: &[&[bool]]) -> Result<(), Error> {
    same_length("loss_masks", loss_masks.len(), rows.len())?;
    for (row, mask) in rows.iter().zip(loss_masks) {
        same_length("loss_mask", mask.len(), row.len())?;
        finite_where("advantage", row, mask)?;
    }
    let tokens = || {
        let pairs = rows
            .iter()
            .zip(loss_masks)
            .flat_map(|(row, mask)| row.iter().zip(*mask));
        pairs.filter(|&(_, &kept)| kept).map(|(&value, _)| value)
    };
    let count = tokens().count() as f64;
    let mean = if count > 0.0 {
        tokens().sum::<f64>() / count
    } else {
        0.0
    };
    let squares = tokens().map(|value| (value - mean).powi(2)).sum::<f64>();
    let variance = if count > 1.0 {
        squares / (count - 1.0)
    } else {
        0.0
    };
    let scale = (variance + WHITEN_EPSILON).sqrt().recip();
    for (row, mask) in rows.iter_mut().zip(loss_masks) {
        for (value, &kept) in row.iter_mut().zip(*mask) {
            *value = if kept { (*value - mean) * scale } else { 0.0 };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
