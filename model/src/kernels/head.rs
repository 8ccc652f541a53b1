//! The output head: log-probability of a target id and entropy of the distribution, per row,
//! without ever holding rows × vocabulary. The backward pass recomputes the logits, chunk by chunk.

use super::dense::Weight;
use super::distribution::Distribution;
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

impl Head<'_> {
    fn buffer(&self) -> Vec<f32> {
        zeros(CHUNK_ROWS.min(self.targets.len()) * self.weight.width())
    }

    /// Log-probabilities of the targets and entropies, row by row.
    pub(crate) fn forward(&self, hidden: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (width, vocabulary) = (self.weight.inner(), self.weight.width());
        let mut buffer = self.buffer();
        let mut log_probs = Vec::with_capacity(self.targets.len());
        let mut entropies = Vec::with_capacity(self.targets.len());
        for (hidden, targets) in hidden
            .chunks(CHUNK_ROWS * width)
            .zip(self.targets.chunks(CHUNK_ROWS))
        {
            let logits = &mut buffer[..targets.len() * vocabulary];
            self.weight.multiply(logits, hidden, false);
            for (row, &target) in logits.chunks_exact(vocabulary).zip(targets) {
                let distribution = Distribution::of(row, self.inverse_temperature);
                log_probs.push(distribution.log_prob(row[target as usize]));
                entropies.push(distribution.entropy);
            }
        }
        (log_probs, entropies)
    }

    /// The derivative of a loss by the hidden states, given its derivatives by
    /// log-probabilities and entropies. The one by the weight is added to
    /// `grad_weight`, which has the weight's layout, if the weight is trained.
    pub(crate) fn backward(
        &self,
        hidden: &[f32],
        by_log_prob: &[f32],
        by_entropy: &[f32],
        mut grad_weight: Option<&mut [f32]>,
    ) -> Vec<f32> {
        let (width, vocabulary) = (self.weight.inner(), self.weight.width());
        let mut grad_hidden = vec![0.0; hidden.len()];
        let mut buffer = self.buffer();
        let grads = by_log_prob
            .chunks(CHUNK_ROWS)
            .zip(by_entropy.chunks(CHUNK_ROWS));
        let chunks = hidden
            .chunks(CHUNK_ROWS * width)
            .zip(self.targets.chunks(CHUNK_ROWS));
        let outputs = grad_hidden.chunks_mut(CHUNK_ROWS * width);
        for (((hidden, targets), (a, b)), grad_hidden) in chunks.zip(grads).zip(outputs) {
            let logits = &mut buffer[..targets.len() * vocabulary];
            self.weight.multiply(logits, hidden, false);
            let rows = logits.chunks_exact_mut(vocabulary).zip(targets);
            for ((row, &target), (&a, &b)) in rows.zip(a.iter().zip(b)) {
                let distribution = Distribution::of(row, self.inverse_temperature);
                distribution.derivative(row, target as usize, a, b);
            }
            self.weight.grad_input_to(grad_hidden, logits, false);
            if let Some(grad_weight) = &mut grad_weight {
                self.weight.add_grad_weight(grad_weight, hidden, logits);
            }
        }
        grad_hidden
    }
}
