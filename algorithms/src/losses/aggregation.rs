//! How tokens are weighed against each other. The choice is named in the plan,
//! since "the mean" of ragged sequences has at least three meanings with
//! different gradients, and depends on the minibatch alone: never on how it was
//! cut into units.

use crate::names::named;

named! {
    /// What a minibatch's loss is, given the per-token losses `l`.
    #[derive(Default)]
    pub enum Aggregation, called "loss aggregation" {
        /// `Σ l / loss tokens`: every token weighs the same, a long sequence more.
        #[default]
        TokenMean = "token_mean" or "token-mean",
        /// `Σ_sequences Σ l / sequences` (arXiv:2503.20783, up to a constant).
        SeqMeanTokenSum = "seq_mean_token_sum" or "seq-mean-token-sum",
        /// `Σ_sequences (Σ l / its loss tokens) / sequences`: every sequence
        /// weighs the same (arXiv:2402.03300 eq. 3).
        SeqMeanTokenMean = "seq_mean_token_mean" or "seq-mean-token-mean",
    }
}

/// The size of a minibatch as its loss sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Denominator {
    /// Tokens with loss mask 1.
    pub loss_tokens: usize,
    /// Sequences with at least one of them. Empty ones do not dilute the mean.
    pub sequences: usize,
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
            })
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
    /// The weight of each loss token of a sequence with `loss_tokens` of them,
    /// in a minibatch of size `denominator`. 0 where there is nothing to weigh.
    pub fn token_weight(self, denominator: Denominator, loss_tokens: usize) -> f64 {
        if loss_tokens == 0 || denominator.loss_tokens == 0 || denominator.sequences == 0 {
            return 0.0;
        }
        match self {
            Self::TokenMean => 1.0 / denominator.loss_tokens as f64,
            Self::SeqMeanTokenSum => 1.0 / denominator.sequences as f64,
            Self::SeqMeanTokenMean => 1.0 / (denominator.sequences as f64 * loss_tokens as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn empty_sequences_do_not_count() {
        assert_eq!(
            Denominator::of([3, 0, 1]),
            Denominator {
                loss_tokens: 4,
                sequences: 2
            }
        );
        for &aggregation in Aggregation::ALL {
            assert_eq!(aggregation.token_weight(Denominator::of([0, 0]), 0), 0.0);
        }
        let masks: [&[bool]; 2] = [&[true, false], &[false]];
        assert_eq!(
            Denominator::of_masks(masks),
            Denominator {
                loss_tokens: 1,
                sequences: 1
            }
        );
    }

    /// A sequence of 3 loss tokens beside one of 1.
    #[test]
    fn each_aggregation_weighs_differently() {
        let denominator = Denominator::of([3, 1]);
        let weights = |aggregation: Aggregation| {
            [3, 1].map(|count| aggregation.token_weight(denominator, count))
        };
        assert_eq!(weights(Aggregation::TokenMean), [0.25, 0.25]);
        assert_eq!(weights(Aggregation::SeqMeanTokenSum), [0.5, 0.5]);
        assert_eq!(weights(Aggregation::SeqMeanTokenMean), [1.0 / 6.0, 0.5]);
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
                    counts.iter().map(|&count| count as f64 * aggregation.token_weight(denominator, count)).sum();
                prop_assert!((total - 1.0).abs() < 1e-12);
            }
        }
    }
}
