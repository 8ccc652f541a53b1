//! Golden numbers, known defects of other implementations, and properties.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::testing::{assert_close, golden, mask_of, matrix, numbers, rows};

/// Owned streams of one golden case.
struct Case {
    masks: Vec<Vec<bool>>,
    groups: Vec<u64>,
    values: Vec<Vec<f64>>,
}

impl Case {
    fn read(case: &Value) -> Self {
        Self {
            masks: rows(&case["loss_mask"]).map(mask_of).collect(),
            groups: rows(&case["group"])
                .map(|group| group.as_u64().unwrap())
                .collect(),
            values: matrix(&case["values"]),
        }
    }

    fn episodes<'a>(&'a self, rewards: &'a [Vec<f64>]) -> Vec<EpisodeTokens<'a>> {
        let episode = |i: usize| EpisodeTokens {
            group: self.groups[i],
            loss_mask: &self.masks[i],
            rewards: &rewards[i],
            values: Some(&self.values[i]),
            turns: &[],
            baseline: None,
        };
        (0..rewards.len()).map(episode).collect()
    }

    fn assert_equal_inside(&self, found: &[Vec<f64>], expected: &Value, what: &str) {
        for ((row, wanted), mask) in found.iter().zip(matrix(expected)).zip(&self.masks) {
            assert_eq!(row.len(), wanted.len());
            for t in 0..row.len() {
                if mask[t] {
                    assert_close(row[t], wanted[t], what);
                } else {
                    assert_eq!(row[t], 0.0, "{what}: an observation token has an advantage");
                }
            }
        }
    }
}

#[test]
fn what_each_estimator_reads() {
    let reads = |estimator: &AdvantageEstimator| {
        (
            estimator.needs_groups(),
            estimator.needs_values(),
            estimator.needs_baseline(),
        )
    };
    for estimator in AdvantageEstimator::ALL {
        let expected = match estimator {
            AdvantageEstimator::Grpo | AdvantageEstimator::Rloo | AdvantageEstimator::Gigpo => {
                (true, false, false)
            }
            AdvantageEstimator::Gae => (false, true, false),
            AdvantageEstimator::Remax => (false, false, true),
            AdvantageEstimator::ReinforcePlusPlus => (false, false, false),
        };
        assert_eq!(reads(estimator), expected, "{estimator}");
    }
}

#[test]
fn golden_group_estimators() {
    for raw in golden("advantages").cases() {
        let case = Case::read(raw);
        let scores = numbers(&raw["scores"]);
        let rewards: Vec<_> = scores
            .iter()
            .zip(&case.masks)
            .map(|(&score, mask)| place_score(score, mask))
            .collect();
        assert_eq!(rewards, matrix(&raw["rewards_sparse"]));
        for estimator in [AdvantageEstimator::Grpo, AdvantageEstimator::Rloo] {
            let found = estimate(
                estimator,
                &case.episodes(&rewards),
                &AdvantageOptions::default(),
            )
            .unwrap();
            case.assert_equal_inside(&found.advantages, &raw[estimator.name()], estimator.name());
        }
    }
}

#[test]
fn golden_token_estimators() {
    for raw in golden("advantages").cases() {
        let case = Case::read(raw);
        for estimator in [
            AdvantageEstimator::Gae,
            AdvantageEstimator::ReinforcePlusPlus,
        ] {
            for expected in rows(&raw[estimator.name()]) {
                let rewards =
                    matrix(&raw[format!("rewards_{}", expected["rewards"].as_str().unwrap())]);
                let options = AdvantageOptions {
                    gamma: expected["gamma"].as_f64().unwrap(),
                    lam: expected.get("lam").map_or(1.0, |lam| lam.as_f64().unwrap()),
                    ..AdvantageOptions::default()
                };
                let found = estimate(estimator, &case.episodes(&rewards), &options).unwrap();
                case.assert_equal_inside(
                    &found.advantages,
                    &expected["advantages"],
                    estimator.name(),
                );
                case.assert_equal_inside(&found.returns, &expected["returns"], "returns");
            }
        }
    }
}

