//! The policy term of the actor loss. Each variant has its own file and one row here.

mod cispo;
mod gspo;
mod ppo;
mod term;

use crate::names::named;

pub use ppo::policy_term;
pub(super) use term::PolicyTokens;
pub use term::{ClipRange, PolicyTerm};

named! {
    /// How an advantage and a ratio become a loss.
    #[derive(Default)]
    pub enum PolicyLoss, called "policy loss" {
        /// The clipped surrogate of every token: [`policy_term`].
        #[default]
        Ppo = "vanilla" or "ppo",
        /// The clipped surrogate of every sequence.
        Gspo = "gspo",
        /// The log-prob, weighted by a bounded ratio.
        Cispo = "cispo",
    }
}

impl PolicyLoss {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The terms of a sequence's policy tokens, in their order.
    pub(super) fn terms(
        self,
        tokens: &PolicyTokens<'_>,
        clip: ClipRange,
        dual_clip: Option<f64>,
    ) -> Vec<PolicyTerm> {
        match self {
            Self::Ppo => ppo::terms(tokens, clip, dual_clip),
            Self::Gspo => gspo::terms(tokens, clip),
            Self::Cispo => cispo::terms(tokens, clip),
        }
    }
}

#[cfg(test)]
mod tests;
