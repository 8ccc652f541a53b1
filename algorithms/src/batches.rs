//! Cuts an iteration's sequences into minibatches (one optimizer step each),
//! cuts those into gradient units (one forward and backward pass each), and
//! fixes the order in which the units' gradients are added.
//!
//! Every cut depends on the plan and on lengths alone. Memory, cores and
//! machines decide what runs concurrently, never what is grouped together; and
//! a faulted episode leaves its slot empty instead of shifting its neighbours.

use std::ops::Range;

use crate::error::{Error, parameter};

/// Minibatches as ranges of draw indices, in order; the last one may be
/// smaller. A slot whose episode is missing stays in its minibatch and adds
/// nothing.
pub fn minibatches(draws: usize, minibatch_draws: usize) -> Result<Vec<Range<usize>>, Error> {
    parameter(
        "ppo_mini_batch_size",
        minibatch_draws as f64,
        minibatch_draws > 0,
        "at least 1",
    )?;
    Ok((0..draws)
        .step_by(minibatch_draws)
        .map(|start| start..draws.min(start.saturating_add(minibatch_draws)))
        .collect())
}

/// Gradient units as ranges of sequences, in order: whole sequences, at most
/// `unit_tokens` tokens each. A longer sequence is a unit of its own.
pub fn units(lengths: &[usize], unit_tokens: usize) -> Result<Vec<Range<usize>>, Error> {
    scoped_units(lengths, 1, unit_tokens)
}

/// [`units`] for a loss whose scope spans `scope_sequences` neighbours (2 for
/// DPO's pairs): a unit never splits them. Ranges count sequences.
pub fn scoped_units(
    lengths: &[usize],
    scope_sequences: usize,
    unit_tokens: usize,
) -> Result<Vec<Range<usize>>, Error> {
    parameter(
        "jobs.unit_tokens",
        unit_tokens as f64,
        unit_tokens > 0,
        "at least 1",
    )?;
    parameter(
        "scope_sequences",
        scope_sequences as f64,
        scope_sequences > 0 && lengths.len().is_multiple_of(scope_sequences),
        "at least 1, and divide the number of sequences",
    )?;
    let mut cuts = Vec::new();
    let (mut start, mut tokens) = (0, 0usize);
    for (index, scope) in lengths.chunks(scope_sequences).enumerate() {
        let first = index * scope_sequences;
        let length = scope
            .iter()
            .fold(0usize, |sum, &length| sum.saturating_add(length));
        if first > start && tokens.saturating_add(length) > unit_tokens {
            cuts.push(start..first);
            (start, tokens) = (first, 0);
        }
        tokens = tokens.saturating_add(length);
    }
    if start < lengths.len() {
        cuts.push(start..lengths.len());
    }
    Ok(cuts)
}

/// The additions that sum `units` gradients in a fixed binary tree: for each
/// pair `(into, from)` in order, add gradient `from` to gradient `into`. The sum
/// ends in unit 0.
///
/// Pairs join blocks of 1, 2, 4, … units aligned to their size. A thread that
/// holds a whole aligned block can therefore sum it alone, and any number of
/// threads or update shards gives the same bits.
pub fn addition_order(units: usize) -> Vec<(usize, usize)> {
    let strides = std::iter::successors(Some(1usize), |stride| stride.checked_mul(2));
    let levels = strides.take_while(|&stride| stride < units);
    levels
        .flat_map(|stride| {
            (0..units)
                .step_by(stride.saturating_mul(2))
                .map(move |into| (into, into + stride))
        })
        .filter(|&(_, from)| from < units)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn minibatches_keep_their_draws() {
        assert_eq!(minibatches(10, 4).unwrap(), [0..4, 4..8, 8..10]);
        assert_eq!(minibatches(0, 4).unwrap(), []);
        let error = minibatches(4, 0).unwrap_err().to_string();
        assert_eq!(error, "ppo_mini_batch_size is 0: it must be at least 1");
    }

    #[test]
    fn a_long_sequence_stands_alone() {
        assert_eq!(units(&[3, 4, 9, 2, 5, 1], 8).unwrap(), [0..2, 2..3, 3..6]);
        assert_eq!(units(&[9, 9], 8).unwrap(), [0..1, 1..2]);
        assert_eq!(units(&[], 8).unwrap(), []);
        assert_eq!(units(&[0, 0, 8, 0, 1], 8).unwrap(), [0..4, 4..5]);
        assert!(units(&[1], 0).is_err());
    }

    #[test]
    fn pairs_stay_together() {
        assert_eq!(
            scoped_units(&[3, 3, 3, 3, 1, 1], 2, 8).unwrap(),
            [0..2, 2..6]
        );
        // Three sequences would fit, but that would split a pair.
        assert_eq!(scoped_units(&[3; 4], 2, 9).unwrap(), [0..2, 2..4]);
        assert!(scoped_units(&[3, 3, 3], 2, 8).is_err());
    }

    #[test]
    fn the_tree_of_five_units() {
        assert_eq!(addition_order(5), [(0, 1), (2, 3), (0, 2), (0, 4)]);
        assert_eq!(addition_order(1), []);
        assert_eq!(addition_order(0), []);
    }

    proptest! {
        /// Units cover every sequence once, in order, and none had room for the next sequence.
        #[test]
        fn units_are_whole_tight_and_ordered(
            lengths in prop::collection::vec(0usize..40, 0..40),
            unit_tokens in 1usize..100,
        ) {
            let cuts = units(&lengths, unit_tokens).unwrap();
            let covered: Vec<usize> = cuts.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..lengths.len()).collect::<Vec<_>>());
            for cut in cuts {
                let tokens: usize = lengths[cut.clone()].iter().sum();
                prop_assert!(tokens <= unit_tokens || cut.len() == 1);
                prop_assert!(lengths.get(cut.end).is_none_or(|next| tokens + next > unit_tokens));
            }
        }

        /// The tree reads every unit but the first exactly once and never afterwards,
        /// and sums an aligned block without units outside it.
        #[test]
        fn the_tree_adds_every_unit_once(units in 1usize..200) {
            let order = addition_order(units);
            let mut sums: Vec<Option<Vec<usize>>> = (0..units).map(|unit| Some(vec![unit])).collect();
            for (into, from) in order {
                let part = sums[from].take().expect("a unit is added once");
                let sum = sums[into].as_mut().expect("a sum is still there");
                sum.extend(part);
                let block = sum.len().next_power_of_two();
                prop_assert!(sum.iter().all(|unit| unit / block == into / block));
            }
            let mut all = sums[0].take().expect("the sum ends in unit 0");
            all.sort_unstable();
            prop_assert_eq!(all, (0..units).collect::<Vec<_>>());
        }
    }
}
