//! How much credit each token gets.
//!
//! An estimator turns the rewards of an iteration's episodes into one advantage
//! per token. GRPO and RLOO compare the episodes of a group, and GiGPO their turns too; ReMax
//! compares with a greedy episode; GAE and REINFORCE++ run backwards over the tokens.
//!
//! Two rules hold for all of them. First, an episode's score is placed on the last token that
//! the policy produced ([`place_score`]), and a turn's reward on the turn's last policy token
//! ([`place_turn_rewards`]); on an observation token the masked recursion would lose it.
//! Second, observation tokens are not time steps: value and return are carried across them
//! undiscounted, and a policy token bootstraps from the value of the next *policy* token.
//! Advantages and returns are exactly 0 on tokens with loss mask 0. An episode whose context
//! was rewritten has several token sequences; pass them concatenated in chronological order.

mod episode;
mod explain;
mod gae;
mod gigpo;
mod group;
mod overlong;
mod reinforce_plus_plus;
mod remax;
mod rewards;
mod tokens;

use crate::error::{Error, all_finite, parameter};
use crate::names::named;
use serde::Serialize;

pub use episode::{AdvantageOptions, EpisodeTokens, TokenAdvantages, TurnTokens};
pub use explain::{Labelled, Reasons};
pub use gae::{Gae, gae};
pub use group::{grpo, rloo};
pub use overlong::OverlongBuffer;
pub use reinforce_plus_plus::reinforce_plus_plus;
pub use remax::remax;
pub use rewards::{place_score, place_turn_rewards};
pub use tokens::{Whitening, broadcast, discounted_returns, whiten};

named! {
    /// Which estimator a run uses; the names are those of AgentGym-RL.
    pub enum AdvantageEstimator, called "advantage estimator" {
        /// Group-relative: [`grpo`].
        Grpo = "grpo",
        /// Generalised advantage estimation with a critic: [`fn@gae`].
        Gae = "gae",
        /// Whitened discounted returns: [`fn@reinforce_plus_plus`].
        ReinforcePlusPlus = "reinforce_plus_plus",
        /// Leave-one-out: [`rloo`].
        Rloo = "rloo",
        /// Group-relative by episode and by turn (`gigpo.rs`).
        Gigpo = "gigpo",
        /// Return minus the reward of a greedy episode: [`fn@remax`].
        Remax = "remax",
    }
}

impl AdvantageEstimator {
    /// Whether the estimator reads token values, so that the run needs a critic.
    pub fn needs_values(self) -> bool {
        self == Self::Gae
    }

    /// Whether the estimator compares the episodes of a group, so that a group
    /// with a single member left carries no signal.
    pub fn needs_groups(self) -> bool {
        matches!(self, Self::Grpo | Self::Rloo | Self::Gigpo)
    }

    /// Whether all sampled tokens of an episode have the same advantage.
    pub fn is_by_episode(self) -> bool {
        matches!(self, Self::Grpo | Self::Rloo)
    }

    /// Whether the estimator needs the reward of a greedy episode per task.
    pub fn needs_baseline(self) -> bool {
        self == Self::Remax
    }

    /// The formula, and how it is told. Each estimator has a file of its own.
    fn formula(self) -> Formula {
        let (estimate, explain): (Estimate, Explain) = match self {
            Self::Grpo => (group::estimate_grpo, group::explain_grpo),
            Self::Gae => (gae::estimate, gae::explain),
            Self::ReinforcePlusPlus => {
                (reinforce_plus_plus::estimate, reinforce_plus_plus::explain)
            }
            Self::Rloo => (group::estimate_rloo, group::explain_rloo),
            Self::Gigpo => (gigpo::estimate, gigpo::explain),
            Self::Remax => (remax::estimate, remax::explain),
        };
        Formula { estimate, explain }
    }
}

type Estimate = fn(&[EpisodeTokens<'_>], &AdvantageOptions) -> Result<TokenAdvantages, Error>;
type Explain = fn(&[EpisodeTokens<'_>], &AdvantageOptions, usize) -> Result<Reasons, Error>;

/// An estimator's formula.
struct Formula {
    /// Applied to the episodes of an iteration.
    estimate: Estimate,
    /// In words and numbers, for one of them.
    explain: Explain,
}

/// Runs `estimator` over all episodes of an iteration.
///
/// # Errors
/// Parameters outside their range, slices of different lengths, a missing stream, or an
/// advantage or return that overflows the `f32` in which a policy is trained.
pub fn estimate(
    estimator: AdvantageEstimator,
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
) -> Result<TokenAdvantages, Error> {
    for (name, value) in [("gamma", options.gamma), ("lam", options.lam)] {
        let is_share = (0.0..=1.0).contains(&value);
        parameter(name, value, is_share, "between 0 and 1")?;
    }
    let found = (estimator.formula().estimate)(episodes, options)?;
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

/// The credit of one episode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// Sum of the rewards of its policy tokens.
    pub score: f64,
    /// Whose formula it is.
    pub estimator: AdvantageEstimator,
    /// The formula with its numbers.
    #[serde(flatten)]
    pub reasons: Reasons,
    /// Advantage per token.
    pub advantages: Vec<f64>,
    /// Target of a critic per token; for group estimators the advantage.
    pub returns: Vec<f64>,
}

/// Explains the credit that [`estimate`] gives to episode `index` of `episodes`.
///
/// # Errors
/// As [`estimate`], or no such episode.
pub fn explain(
    estimator: AdvantageEstimator,
    episodes: &[EpisodeTokens<'_>],
    options: &AdvantageOptions,
    index: usize,
) -> Result<Explanation, Error> {
    let inside = index < episodes.len();
    parameter("index", index as f64, inside, "the index of an episode")?;
    let mut found = estimate(estimator, episodes, options)?;
    let reasons = (estimator.formula().explain)(episodes, options, index)?;
    Ok(Explanation {
        score: episodes[index].score()?,
        estimator,
        reasons,
        advantages: found.advantages.swap_remove(index),
        returns: found.returns.swap_remove(index),
    })
}

#[cfg(test)]
mod tests;