/// Values computed by hand on a mask with two policy turns.
#[test]
fn observations_are_outside_time() {
    let mask = [0, 0, 1, 1, 0, 0, 1, 1, 0, 0].map(|bit| bit == 1);
    let rewards = place_score(1.0, &mask);
    assert_eq!(rewards.iter().rposition(|&reward| reward != 0.0), Some(7));
    let returns = discounted_returns(&rewards, &mask, 0.9).unwrap();
    for (t, wanted) in [(2, 0.729), (3, 0.81), (6, 0.9), (7, 1.0)] {
        assert_close(returns[t], wanted, "return");
    }
    // V_t = t/10. The last token of the first turn bootstraps from slot 6, not
    // from the observation in slot 4.
    let values: Vec<f64> = (0..10).map(|t| f64::from(t) / 10.0).collect();
    let found = gae(&rewards, &values, &mask, 0.9, 0.0).unwrap();
    assert_close(found.advantages[3], 0.9 * 0.6 - 0.3, "end of a turn");
    assert_close(found.advantages[7], 1.0 - 0.7, "end of the episode");
    // The value on an observation token is not read.
    let mut noisy = values.clone();
    noisy[4] = f64::NAN;
    assert_eq!(gae(&rewards, &noisy, &mask, 0.9, 0.0), Ok(found));
}

#[test]
fn worked_group_values() {
    let grpo_of = |scores: &[f64]| grpo(scores, &vec![0; scores.len()], true).unwrap();
    let scores = [30.0, 10.0, 0.0, 0.0];
    let std = 200.0f64.sqrt();
    for (found, wanted) in grpo_of(&scores).iter().zip([20.0, 0.0, -10.0, -10.0]) {
        assert_close(*found, wanted / (std + 1e-6), "grpo");
    }
    assert_eq!(grpo_of(&[0.1; 6]), [0.0; 6]);
    assert_eq!(grpo(&[3.0, 1.0], &[0, 0], false), Ok(vec![1.0, -1.0]));
    for (found, wanted) in rloo(&[1.0, 0.0, 0.0, 1.0], &[5; 4])
        .unwrap()
        .iter()
        .zip([1.0, -1.0, -1.0, 1.0])
    {
        assert_close(*found, wanted * 2.0 / 3.0, "rloo");
    }
    let mask = [true, false, true];
    assert_eq!(
        remax(&place_score(1.0, &mask), &mask, 0.25),
        Ok(vec![0.75, 0.0, 0.75])
    );
}

#[test]
fn empty_masks_give_zeros() {
    let mask = [false; 3];
    let rewards = place_score(1.0, &mask);
    let episode = EpisodeTokens {
        turns: &[],
        group: 0,
        loss_mask: &mask,
        rewards: &rewards,
        values: Some(&[f64::NAN; 3]),
        baseline: Some(0.5),
    };
    for &estimator in AdvantageEstimator::ALL {
        let found = estimate(estimator, &[episode], &AdvantageOptions::default()).unwrap();
        assert_eq!(found.advantages, [[0.0; 3]], "{estimator}");
    }
}

#[test]
fn errors_say_what_is_missing() {
    let bare = EpisodeTokens {
        turns: &[],
        group: 0,
        loss_mask: &[true],
        rewards: &[1.0],
        values: None,
        baseline: None,
    };
    let error = estimate(
        AdvantageEstimator::Gae,
        &[bare],
        &AdvantageOptions::default(),
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "gae needs values for every episode, and episode 0 has none"
    );
    let options = AdvantageOptions {
        gamma: 1.5,
        ..AdvantageOptions::default()
    };
    let error = estimate(AdvantageEstimator::Grpo, &[bare], &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "gamma is 1.5: it must be between 0 and 1"
    );
    let error = "gpro"
        .parse::<AdvantageEstimator>()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("grpo, gae, reinforce_plus_plus, rloo, gigpo, remax"),
        "{error}"
    );
    let from_json: AdvantageEstimator = serde_json::from_str("\"rloo\"").unwrap();
    assert_eq!(from_json, AdvantageEstimator::Rloo);
}

