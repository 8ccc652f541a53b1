//! Clipped importance sampling: the ratio is bounded, and no token loses its gradient.

use super::term::{ClipRange, LOG_RATIO_MAX, PolicyTerm, PolicyTokens};

/// `−A·clip(ratio)·log_prob` with the bounded ratio held constant, so that the derivative by the
/// log-prob is `−A·clip(ratio)` everywhere.
///
/// Source: MiniMax-M1, arXiv:2506.13585 eq. 4 and 5.
pub(super) fn terms(tokens: &PolicyTokens<'_>, clip: ClipRange) -> Vec<PolicyTerm> {
    let term = |t: usize| {
        let log_ratio = tokens.log_probs[t] - tokens.old_log_probs[t];
        let ratio = log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp();
        let bounded = ratio.max(1.0 - clip.low).min(1.0 + clip.high);
        let coefficient = -tokens.advantages[t] * bounded;
        PolicyTerm {
            loss: coefficient * tokens.log_probs[t],
            coefficient,
            ratio,
            is_clipped: bounded != ratio,
            is_dual_clipped: false,
        }
    };
    tokens.sampled().map(term).collect()
}
