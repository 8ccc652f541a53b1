//! Golden numbers from autograd, and finite differences.

use super::{ClipRange, PolicyLoss};
use crate::losses::{ActorLoss, ActorSums, ActorTokens, Aggregation, Denominator};
use crate::testing::{assert_close, assert_is_gradient, mask_of, matrix, rows};
use proptest::prelude::*;
use serde_json::Value;

/// Made by PyTorch's autograd; its `note` says how.
const GOLDEN: &str = include_str!("golden.json");

fn loss(policy: PolicyLoss, clip: ClipRange, aggregation: Aggregation) -> ActorLoss {
    ActorLoss {
        policy,
        clip,
        aggregation,
        entropy_coeff: 0.0,
        ..ActorLoss::default()
    }
}

#[test]
fn losses_and_gradients_are_those_of_autograd() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let mut seen = Vec::new();
    for case in rows(&golden["cases"]) {
        let masks: Vec<Vec<bool>> = rows(&case["loss_mask"]).map(mask_of).collect();
        let [log_probs, old, advantages] =
            ["log_prob", "old_log_prob", "advantages"].map(|name| matrix(&case[name]));
        let number = |of: &Value, name: &str| of[name].as_f64().unwrap();
        let clip = ClipRange {
            low: number(case, "clip_low"),
            high: number(case, "clip_high"),
        };
        let denominator = Denominator::of_masks(masks.iter().map(Vec::as_slice));
        for expected in rows(&case["losses"]) {
            let named = |name: &str| expected[name].as_str().unwrap();
            let policy: PolicyLoss = named("policy").parse().unwrap();
            let loss = loss(policy, clip, named("aggregation").parse().unwrap());
            let gradient = matrix(&expected["gradient"]);
            let mut sums = ActorSums::default();
            for (i, mask) in masks.iter().enumerate() {
                let tokens = ActorTokens {
                    log_probs: &log_probs[i],
                    entropies: &vec![0.0; mask.len()],
                    old_log_probs: &old[i],
                    ref_log_probs: None,
                    advantages: &advantages[i],
                    loss_mask: mask,
                };
                let output = loss.evaluate(&tokens, denominator).unwrap();
                for (found, wanted) in output.coefficients.log_probs.iter().zip(&gradient[i]) {
                    assert_close(*found, *wanted, "gradient");
                }
                sums.merge(&output.sums);
            }
            let metrics = sums.metrics();
            assert_close(metrics.loss, number(expected, "loss"), "loss");
            let clipped = number(expected, "clip_fraction");
            assert_close(metrics.clip_fraction, clipped, "clip_fraction");
            seen.push((policy, metrics.clip_fraction > 0.0));
        }
    }
    for policy in [PolicyLoss::Gspo, PolicyLoss::Cispo] {
        assert!(seen.contains(&(policy, true)), "{policy} is never clipped");
    }
}

proptest! {
    /// With one advantage per sequence, GSPO's coefficients are the derivative of its loss.
    #[test]
    fn a_sequence_has_one_ratio(
        tokens in prop::collection::vec((any::<bool>(), -3.0..-0.01f64, -0.5..0.5f64), 1..7),
        advantage in -2.0..2.0f64,
    ) {
        let clip = ClipRange { low: 0.1, high: 0.15 };
        let mask: Vec<bool> = tokens.iter().map(|t| t.0).collect();
        let old: Vec<f64> = tokens.iter().map(|t| t.1).collect();
        let log_probs: Vec<f64> = tokens.iter().map(|t| t.1 + t.2).collect();
        let own = tokens.iter().filter(|t| t.0);
        let ratio = (own.clone().map(|t| t.2).sum::<f64>() / own.count().max(1) as f64).exp();
        prop_assume!((ratio - 0.9).abs() > 1e-4 && (ratio - 1.15).abs() > 1e-4);
        let loss = loss(PolicyLoss::Gspo, clip, Aggregation::SeqMeanTokenMean);
        let evaluate = |log_probs: &[f64]| {
            let tokens = ActorTokens {
                log_probs,
                entropies: &vec![0.0; mask.len()],
                old_log_probs: &old,
                ref_log_probs: None,
                advantages: &vec![advantage; mask.len()],
                loss_mask: &mask,
            };
            loss.evaluate(&tokens, Denominator::of_masks([mask.as_slice()])).unwrap()
        };
        let found = evaluate(&log_probs);
        assert_is_gradient(|moved| evaluate(moved).sums.loss, &log_probs, &found.coefficients.log_probs, "log_prob");
        if mask.contains(&true) {
            assert_close(found.sums.ratio_max, ratio, "ratio");
        }
    }
}

#[test]
fn the_dual_clip_is_of_ppo_alone() {
    for &policy in PolicyLoss::ALL {
        let loss = ActorLoss {
            dual_clip: Some(3.0),
            ..loss(policy, ClipRange::default(), Aggregation::TokenMean)
        };
        assert_eq!(
            loss.validate().is_ok(),
            policy == PolicyLoss::Ppo,
            "{policy}"
        );
    }
}
