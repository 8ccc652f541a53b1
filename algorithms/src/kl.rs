//! How far the policy is from the reference policy, token by token.
//!
//! All estimators use one number per token, `d = log_prob − ref_log_prob`
//! (nats), of the token that was sampled. The same estimators serve as a
//! *penalty* that is subtracted from the reward before the advantage, or as a
//! *loss* that is differentiated. As a loss, k1 has zero gradient in expectation
//! (its derivative is the constant 1); k2 has the gradient of the reverse
//! divergence, k3 is the low-variance estimate of its value.

use crate::error::{Error, finite_where, parameter, same_length};
use crate::names::named;

/// Largest k3 value. AgentGym-RL clamps the estimate, not its exponent.
const K3_MAX: f64 = 10.0;

named! {
    /// An estimator of KL(policy ‖ reference) from one sampled token.
    ///
    /// Source: J. Schulman, "Approximating KL Divergence" (2020). AgentGym-RL's
    /// names are read as aliases.
    pub enum KlEstimator, called "KL estimator" {
        /// `d`: unbiased, may be negative, high variance.
        K1 = "k1" or "kl",
        /// `|d|`.
        Abs = "abs",
        /// `d² / 2`: biased, low variance.
        K2 = "k2" or "mse",
        /// `exp(−d) + d − 1`, at most 10: unbiased until clamped, never negative.
        K3 = "k3" or "low_var_kl",
    }
}

/// An estimate and its derivative with respect to the policy's log-prob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlTerm {
    /// The estimate, nats.
    pub value: f64,
    /// d value / d log_prob.
    pub derivative: f64,
}

impl KlEstimator {
    /// The estimate for one token.
    pub fn term(self, log_prob: f64, ref_log_prob: f64) -> KlTerm {
        let d = log_prob - ref_log_prob;
        match self {
            Self::K1 => KlTerm {
                value: d,
                derivative: 1.0,
            },
            // The subgradient at the kink is 0, so that equal policies have no gradient.
            Self::Abs => KlTerm {
                value: d.abs(),
                derivative: if d == 0.0 { 0.0 } else { d.signum() },
            },
            Self::K2 => KlTerm {
                value: 0.5 * d * d,
                derivative: d,
            },
            Self::K3 => {
                // exp_m1 avoids the cancellation of exp(−d) + d − 1 near 0.
                let exp_m1 = (-d).exp_m1();
                let value = exp_m1 + d;
                if value > K3_MAX {
                    KlTerm {
                        value: K3_MAX,
                        derivative: 0.0,
                    }
                } else {
                    KlTerm {
                        value,
                        derivative: -exp_m1,
                    }
                }
            }
        }
    }
}

/// The penalty to add to the token rewards: `−β · kl(old, ref)` on tokens with
/// loss mask 1, zero elsewhere. Shapes: all slices `[tokens]`.
///
/// Source: InstructGPT (arXiv:2203.02155) §3.5, per token as in AgentGym-RL.
pub fn penalty(
    old_log_probs: &[f64],
    ref_log_probs: &[f64],
    loss_mask: &[bool],
    estimator: KlEstimator,
    beta: f64,
) -> Result<Vec<f64>, Error> {
    same_length("ref_log_probs", ref_log_probs.len(), old_log_probs.len())?;
    same_length("loss_mask", loss_mask.len(), old_log_probs.len())?;
    finite_where("old_log_prob", old_log_probs, loss_mask)?;
    finite_where("ref_log_prob", ref_log_probs, loss_mask)?;
    let tokens = old_log_probs.iter().zip(ref_log_probs).zip(loss_mask);
    Ok(tokens
        .map(|((&old, &reference), &kept)| {
            if kept {
                -beta * estimator.term(old, reference).value
            } else {
                0.0
            }
        })
        .collect())
}

