//! The figures of an evaluation of a policy: avg@n, pass@k, rounds and faults
//! of a list of items, each with an interval.
//!
//! Items are the independent units; the samples of one item are not. An episode with
//! an environment fault is not a sample: it is counted as a fault, and an item without
//! any sample is counted as lost and left out of the means. The caller defines success
//! (the environment's declared rule); it is never "a reward above zero".

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::stats::{Summary, Z_95, pass_at_k, wilson_interval};

/// The usable samples of one item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ItemSamples {
    /// Reward of each usable sample.
    pub rewards: Vec<f64>,
    /// How many of them solved the item.
    pub solved: usize,
    /// Rounds of each usable sample.
    pub rounds: Vec<f64>,
    /// Samples lost to environment faults.
    pub faults: usize,
}

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Number of items (for a rate of episodes, of episodes) in the mean.
    pub of: usize,
}

/// The figures of a list of items.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationScore {
    /// Items requested.
    pub items: usize,
    /// Items without a usable sample, left out of every mean.
    pub items_lost: usize,
    /// Mean over items of the mean reward of their samples; `None` without a sample.
    pub avg: Option<Estimate>,
    /// By k: the chance that one of k samples solves an item, over the items
    /// with at least k usable samples. pass@1 is the success rate.
    pub pass: BTreeMap<usize, Estimate>,
    /// Mean rounds of the usable episodes.
    pub rounds_mean: Option<f64>,
    /// Share of episodes that are lost to environment faults.
    pub fault_rate: Option<Estimate>,
}

/// Scores a list of items; `ks` are the k of pass@k.
pub fn score(items: &[ItemSamples], ks: &[usize]) -> Result<EvaluationScore, Error> {
    let sampled: Vec<&ItemSamples> = items.iter().filter(|i| !i.rewards.is_empty()).collect();
    let means: Vec<f64> = sampled
        .iter()
        .map(|item| item.rewards.iter().sum::<f64>() / item.rewards.len() as f64)
        .collect();
    let mut pass = BTreeMap::new();
    for &k in ks {
        let able: Vec<&&ItemSamples> = sampled.iter().filter(|i| i.rewards.len() >= k).collect();
        let shares = able
            .iter()
            .map(|item| pass_at_k(item.rewards.len(), item.solved, k))
            .collect::<Result<Vec<f64>, Error>>()?;
        let samples: usize = able.iter().map(|item| item.rewards.len()).sum();
        if let Some(estimate) = share_estimate(&shares, samples)? {
            pass.insert(k, estimate);
        }
    }
    let rounds: Vec<f64> = sampled.iter().flat_map(|i| i.rounds.clone()).collect();
    let faults: usize = items.iter().map(|i| i.faults).sum();
    let episodes = faults + sampled.iter().map(|i| i.rewards.len()).sum::<usize>();
    let fault_rate = match episodes {
        0 => None,
        _ => {
            let mean = faults as f64 / episodes as f64;
            let (low, high) = wilson_interval(mean, episodes as f64, Z_95)?;
            let of = episodes;
            Some(Estimate {
                mean,
                low,
                high,
                of,
            })
        }
    };
    Ok(EvaluationScore {
        items: items.len(),
        items_lost: items.len() - sampled.len(),
        avg: mean_estimate(&means),
        pass,
        rounds_mean: Summary::of(&rounds).map(|s| s.mean),
        fault_rate,
    })
}

/// Mean ± z standard errors. A single item has no measurable spread: both ends
/// are then its own value, and `of` is 1.
fn mean_estimate(values: &[f64]) -> Option<Estimate> {
    let summary = Summary::of(values)?;
    let half = Z_95 * summary.standard_error();
    Some(Estimate {
        mean: summary.mean,
        low: summary.mean - half,
        high: summary.mean + half,
        of: summary.count,
    })
}

