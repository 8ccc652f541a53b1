//! Importance correction for tokens sampled by a policy other than the one being updated.
//! With a policy lag, or where sampling and scoring are not bit-identical, `old_log_prob` and
//! `sampled_log_prob` differ, and the gradient is biased by their ratio. The weight
//! `exp(old − sampled)`, truncated at a threshold, multiplies the advantage and is held constant.
//!
//! Source: truncated importance sampling, Ionides, J. Comput. Graph. Stat. 17
//! (2008), 295–311; per token or per sequence as in verl's `rollout_correction`.
//!
//! Where top_k or top_p cut the distribution, the sampler's log-prob is that of
//! [`behaviour_log_probs`].

use crate::error::{Error, finite_where, parameter, same_length};
use crate::names::named;

/// Log-ratios are clamped to ± this before the exponential; e²⁰ exceeds any threshold.
const LOG_RATIO_MAX: f64 = 20.0;

named! {
    /// The scope of the ratio.
    pub enum ImportanceLevel, called "importance sampling level" {
        /// Each token by its own ratio: low variance, biased.
        Token = "token",
        /// All tokens of an episode by the product of their ratios.
        Sequence = "sequence",
    }
}

/// The log-probs with which tokens were drawn, `log q(a) = log p(a) − log Σ p(kept ids)`:
/// the distribution left by a top-k or top-p cut, renormalised. Slices `[tokens]`, nats;
/// `log_kept_mass` is the log of that sum, `None` where nothing was cut.
///
/// Source: top-k, Fan et al., arXiv:1805.04833; top-p, Holtzman et al.,
/// arXiv:1904.09751, equation 3.
///
/// # Errors
/// Slices of different lengths.
pub fn behaviour_log_probs(
    sampled_log_probs: &[f64],
    log_kept_mass: Option<&[f64]>,
) -> Result<Vec<f64>, Error> {
    let Some(masses) = log_kept_mass else {
        return Ok(sampled_log_probs.to_vec());
    };
    same_length("log_kept_mass", masses.len(), sampled_log_probs.len())?;
    let both = sampled_log_probs.iter().zip(masses);
    Ok(both.map(|(log_prob, mass)| log_prob - mass).collect())
}

/// Which correction a run uses.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ImportanceCorrection {
    /// `algorithm.rollout_correction.rollout_is`.
    pub level: ImportanceLevel,
    /// `algorithm.rollout_correction.rollout_is_threshold`: the largest weight.
    pub threshold: f64,
}

impl ImportanceCorrection {
    /// Refuses a threshold that is not positive and finite.
    pub fn validate(&self) -> Result<(), Error> {
        parameter(
            "rollout_is_threshold",
            self.threshold,
            self.threshold > 0.0 && self.threshold.is_finite(),
            "greater than 0",
        )
    }

    /// The weight of each token of one episode, `min(ratio, threshold)`; 0
    /// outside the loss mask. Slices `[tokens]`, nats.
    pub fn weights(
        &self,
        old_log_probs: &[f64],
        sampled_log_probs: &[f64],
        loss_mask: &[bool],
    ) -> Result<Vec<f64>, Error> {
        self.validate()?;
        let differences = differences(old_log_probs, sampled_log_probs, loss_mask)?;
        let weight = |log_ratio: f64| {
            log_ratio
                .clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
                .exp()
                .min(self.threshold)
        };
        let whole = weight(differences.iter().sum());
        let tokens = differences.iter().zip(loss_mask);
        Ok(tokens
            .map(|(&difference, &kept)| match self.level {
                _ if !kept => 0.0,
                ImportanceLevel::Token => weight(difference),
                ImportanceLevel::Sequence => whole,
            })
            .collect())
    }
}

/// How far apart sampling and scoring are, over loss tokens; all 0 where every
/// log-prob is bit-identical to the sampled one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mismatch {
    /// Loss tokens compared.
    pub loss_tokens: usize,
    /// Largest |sampled − old|, nats.
    pub max: f64,
    /// `Σ (sampled − old)`; per token, the k1 estimate of KL(sampler ‖ old policy).
    pub sum: f64,
    /// `Σ (exp(d) − 1 − d)`, d = old − sampled; per token, the k3 estimate of it.
    pub k3: f64,
}

impl Mismatch {
    /// Measures one episode. Slices `[tokens]`.
    pub fn of(
        old_log_probs: &[f64],
        sampled_log_probs: &[f64],
        loss_mask: &[bool],
    ) -> Result<Self, Error> {
        let mut out = Self::default();
        let differences = differences(old_log_probs, sampled_log_probs, loss_mask)?;
        for (&difference, _) in differences.iter().zip(loss_mask).filter(|(_, kept)| **kept) {
            out.loss_tokens += 1;
            out.max = out.max.max(difference.abs());
            out.sum -= difference;
            let cut = difference.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX);
            out.k3 += cut.exp_m1() - cut;
        }
        Ok(out)
    }

    /// Adds the mismatch of the next episode.
    pub fn merge(&mut self, next: &Self) {
        self.loss_tokens += next.loss_tokens;
        self.max = self.max.max(next.max);
        self.sum += next.sum;
        self.k3 += next.k3;
    }

    /// The k3 estimate per token, nats; 0 without a token.
    pub fn kl(&self) -> f64 {
        self.k3 / self.loss_tokens.max(1) as f64
    }
}

