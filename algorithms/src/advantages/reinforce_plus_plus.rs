//! REINFORCE++.

use super::episode::{AdvantageOptions, EpisodeTokens, TokenAdvantages};
use super::tokens::{discounted_returns, whiten};
use crate::error::{Error, same_length};

pub(super) fn estimate(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    let rewards: Vec<&[f64]> = episodes.iter().map(|episode| episode.rewards).collect();
    let masks: Vec<&[bool]> = episodes.iter().map(|episode| episode.loss_mask).collect();
    reinforce_plus_plus(&rewards, &masks, options.gamma)
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
