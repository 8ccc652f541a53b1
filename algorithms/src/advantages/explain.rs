//! Why an episode has the advantages that it has: the numbers that stand in its estimator's
//! formula, and the formula's result from just these numbers.
//!
//! Each estimator and its explanation share the functions that hold the arithmetic ([`Against`],
//! [`fn@gae`], [`discounted_returns`], [`Whitening`]), so an explanation ends in the same bits as
//! [`super::estimate`]; a property test compares them.

use super::AdvantageEstimator;
use super::episode::{AdvantageOptions, EpisodeTokens};
use super::gae::gae;
use super::group::Against;
use super::tokens::{Whitening, broadcast, discounted_returns};
use crate::error::{Error, parameter};
use crate::groups;
use serde::Serialize;

/// The credit of one episode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Sum of the rewards of its policy tokens.
    pub score: f64,
    /// What the formula was applied to.
    #[serde(flatten)]
    pub how: How,
    /// Advantage per token.
    pub advantages: Vec<f64>,
    /// Target of a critic per token; for group estimators the advantage.
    pub returns: Vec<f64>,
}

/// The numbers of an estimator's formula.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "estimator", rename_all = "snake_case")]
pub enum How {
    /// [`super::grpo`]: `(score − mean) / (std + ε)`, or `score − mean`.
    Grpo(Compared),
    /// [`super::rloo`]: `(score − mean) · k / (k − 1)`.
    Rloo(Compared),
    /// [`fn@super::remax`]: return minus the greedy episode's reward.
    Remax {
        /// The greedy episode's reward.
        baseline: f64,
    },
    /// [`fn@super::reinforce_plus_plus`]: whitened discounted returns.
    ReinforcePlusPlus {
        /// Discount from one policy token to the next.
        gamma: f64,
        /// Over the policy tokens of all episodes.
        whitening: Whitening,
    },
    /// [`fn@gae`], whitened.
    Gae {
        /// Discount γ.
        gamma: f64,
        /// λ.
        lam: f64,
        /// `δ_t = r_t + γ·V_t' − V_t` per token.
        deltas: Vec<f64>,
        /// `A_t = δ_t + γλ·A_t'` per token, before whitening.
        raw: Vec<f64>,
        /// Over the policy tokens of all episodes.
        whitening: Whitening,
    },
}

/// A comparison inside a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// Indices of the group's members among the episodes given.
    pub members: Vec<usize>,
    /// Their scores, in the same order.
    pub scores: Vec<f64>,
    /// What the score is compared with.
    #[serde(flatten)]
    pub against: Against,
    /// The result, the same for every policy token.
    pub advantage: f64,
}

/// Explains the credit that [`super::estimate`] gives to episode `index` of `episodes`.
///
/// # Errors
/// As [`super::estimate`], or no such episode.
pub fn explain(
    estimator: AdvantageEstimator,
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
    index: usize,
) -> Result<Explanation, Error> {
    let inside = index < episodes.len();
    parameter("index", index as f64, inside, "the index of an episode")?;
    let (own, score) = (&episodes[index], episodes[index].score()?);
    let mask = own.loss_mask;
    let missing = |what| Error::Missing {
        estimator: estimator.name(),
        what,
        index,
    };
    let masks: Vec<&[bool]> = episodes.iter().map(|episode| episode.loss_mask).collect();
    let explained = |how, advantages: Vec<f64>, returns| Explanation {
        score,
        how,
        advantages,
        returns,
    };
    Ok(match estimator {
        AdvantageEstimator::Grpo => {
            let compared = compared(episodes, index, |g| Against::grpo(g, options.norm_by_std))?;
            let row = broadcast(compared.advantage, mask);
            explained(How::Grpo(compared), row.clone(), row)
        }
        AdvantageEstimator::Rloo => {
            let compared = compared(episodes, index, |g| Ok(Against::rloo(g)))?;
            let row = broadcast(compared.advantage, mask);
            explained(How::Rloo(compared), row.clone(), row)
        }
        AdvantageEstimator::Remax => {
            let baseline = own.baseline.ok_or_else(|| missing("a greedy baseline"))?;
            let advantages = super::remax(own.rewards, mask, baseline)?;
            let returns = discounted_returns(own.rewards, mask, 1.0)?;
            explained(How::Remax { baseline }, advantages, returns)
        }
        AdvantageEstimator::ReinforcePlusPlus => {
            let gamma = options.gamma;
            let rows = episodes
                .iter()
                .map(|e| discounted_returns(e.rewards, e.loss_mask, gamma))
                .collect::<Result<Vec<_>, _>>()?;
            let whitening = Whitening::of(&rows, &masks)?;
            let returns = rows[index].clone();
            let mut advantages = returns.clone();
            whitening.apply(&mut advantages, mask);
            explained(
                How::ReinforcePlusPlus { gamma, whitening },
                advantages,
                returns,
            )
        }
        AdvantageEstimator::Gae => {
            let (gamma, lam) = (options.gamma, options.lam);
            let mut all = Vec::with_capacity(episodes.len());
            for e in episodes {
                let values = e.values.ok_or_else(|| missing("values"))?;
                all.push(gae(e.rewards, values, e.loss_mask, gamma, lam)?);
            }
            let mine = all[index].clone();
            let rows: Vec<Vec<f64>> = all.into_iter().map(|one| one.advantages).collect();
            let whitening = Whitening::of(&rows, &masks)?;
            let mut advantages = mine.advantages.clone();
            whitening.apply(&mut advantages, mask);
            let how = How::Gae {
                gamma,
                lam,
                deltas: mine.deltas,
                raw: mine.advantages,
                whitening,
            };
            explained(how, advantages, mine.returns)
        }
    })
}

/// The comparison of an episode inside its group.
fn compared(
    episodes: &[EpisodeTokens<'_>],
    index: usize,
    against: impl FnOnce(&groups::Group) -> Result<Against, Error>,
) -> Result<Compared, Error> {
    let scores = episodes.iter().map(EpisodeTokens::score);
    let scores = scores.collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<u64> = episodes.iter().map(|episode| episode.group).collect();
    let mut groups = groups::collect(&scores, &ids)?.into_iter();
    let group = groups.find(|group| group.id == ids[index]);
    let group = group.expect("every episode has a group");
    let against = against(&group)?;
    Ok(Compared {
        advantage: against.advantage(scores[index]),
        scores: group.members.iter().map(|&m| scores[m]).collect(),
        members: group.members,
        against,
    })
}
