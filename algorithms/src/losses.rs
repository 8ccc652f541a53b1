//! Losses as values, coefficients and metrics.
//!
//! Each loss is a weighted sum over the loss tokens of a minibatch. The weights
//! are known before the first forward pass ([`Denominator`]), so a sequence is
//! evaluated alone, in any order and on any thread, and the pieces add up to the
//! minibatch's loss: nothing is averaged per unit and averaged again, which
//! would weigh tokens by the unit they fell into.
//!
//! Evaluating a sequence returns its share of the loss and one coefficient per
//! token and stream, the derivative of the *minibatch's* loss with respect to
//! that number. Coefficients are exactly 0 outside the loss mask.
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
mod sft;

pub use actor::{
    ActorCoefficients, ActorLoss, ActorMetrics, ActorOutput, ActorSums, ActorTokens, ClipRange,
    KlLoss, PolicyTerm, policy_term,
};
pub use aggregation::{Aggregation, Denominator};
pub use critic::{
    ValueLoss, ValueMetrics, ValueOutput, ValueSums, ValueTerm, ValueTokens, value_term,
};
pub use dpo::{Dpo, DpoLoss, DpoPair, DpoSums, DpoTerm};
pub use sft::{SftOutput, sequence_log_prob, sft};