fn episodes_of_groups() -> impl Strategy<Value = Vec<(f64, u64)>> {
    prop::collection::vec((-100.0..100.0f64, 0u64..4), 1..40)
}

#[test]
fn a_token_alone_is_whitened_to_nothing() {
    for mask in [[false, true], [false, false]] {
        let mut rows = vec![vec![3.0, 7.0]];
        whiten(&mut rows, &[&mask]).unwrap();
        assert_eq!(rows, [[0.0, 0.0]]);
    }
}

proptest! {
    /// Within a group of two or more, advantages of GRPO and RLOO sum to zero
    /// and keep the order of the scores.
    #[test]
    fn group_advantages_balance(episodes in episodes_of_groups()) {
        let (scores, ids): (Vec<f64>, Vec<u64>) = episodes.into_iter().unzip();
        for advantages in [grpo(&scores, &ids, true).unwrap(), rloo(&scores, &ids).unwrap()] {
            for group in crate::groups::collect(&scores, &ids).unwrap().iter().filter(|group| group.members.len() > 1) {
                let sum: f64 = group.members.iter().map(|&member| advantages[member]).sum();
                prop_assert!(sum.abs() < 1e-9 * (1.0 + group.members.len() as f64 * 200.0));
                for &a in &group.members {
                    for &b in &group.members {
                        prop_assert!(scores[a] <= scores[b] || advantages[a] >= advantages[b]);
                    }
                }
            }
        }
    }

    /// GRPO does not change when all rewards are shifted; RLOO is the score minus
    /// the mean of the others.
    #[test]
    fn shifts_and_the_meaning_of_rloo(scores in prop::collection::vec(-10.0..10.0f64, 2..12), shift in -50.0..50.0f64) {
        let ids = vec![1; scores.len()];
        let shifted: Vec<f64> = scores.iter().map(|score| score + shift).collect();
        let (plain, moved) = (grpo(&scores, &ids, false).unwrap(), grpo(&shifted, &ids, false).unwrap());
        let total: f64 = scores.iter().sum();
        for (i, left_out) in rloo(&scores, &ids).unwrap().into_iter().enumerate() {
            prop_assert!((plain[i] - moved[i]).abs() < 1e-9);
            let others = (total - scores[i]) / (scores.len() as f64 - 1.0);
            prop_assert!((left_out - (scores[i] - others)).abs() < 1e-9);
        }
    }

    /// Observation tokens may be inserted anywhere without changing a policy
    /// token's advantage.
    #[test]
    fn gae_ignores_observations(
        tokens in prop::collection::vec((any::<bool>(), -1.0..1.0f64, -1.0..1.0f64), 1..30),
        gamma in 0.5..1.0f64,
        lam in 0.0..1.0f64,
    ) {
        let mask: Vec<bool> = tokens.iter().map(|token| token.0).collect();
        let rewards: Vec<f64> = tokens.iter().map(|token| token.1).collect();
        let values: Vec<f64> = tokens.iter().map(|token| token.2).collect();
        let inside = |all: &[f64]| -> Vec<f64> { all.iter().zip(&mask).filter(|&(_, &kept)| kept).map(|(&x, _)| x).collect() };
        let whole = gae(&rewards, &values, &mask, gamma, lam).unwrap();
        let policy_only = vec![true; inside(&rewards).len()];
        let alone = gae(&inside(&rewards), &inside(&values), &policy_only, gamma, lam).unwrap();
        prop_assert_eq!(inside(&whole.advantages), alone.advantages);
        prop_assert_eq!(inside(&whole.returns), alone.returns);
    }

    /// An explanation ends in the bits of the estimator, whatever the estimator, the options, the
    /// masks and the groups.
    #[test]
    fn an_explanation_ends_in_the_estimators_bits(
        tokens in prop::collection::vec(
            prop::collection::vec((any::<bool>(), -2.0..2.0f64, -1.0..1.0f64), 1..12), 1..9),
        ids in prop::collection::vec(0u64..3, 9),
        options in (0.0..=1.0f64, 0.0..=1.0f64, any::<bool>()),
        baseline in -1.0..1.0f64,
    ) {
        type Token = (bool, f64, f64);
        fn stream<T>(all: &[Vec<Token>], of: fn(&Token) -> T) -> Vec<Vec<T>> {
            all.iter().map(|row| row.iter().map(of).collect()).collect()
        }
        let masks = stream(&tokens, |t| t.0);
        let (rewards, values) = (stream(&tokens, |t| t.1), stream(&tokens, |t| t.2));
        // Turns of three tokens, which answer one of two observations.
        let turns: Vec<Vec<TurnTokens<'_>>> = masks.iter().map(|mask| (0..mask.len().div_ceil(3)).map(|k| TurnTokens {
            state: if mask[3 * k] { "here" } else { "there" },
            tokens: 3 * k..mask.len().min(3 * k + 3),
        }).collect()).collect();
        let episodes: Vec<EpisodeTokens<'_>> = (0..tokens.len()).map(|i| EpisodeTokens {
            turns: &turns[i],
            group: ids[i],
            loss_mask: &masks[i],
            rewards: &rewards[i],
            values: Some(&values[i]),
            baseline: Some(baseline),
        }).collect();
        let options = AdvantageOptions { gamma: options.0, lam: options.1, norm_by_std: options.2, ..AdvantageOptions::default() };
        let bits = |row: &[f64]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for &estimator in AdvantageEstimator::ALL {
            let whole = estimate(estimator, &episodes, &options).unwrap();
            for (index, mask) in masks.iter().enumerate() {
                let one = explain(estimator, &episodes, &options, index).unwrap();
                prop_assert_eq!(bits(&one.advantages), bits(&whole.advantages[index]), "{}", estimator);
                prop_assert_eq!(bits(&one.returns), bits(&whole.returns[index]), "{}", estimator);
                // What is shown is enough to get there by hand.
                let numbers = &one.reasons.numbers;
                let number = |label: &str| numbers.iter().find(|n| n.label == label).map(|n| n.value);
                let stream = |label: &str| one.reasons.streams.iter().find(|s| s.label == label).unwrap().value.clone();
                let mean = number("mean").unwrap_or(0.0);
                let difference = one.score - mean;
                let grpo = match number("std") {
                    Some(std) => difference / (std + number("epsilon").unwrap()),
                    None => difference,
                };
                let by_hand: Vec<f64> = match estimator {
                    AdvantageEstimator::Grpo => vec![grpo; mask.len()],
                    AdvantageEstimator::Gigpo => stream("A of the turn").iter().map(|a| grpo + number("step_advantage_w").unwrap() * a).collect(),
                    AdvantageEstimator::Rloo => vec![match number("size") {
                        Some(k) => difference * k / (k - 1.0),
                        None => one.score,
                    }; mask.len()],
                    AdvantageEstimator::Remax => stream("R").iter().map(|r| r - number("baseline").unwrap()).collect(),
                    AdvantageEstimator::ReinforcePlusPlus => stream("R").iter().map(|r| (r - mean) * number("scale").unwrap()).collect(),
                    AdvantageEstimator::Gae => stream("Â").iter().map(|r| (r - mean) * number("scale").unwrap()).collect(),
                };
                for (t, &kept) in mask.iter().enumerate() {
                    let expected = if kept { by_hand[t] } else { 0.0 };
                    prop_assert_eq!(one.advantages[t].to_bits(), expected.to_bits(), "{} token {}", estimator, t);
                }
            }
        }
    }

    /// Whitening leaves mean 0 and variance 1.
    #[test]
    fn whitened_rows_are_standard(row in prop::collection::vec(-5.0..5.0f64, 3..50)) {
        let spread = row.iter().copied().fold(f64::MIN, f64::max) - row.iter().copied().fold(f64::MAX, f64::min);
        prop_assume!(spread > 0.1);
        let mask = vec![true; row.len()];
        let mut rows = vec![row];
        whiten(&mut rows, &[&mask]).unwrap();
        let count = rows[0].len() as f64;
        let mean = rows[0].iter().sum::<f64>() / count;
        let variance = rows[0].iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (count - 1.0);
        prop_assert!(mean.abs() < 1e-9 && (variance - 1.0).abs() < 1e-4);
    }
}

