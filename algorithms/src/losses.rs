//! Losses as values, coefficients and metrics.
//!
//! Each loss is a weighted sum over the loss tokens of a minibatch. The weights are known before
//! the first forward pass ([`Denominator`]), so a sequence is evaluated alone, in any order and on
//! any thread, and the shares add up to the minibatch's loss. There is no mean of per-unit means,
//! which would weight tokens by the unit they are in. Evaluating a sequence returns its share of
//! the loss and one coefficient per token and stream, the derivative of the *minibatch's* loss
//! with respect to that number. Coefficients are exactly 0 outside the loss mask.
//!
//! | Loss | Scope | Streams |
//! |---|---|---|
//! | [`ActorLoss`] | token | log-prob, entropy |
//! | [`ValueLoss`] | token | value |
//! | [`fn@sft`] | token | log-prob |
//! | [`Dpo`] | pair of sequences | log-prob |

mod actor;
mod aggregation;
mod critic;
mod dpo;
mod policy;
mod sft;

pub use actor::{
    ActorCoefficients, ActorLoss, ActorMetrics, ActorOutput, ActorSums, ActorTokens, KlLoss,
};
pub use aggregation::{Aggregation, Denominator};
pub use critic::{
    ValueLoss, ValueMetrics, ValueOutput, ValueSums, ValueTerm, ValueTokens, value_term,
};
pub use dpo::{Dpo, DpoLoss, DpoPair, DpoSums, DpoTerm};
pub use policy::{ClipRange, PolicyLoss, PolicyTerm, policy_term};
pub use sft::{SftOutput, sequence_log_prob, sft};

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums of the actor, the critic and of pairs, with a different number in each field.
    #[test]
    fn sums_are_added_field_by_field_and_become_means() {
        let of = |n: usize| ActorSums {
            loss_tokens: 10 * n,
            loss: 0.5 + n as f64,
            policy_loss: 0.25 + n as f64,
            entropy: 0.75 + n as f64,
            kl_loss: 0.125 + n as f64,
            clipped_tokens: 3 * n,
            dual_clipped_tokens: 2 * n,
            approx_kl: 1.5 * n as f64,
            ratio_max: 2.0 - n as f64,
        };
        let mut sums = of(1);
        sums.merge(&of(2));
        let all = ActorSums {
            loss_tokens: 30,
            loss: 4.0,
            policy_loss: 3.5,
            entropy: 4.5,
            kl_loss: 3.25,
            clipped_tokens: 9,
            dual_clipped_tokens: 6,
            approx_kl: 4.5,
            ratio_max: 1.0,
        };
        assert_eq!(sums, all);
        let metrics = sums.metrics();
        assert_eq!((metrics.clip_fraction, metrics.approx_kl), (0.3, 0.15));
        assert_eq!(metrics.dual_clip_fraction, Some(0.2));
        assert_eq!(of(0).metrics().dual_clip_fraction, None);

        let of = |n: usize| ValueSums {
            loss_tokens: 10 * n,
            loss: 0.5 + n as f64,
            clipped_tokens: 3 * n,
            value: 1.5 * n as f64,
        };
        let mut sums = of(1);
        sums.merge(&of(2));
        assert_eq!((sums.loss_tokens, sums.loss), (30, 4.0));
        let metrics = sums.metrics();
        assert_eq!((metrics.clip_fraction, metrics.value_mean), (0.3, 0.15));

        let of = |n: usize| DpoSums {
            pairs: 10 * n,
            loss: 0.5 + n as f64,
            chosen_reward: 0.25 + n as f64,
            rejected_reward: 0.75 + n as f64,
            correct: 3 * n,
        };
        let mut sums = of(1);
        sums.merge(&of(2));
        assert_eq!((sums.pairs, sums.loss), (30, 4.0));
        assert_eq!((sums.chosen_reward, sums.rejected_reward), (3.5, 4.5));
        assert_eq!(sums.accuracy(), 0.3);
    }
}