/// Mean of the estimate over the tokens of one sequence with loss mask 1; `None` for an empty
/// mask. [`KlController`] takes the average of these means over the sequences that have one.
pub fn masked_mean(
    log_probs: &[f64],
    ref_log_probs: &[f64],
    loss_mask: &[bool],
    estimator: KlEstimator,
) -> Result<Option<f64>, Error> {
    same_length("ref_log_probs", ref_log_probs.len(), log_probs.len())?;
    same_length("loss_mask", loss_mask.len(), log_probs.len())?;
    finite_where("log_prob", log_probs, loss_mask)?;
    finite_where("ref_log_prob", ref_log_probs, loss_mask)?;
    let (mut sum, mut loss_tokens) = (0.0, 0usize);
    for ((&log_prob, &reference), _) in log_probs
        .iter()
        .zip(ref_log_probs)
        .zip(loss_mask)
        .filter(|&(_, &kept)| kept)
    {
        sum += estimator.term(log_prob, reference).value;
        loss_tokens += 1;
    }
    Ok((loss_tokens > 0).then(|| sum / loss_tokens as f64))
}

/// How the penalty coefficient β moves from one iteration to the next.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum KlController {
    /// β stays `kl_coef`.
    Fixed {
        /// The coefficient.
        kl_coef: f64,
    },
    /// β is adjusted towards a target divergence (arXiv:1909.08593 §2.2).
    Adaptive {
        /// β of the first iteration.
        kl_coef: f64,
        /// The target divergence, nats per token.
        target_kl: f64,
        /// Sequences over which a full correction is spread.
        horizon: f64,
    },
}

impl KlController {
    /// β of the first iteration.
    pub fn initial(&self) -> f64 {
        match *self {
            Self::Fixed { kl_coef } | Self::Adaptive { kl_coef, .. } => kl_coef,
        }
    }

    /// Refuses constants outside their range.
    pub fn validate(&self) -> Result<(), Error> {
        let kl_coef = self.initial();
        parameter(
            "kl_coef",
            kl_coef,
            kl_coef >= 0.0 && kl_coef.is_finite(),
            "finite and at least 0",
        )?;
        if let Self::Adaptive {
            target_kl, horizon, ..
        } = *self
        {
            parameter("target_kl", target_kl, target_kl > 0.0, "greater than 0")?;
            parameter("horizon", horizon, horizon > 0.0, "greater than 0")?;
        }
        Ok(())
    }

