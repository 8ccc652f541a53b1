//! Golden numbers, finite differences of every coefficient, and edge cases.

use proptest::prelude::*;

use super::*;
use crate::losses::policy_term;
use crate::testing::{assert_close, assert_is_gradient, golden, mask_of, matrix, rows};

#[test]
fn golden_policy_losses() {
    for case in golden("losses").cases() {
        let masks: Vec<_> = rows(&case["loss_mask"]).map(mask_of).collect();
        let [log_probs, old, advantages] =
            ["log_prob", "old_log_prob", "advantages"].map(|name| matrix(&case[name]));
        let denominator = Denominator::of_masks(masks.iter().map(Vec::as_slice));
        for expected in rows(&case["policy"]) {
            let number = |name: &str| expected[name].as_f64().unwrap();
            let loss = ActorLoss {
                clip: ClipRange::symmetric(number("clip_ratio")),
                entropy_coeff: 0.0,
                ..ActorLoss::default()
            };
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
                sums.merge(&loss.evaluate(&tokens, denominator).unwrap().sums);
            }
            let metrics = sums.metrics();
            assert_close(metrics.loss, number("pg_loss"), "pg_loss");
            assert_close(metrics.clip_fraction, number("pg_clipfrac"), "pg_clipfrac");
            assert_close(metrics.approx_kl, number("ppo_kl"), "ppo_kl");
        }
    }
}

/// A minibatch of random streams: (mask, log_prob, old, ref, entropy, advantage).
type Token = (bool, f64, f64, f64, f64, f64);

fn minibatch() -> impl Strategy<Value = Vec<Vec<Token>>> {
    let log_prob = || -3.0..-0.01f64;
    let token = (
        any::<bool>(),
        log_prob(),
        log_prob(),
        log_prob(),
        0.0..3.0f64,
        -2.0..2.0f64,
    );
    prop::collection::vec(prop::collection::vec(token, 0..7), 1..4)
}

fn column(minibatch: &[Vec<Token>], pick: impl Fn(&Token) -> f64) -> Vec<f64> {
    minibatch.iter().flatten().map(pick).collect()
}

/// The minibatch's loss and its coefficients in the order of all tokens.
fn whole(
    loss: &ActorLoss,
    minibatch: &[Vec<Token>],
    log_probs: &[f64],
    entropies: &[f64],
) -> (f64, Vec<f64>, Vec<f64>) {
    let masks: Vec<Vec<bool>> = minibatch
        .iter()
        .map(|sequence| sequence.iter().map(|token| token.0).collect())
        .collect();
    let denominator = Denominator::of_masks(masks.iter().map(Vec::as_slice));
    let (mut start, mut total, mut by_log_prob, mut by_entropy) = (0, 0.0, Vec::new(), Vec::new());
    for (sequence, mask) in minibatch.iter().zip(&masks) {
        let one = std::slice::from_ref(sequence);
        let end = start + sequence.len();
        let tokens = ActorTokens {
            log_probs: &log_probs[start..end],
            entropies: &entropies[start..end],
            old_log_probs: &column(one, |token| token.2),
            ref_log_probs: Some(&column(one, |token| token.3)),
            advantages: &column(one, |token| token.5),
            loss_mask: mask,
        };
        let output = loss.evaluate(&tokens, denominator).unwrap();
        total += output.sums.loss;
        by_log_prob.extend(output.coefficients.log_probs);
        by_entropy.extend(output.coefficients.entropies);
        start = end;
    }
    (total, by_log_prob, by_entropy)
}

proptest! {
    #[test]
    fn coefficients_are_derivatives(minibatch in minibatch(), clip in 0.05..0.5f64, dual in prop::option::of(1.1..4.0f64)) {
        // Central differences are not valid across a kink.
        let near_kink = |token: &Token| {
            let ratio = (token.1 - token.2).exp();
            (ratio - 1.0 - clip).abs() < 1e-4
                || (ratio - 1.0 + clip / 2.0).abs() < 1e-4
                || dual.is_some_and(|dual| (ratio - dual).abs() < 1e-3)
                || (token.1 - token.3).abs() < 1e-4
                || (token.3 - token.1 > 2.0 && ((token.3 - token.1).exp() + token.1 - token.3 - 11.0).abs() < 1e-2)
        };
        prop_assume!(!minibatch.iter().flatten().any(near_kink));
        let (log_probs, entropies) = (column(&minibatch, |token| token.1), column(&minibatch, |token| token.4));
        for &aggregation in Aggregation::ALL {
            for kl in std::iter::once(None).chain(KlEstimator::ALL.iter().map(|&estimator| Some(KlLoss { estimator, coef: 0.3 }))) {
                let loss = ActorLoss { policy: PolicyLoss::Ppo, clip: ClipRange { low: clip / 2.0, high: clip }, dual_clip: dual, entropy_coeff: 0.05, kl, aggregation, response_tokens_max: Some(7) };
                let (_, by_log_prob, by_entropy) = whole(&loss, &minibatch, &log_probs, &entropies);
                assert_is_gradient(|moved| whole(&loss, &minibatch, moved, &entropies).0, &log_probs, &by_log_prob, "log_prob");
                assert_is_gradient(|moved| whole(&loss, &minibatch, &log_probs, moved).0, &entropies, &by_entropy, "entropy");
            }
        }
    }
}

