//! Group sequence policy optimisation: one ratio for all tokens of a sequence.

use super::ppo::policy_term;
use super::term::{ClipRange, PolicyTerm, PolicyTokens};

/// The ratio of the whole sequence, `s = (π(y) / π_old(y))^(1/|y|)`, replaces that of every
/// token: `max(−A·s, −A·clip(s))`, with derivative `−A·s` by each of the sequence's log-probs,
/// or 0 where clipped. Where the advantages of a sequence are equal this is the derivative of
/// the sequence's loss; where they differ, that of the paper's token variant.
///
/// Source: arXiv:2507.18071 §4.1 and §4.3 (GSPO-token).
pub(super) fn terms(tokens: &PolicyTokens<'_>, clip: ClipRange) -> Vec<PolicyTerm> {
    let log_ratios = tokens
        .sampled()
        .map(|t| tokens.log_probs[t] - tokens.old_log_probs[t]);
    let count = tokens.sampled().count().max(1);
    let mean = log_ratios.sum::<f64>() / count as f64;
    let term = |t: usize| policy_term(mean, 0.0, tokens.advantages[t], clip, None);
    tokens.sampled().map(term).collect()
}
