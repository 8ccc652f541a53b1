//! The output head: log-probability of a target id and entropy of the distribution, per row,
//! chunk by chunk. The backward pass recomputes the logits, unless they were few enough to keep.

use super::dense::Weight;
use super::distribution::Distribution;
use crate::parallel;
use crate::spare::zeros;

/// Rows whose logits are held at a time. The weight is read for every chunk, and its gradient read
/// and written: with 152k ids and chunks of 16 rows that was most of a training step.
pub(crate) const CHUNK_ROWS: usize = 256;

/// The head's weight and the ids to score.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    /// `[hidden, vocabulary]`, transposed where it is the embedding.
    pub(crate) weight: Weight<'a>,
    /// The id to score in each row.
    pub(crate) targets: &'a [u32],
    pub(crate) inverse_temperature: f32,
}

/// 1 / temperature as the kernels take it: scoring and sampling must agree.
pub(crate) fn inverse_temperature(temperature: f64) -> f32 {
    (1.0 / temperature) as f32
}

/// Logits that may be kept for the backward pass, unless one chunk has more.
pub(crate) const KEPT_MAX: usize = 4 << 20;

/// Logits of all rows, or of none.
pub(crate) struct Logits(Vec<f32>);

impl Head<'_> {
    /// Room for the logits of a chunk, or of all rows.
    fn room(&self, all: bool) -> Vec<f32> {
        let rows = self.targets.len();
        let rows = if all { rows } else { CHUNK_ROWS.min(rows) };
        zeros(rows * self.weight.width())
    }

    /// Log-probabilities of the targets and entropies, row by row.
    pub(crate) fn forward(&self, hidden: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut chunk = self.room(false);
        self.forward_in(&mut chunk, hidden)
    }

    /// The same, with what [`Head::backward`] takes.
    pub(crate) fn forward_kept(&self, hidden: &[f32]) -> (Vec<f32>, Vec<f32>, Logits) {
        let vocabulary = self.weight.width();
        let keeps = self.targets.len() * vocabulary <= KEPT_MAX.max(CHUNK_ROWS * vocabulary);
        let mut room = self.room(keeps);
        let (log_probs, entropies) = self.forward_in(&mut room, hidden);
        let kept = if keeps { room } else { Vec::new() };
        (log_probs, entropies, Logits(kept))
    }

    /// With logits in `room`: those of the last chunk stay there, or of all rows.
    fn forward_in(&self, room: &mut [f32], hidden: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (width, vocabulary) = (self.weight.inner(), self.weight.width());
        let all = room.len() == self.targets.len() * vocabulary;
        let mut log_probs = Vec::with_capacity(self.targets.len());
        let mut entropies = Vec::with_capacity(self.targets.len());
        for (number, (hidden, targets)) in hidden
            .chunks(CHUNK_ROWS * width)
            .zip(self.targets.chunks(CHUNK_ROWS))
            .enumerate()
        {
            let start = if all {
                number * CHUNK_ROWS * vocabulary
            } else {
                0
            };
            let logits = &mut room[start..start + targets.len() * vocabulary];
            self.weight.multiply(logits, hidden, false);
            let rows = logits.chunks_exact(vocabulary).zip(targets).collect();
            let streams = parallel::divided(rows, |(row, &target): (&[f32], _)| {
                let distribution = Distribution::of(row, self.inverse_temperature);
                let log_prob = distribution.log_prob(row[target as usize]);
                (log_prob, distribution.entropy)
            });
            for (log_prob, entropy) in streams {
                log_probs.push(log_prob);
                entropies.push(entropy);
            }
        }
        (log_probs, entropies)
    }

    /// The derivative of a loss by the hidden states, given its derivatives by
    /// log-probabilities and entropies. The one by the weight is put into
    /// the memory of `grad_weight`, in the weight's layout, if the weight is trained.
    pub(crate) fn backward(
        &self,
        hidden: &[f32],
        by_log_prob: &[f32],
        by_entropy: &[f32],
        Logits(mut kept): Logits,
        mut grad_weight: Option<&mut Vec<f32>>,
    ) -> Vec<f32> {
        let (width, vocabulary) = (self.weight.inner(), self.weight.width());
        let mut grad_hidden = vec![0.0; hidden.len()];
        let is_kept = !kept.is_empty();
        if !is_kept {
            kept = self.room(false);
        }
        let grads = by_log_prob
            .chunks(CHUNK_ROWS)
            .zip(by_entropy.chunks(CHUNK_ROWS));
        let chunks = hidden
            .chunks(CHUNK_ROWS * width)
            .zip(self.targets.chunks(CHUNK_ROWS));
        let outputs = grad_hidden.chunks_mut(CHUNK_ROWS * width);
        let all = chunks.zip(grads).zip(outputs).enumerate();
        for (number, (((hidden, targets), (a, b)), grad_hidden)) in all {
            let start = if is_kept {
                number * CHUNK_ROWS * vocabulary
            } else {
                0
            };
            let logits = &mut kept[start..start + targets.len() * vocabulary];
            if !is_kept {
                self.weight.multiply(logits, hidden, false);
            }
            let rows = logits.chunks_exact_mut(vocabulary).zip(targets);
            let rows = rows.zip(a.iter().zip(b)).collect();
            parallel::divided(rows, |((row, &target), (&a, &b)): ((&mut [f32], _), _)| {
                let distribution = Distribution::of(row, self.inverse_temperature);
                distribution.derivative(row, target as usize, a, b);
            });
            self.weight.grad_input_to(grad_hidden, logits, false);
            if let Some(grad_weight) = &mut grad_weight {
                self.weight.add_grad_weight(grad_weight, hidden, logits);
            }
        }
        grad_hidden
    }
}
