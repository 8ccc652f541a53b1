//! The loss of the policy: clipped policy gradient, entropy bonus, and
//! optionally the divergence from the reference policy.
//!
//! `loss = policy − entropy_coeff · entropy + kl_loss_coef · kl`, each term
//! aggregated with the same token weights.

use serde::{Deserialize, Serialize};

use super::aggregation::{Aggregation, Denominator, loss_tokens};
use super::policy::{ClipRange, PolicyLoss, PolicyTokens};
use crate::error::{Error, finite_where, parameter, same_length};
use crate::kl::KlEstimator;

/// A KL loss: which estimator, and its weight.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KlLoss {
    /// `actor.kl_loss_type`.
    pub estimator: KlEstimator,
    /// `actor.kl_loss_coef`.
    pub coef: f64,
}

/// The loss of the policy. The default is AgentGym-RL's without a KL loss.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ActorLoss {
    /// How an advantage and a ratio become a loss; the default is not serialised.
    #[serde(default, skip_serializing_if = "PolicyLoss::is_default")]
    pub policy: PolicyLoss,
    /// `actor.clip_ratio`.
    pub clip: ClipRange,
    /// `actor.clip_ratio_c`, greater than 1; `None` disables the dual clip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dual_clip: Option<f64>,
    /// `actor.entropy_coeff`: a positive one rewards entropy.
    pub entropy_coeff: f64,
    /// The divergence from the reference policy, where it is part of the loss.
    pub kl: Option<KlLoss>,
    /// How tokens are weighted.
    pub aggregation: Aggregation,
    /// The constant of [`Aggregation::SeqMeanTokenSumNorm`]; other aggregations have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_tokens_max: Option<usize>,
}

impl Default for ActorLoss {
    fn default() -> Self {
        Self {
            policy: PolicyLoss::default(),
            clip: ClipRange::default(),
            dual_clip: None,
            entropy_coeff: 0.001,
            kl: None,
            aggregation: Aggregation::default(),
            response_tokens_max: None,
        }
    }
}

/// One sequence's streams. Slices are `[tokens]`; log-probs and entropies in
/// nats, of the temperature-scaled distribution.
#[derive(Debug, Clone, Copy)]
pub struct ActorTokens<'a> {
    /// Under the policy being updated.
    pub log_probs: &'a [f64],
    /// Of the policy being updated.
    pub entropies: &'a [f64],
    /// Under the policy at the start of the update.
    pub old_log_probs: &'a [f64],
    /// Under the reference policy; needed where [`ActorLoss::kl`] is set.
    pub ref_log_probs: Option<&'a [f64]>,
    /// Held constant.
    pub advantages: &'a [f64],
    /// True where the policy produced the token.
    pub loss_mask: &'a [bool],
}

/// Derivatives of the minibatch's loss, `[tokens]`, 0 outside the loss mask.
#[derive(Debug, Clone, PartialEq)]
pub struct ActorCoefficients {
    /// With respect to the log-prob.
    pub log_probs: Vec<f64>,
    /// With respect to the entropy.
    pub entropies: Vec<f64>,
}

/// One sequence's share of the loss, with its derivatives.
#[derive(Debug, Clone, PartialEq)]
pub struct ActorOutput {
    /// What to back-propagate.
    pub coefficients: ActorCoefficients,
    /// What to add up over the minibatch.
    pub sums: ActorSums,
}

/// Sums over loss tokens. Sequences are merged in the order of their index; the
/// weighted sums of all sequences are then the minibatch's terms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ActorSums {
    /// Tokens summed over.
    pub loss_tokens: usize,
    /// Weighted: the whole loss.
    pub loss: f64,
    /// Weighted: the policy term.
    pub policy_loss: f64,
    /// Weighted: the entropy, without its coefficient.
    pub entropy: f64,
    /// Weighted: the KL term, without its coefficient.
    pub kl_loss: f64,
    /// Tokens on which the clipped branch is the larger.
    pub clipped_tokens: usize,
    /// Tokens whose loss the dual clip bounds.
    pub dual_clipped_tokens: usize,
    /// `Σ (old_log_prob − log_prob)`.
    pub approx_kl: f64,
    /// Largest ratio; 0 where there is no token.
    pub ratio_max: f64,
}

impl ActorSums {
    /// Adds the sums of the next sequence.
    pub fn merge(&mut self, next: &Self) {
        self.loss_tokens += next.loss_tokens;
        self.loss += next.loss;
        self.policy_loss += next.policy_loss;
        self.entropy += next.entropy;
        self.kl_loss += next.kl_loss;
        self.clipped_tokens += next.clipped_tokens;
        self.dual_clipped_tokens += next.dual_clipped_tokens;
        self.approx_kl += next.approx_kl;
        self.ratio_max = self.ratio_max.max(next.ratio_max);
    }

    /// The minibatch's metrics, once all of its sequences are merged.
    pub fn metrics(&self) -> ActorMetrics {
        let tokens = self.loss_tokens.max(1) as f64;
        ActorMetrics {
            loss: self.loss,
            policy_loss: self.policy_loss,
            entropy: self.entropy,
            kl_loss: self.kl_loss,
            clip_fraction: self.clipped_tokens as f64 / tokens,
            approx_kl: self.approx_kl / tokens,
            ratio_max: self.ratio_max,
            dual_clip_fraction: (self.dual_clipped_tokens > 0)
                .then(|| self.dual_clipped_tokens as f64 / tokens),
        }
    }
}

