//! The input, the options and the output of an estimator.

use crate::error::{Error, same_length};
use std::ops::Range;

/// A turn of an episode, as the estimators see it.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnTokens<'a> {
    /// What the policy answers in it: the prompt, or the observation after the turn before.
    pub state: &'a str,
    /// The policy's tokens, in time order among those of the episode.
    pub tokens: Range<usize>,
}

/// One episode as the estimators see it. Slices are `[tokens]`.
#[derive(Debug, Clone, Copy)]
pub struct EpisodeTokens<'a> {
    /// Which group the episode belongs to.
    pub group: u64,
    /// True where the policy produced the token.
    pub loss_mask: &'a [bool],
    /// Reward per token, KL penalty included. Entries outside the loss mask are not
    /// read; the sum of those inside is the episode's score.
    pub rewards: &'a [f64],
    /// The critic's value per token (GAE).
    pub values: Option<&'a [f64]>,
    /// In time order.
    pub turns: &'a [TurnTokens<'a>],
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
    /// Whether GRPO and GiGPO divide by the group's standard deviation.
    pub norm_by_std: bool,
    /// GiGPO's ω: what a turn's advantage weighs beside its episode's.
    pub step_advantage_weight: f64,
}

impl Default for AdvantageOptions {
    fn default() -> Self {
        Self {
            gamma: 1.0,
            lam: 1.0,
            norm_by_std: true,
            step_advantage_weight: 1.0,
        }
    }
}

/// Per episode and token, in the order given; 0 where the loss mask is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenAdvantages {
    /// The factor of the ratio in the policy loss.
    pub advantages: Vec<Vec<f64>>,
    /// The targets of the critic; for group estimators the advantages.
    pub returns: Vec<Vec<f64>>,
}

impl EpisodeTokens<'_> {
    /// The episode's score: the sum of its rewards on policy tokens.
    pub(super) fn score(&self) -> Result<f64, Error> {
        same_length("loss_mask", self.loss_mask.len(), self.rewards.len())?;
        let tokens = self.rewards.iter().zip(self.loss_mask);
        Ok(tokens
            .filter(|&(_, &kept)| kept)
            .map(|(&reward, _)| reward)
            .sum())
    }
}
