//! Supervised fine-tuning: the negative log-likelihood of the tokens to imitate. The mask
//! marks the *targets* themselves and is aligned with their log-probs, not shifted by one.

use super::aggregation::{Aggregation, Denominator, loss_tokens};
use crate::error::{Error, finite_where, same_length};

/// One sequence's share of the supervised loss.
#[derive(Debug, Clone, PartialEq)]
pub struct SftOutput {
    /// d minibatch loss / d log_prob, `[tokens]`: the negative token weight.
    pub coefficients: Vec<f64>,
    /// The sequence's share of the loss; the shares of a minibatch add up to its loss.
    pub loss: f64,
    /// Target tokens of the sequence.
    pub loss_tokens: usize,
}

/// `−Σ weight · log_prob` over the targets of one sequence of a minibatch of
/// size `denominator`; with [`Aggregation::TokenMean`] the mean cross-entropy in
/// nats per target. Slices `[tokens]`.
pub fn sft(
    log_probs: &[f64],
    loss_mask: &[bool],
    aggregation: Aggregation,
    denominator: Denominator,
) -> Result<SftOutput, Error> {
    let sum = sequence_log_prob(log_probs, loss_mask)?;
    let loss_tokens = loss_tokens(loss_mask);
    let weight = aggregation.token_weight(denominator, loss_tokens, 1);
    let coefficients = loss_mask
        .iter()
        .map(|&kept| if kept { -weight } else { 0.0 })
        .collect();
    Ok(SftOutput {
        coefficients,
        loss: -weight * sum,
        loss_tokens,
    })
}

/// `Σ log_prob` over the tokens with loss mask 1, nats: the log-prob of a whole
/// answer, as DPO compares it. Slices `[tokens]`.
pub fn sequence_log_prob(log_probs: &[f64], loss_mask: &[bool]) -> Result<f64, Error> {
    same_length("loss_mask", loss_mask.len(), log_probs.len())?;
    finite_where("log_prob", log_probs, loss_mask)?;
    // Folded from +0, since an empty f64 sum is −0.
    Ok(log_probs
        .iter()
        .zip(loss_mask)
        .filter(|&(_, &kept)| kept)
        .fold(0.0, |sum, (&log_prob, _)| sum + log_prob))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_is_gradient};

    #[test]
    fn the_mean_over_targets_of_a_minibatch() {
        let denominator = Denominator::of([2, 1]);
        let first = sft(
            &[-1.0, -9.0, -2.0],
            &[true, false, true],
            Aggregation::TokenMean,
            denominator,
        )
        .unwrap();
        let second = sft(&[-3.0], &[true], Aggregation::TokenMean, denominator).unwrap();
        assert_close(first.loss + second.loss, 2.0, "cross-entropy");
        assert_eq!(first.coefficients[1], 0.0);
        assert_is_gradient(
            |moved| {
                sft(
                    moved,
                    &[true, false, true],
                    Aggregation::TokenMean,
                    denominator,
                )
                .unwrap()
                .loss
            },
            &[-1.0, -9.0, -2.0],
            &first.coefficients,
            "sft",
        );
    }

    #[test]
    fn no_targets_no_loss() {
        let output = sft(
            &[f64::NEG_INFINITY],
            &[false],
            Aggregation::TokenMean,
            Denominator::default(),
        )
        .unwrap();
        assert_eq!(
            output,
            SftOutput {
                coefficients: vec![0.0],
                loss: 0.0,
                loss_tokens: 0
            }
        );
        assert!(
            sft(
                &[f64::NEG_INFINITY],
                &[true],
                Aggregation::TokenMean,
                Denominator::of([1])
            )
            .is_err()
        );
    }
}
