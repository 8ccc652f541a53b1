//! The input and output types that the policy losses share.

use serde::{Deserialize, Serialize};

/// Log-ratios beyond this many nats are clamped and carry no gradient: e²⁰ would
/// dominate the minibatch, and e⁷¹⁰ overflows.
pub(super) const LOG_RATIO_MAX: f64 = 20.0;

/// How far the ratio may move before the policy loss stops rewarding it:
/// `[1 − low, 1 + high]`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClipRange {
    /// ε below 1.
    pub low: f64,
    /// ε above 1; larger than `low` in DAPO (arXiv:2503.14476 §3.1).
    pub high: f64,
}

impl ClipRange {
    /// The same ε on both sides.
    pub fn symmetric(clip_ratio: f64) -> Self {
        Self {
            low: clip_ratio,
            high: clip_ratio,
        }
    }
}

impl Default for ClipRange {
    fn default() -> Self {
        Self::symmetric(0.2)
    }
}

/// One sequence's streams, as in [`ActorTokens`](crate::losses::ActorTokens).
#[derive(Debug, Clone, Copy)]
pub(in crate::losses) struct PolicyTokens<'a> {
    pub(in crate::losses) log_probs: &'a [f64],
    pub(in crate::losses) old_log_probs: &'a [f64],
    pub(in crate::losses) advantages: &'a [f64],
    pub(in crate::losses) loss_mask: &'a [bool],
}

impl PolicyTokens<'_> {
    /// The indices of the policy's tokens.
    pub(super) fn sampled(&self) -> impl Iterator<Item = usize> {
        (0..self.loss_mask.len()).filter(|&t| self.loss_mask[t])
    }
}

/// The policy loss of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PolicyTerm {
    /// `max(−A·ratio, −A·clip(ratio))`.
    pub loss: f64,
    /// d loss / d log_prob: `−A·ratio`, or 0 where clipped.
    pub coefficient: f64,
    /// `exp(log_prob − old_log_prob)`.
    pub ratio: f64,
    /// Whether the clipped branch is the larger one.
    pub is_clipped: bool,
    /// Whether the dual clip bounds the loss.
    pub is_dual_clipped: bool,
}
