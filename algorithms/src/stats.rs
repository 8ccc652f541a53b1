//! The figures in tables of results: means, success rates with an interval,
//! pass@k, and how much of the returns a critic explains. Every definition is
//! here, so that a word means the same in every table.

use serde::{Deserialize, Serialize};

use crate::error::{Error, all_finite, parameter, same_length};

/// The two-sided 95 % quantile of the normal distribution.
pub const Z_95: f64 = 1.959_963_984_540_054;

/// Mean, spread and range of a list of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many numbers.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Unbiased standard deviation (divisor `n − 1`); 0 for a single number.
    pub std: f64,
    /// Smallest number.
    pub min: f64,
    /// Largest number.
    pub max: f64,
}

impl Summary {
    /// Summarises `values`; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares = values
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>();
        let std = if count > 1 {
            (squares / (count - 1) as f64).sqrt()
        } else {
            0.0
        };
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self {
            count,
            mean,
            std,
            min,
            max,
        })
    }

    /// Standard error of the mean.
    pub fn standard_error(&self) -> f64 {
        self.std / (self.count as f64).sqrt()
    }
}

/// A share of successes with an interval for the underlying rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SuccessRate {
    /// Successful trials.
    pub successes: usize,
    /// All trials; excluded episodes are not trials.
    pub trials: usize,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl SuccessRate {
    /// Wilson's score interval at quantile `z` ([`Z_95`]): unlike mean ± z·error it stays
    /// inside [0, 1] and does not collapse at 0 or all successes. Without trials it is [0, 1].
    /// Trials are assumed independent; repeated samples of one task are only approximately so.
    ///
    /// Source: E. B. Wilson, JASA 22 (1927), 209–212.
    pub fn wilson(successes: usize, trials: usize, z: f64) -> Result<Self, Error> {
        parameter(
            "successes",
            successes as f64,
            successes <= trials,
            "at most the number of trials",
        )?;
        parameter("z", z, z >= 0.0 && z.is_finite(), "finite and at least 0")?;
        if trials == 0 {
            return Ok(Self {
                successes,
                trials,
                low: 0.0,
                high: 1.0,
            });
        }
        let rate = successes as f64 / trials as f64;
        let (low, high) = wilson_interval(rate, trials as f64, z)?;
        Ok(Self {
            successes,
            trials,
            low,
            high,
        })
    }

    /// Successes per trial; `None` without a trial.
    pub fn rate(&self) -> Option<f64> {
        (self.trials > 0).then(|| self.successes as f64 / self.trials as f64)
    }
}

/// The ends of Wilson's score interval of a rate over `trials`, which may be a
/// fractional effective number.
pub fn wilson_interval(rate: f64, trials: f64, z: f64) -> Result<(f64, f64), Error> {
    parameter("rate", rate, (0.0..=1.0).contains(&rate), "between 0 and 1")?;
    parameter(
        "trials",
        trials,
        trials > 0.0 && trials.is_finite(),
        "positive",
    )?;
    let z2 = z * z;
    let centre = (rate + z2 / (2.0 * trials)) / (1.0 + z2 / trials);
    let half = z / (1.0 + z2 / trials)
        * (rate * (1.0 - rate) / trials + z2 / (4.0 * trials * trials)).sqrt();
    // Rounding must not move an end that is exactly 0 or 1.
    let low = if rate == 0.0 {
        0.0
    } else {
        (centre - half).max(0.0)
    };
    let high = if rate == 1.0 {
        1.0
    } else {
        (centre + half).min(1.0)
    };
    Ok((low, high))
}

/// The chance that at least one of `k` samples of a task succeeds, estimated without
/// bias from `samples ≥ k`, `successes` of which succeeded: `1 − C(n − c, k) / C(n, k)`.
///
/// Source: arXiv:2107.03374 eq. 1.
pub fn pass_at_k(samples: usize, successes: usize, k: usize) -> Result<f64, Error> {
    parameter(
        "successes",
        successes as f64,
        successes <= samples,
        "at most the number of samples",
    )?;
    parameter(
        "k",
        k as f64,
        (1..=samples).contains(&k),
        "at least 1 and at most the number of samples",
    )?;
    let failures = samples - successes;
    if failures < k {
        return Ok(1.0);
    }
    // C(n−c, k) / C(n, k) as a product, since factorials would overflow.
    let all_fail: f64 = (0..k)
        .map(|i| (failures - i) as f64 / (samples - i) as f64)
        .product();
    Ok(1.0 - all_fail)
}

/// [`pass_at_k`] averaged over tasks, each given as (samples, successes); `None`
/// without a task.
pub fn mean_pass_at_k(tasks: &[(usize, usize)], k: usize) -> Result<Option<f64>, Error> {
    let each = tasks
        .iter()
        .map(|&(samples, successes)| pass_at_k(samples, successes, k));
    let each = each.collect::<Result<Vec<_>, _>>()?;
    Ok(Summary::of(&each).map(|summary| summary.mean))
}