/// Metrics of a minibatch's update; zeros where it had no loss token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ActorMetrics {
    /// The whole loss.
    pub loss: f64,
    /// The policy term.
    pub policy_loss: f64,
    /// Aggregated entropy, nats.
    pub entropy: f64,
    /// Aggregated divergence from the reference, nats, before its coefficient.
    pub kl_loss: f64,
    /// Share of tokens on which the clipped branch is the larger.
    pub clip_fraction: f64,
    /// Mean of `old_log_prob − log_prob` over tokens, nats (AgentGym-RL's `ppo_kl`).
    pub approx_kl: f64,
    /// Largest ratio.
    pub ratio_max: f64,
    /// Share of tokens whose loss the dual clip bounds; `None` without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dual_clip_fraction: Option<f64>,
}

impl ActorLoss {
    /// Refuses constants outside their range.
    pub fn validate(&self) -> Result<(), Error> {
        let ClipRange { low, high } = self.clip;
        parameter(
            "clip_ratio (low)",
            low,
            (0.0..=1.0).contains(&low),
            "between 0 and 1",
        )?;
        parameter(
            "clip_ratio (high)",
            high,
            high >= 0.0 && high.is_finite(),
            "at least 0",
        )?;
        if let Some(dual_clip) = self.dual_clip {
            parameter(
                "clip_ratio_c",
                dual_clip,
                dual_clip > 1.0 && dual_clip.is_finite(),
                "greater than 1 (null does without the dual clip)",
            )?;
            parameter(
                "clip_ratio_c",
                dual_clip,
                self.policy == PolicyLoss::Ppo,
                "null: the dual clip belongs to the policy loss `vanilla`",
            )?;
        }
        parameter(
            "entropy_coeff",
            self.entropy_coeff,
            self.entropy_coeff.is_finite(),
            "finite",
        )?;
        if self.aggregation == Aggregation::SeqMeanTokenSumNorm {
            let constant = self.response_tokens_max.unwrap_or(0);
            parameter(
                "response_tokens_max",
                constant as f64,
                constant > 0,
                "at least 1",
            )?;
        }
        if let Some(kl) = self.kl {
            parameter("kl_loss_coef", kl.coef, kl.coef.is_finite(), "finite")?;
        }
        Ok(())
    }

    /// What each loss token of a sequence with so many weighs in a minibatch of size `denominator`.
    pub fn token_weight(&self, denominator: Denominator, loss_tokens: usize) -> f64 {
        let constant = self.response_tokens_max.unwrap_or(1);
        self.aggregation
            .token_weight(denominator, loss_tokens, constant)
    }

    /// Evaluates one sequence of a minibatch of size `denominator`.
    pub fn evaluate(
        &self,
        tokens: &ActorTokens<'_>,
        denominator: Denominator,
    ) -> Result<ActorOutput, Error> {
        self.validate()?;
        let mask = tokens.loss_mask;
        let check = |what, values: &[f64]| {
            same_length(what, values.len(), mask.len())?;
            finite_where(what, values, mask)
        };
        check("log_probs", tokens.log_probs)?;
        check("entropies", tokens.entropies)?;
        check("old_log_probs", tokens.old_log_probs)?;
        check("advantages", tokens.advantages)?;
        let kl = match (self.kl, tokens.ref_log_probs) {
            (Some(kl), Some(ref_log_probs)) => {
                check("ref_log_probs", ref_log_probs)?;
                Some((kl, ref_log_probs))
            }
            (Some(_), None) => return Err(Error::NoReference),
            (None, _) => None,
        };

        let mut sums = ActorSums {
            loss_tokens: loss_tokens(mask),
            ..ActorSums::default()
        };
        let weight = self.token_weight(denominator, sums.loss_tokens);
        let mut log_probs = vec![0.0; mask.len()];
        let mut entropies = vec![0.0; mask.len()];
        let policy = PolicyTokens {
            log_probs: tokens.log_probs,
            old_log_probs: tokens.old_log_probs,
            advantages: tokens.advantages,
            loss_mask: mask,
        };
        let terms = self.policy.terms(&policy, self.clip, self.dual_clip);
        let sampled = (0..mask.len()).filter(|&t| mask[t]);
        for (t, policy) in sampled.zip(terms) {
            log_probs[t] = weight * policy.coefficient;
            entropies[t] = -weight * self.entropy_coeff;
            sums.policy_loss += weight * policy.loss;
            sums.entropy += weight * tokens.entropies[t];
            if let Some((kl, ref_log_probs)) = kl {
                let term = kl.estimator.term(tokens.log_probs[t], ref_log_probs[t]);
                log_probs[t] += weight * kl.coef * term.derivative;
                sums.kl_loss += weight * term.value;
            }
            sums.clipped_tokens += usize::from(policy.is_clipped);
            sums.dual_clipped_tokens += usize::from(policy.is_dual_clipped);
            sums.approx_kl += tokens.old_log_probs[t] - tokens.log_probs[t];
            sums.ratio_max = sums.ratio_max.max(policy.ratio);
        }
        let kl_loss_coef = self.kl.map_or(0.0, |kl| kl.coef);
        sums.loss =
            sums.policy_loss - self.entropy_coeff * sums.entropy + kl_loss_coef * sums.kl_loss;
        Ok(ActorOutput {
            coefficients: ActorCoefficients {
                log_probs,
                entropies,
            },
            sums,
        })
    }
}

#[cfg(test)]
mod tests;
