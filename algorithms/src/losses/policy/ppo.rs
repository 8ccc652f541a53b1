//! PPO's clipped surrogate, with the dual clip.

use super::term::{ClipRange, LOG_RATIO_MAX, PolicyTerm, PolicyTokens};

pub(super) fn terms(
    tokens: &PolicyTokens<'_>,
    clip: ClipRange,
    dual_clip: Option<f64>,
) -> Vec<PolicyTerm> {
    let term = |t: usize| {
        let (new, old) = (tokens.log_probs[t], tokens.old_log_probs[t]);
        policy_term(new, old, tokens.advantages[t], clip, dual_clip)
    };
    tokens.sampled().map(term).collect()
}

/// The clipped surrogate of PPO for one token. Source: arXiv:1707.06347 eq. 7.
///
/// With `dual_clip` c, a token of negative advantage costs at most `−A·c`: a
/// ratio above c has no gradient. Source: arXiv:1912.09729 §3.3.
pub fn policy_term(
    log_prob: f64,
    old_log_prob: f64,
    advantage: f64,
    clip: ClipRange,
    dual_clip: Option<f64>,
) -> PolicyTerm {
    let log_ratio = log_prob - old_log_prob;
    let ratio = log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp();
    let unclipped = -advantage * ratio;
    let clipped = -advantage * ratio.max(1.0 - clip.low).min(1.0 + clip.high);
    let bound = dual_clip
        .filter(|_| advantage < 0.0)
        .map(|dual_clip| -advantage * dual_clip)
        .filter(|bound| clipped.max(unclipped) > *bound);
    if let Some(bound) = bound {
        PolicyTerm {
            loss: bound,
            coefficient: 0.0,
            ratio,
            is_clipped: false,
            is_dual_clipped: true,
        }
    } else if clipped > unclipped {
        PolicyTerm {
            loss: clipped,
            coefficient: 0.0,
            ratio,
            is_clipped: true,
            is_dual_clipped: false,
        }
    } else {
        let coefficient = if log_ratio.abs() > LOG_RATIO_MAX {
            0.0
        } else {
            unclipped
        };
        PolicyTerm {
            loss: unclipped,
            coefficient,
            ratio,
            is_clipped: false,
            is_dual_clipped: false,
        }
    }
}
