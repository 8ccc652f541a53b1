//! The learning rate as a pure function of the iteration: the same for every
//! optimizer step of an iteration, never 0 in the first one, and independent of
//! where a run was interrupted.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::error::{Error, parameter};
use crate::names::named;

named! {
    /// What follows the warm-up.
    pub enum LearningRateStyle, called "learning rate style" {
        /// The base rate.
        Constant = "constant",
        /// Half a cosine from the base rate down to `min_lr_ratio` of it.
        Cosine = "cosine",
    }
}

/// A learning rate schedule. For a stand-alone stage (sft, dpo), read "optimizer
/// step" for "iteration".
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    /// The rate at the end of the warm-up.
    pub base: f64,
    /// W: the rate climbs linearly and reaches `base` at iteration W.
    pub warmup_iterations: u32,
    /// N: planned iterations, warm-up included; a cosine ends after them.
    pub total_iterations: u32,
    /// What follows the warm-up.
    pub style: LearningRateStyle,
    /// The final rate of a cosine, relative to `base`.
    pub min_lr_ratio: f64,
}

impl LearningRate {
    /// The base rate throughout.
    pub fn constant(base: f64) -> Self {
        Self {
            base,
            warmup_iterations: 0,
            total_iterations: 0,
            style: LearningRateStyle::Constant,
            min_lr_ratio: 0.0,
        }
    }

    /// Refuses constants outside their range.
    pub fn validate(&self) -> Result<(), Error> {
        parameter(
            "lr",
            self.base,
            self.base >= 0.0 && self.base.is_finite(),
            "finite and at least 0",
        )?;
        let ratio = self.min_lr_ratio;
        parameter(
            "min_lr_ratio",
            ratio,
            (0.0..=1.0).contains(&ratio),
            "between 0 and 1",
        )
    }

    /// The rate of `iteration` (1-based; 0 is read as 1).
    ///
    /// `base · i / W` for `i ≤ W`. Then, with `p = (i − 1 − W) / (N − W)`, a cosine is at
    /// `base · (m + (1 − m) · (1 + cos πp) / 2)`, `m` the smallest ratio: the
    /// first iteration after the warm-up has the base rate, and `p = 1` is one
    /// past the last planned iteration. Beyond N the cosine stays at its end.
    pub fn at(&self, iteration: u32) -> f64 {
        let iteration = iteration.max(1);
        if iteration <= self.warmup_iterations {
            return self.base * f64::from(iteration) / f64::from(self.warmup_iterations);
        }
        match self.style {
            LearningRateStyle::Constant => self.base,
            LearningRateStyle::Cosine => {
                let passed = f64::from(iteration - 1 - self.warmup_iterations);
                let length = f64::from(
                    self.total_iterations
                        .saturating_sub(self.warmup_iterations)
                        .max(1),
                );
                let progress = (passed / length).min(1.0);
                let share = 0.5 * (1.0 + (PI * progress).cos());
                self.base * (self.min_lr_ratio + (1.0 - self.min_lr_ratio) * share)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{golden, numbers};

    fn schedules() -> Vec<(LearningRate, Vec<f64>)> {
        let read = |case: &serde_json::Value| {
            let count = |name: &str| case[name].as_u64().unwrap() as u32;
            let schedule = LearningRate {
                base: case["base"].as_f64().unwrap(),
                warmup_iterations: count("warmup_iterations"),
                total_iterations: count("total_iterations"),
                style: case["style"].as_str().unwrap().parse().unwrap(),
                min_lr_ratio: case["min_lr_ratio"].as_f64().unwrap(),
            };
            (schedule, numbers(&case["lr_by_iteration"]))
        };
        golden("lr").cases().iter().map(read).collect()
    }

    #[test]
    fn golden_rates_at_every_iteration() {
        for (schedule, rates) in schedules() {
            for (iteration, expected) in (1..).zip(rates) {
                let found = schedule.at(iteration);
                // Relative: an absolute 1e-10 would accept anything near 1e-6.
                assert!(
                    (found - expected).abs() <= 1e-10 * expected.abs(),
                    "{schedule:?} at {iteration}: {found}"
                );
            }
        }
    }

    #[test]
    fn the_ends_of_a_schedule() {
        let schedule = LearningRate {
            base: 1.0,
            warmup_iterations: 4,
            total_iterations: 10,
            style: LearningRateStyle::Cosine,
            min_lr_ratio: 0.25,
        };
        assert_eq!(
            (
                schedule.at(0),
                schedule.at(1),
                schedule.at(4),
                schedule.at(5)
            ),
            (0.25, 0.25, 1.0, 1.0)
        );
        assert_eq!((schedule.at(11), schedule.at(u32::MAX)), (0.25, 0.25));
        assert_eq!(LearningRate::constant(3e-4).at(77), 3e-4);
        // All iterations are warm-up: a cosine of length 0 must not divide by 0.
        let all = LearningRate {
            total_iterations: 4,
            ..schedule
        };
        assert_eq!((all.at(4), all.at(5), all.at(6)), (1.0, 1.0, 0.25));
    }

    #[test]
    fn bad_constants() {
        assert!(
            LearningRate {
                min_lr_ratio: 1.5,
                ..LearningRate::constant(1.0)
            }
            .validate()
            .is_err()
        );
        assert!(LearningRate::constant(f64::NAN).validate().is_err());
        assert!(
            "linear"
                .parse::<LearningRateStyle>()
                .unwrap_err()
                .to_string()
                .contains("constant, cosine")
        );
    }
}
