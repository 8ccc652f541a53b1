//! Generalised advantage estimation.

use super::episode::{AdvantageOptions, EpisodeTokens, TokenAdvantages};
use super::explain::Reasons;
use super::tokens::{Whitening, whiten};
use crate::error::{Error, finite_where, same_length};

pub(super) fn estimate(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    let all = unwhitened(episodes, options)?.into_iter();
    let (mut advantages, returns): (Vec<_>, Vec<_>) =
        all.map(|one| (one.advantages, one.returns)).unzip();
    let masks: Vec<&[bool]> = episodes.iter().map(|episode| episode.loss_mask).collect();
    whiten(&mut advantages, &masks)?;
    Ok(TokenAdvantages {
        advantages,
        returns,
    })
}

pub(super) fn explain(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
    index: usize,
) -> Result<Reasons, Error> {
    let (gamma, lam) = (options.gamma, options.lam);
    let mut all = unwhitened(episodes, options)?;
    let masks: Vec<&[bool]> = episodes.iter().map(|episode| episode.loss_mask).collect();
    let rows: Vec<Vec<f64>> = all.iter().map(|one| one.advantages.clone()).collect();
    let own = all.swap_remove(index);
    let mut reasons = Reasons::default();
    reasons.say(format!(
        "GAE: δ = r + {gamma} · V' − V, A = δ + {} · A' over policy tokens",
        gamma * lam
    ));
    reasons.number([("gamma", gamma), ("lam", lam)]);
    reasons.whitened(&Whitening::of(&rows, &masks)?);
    let values = episodes[index].values.unwrap_or_default();
    reasons.stream("V", values.to_vec());
    reasons.stream("δ", own.deltas);
    reasons.stream("Â", own.advantages);
    Ok(reasons)
}

/// Of every episode.
fn unwhitened(
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<Vec<Gae>, Error> {
    let one = |(index, episode): (usize, &EpisodeTokens<'_>)| {
        let values = episode.values.ok_or(Error::Missing {
            estimator: "gae",
            what: "values",
            index,
        })?;
        let (rewards, mask) = (episode.rewards, episode.loss_mask);
        gae(rewards, values, mask, options.gamma, options.lam)
    };
    episodes.iter().enumerate().map(one).collect()
}

/// GAE of one episode before whitening.
#[derive(Debug, Clone, PartialEq)]
pub struct Gae {
    /// `δ_t`, 0 outside the loss mask.
    pub deltas: Vec<f64>,
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
    let mut deltas = vec![0.0; rewards.len()];
    let (mut value_next, mut advantage_next) = (0.0, 0.0);
    for t in (0..rewards.len()).rev().filter(|&t| loss_mask[t]) {
        let delta = rewards[t] + gamma * value_next - values[t];
        advantage_next = delta + gamma * lam * advantage_next;
        value_next = values[t];
        deltas[t] = delta;
        advantages[t] = advantage_next;
        returns[t] = advantage_next + values[t];
    }
    Ok(Gae {
        deltas,
        advantages,
        returns,
    })
}