/// Wilson's interval for a mean of shares in [0, 1] over items. The number of
/// trials is the effective one, `p (1 − p) / var(mean)`. It equals the number of
/// items where every share is 0 or 1, is larger where each share is itself a mean
/// of samples, and never exceeds the number of all samples.
fn share_estimate(shares: &[f64], samples: usize) -> Result<Option<Estimate>, Error> {
    let Some(summary) = Summary::of(shares) else {
        return Ok(None);
    };
    let (n, mean) = (shares.len() as f64, summary.mean);
    let squares: f64 = shares.iter().map(|share| (share - mean).powi(2)).sum();
    let spread = mean * (1.0 - mean);
    let trials = if squares > 0.0 {
        (n * n * spread / squares).clamp(n, (samples as f64).max(n))
    } else {
        n
    };
    let (low, high) = wilson_interval(mean.clamp(0.0, 1.0), trials, Z_95)?;
    let of = shares.len();
    Ok(Some(Estimate {
        mean,
        low,
        high,
        of,
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stats::SuccessRate;
    use crate::testing::assert_close;

    fn item(solved: usize, samples: usize, faults: usize) -> ItemSamples {
        // Unsolved samples earn half: partial credit is not success.
        let reward = |i| if i < solved { 1.0 } else { 0.5 };
        ItemSamples {
            rewards: (0..samples).map(reward).collect(),
            solved,
            rounds: vec![3.0; samples],
            faults,
        }
    }

    #[test]
    fn partial_rewards_are_no_success_and_faults_are_no_samples() {
        let items = [item(0, 4, 0), item(2, 4, 0), item(1, 2, 2), item(0, 0, 4)];
        let found = score(&items, &[1, 2, 4]).unwrap();
        assert_eq!((found.items, found.items_lost), (4, 1));
        let avg = found.avg.unwrap();
        assert_close(avg.mean, (0.5 + 0.75 + 0.75) / 3.0, "avg");
        // The variance is 1/48, the standard error √(1/144).
        assert_close(avg.low, avg.mean - Z_95 / 12.0, "low");
        assert_close(avg.high, avg.mean + Z_95 / 12.0, "high");
        assert_close(found.pass[&1].mean, (0.0 + 0.5 + 0.5) / 3.0, "pass@1");
        // 1 − C(2,2)/C(4,2) = 5/6, and 1 − C(1,2)/C(2,2) = 1.
        assert_close(found.pass[&2].mean, (0.0 + 5.0 / 6.0 + 1.0) / 3.0, "pass@2");
        // The third item has two samples left and is not part of pass@4.
        assert_eq!(
            (found.pass[&4].mean, found.pass[&4].of, found.pass[&2].of),
            (0.5, 2, 3)
        );
        assert_eq!(found.rounds_mean, Some(3.0));
        let faults = found.fault_rate.unwrap();
        assert_eq!((faults.mean, faults.of), (6.0 / 16.0, 16));
    }

    #[test]
    fn nothing_has_no_means() {
        let none = score(&[], &[1]).unwrap();
        assert_eq!((none.items, none.avg, none.rounds_mean), (0, None, None));
        let lost = score(&[item(0, 0, 2)], &[1]).unwrap();
        assert_eq!((lost.items_lost, lost.avg, lost.pass.len()), (1, None, 0));
        assert_eq!(lost.fault_rate.unwrap().mean, 1.0);
    }

    #[test]
    fn with_one_sample_an_item_the_interval_is_the_plain_one() {
        let items: Vec<ItemSamples> = (0..40).map(|i| item(usize::from(i < 13), 1, 0)).collect();
        let found = score(&items, &[1]).unwrap().pass[&1];
        let plain = SuccessRate::wilson(13, 40, Z_95).unwrap();
        assert_close(found.low, plain.low, "low");
        assert_close(found.high, plain.high, "high");
    }

    #[test]
    fn shares_of_samples_count_for_as_many_trials_as_they_vary() {
        let items = [1, 3, 2, 4].map(|solved| item(solved, 4, 0));
        let found = score(&items, &[1]).unwrap().pass[&1];
        // Shares ¼, ¾, ½, 1: p = 0.625, Σ(x − p)² = 0.3125, so 4² p (1 − p) / 0.3125 = 12 trials.
        let (low, high) = wilson_interval(0.625, 12.0, Z_95).unwrap();
        assert_eq!(found.mean, 0.625);
        assert_close(found.low, low, "low");
        assert_close(found.high, high, "high");
    }

    proptest! {
        /// More samples of the same items narrow the interval, but never below that of
        /// the same number of independent trials.
        #[test]
        fn intervals_hold_their_mean(solved in proptest::collection::vec(0usize..=4, 1..30)) {
            let items: Vec<ItemSamples> = solved.iter().map(|&s| item(s, 4, 0)).collect();
            let found = score(&items, &[1, 2, 3, 4]).unwrap();
            for (k, e) in &found.pass {
                prop_assert!(0.0 <= e.low && e.low <= e.mean + 1e-12 && e.mean <= e.high + 1e-12 && e.high <= 1.0, "pass@{k} {e:?}");
            }
            let successes: usize = solved.iter().sum();
            let independent = SuccessRate::wilson(successes, 4 * items.len(), Z_95).unwrap();
            let one = found.pass[&1];
            prop_assert!(one.high - one.low >= independent.high - independent.low - 1e-9);
        }
    }
}
