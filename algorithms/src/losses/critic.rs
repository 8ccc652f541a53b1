//! The loss of the critic: squared error against the returns, with the change
//! from the old value clipped.

use serde::{Deserialize, Serialize};

use super::aggregation::{Aggregation, Denominator, loss_tokens};
use crate::error::{Error, finite_where, parameter, same_length};

/// The value loss of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueTerm {
    /// `½·max((v − R)², (clip(v) − R)²)`.
    pub loss: f64,
    /// d loss / d v: `v − R`, or 0 where the clipped branch is the larger.
    pub coefficient: f64,
    /// Whether the clipped branch is the larger.
    pub is_clipped: bool,
}

/// The clipped squared error of one token; `clip` is the most that a value may
/// move from `old_value`. Source: OpenAI baselines' PPO, as in AgentGym-RL.
pub fn value_term(value: f64, old_value: f64, target: f64, clip: Option<f64>) -> ValueTerm {
    let error = value - target;
    let unclipped = error * error;
    let clipped = clip.map_or(unclipped, |range| {
        let moved = (value - old_value).max(-range).min(range);
        (old_value + moved - target).powi(2)
    });
    // A value inside the range passes through the clip unchanged, except for
    // rounding; only a value outside it loses its gradient.
    let is_outside = clip.is_some_and(|range| (value - old_value).abs() > range);
    if is_outside && clipped > unclipped {
        ValueTerm {
            loss: 0.5 * clipped,
            coefficient: 0.0,
            is_clipped: true,
        }
    } else {
        ValueTerm {
            loss: 0.5 * unclipped,
            coefficient: error,
            is_clipped: false,
        }
    }
}

/// The loss of the critic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ValueLoss {
    /// `critic.cliprange_value`; `None` does not clip.
    pub clip: Option<f64>,
    /// How tokens are weighted.
    pub aggregation: Aggregation,
    /// As [`ActorLoss::response_tokens_max`](super::ActorLoss).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_tokens_max: Option<usize>,
}

impl Default for ValueLoss {
    fn default() -> Self {
        Self {
            clip: Some(0.5),
            aggregation: Aggregation::default(),
            response_tokens_max: None,
        }
    }
}

/// One sequence's streams, `[tokens]`.
#[derive(Debug, Clone, Copy)]
pub struct ValueTokens<'a> {
    /// Of the critic being updated.
    pub values: &'a [f64],
    /// Of the critic at the start of the update.
    pub old_values: &'a [f64],
    /// The target values.
    pub returns: &'a [f64],
    /// True where the policy produced the token.
    pub loss_mask: &'a [bool],
}

/// One sequence's share of the value loss.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueOutput {
    /// d minibatch loss / d value, `[tokens]`, 0 outside the loss mask.
    pub coefficients: Vec<f64>,
    /// What to add up over the minibatch.
    pub sums: ValueSums,
}

/// Sums over loss tokens, merged in the order of the sequences' index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueSums {
    /// Tokens summed over.
    pub loss_tokens: usize,
    /// Weighted: the minibatch's loss.
    pub loss: f64,
    /// Tokens on which the clipped branch is the larger.
    pub clipped_tokens: usize,
    /// `Σ value`.
    pub value: f64,
}

impl ValueSums {
    /// Adds the sums of the next sequence.
    pub fn merge(&mut self, next: &Self) {
        self.loss_tokens += next.loss_tokens;
        self.loss += next.loss;
        self.clipped_tokens += next.clipped_tokens;
        self.value += next.value;
    }

    /// The minibatch's metrics, once all of its sequences are merged.
    pub fn metrics(&self) -> ValueMetrics {
        let tokens = self.loss_tokens.max(1) as f64;
        ValueMetrics {
            loss: self.loss,
            clip_fraction: self.clipped_tokens as f64 / tokens,
            value_mean: self.value / tokens,
        }
    }
}

/// Metrics of a minibatch's critic update; zeros without a loss token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ValueMetrics {
    /// The value loss.
    pub loss: f64,
    /// Share of tokens on which the clipped branch is the larger.
    pub clip_fraction: f64,
    /// Mean value over tokens.
    pub value_mean: f64,
}