/// How much of the returns' variance the values explain:
/// `1 − var(return − value) / (var(return) + 1e-5)`, as AgentGym-RL reports it;
/// `None` for fewer than two tokens. Pass loss tokens only.
pub fn explained_variance(values: &[f64], returns: &[f64]) -> Result<Option<f64>, Error> {
    same_length("returns", returns.len(), values.len())?;
    all_finite("value", values)?;
    all_finite("return", returns)?;
    let errors: Vec<f64> = returns
        .iter()
        .zip(values)
        .map(|(target, value)| target - value)
        .collect();
    let variance =
        |numbers: &[f64]| Summary::of(numbers).map_or(0.0, |summary| summary.std * summary.std);
    Ok((values.len() > 1).then(|| 1.0 - variance(&errors) / (variance(returns) + 1e-5)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::assert_close;

    #[test]
    fn summaries() {
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert_close(summary.std, (32.0f64 / 7.0).sqrt(), "std");
        assert_eq!((summary.mean, summary.min, summary.max), (5.0, 2.0, 9.0));
        assert_close(
            summary.standard_error(),
            (32.0f64 / 56.0).sqrt(),
            "standard error",
        );
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[3.0]).unwrap().std, 0.0);
    }

    #[test]
    fn known_wilson_intervals() {
        // At 0 of n the upper end is z² / (n + z²).
        let none = SuccessRate::wilson(0, 10, Z_95).unwrap();
        assert_eq!(none.low, 0.0);
        assert_close(none.high, Z_95 * Z_95 / (10.0 + Z_95 * Z_95), "0 of 10");
        let half = SuccessRate::wilson(5, 10, Z_95).unwrap();
        assert!(
            (half.low - 0.2366).abs() < 5e-5 && (half.high - 0.7634).abs() < 5e-5,
            "{half:?}"
        );
        let open = SuccessRate::wilson(0, 0, Z_95).unwrap();
        assert_eq!((open.low, open.high, open.rate()), (0.0, 1.0, None));
        assert!(SuccessRate::wilson(3, 2, Z_95).is_err());
        for z in [-1.0, f64::INFINITY, f64::NAN] {
            assert!(SuccessRate::wilson(0, 0, z).is_err(), "{z}");
        }
        for trials in [0.0, -1.0, f64::INFINITY, f64::NAN] {
            assert!(wilson_interval(0.5, trials, Z_95).is_err(), "{trials}");
        }
    }

    #[test]
    fn known_pass_rates() {
        assert_close(pass_at_k(4, 1, 1).unwrap(), 0.25, "pass@1 is the mean");
        assert_close(pass_at_k(4, 2, 2).unwrap(), 1.0 - 1.0 / 6.0, "pass@2");
        assert_eq!((pass_at_k(4, 0, 4), pass_at_k(4, 1, 4)), (Ok(0.0), Ok(1.0)));
        assert!(pass_at_k(4, 1, 5).is_err() && pass_at_k(4, 1, 0).is_err());
        assert_eq!(mean_pass_at_k(&[(2, 2), (2, 0)], 1), Ok(Some(0.5)));
        assert_eq!(mean_pass_at_k(&[], 1), Ok(None));
    }

    #[test]
    fn a_perfect_critic_explains_everything() {
        let returns = [0.0, 1.0, 5.0];
        assert_eq!(explained_variance(&returns, &returns), Ok(Some(1.0)));
        let blind = explained_variance(&[2.0; 3], &returns).unwrap().unwrap();
        assert!(blind.abs() < 1e-5, "{blind}");
        assert_eq!(explained_variance(&[1.0], &[1.0]), Ok(None));
    }

    proptest! {
        /// The interval contains the rate, narrows with more trials, and pass@k
        /// grows with k up to "any success".
        #[test]
        fn intervals_and_pass_rates_are_ordered(trials in 1usize..60, share in 0.0..=1.0f64) {
            let successes = (share * trials as f64) as usize;
            let found = SuccessRate::wilson(successes, trials, Z_95).unwrap();
            let rate = found.rate().unwrap();
            prop_assert!(0.0 <= found.low && found.low <= rate && rate <= found.high && found.high <= 1.0);
            let wider = found.high - found.low;
            let many = SuccessRate::wilson(successes * 9, trials * 9, Z_95).unwrap();
            prop_assert!(many.high - many.low < wider);
            for k in 1..trials {
                let (now, next) = (pass_at_k(trials, successes, k).unwrap(), pass_at_k(trials, successes, k + 1).unwrap());
                prop_assert!(now <= next + 1e-12);
            }
            prop_assert_eq!(pass_at_k(trials, successes, trials).unwrap(), f64::from(u8::from(successes > 0)));
        }
    }
}
