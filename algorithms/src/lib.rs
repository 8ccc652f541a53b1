//! The arithmetic of the training algorithms, and nothing else.
//!
//! Every function here is pure: slices and numbers in, vectors and numbers
//! out. No tensor library, no clock, no file, no random state, so a formula is
//! tested against golden numbers and finite differences in milliseconds, and
//! gives the same bits on every machine.
//!
//! # How training stays independent of the algorithm
//! Every loss depends on the weights only through three per-token streams: the
//! log-prob of the token, the entropy of the distribution it was drawn from,
//! and the critic's value. A loss here therefore returns its value, its metrics
//! and its derivative with respect to each stream (the *coefficients*). Back-
//! propagating `Σ c·log_prob + d·entropy + e·value` with the coefficients held
//! constant gives the gradient of the loss itself.
//!
//! # Conventions
//! - All arithmetic is `f64`; callers convert to it.
//! - Per-token slices of one sequence are equally long and aligned: entry `t` of
//!   every slice refers to the same token. `loss_mask[t]` is true where the
//!   policy itself produced the token. Tokens outside the mask contribute
//!   nothing, whatever the other slices hold there.
//! - A sequence or minibatch with an empty mask contributes zeros, never a NaN.
//! - Sums run in index order, so a result does not depend on threads.
//!
//! # Map
//! | Module | Answers |
//! |---|---|
//! | [`advantages`] | how much credit each token gets |
//! | [`groups`] | what a group of episodes of one task looks like |
//! | [`kl`] | how far the policy is from the reference, per token |
//! | [`importance`] | the weight of a token that another policy sampled |
//! | [`losses`] | loss, coefficients and metrics: actor, critic, sft, dpo |
//! | [`horizon`] | how many rounds an episode of iteration n may take |
//! | [`learning_rate`] | the learning rate of iteration n |
//! | [`batches`] | minibatches, gradient units, the order of summation |
//! | [`evaluation`] | avg@n, pass@k and faults of evaluated items |
//! | [`stats`] | success rates with intervals, pass@k, summaries |

pub mod advantages;
pub mod batches;
mod error;
pub mod evaluation;
pub mod groups;
pub mod horizon;
pub mod importance;
pub mod kl;
pub mod learning_rate;
pub mod losses;
mod names;
pub mod stats;
#[cfg(test)]
mod testing;

pub use advantages::{AdvantageEstimator, AdvantageOptions, EpisodeTokens, TokenAdvantages};
pub use error::Error;
pub use horizon::HorizonSchedule;
pub use importance::{ImportanceCorrection, ImportanceLevel};
pub use kl::{KlController, KlEstimator};
pub use learning_rate::{LearningRate, LearningRateStyle};
pub use losses::{ActorLoss, Aggregation, ClipRange, Denominator, PolicyLoss, ValueLoss};