impl ValueLoss {
    /// Evaluates one sequence of a minibatch of size `denominator`.
    pub fn evaluate(
        &self,
        tokens: &ValueTokens<'_>,
        denominator: Denominator,
    ) -> Result<ValueOutput, Error> {
        if let Some(range) = self.clip {
            parameter("cliprange_value", range, range >= 0.0, "at least 0")?;
        }
        let mask = tokens.loss_mask;
        for (what, values) in [
            ("values", tokens.values),
            ("old_values", tokens.old_values),
            ("returns", tokens.returns),
        ] {
            same_length(what, values.len(), mask.len())?;
            finite_where(what, values, mask)?;
        }
        let mut sums = ValueSums {
            loss_tokens: loss_tokens(mask),
            ..ValueSums::default()
        };
        let constant = self.response_tokens_max.unwrap_or(1);
        let weight = (self.aggregation).token_weight(denominator, sums.loss_tokens, constant);
        let mut coefficients = vec![0.0; mask.len()];
        for t in (0..mask.len()).filter(|&t| mask[t]) {
            let term = value_term(
                tokens.values[t],
                tokens.old_values[t],
                tokens.returns[t],
                self.clip,
            );
            coefficients[t] = weight * term.coefficient;
            sums.loss += weight * term.loss;
            sums.clipped_tokens += usize::from(term.is_clipped);
            sums.value += tokens.values[t];
        }
        Ok(ValueOutput { coefficients, sums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_is_gradient, golden, mask_of, matrix, rows};

    #[test]
    fn golden_value_losses_and_their_derivatives() {
        for case in golden("losses").cases() {
            let masks: Vec<_> = rows(&case["loss_mask"]).map(mask_of).collect();
            let [values, old, returns] =
                ["vpreds", "values", "returns"].map(|name| matrix(&case[name]));
            let denominator = Denominator::of_masks(masks.iter().map(Vec::as_slice));
            for expected in rows(&case["value"]) {
                let number = |name: &str| expected[name].as_f64().unwrap();
                let loss = ValueLoss {
                    clip: Some(number("cliprange_value")),
                    ..ValueLoss::default()
                };
                let evaluate = |i: usize, values: &[f64]| {
                    let tokens = ValueTokens {
                        values,
                        old_values: &old[i],
                        returns: &returns[i],
                        loss_mask: &masks[i],
                    };
                    loss.evaluate(&tokens, denominator).unwrap()
                };
                let mut sums = ValueSums::default();
                for (i, row) in values.iter().enumerate() {
                    sums.merge(&evaluate(i, row).sums);
                    // Central differences are not valid across a kink.
                    let is_kink = |t: usize| {
                        let (moved, range) = (row[t] - old[i][t], number("cliprange_value"));
                        let held = old[i][t] + moved.max(-range).min(range) - returns[i][t];
                        let error = row[t] - returns[i][t];
                        (moved.abs() - range).abs() < 1e-4 || (error + held).abs() < 1e-4
                    };
                    let smooth: Vec<f64> = (0..row.len())
                        .map(|t| row[t] + if is_kink(t) { 1e-3 } else { 0.0 })
                        .collect();
                    let derivative = evaluate(i, &smooth).coefficients;
                    assert_is_gradient(
                        |moved| evaluate(i, moved).sums.loss,
                        &smooth,
                        &derivative,
                        "value",
                    );
                }
                let kept = values.iter().zip(&masks);
                let kept = kept.flat_map(|(row, mask)| row.iter().zip(mask));
                let kept = kept.filter(|(_, mask)| **mask).map(|(value, _)| value);
                let mean = kept.sum::<f64>() / sums.loss_tokens as f64;
                assert_close(sums.metrics().value_mean, mean, "mean value");
                assert_close(sums.metrics().loss, number("vf_loss"), "vf_loss");
                assert_close(
                    sums.metrics().clip_fraction,
                    number("vf_clipfrac"),
                    "vf_clipfrac",
                );
            }
        }
    }

    #[test]
    fn the_clip_only_stops_moves_that_overshoot() {
        // Moved 1.0 towards a target of 2.0, allowed 0.5: clipped.
        assert_eq!(
            value_term(1.0, 0.0, 2.0, Some(0.5)),
            ValueTerm {
                loss: 1.125,
                coefficient: 0.0,
                is_clipped: true
            }
        );
        // Moved away from the target: the gradient is kept.
        assert_eq!(value_term(-1.0, 0.0, 2.0, Some(0.5)).coefficient, -3.0);
        assert_eq!(
            value_term(1.0, 0.0, 2.0, None),
            ValueTerm {
                loss: 0.5,
                coefficient: -1.0,
                is_clipped: false
            }
        );
    }

    /// A move exactly to the bound is not clipped: rounding in the clipped branch must not remove
    /// the gradient.
    #[test]
    fn a_move_to_the_bound_keeps_its_gradient() {
        let (value, old_value, target) = (2.1, -2.2, 1.6);
        let range: f64 = value - old_value;
        assert!(old_value + range > value, "rounding is seen here");
        let term = value_term(value, old_value, target, Some(range));
        assert_eq!(term.coefficient, value - target);
        assert!(!term.is_clipped);
    }

    #[test]
    fn an_empty_mask_contributes_nothing() {
        let nan = [f64::NAN];
        let tokens = ValueTokens {
            values: &nan,
            old_values: &nan,
            returns: &nan,
            loss_mask: &[false],
        };
        let output = ValueLoss::default()
            .evaluate(&tokens, Denominator::default())
            .unwrap();
        assert_eq!(
            output,
            ValueOutput {
                coefficients: vec![0.0],
                sums: ValueSums::default()
            }
        );
    }
}
