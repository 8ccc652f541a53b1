//! REINFORCE++.

use super::episode::{AdvantageOptions, EpisodeTokens, TokenAdvantages};
use super::explain::Reasons;
use super::tokens::{Whitening, discounted_returns, whiten};
use crate::error::{Error, same_length};

pub(super) fn estimate(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    let rewards: Vec<&[f64]> = episodes.iter().map(|episode| episode.rewards).collect();
    let masks: Vec<&[bool]> = episodes.iter().map(|episode| episode.loss_mask).collect();
    reinforce_plus_plus(&rewards, &masks, options.gamma)
}

pub(super) fn explain(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
    index: usize,
) -> Result<Reasons, Error> {
    let gamma = options.gamma;
    let masks: Vec<&[bool]> = episodes.iter().map(|episode| episode.loss_mask).collect();
    let returns = episodes
        .iter()
        .map(|e| discounted_returns(e.rewards, e.loss_mask, gamma))
        .collect::<Result<Vec<_>, _>>()?;
    let mut reasons = Reasons::default();
    reasons.say(format!(
        "REINFORCE++: R = r + {gamma} · R of the next policy token"
    ));
    reasons.number([("gamma", gamma)]);
    reasons.whitened(&Whitening::of(&returns, &masks)?);
    reasons.stream("R", returns[index].clone());
    Ok(reasons)
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