    /// β of the next iteration, given this iteration's `beta`, the divergence
    /// measured and the number of sequences it was measured on:
    /// `β · (1 + clip(kl / target − 1, ±0.2) · sequences / horizon)`.
    pub fn next(&self, beta: f64, kl: f64, sequences: usize) -> Result<f64, Error> {
        match *self {
            Self::Fixed { kl_coef } => Ok(kl_coef),
            Self::Adaptive {
                target_kl, horizon, ..
            } => {
                self.validate()?;
                let error = (kl / target_kl - 1.0).clamp(-0.2, 0.2);
                Ok(beta * (1.0 + error * sequences as f64 / horizon))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, golden, mask_of, numbers, rows};

    #[test]
    fn golden_values_per_token_and_mean() {
        for case in golden("losses").cases() {
            let masks = rows(&case["loss_mask"]).map(mask_of).collect::<Vec<_>>();
            for (name, expected) in case["kl"].as_object().unwrap() {
                let estimator: KlEstimator = name.parse().unwrap();
                let (mut sum, mut count) = (0.0, 0.0);
                for (i, mask) in masks.iter().enumerate() {
                    let (log_probs, refs) = (
                        numbers(&case["log_prob"][i]),
                        numbers(&case["ref_log_prob"][i]),
                    );
                    let wanted = numbers(&expected["per_token"][i]);
                    for t in 0..mask.len() {
                        let value = estimator.term(log_probs[t], refs[t]).value;
                        assert_close(value, wanted[t], name);
                        if mask[t] {
                            sum += value;
                            count += 1.0;
                        }
                    }
                }
                assert_close(sum / count, expected["masked_mean"].as_f64().unwrap(), name);
            }
        }
    }

    #[test]
    fn golden_penalty_in_the_reward() {
        for case in golden("losses").cases() {
            let expected = &case["kl_in_reward"];
            let beta = expected["beta"].as_f64().unwrap();
            let mut means = Vec::new();
            for (i, mask) in rows(&case["loss_mask"]).map(mask_of).enumerate() {
                let (old, refs) = (
                    numbers(&case["old_log_prob"][i]),
                    numbers(&case["ref_log_prob"][i]),
                );
                let rewards = penalty(&old, &refs, &mask, KlEstimator::K1, beta).unwrap();
                for (found, wanted) in rewards.iter().zip(numbers(&expected["rewards"][i])) {
                    assert_close(*found, wanted, "penalty");
                }
                means.extend(masked_mean(&old, &refs, &mask, KlEstimator::K1).unwrap());
            }
            let mean = means.iter().sum::<f64>() / means.len() as f64;
            assert_close(
                mean,
                expected["mean_of_sequence_means"].as_f64().unwrap(),
                "mean of means",
            );
        }
    }

    #[test]
    fn derivatives_are_those_of_the_values() {
        let h = 1e-6;
        for &estimator in KlEstimator::ALL {
            for d in [-4.0, -2.0, -0.3, -1e-3, 1e-3, 0.7, 3.0, 20.0] {
                let slope = (estimator.term(d + h, 0.0).value - estimator.term(d - h, 0.0).value)
                    / (2.0 * h);
                let found = estimator.term(d, 0.0).derivative;
                assert!(
                    (found - slope).abs() < 1e-6,
                    "{estimator} at {d}: {found} against {slope}"
                );
            }
        }
        assert_eq!(
            KlEstimator::K3.term(-3.0, 0.0),
            KlTerm {
                value: 10.0,
                derivative: 0.0
            }
        );
        assert_eq!(KlEstimator::K3.term(-2000.0, 0.0).value, 10.0);
        // At the bound itself the gradient is kept, as in torch's clamp. Near it the value moves
        // in steps of one unit in the last place, so the search meets the bound exactly.
        let mut near =
            std::iter::successors(Some(10.999_983_298_020_2), |d: &f64| Some(d.next_up()));
        let term = |d| KlEstimator::K3.term(d, 0.0);
        let bound = near.find(|&d| term(d).value >= K3_MAX).unwrap();
        assert_eq!(term(bound).value, K3_MAX);
        assert!(term(bound).derivative > 0.99, "{:?}", term(bound));
        assert_eq!(term(bound.next_up()).derivative, 0.0);
    }

    #[test]
    fn names_and_aliases() {
        assert_eq!("low_var_kl".parse(), Ok(KlEstimator::K3));
        assert_eq!(serde_json::to_string(&KlEstimator::K2).unwrap(), "\"k2\"");
        let error = "full".parse::<KlEstimator>().unwrap_err().to_string();
        assert!(
            error.contains("k1, kl, abs, k2, mse, k3, low_var_kl"),
            "{error}"
        );
    }

    #[test]
    fn the_controller_follows_its_target() {
        let controller = KlController::Adaptive {
            kl_coef: 0.1,
            target_kl: 6.0,
            horizon: 1000.0,
        };
        assert_close(
            controller.next(0.1, 6.6, 100).unwrap(),
            0.1 * 1.01,
            "10 % above",
        );
        assert_close(
            controller.next(0.1, 600.0, 100).unwrap(),
            0.1 * 1.02,
            "clipped",
        );
        assert_close(
            KlController::Fixed { kl_coef: 0.3 }
                .next(0.1, 9.0, 5)
                .unwrap(),
            0.3,
            "fixed",
        );
    }

    #[test]
    fn constants_that_mean_nothing_are_refused_by_name() {
        let adaptive = |kl_coef, target_kl, horizon| KlController::Adaptive {
            kl_coef,
            target_kl,
            horizon,
        };
        assert!(adaptive(0.0, 0.1, 1.0).validate().is_ok());
        for (controller, name) in [
            (adaptive(-0.1, 0.1, 1.0), "kl_coef"),
            (adaptive(0.1, 0.0, 1.0), "target_kl"),
            (adaptive(0.1, 0.1, 0.0), "horizon"),
            (
                KlController::Fixed {
                    kl_coef: f64::INFINITY,
                },
                "kl_coef",
            ),
        ] {
            let error = controller.validate().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn an_empty_mask_has_no_mean() {
        assert_eq!(
            masked_mean(&[f64::NAN], &[0.0], &[false], KlEstimator::K3),
            Ok(None)
        );
        assert_eq!(
            penalty(&[f64::NAN], &[0.0], &[false], KlEstimator::K3, 1.0),
            Ok(vec![0.0])
        );
    }
}