/// `old − sampled`, 0 outside the loss mask.
fn differences(
    old_log_probs: &[f64],
    sampled_log_probs: &[f64],
    loss_mask: &[bool],
) -> Result<Vec<f64>, Error> {
    same_length(
        "sampled_log_probs",
        sampled_log_probs.len(),
        old_log_probs.len(),
    )?;
    same_length("loss_mask", loss_mask.len(), old_log_probs.len())?;
    finite_where("old_log_prob", old_log_probs, loss_mask)?;
    finite_where("sampled_log_prob", sampled_log_probs, loss_mask)?;
    let tokens = old_log_probs.iter().zip(sampled_log_probs).zip(loss_mask);
    Ok(tokens
        .map(|((old, sampled), &kept)| if kept { old - sampled } else { 0.0 })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::assert_close;

    const OLD: [f64; 4] = [f64::NAN, -1.0, -2.0, -0.5];
    const SAMPLED: [f64; 4] = [0.0, -1.5, -1.8, -2.5];
    const MASK: [bool; 4] = [false, true, true, true];

    fn weights(level: ImportanceLevel, threshold: f64) -> Vec<f64> {
        let correction = ImportanceCorrection { level, threshold };
        correction.weights(&OLD, &SAMPLED, &MASK).unwrap()
    }

    #[test]
    fn tokens_are_weighed_one_by_one_and_cut_off() {
        let found = weights(ImportanceLevel::Token, 2.0);
        let expected = [0.0, 0.5f64.exp(), (-0.2f64).exp(), 2.0];
        for (found, expected) in found.into_iter().zip(expected) {
            assert_close(found, expected, "weight");
        }
    }

    #[test]
    fn a_sequence_has_one_weight() {
        // 0.5 − 0.2 + 2.0 nats.
        let found = weights(ImportanceLevel::Sequence, 100.0);
        assert_eq!(found[0], 0.0);
        for weight in &found[1..] {
            assert_close(*weight, 2.3f64.exp(), "weight");
        }
        assert_eq!(weights(ImportanceLevel::Sequence, 2.0)[1..], [2.0; 3]);
    }

    #[test]
    fn equal_log_probs_weigh_one_and_do_not_differ() {
        for &level in ImportanceLevel::ALL {
            let correction = ImportanceCorrection {
                level,
                threshold: 2.0,
            };
            let same = correction.weights(&SAMPLED, &SAMPLED, &MASK).unwrap();
            assert_eq!(same, [0.0, 1.0, 1.0, 1.0]);
        }
        let none = Mismatch::of(&SAMPLED, &SAMPLED, &MASK).unwrap();
        assert_eq!((none.max, none.sum, none.kl()), (0.0, 0.0, 0.0));
    }

    #[test]
    fn the_mismatch_is_that_of_loss_tokens() {
        let mut found = Mismatch::of(&OLD, &SAMPLED, &MASK).unwrap();
        assert_eq!(found.loss_tokens, 3);
        assert_close(found.max, 2.0, "max");
        assert_close(found.sum, -2.3, "sum");
        let k3 = |d: f64| d.exp() - 1.0 - d;
        assert_close(found.kl(), (k3(0.5) + k3(-0.2) + k3(2.0)) / 3.0, "k3");
        let once = found;
        found.merge(&Mismatch::default());
        assert_eq!(found, once);
        found.merge(&once);
        assert_eq!((found.loss_tokens, found.max), (6, once.max));
        assert_eq!((found.sum, found.k3), (2.0 * once.sum, 2.0 * once.k3));
    }

    /// On policy, a token drawn from a cut distribution has the kept mass as its weight.
    #[test]
    fn a_cut_is_corrected_by_the_mass_it_left() {
        let masses = [0.0, 0.5f64.ln(), 0.0, 0.9f64.ln()];
        let behaviour = behaviour_log_probs(&SAMPLED, Some(&masses)).unwrap();
        let correction = ImportanceCorrection {
            level: ImportanceLevel::Token,
            threshold: 2.0,
        };
        let found = correction.weights(&SAMPLED, &behaviour, &MASK).unwrap();
        for (found, expected) in found.into_iter().zip([0.0, 0.5, 1.0, 0.9]) {
            assert_close(found, expected, "weight");
        }
        let mismatch = Mismatch::of(&SAMPLED, &behaviour, &MASK).unwrap();
        assert_close(mismatch.max, 2f64.ln(), "mismatch");
        assert_eq!(behaviour_log_probs(&SAMPLED, None).unwrap(), SAMPLED);
        assert!(behaviour_log_probs(&SAMPLED, Some(&masses[1..])).is_err());
    }

    #[test]
    fn bad_thresholds_and_names_are_refused() {
        let correction = ImportanceCorrection {
            level: ImportanceLevel::Token,
            threshold: 0.0,
        };
        assert!(correction.weights(&OLD, &SAMPLED, &MASK).is_err());
        let error = "turn".parse::<ImportanceLevel>().unwrap_err().to_string();
        assert!(error.contains("token, sequence"), "{error}");
    }
}
