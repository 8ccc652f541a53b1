//! The weight of each token in a loss. The plan names the choice, because "the
//! mean" of ragged sequences has at least three meanings with different gradients.
//! The weights depend on the minibatch alone, never on how it was cut into units.

use crate::names::named;

named! {
    /// A minibatch's loss as a function of the per-token losses `l`.
    #[derive(Default)]
    pub enum Aggregation, called "loss aggregation" {
        /// `Σ l / loss tokens`: every token weighs the same, so a longer sequence weighs more.
        #[default]
        TokenMean = "token_mean" or "token-mean",
        /// `Σ_sequences Σ l / sequences` (arXiv:2503.20783, up to a constant).
        SeqMeanTokenSum = "seq_mean_token_sum" or "seq-mean-token-sum",
        /// `Σ_sequences (Σ l / L) / sequences`, L the most tokens that a response may have: the same for
        /// every sequence and minibatch, so that neither a short answer nor a batch of short ones weighs
        /// more per token (Dr. GRPO, arXiv:2503.20783 §3.2).
        SeqMeanTokenSumNorm = "seq_mean_token_sum_norm" or "seq-mean-token-sum-norm",
        /// `Σ_sequences (Σ l / its loss tokens) / sequences`: every sequence
        /// weighs the same (arXiv:2402.03300 eq. 3).
        SeqMeanTokenMean = "seq_mean_token_mean" or "seq-mean-token-mean",
        /// The token mean of each micro-batch, averaged over the micro-batches, as in
        /// AgentGym-RL: the micro-batch size affects the weight of a token. Here that
        /// size is a config key of its own and does not depend on memory.
        MicroBatchMean = "micro_batch_mean" or "micro-batch-mean",
    }
}

/// The counts of a minibatch that normalise its loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Denominator {
    /// Tokens with loss mask 1.
    pub loss_tokens: usize,
    /// Sequences with at least one of them. Empty ones do not dilute the mean.
    pub sequences: usize,
    /// For [`Aggregation::MicroBatchMean`]: micro-batches of the minibatch with at least
    /// one loss token. The other fields then describe the sequence's own micro-batch.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub micro_batches: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Denominator {
    /// Counts a minibatch, given the loss tokens of each of its sequences.
    pub fn of(loss_tokens: impl IntoIterator<Item = usize>) -> Self {
        loss_tokens
            .into_iter()
            .filter(|&count| count > 0)
            .fold(Self::default(), |sum, count| Self {
                loss_tokens: sum.loss_tokens + count,
                sequences: sum.sequences + 1,
                ..sum
            })
    }

    /// One per micro-batch, given the loss tokens of each of their sequences; for
    /// [`Aggregation::MicroBatchMean`]. Empty micro-batches do not dilute the mean.
    pub fn of_micro_batches(loss_tokens: &[Vec<usize>]) -> Vec<Self> {
        let mut all: Vec<Self> = loss_tokens
            .iter()
            .map(|counts| Self::of(counts.iter().copied()))
            .collect();
        let micro_batches = all.iter().filter(|one| one.loss_tokens > 0).count();
        for one in &mut all {
            one.micro_batches = micro_batches;
        }
        all
    }

    /// Counts a minibatch, given the loss mask of each of its sequences.
    pub fn of_masks<'a>(loss_masks: impl IntoIterator<Item = &'a [bool]>) -> Self {
        Self::of(loss_masks.into_iter().map(loss_tokens))
    }
}

/// Tokens with loss mask 1.
pub(crate) fn loss_tokens(loss_mask: &[bool]) -> usize {
    loss_mask.iter().filter(|&&kept| kept).count()
}