/// Computed by hand: two turns of two tokens each with an observation between them.
#[test]
fn rewards_of_turns_reach_the_estimators_that_run_over_tokens() {
    let mask = [false, true, true, false, true, true];
    let rewards = place_turn_rewards(&[(1..3, 0.5), (4..6, 1.0)], &mask).unwrap();
    assert_eq!(rewards, [0.0, 0.0, 0.5, 0.0, 0.0, 1.0]);
    let close = |found: &[f64], expected: &[f64]| {
        assert_eq!(found.len(), expected.len());
        let differ = found
            .iter()
            .zip(expected)
            .find(|(a, b)| (**a - **b).abs() > 1e-12);
        assert!(differ.is_none(), "{found:?} is not {expected:?}");
    };
    // R = 1; 0.9·1; 0.5 + 0.9·0.9; 0.9·1.31.
    let returns = discounted_returns(&rewards, &mask, 0.9).unwrap();
    close(&returns, &[0.0, 1.179, 1.31, 0.0, 0.9, 1.0]);
    // δ = 0.6, 0.06, 0.57, 0.08 from the last token on; A = δ + 0.45·A′.
    let values = [9.0, 0.1, 0.2, 9.0, 0.3, 0.4];
    let found = gae(&rewards, &values, &mask, 0.9, 0.5).unwrap();
    close(&found.advantages, &[0.0, 0.403325, 0.7185, 0.0, 0.33, 0.6]);
    close(&found.returns, &[0.0, 0.503325, 0.9185, 0.0, 0.63, 1.0]);
    // A group estimator compares the sums of the rewards and ignores turns.
    let last = place_score(0.5, &mask);
    let episode = |rewards| EpisodeTokens {
        turns: &[],
        group: 0,
        loss_mask: &mask,
        rewards,
        values: None,
        baseline: None,
    };
    let both = [episode(rewards.as_slice()), episode(last.as_slice())];
    let found = estimate(
        AdvantageEstimator::Rloo,
        &both,
        &AdvantageOptions::default(),
    )
    .unwrap();
    close(&found.advantages[0], &broadcast(1.0, &mask));
    close(&found.advantages[1], &broadcast(-1.0, &mask));
}

