//! What a token weighs in a minibatch of the policy's update, and the derivative that it starts with.

use crate::Result;
use agentgym_algorithms::batches::minibatches;
use agentgym_algorithms::losses::{ActorLoss, ActorTokens, Aggregation, Denominator};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{Batch, BatchEpisode, BatchSequence};
use std::ops::Range;

/// Converts a stream to the `f64` of the algorithms.
pub fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|value| f64::from(*value)).collect()
}

/// The denominator of each slot, given the loss tokens of each slot's sequences: the whole
/// minibatch, or with `micro` slots per micro-batch the slot's own micro-batch.
pub fn denominators(loss_tokens: &[Vec<usize>], micro: Option<usize>) -> Vec<Denominator> {
    let Some(micro) = micro else {
        return vec![Denominator::of(loss_tokens.concat()); loss_tokens.len()];
    };
    let chunks: Vec<Vec<usize>> = loss_tokens.chunks(micro).map(|c| c.concat()).collect();
    let all = Denominator::of_micro_batches(&chunks);
    (0..loss_tokens.len())
        .map(|slot| all[slot / micro])
        .collect()
}

/// The loss tokens of each sequence, by slot.
pub fn loss_tokens(batch: &[Option<BatchEpisode>], slots: Range<usize>) -> Vec<Vec<usize>> {
    let of = |slot: usize| {
        let episode = batch.get(slot).and_then(Option::as_ref);
        let sequences = episode.map_or(&[][..], |e| e.sequences.as_slice());
        sequences.iter().map(|s| s.sequence.loss_tokens()).collect()
    };
    slots.map(of).collect()
}

/// The slots of each minibatch of so many tasks.
pub fn minibatch_slots(plan: &Plan, tasks: usize) -> Result<Vec<Range<usize>>> {
    let n = plan.config.actor_rollout_ref.rollout.n as usize;
    let draws = minibatches(plan.config.data.train_batch_size, tasks)?;
    let slots = draws.into_iter().map(|d| d.start * n..d.end * n);
    Ok(slots.collect())
}

/// Slots of a micro-batch, where these weigh.
pub fn micro_batch_size(by: Aggregation, configured: Option<usize>) -> Option<usize> {
    configured.filter(|_| by == Aggregation::MicroBatchMean)
}

/// The denominator of each slot's tokens, over the minibatches of the actor.
fn slot_denominators(plan: &Plan, batch: &[Option<BatchEpisode>]) -> Result<Vec<Denominator>> {
    let actor = &plan.config.actor_rollout_ref.actor;
    let aggregation = plan.config.actor_loss()?.aggregation;
    let micro = micro_batch_size(aggregation, actor.ppo_micro_batch_size);
    let minibatches = minibatch_slots(plan, actor.ppo_mini_batch_size)?.into_iter();
    let sizes = minibatches.flat_map(|slots| denominators(&loss_tokens(batch, slots), micro));
    Ok(sizes.collect())
}

/// What each token of each sequence of a slot weighs in the policy's loss, by `loss_agg_mode`.
///
/// # Errors
/// A config that the stage refuses too.
pub fn token_weights(plan: &Plan, batch: &Batch) -> Result<Vec<Vec<f64>>> {
    let Batch::V1(batch) = batch;
    let loss = plan.config.actor_loss()?;
    let sizes = slot_denominators(plan, batch)?;
    let counts = loss_tokens(batch, 0..sizes.len());
    let weigh = |(counts, size): (&Vec<usize>, Denominator)| {
        let weights = counts.iter().map(|n| loss.token_weight(size, *n));
        weights.collect()
    };
    Ok(counts.iter().zip(sizes).map(weigh).collect())
}

/// The derivative of the loss with respect to each token's log-prob, by slot and sequence, where the
/// policy is still the old one: what the first step back-propagates. The entropy's own derivative is
/// not in it.
///
/// # Errors
/// A config or a batch that the stage refuses too.
pub fn log_prob_slopes(plan: &Plan, batch: &Batch) -> Result<Vec<Vec<Vec<f64>>>> {
    let Batch::V1(batch) = batch;
    let loss = plan.config.actor_loss()?;
    let sizes = slot_denominators(plan, batch)?;
    batch
        .iter()
        .zip(sizes)
        .map(|(episode, size)| {
            let sequences = episode.iter().flat_map(|episode| &episode.sequences);
            sequences.map(|s| slopes(&loss, s, size)).collect()
        })
        .collect()
}

fn slopes(loss: &ActorLoss, sequence: &BatchSequence, size: Denominator) -> Result<Vec<f64>> {
    let old = wide(&sequence.old_log_probs);
    let reference = sequence.ref_log_probs.as_deref().map(wide);
    let tokens = ActorTokens {
        log_probs: &old,
        // Their values change no derivative by a log-prob.
        entropies: &vec![0.0; old.len()],
        old_log_probs: &old,
        ref_log_probs: reference.as_deref(),
        advantages: &sequence.advantages,
        loss_mask: &sequence.sequence.loss_mask,
    };
    Ok(loss.evaluate(&tokens, size)?.coefficients.log_probs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_algorithms::kl::KlEstimator;
    use agentgym_algorithms::losses::KlLoss;
    use agentgym_jobs::episode::Sequence;

    #[test]
    fn slots_weigh_by_minibatch_or_by_their_micro_batch() {
        let tokens = [vec![3], vec![], vec![1, 1], vec![5]];
        let whole = denominators(&tokens, None);
        assert!(
            whole
                .iter()
                .all(|d| (d.loss_tokens, d.sequences) == (10, 4))
        );
        let micro = denominators(&tokens, Some(2));
        let counts: Vec<_> = micro
            .iter()
            .map(|d| (d.loss_tokens, d.micro_batches))
            .collect();
        assert_eq!(counts, [(3, 2), (3, 2), (7, 2), (7, 2)]);
    }

    /// Two sequences of 2 and 1 loss tokens: each token of the first weighs 1 / (2 · 2). By hand:
    /// −A · weight, and coef · weight · (log p − reference) of the k2 estimator.
    #[test]
    fn a_slope_is_what_the_first_step_back_propagates() {
        let sequence = BatchSequence {
            sequence: Sequence {
                token_ids: vec![7, 8, 9],
                loss_mask: vec![false, true, true],
                sampled_log_probs: vec![0.0, -1.0, -0.5],
                log_kept_mass: None,
                entropies: None,
            },
            old_log_probs: vec![0.0, -1.0, -0.5],
            ref_log_probs: Some(vec![0.0, -1.25, -0.5]),
            advantages: vec![0.0, 2.0, -2.0],
        };
        let mut loss = ActorLoss {
            aggregation: Aggregation::SeqMeanTokenMean,
            ..ActorLoss::default()
        };
        let size = Denominator::of([2, 1]);
        let near = |found: Vec<f64>, wanted: [f64; 3]| {
            let apart = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f64::max) < 1e-12, "{found:?} {wanted:?}");
        };
        near(slopes(&loss, &sequence, size).unwrap(), [0.0, -0.5, 0.5]);
        loss.kl = Some(KlLoss {
            estimator: KlEstimator::K2,
            coef: 0.5,
        });
        let with_kl = [0.0, -0.5 + 0.5 * 0.25 * 0.25, 0.5];
        near(slopes(&loss, &sequence, size).unwrap(), with_kl);
    }
}