impl Aggregation {
    /// The weight of each loss token of a sequence with `loss_tokens` of them, in a
    /// minibatch of size `denominator`. 0 where there is no loss token. `response_tokens_max` is
    /// the constant L, in tokens, at least 1; only [`Aggregation::SeqMeanTokenSumNorm`] reads it.
    pub fn token_weight(
        self,
        denominator: Denominator,
        loss_tokens: usize,
        response_tokens_max: usize,
    ) -> f64 {
        if loss_tokens == 0 || denominator.loss_tokens == 0 || denominator.sequences == 0 {
            return 0.0;
        }
        match self {
            Self::TokenMean => 1.0 / denominator.loss_tokens as f64,
            Self::SeqMeanTokenSum => 1.0 / denominator.sequences as f64,
            Self::SeqMeanTokenSumNorm => {
                1.0 / (denominator.sequences as f64 * response_tokens_max.max(1) as f64)
            }
            Self::SeqMeanTokenMean => 1.0 / (denominator.sequences as f64 * loss_tokens as f64),
            // A minibatch that was not cut is one micro-batch.
            Self::MicroBatchMean => {
                1.0 / (denominator.micro_batches.max(1) as f64 * denominator.loss_tokens as f64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::losses::ActorLoss;

    #[test]
    fn empty_sequences_do_not_count() {
        assert_eq!(
            Denominator::of([3, 0, 1]),
            Denominator {
                loss_tokens: 4,
                sequences: 2,
                micro_batches: 0
            }
        );
        for &aggregation in Aggregation::ALL {
            assert_eq!(aggregation.token_weight(Denominator::of([0, 0]), 0, 1), 0.0);
            // A count of one kind without the other does not divide by zero either.
            for (loss_tokens, sequences) in [(0, 1), (1, 0)] {
                let torn = Denominator {
                    loss_tokens,
                    sequences,
                    micro_batches: 1,
                };
                assert_eq!(aggregation.token_weight(torn, 1, 1), 0.0);
            }
        }
        // Without micro-batches the field is not serialised, so older records keep their bytes.
        let written = serde_json::to_value(Denominator::of([3, 0])).unwrap();
        assert_eq!(
            written,
            serde_json::json!({"loss_tokens": 3, "sequences": 1})
        );
        let masks: [&[bool]; 2] = [&[true, false], &[false]];
        assert_eq!(
            Denominator::of_masks(masks),
            Denominator {
                loss_tokens: 1,
                sequences: 1,
                micro_batches: 0
            }
        );
    }

    /// A sequence of 3 loss tokens beside one of 1.
    #[test]
    fn each_aggregation_weighs_differently() {
        let denominator = Denominator::of([3, 1]);
        let weights = |aggregation: Aggregation| {
            [3, 1].map(|count| aggregation.token_weight(denominator, count, 1))
        };
        assert_eq!(weights(Aggregation::TokenMean), [0.25, 0.25]);
        assert_eq!(weights(Aggregation::SeqMeanTokenSum), [0.5, 0.5]);
        assert_eq!(weights(Aggregation::SeqMeanTokenMean), [1.0 / 6.0, 0.5]);
    }

    /// Dr. GRPO: the sum over a response divided by a constant, averaged over responses. A
    /// token weighs the same in a short answer and in a long one, and beside short and long ones.
    #[test]
    fn a_constant_divisor_knows_no_lengths() {
        let weight = |batch: &[usize], count| {
            let size = Denominator::of(batch.iter().copied());
            Aggregation::SeqMeanTokenSumNorm.token_weight(size, count, 8)
        };
        assert_eq!(weight(&[3, 1], 3), 1.0 / 16.0);
        assert_eq!(weight(&[3, 1], 1), weight(&[7, 8], 8));
        let loss = |aggregation, response_tokens_max| ActorLoss {
            aggregation,
            response_tokens_max,
            ..ActorLoss::default()
        };
        let norm = Aggregation::SeqMeanTokenSumNorm;
        assert!(loss(norm, Some(8)).validate().is_ok());
        let message = loss(norm, None).validate().unwrap_err().to_string();
        assert!(message.contains("response_tokens_max"), "{message}");
    }

    /// Two micro-batches of 4 and 2 loss tokens, and one that is empty.
    #[test]
    fn a_micro_batch_mean_weighs_by_micro_batch() {
        let all = Denominator::of_micro_batches(&[vec![3, 1], vec![2, 0], vec![0]]);
        let weight =
            |index: usize, count| Aggregation::MicroBatchMean.token_weight(all[index], count, 1);
        assert_eq!(
            (weight(0, 3), weight(0, 1), weight(1, 2), weight(2, 0)),
            (0.125, 0.125, 0.25, 0.0)
        );
        // Undivided, it is the token mean; with one sequence each, the sequence mean.
        let whole = Denominator::of([3, 1]);
        assert_eq!(
            Aggregation::MicroBatchMean.token_weight(whole, 3, 1),
            Aggregation::TokenMean.token_weight(whole, 3, 1)
        );
        let single = Denominator::of_micro_batches(&[vec![3], vec![1]]);
        assert_eq!(
            Aggregation::MicroBatchMean.token_weight(single[0], 3, 1),
            Aggregation::SeqMeanTokenMean.token_weight(whole, 3, 1)
        );
    }

    #[test]
    fn names() {
        assert_eq!(
            "seq-mean-token-sum".parse(),
            Ok(Aggregation::SeqMeanTokenSum)
        );
        assert_eq!(Aggregation::default().name(), "token_mean");
    }

    proptest! {
        /// Both means give a constant token loss its own value back.
        #[test]
        fn means_of_a_constant(counts in prop::collection::vec(0usize..50, 1..20)) {
            prop_assume!(counts.iter().any(|&count| count > 0));
            let denominator = Denominator::of(counts.iter().copied());
            for aggregation in [Aggregation::TokenMean, Aggregation::SeqMeanTokenMean] {
                let total: f64 =
                    counts.iter().map(|&count| count as f64 * aggregation.token_weight(denominator, count, 1)).sum();
                prop_assert!((total - 1.0).abs() < 1e-12);
            }
        }
    }
}