#[test]
fn a_turn_without_a_sampled_token_keeps_its_reward() {
    let mask = [false, true, false, true];
    let placed = |turns: &[(std::ops::Range<usize>, f64)]| place_turn_rewards(turns, &mask);
    // Neither the first nor the third turn has a sampled token; none precedes the first.
    let turns = [(0..1, 0.25), (1..2, 1.0), (2..3, 2.0), (3..4, 4.0)];
    assert_eq!(placed(&turns).unwrap(), [0.0, 3.25, 0.0, 4.0]);
    assert_eq!(place_turn_rewards(&turns, &[false; 4]).unwrap(), [0.0; 4]);
    assert!(placed(&[(3..5, 1.0)]).is_err());
    assert!(placed(&[(1..2, f64::NAN)]).is_err());
}

#[test]
fn rewards_beyond_all_bounds_are_refused_and_not_turned_into_nothing() {
    let (mask, group) = ([true], 0);
    let options = AdvantageOptions::default();
    for estimator in [
        AdvantageEstimator::Grpo,
        AdvantageEstimator::Rloo,
        AdvantageEstimator::ReinforcePlusPlus,
        AdvantageEstimator::Remax,
    ] {
        for (large, refused) in [
            (1e308, true),
            (3e38, estimator == AdvantageEstimator::Rloo),
            (1.0, false),
        ] {
            let rewards = [[large], [-large]];
            let episodes = rewards.each_ref().map(|rewards| EpisodeTokens {
                turns: &[],
                group,
                loss_mask: &mask,
                rewards,
                values: None,
                baseline: Some(0.0),
            });
            let found = estimate(estimator, &episodes, &options);
            assert_eq!(found.is_err(), refused, "{estimator:?} {large}: {found:?}");
            if let Ok(found) = found {
                assert!(
                    found
                        .advantages
                        .iter()
                        .flatten()
                        .all(|a| (*a as f32).abs() > 0.5)
                );
            }
        }
    }
}