#[test]
fn the_four_corners_of_the_clip() {
    let clip = ClipRange {
        low: 0.2,
        high: 0.3,
    };
    let at = |ratio: f64, advantage| policy_term(ratio.ln(), 0.0, advantage, clip, None);
    assert!(at(1.5, 1.0).is_clipped && at(0.5, -1.0).is_clipped);
    assert_eq!(
        (at(1.5, 1.0).coefficient, at(0.5, -1.0).coefficient),
        (0.0, 0.0)
    );
    // A ratio that left the range in the wrong direction keeps its gradient.
    assert!(!at(0.5, 1.0).is_clipped && !at(1.5, -1.0).is_clipped);
    assert_close(at(0.5, 1.0).coefficient, -0.5, "pull up");
    assert_close(at(1.5, -1.0).coefficient, 1.5, "pull down");
    assert!(!at(1.25, 1.0).is_clipped, "the upper bound is `high`");
    assert_eq!(at(9.0, 0.0).loss, 0.0);
}

#[test]
fn the_dual_clip_bounds_what_a_bad_token_costs() {
    let at = |ratio: f64, advantage| {
        policy_term(ratio.ln(), 0.0, advantage, ClipRange::default(), Some(3.0))
    };
    let run_away = at(5.0, -2.0);
    assert_close(run_away.loss, 6.0, "−A·c");
    assert!(run_away.is_dual_clipped && !run_away.is_clipped && run_away.coefficient == 0.0);
    // Below the bound, and for good tokens, nothing changes.
    for (ratio, advantage) in [(2.5f64, -2.0), (5.0, 2.0), (0.5, -2.0)] {
        let plain = policy_term(ratio.ln(), 0.0, advantage, ClipRange::default(), None);
        assert_eq!(at(ratio, advantage), plain);
    }
    let loss = |dual_clip| ActorLoss {
        dual_clip: Some(dual_clip),
        ..ActorLoss::default()
    };
    assert!(loss(1.0).validate().is_err() && loss(1.5).validate().is_ok());
    // Four tokens: two with a runaway ratio, one without, one outside the mask.
    let ratios = [5f64, 5.0, 1.0, 5.0].map(f64::ln);
    let tokens = ActorTokens {
        log_probs: &ratios,
        entropies: &[0.0; 4],
        old_log_probs: &[0.0; 4],
        ref_log_probs: None,
        advantages: &[-2.0; 4],
        loss_mask: &[true, true, true, false],
    };
    let evaluated = loss(3.0).evaluate(&tokens, Denominator::of([3])).unwrap();
    assert_eq!(evaluated.sums.dual_clipped_tokens, 2);
}

#[test]
fn a_runaway_ratio_stays_a_number() {
    let term = policy_term(0.0, -1e4, -1.0, ClipRange::default(), None);
    assert_eq!((term.loss, term.coefficient), (20f64.exp(), 0.0));
    let term = policy_term(0.0, -1e4, 0.0, ClipRange::default(), None);
    assert!(term.loss == 0.0 && term.coefficient == 0.0);
}

#[test]
fn empty_masks_and_bad_numbers() {
    let loss = ActorLoss {
        kl: Some(KlLoss {
            estimator: KlEstimator::K3,
            coef: 0.1,
        }),
        ..ActorLoss::default()
    };
    let nan = [f64::NAN; 2];
    let mut tokens = ActorTokens {
        log_probs: &nan,
        entropies: &nan,
        old_log_probs: &nan,
        ref_log_probs: Some(&nan),
        advantages: &nan,
        loss_mask: &[false, false],
    };
    let output = loss.evaluate(&tokens, Denominator::of([0])).unwrap();
    assert_eq!(
        output.coefficients,
        ActorCoefficients {
            log_probs: vec![0.0; 2],
            entropies: vec![0.0; 2]
        }
    );
    assert_eq!(output.sums, ActorSums::default());
    assert_eq!(output.sums.metrics().clip_fraction, 0.0);

    tokens.loss_mask = &[false, true];
    let error = loss
        .evaluate(&tokens, Denominator::of([1]))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("log_probs is NaN at index 1"), "{error}");
    tokens.loss_mask = &[false, false];
    tokens.ref_log_probs = None;
    assert!(matches!(
        loss.evaluate(&tokens, Denominator::of([1])),
        Err(Error::NoReference)
    ));
    tokens.advantages = &[0.0];
    assert!(matches!(
        loss.evaluate(&tokens, Denominator::of([1])),
        Err(Error::Length {
            what: "advantages",
            ..
        })
    ));
    assert!(
        ActorLoss {
            clip: ClipRange::symmetric(-0.1),
            ..loss
        }
        .validate()
        .is_err()
    );
    assert!(loss.validate().is_ok());
}
