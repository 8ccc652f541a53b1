//! ReMax.

use super::episode::{AdvantageOptions, EpisodeTokens, TokenAdvantages};
use super::explain::Reasons;
use super::tokens::discounted_returns;
use crate::error::{Error, all_finite};

pub(super) fn estimate(
    episodes: &[EpisodeTokens<'_>],
    _: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    let (mut advantages, mut returns) = (Vec::new(), Vec::new());
    for (index, episode) in episodes.iter().enumerate() {
        let baseline = baseline(episode, index)?;
        advantages.push(remax(episode.rewards, episode.loss_mask, baseline)?);
        returns.push(discounted_returns(episode.rewards, episode.loss_mask, 1.0)?);
    }
    Ok(TokenAdvantages {
        advantages,
        returns,
    })
}

pub(super) fn explain(
    episodes: &[EpisodeTokens<'_>],
    _: &AdvantageOptions,
    index: usize,
) -> Result<Reasons, Error> {
    let own = &episodes[index];
    let baseline = baseline(own, index)?;
    let mut reasons = Reasons::default();
    reasons.say(format!(
        "ReMax: return of the token − {baseline}, the reward of the greedy episode"
    ));
    reasons.number([("baseline", baseline)]);
    let returns = discounted_returns(own.rewards, own.loss_mask, 1.0)?;
    reasons.stream("R", returns);
    Ok(reasons)
}

fn baseline(episode: &EpisodeTokens<'_>, index: usize) -> Result<f64, Error> {
    episode.baseline.ok_or(Error::Missing {
        estimator: "remax",
        what: "a greedy baseline",
        index,
    })
}

/// ReMax of one episode: undiscounted return minus `baseline`, the reward of the
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
