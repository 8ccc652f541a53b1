//! The output head: log-probability of a target id and entropy of the
//! distribution, per row, without ever holding rows × vocabulary. The backward
//! pass computes the logits again, chunk by chunk.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::{output, slice, tensor_like, with_data};
use crate::kernels::distribution::Distribution;
use crate::kernels::matmul::{View, matmul};

/// Logits held at a time, in numbers; rows per chunk follow from the vocabulary.
const CHUNK_NUMBERS: usize = 1 << 17;

/// 1 / temperature as the kernels take it: scoring and sampling must agree.
pub(crate) fn inverse_temperature(temperature: f64) -> f32 {
    (1.0 / temperature) as f32
}

struct Head {
    targets: Arc<[u32]>,
    inverse_temperature: f32,
}

/// \[2, rows\]: log-probabilities of `targets` and entropies, for `hidden` \[rows,
/// width\] through `weight` \[width, vocabulary\].
pub(crate) fn head(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &Arc<[u32]>,
    inverse_temperature: f32,
) -> Result<Tensor> {
    if !hidden.device().is_cpu() {
        return super::composed::head(hidden, weight, targets, inverse_temperature);
    }
    hidden.apply_op2(
        weight,
        Head {
            targets: Arc::clone(targets),
            inverse_temperature,
        },
    )
}

fn rows_per_chunk(vocabulary: usize) -> usize {
    (CHUNK_NUMBERS / vocabulary).clamp(16, 256)
}

impl CustomOp2 for Head {
    fn name(&self) -> &'static str {
        "head"
    }

    fn cpu_fwd(
        &self,
        hidden: &CpuStorage,
        hidden_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (width, vocabulary) = weight_layout.shape().dims2()?;
        let (hidden, weight) = (slice(hidden, hidden_layout)?, slice(weight, weight_layout)?);
        let rows = rows_per_chunk(vocabulary);
        let mut logits = vec![0.0; rows.min(self.targets.len()) * vocabulary];
        let mut log_probs = Vec::with_capacity(2 * self.targets.len());
        let mut entropies = Vec::with_capacity(self.targets.len());
        for (hidden, targets) in hidden.chunks(rows * width).zip(self.targets.chunks(rows)) {
            let logits = &mut logits[..targets.len() * vocabulary];
            let hidden = View::new(hidden, targets.len(), width);
            matmul(hidden, View::new(weight, width, vocabulary), logits, false);
            for (row, &target) in logits.chunks_exact(vocabulary).zip(targets) {
                let distribution = Distribution::of(row, self.inverse_temperature);
                log_probs.push(distribution.log_prob(row[target as usize]));
                entropies.push(distribution.entropy);
            }
        }
        log_probs.append(&mut entropies);
        output(log_probs, (2, self.targets.len()))
    }

    fn bwd(
        &self,
        hidden: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (width, vocabulary) = weight.dims2()?;
        let rows = rows_per_chunk(vocabulary);
        let mut grad_hidden = vec![0.0; hidden.elem_count()];
        let mut grad_weight = vec![0.0; weight.elem_count()];
        let mut logits = vec![0.0; rows.min(self.targets.len()) * vocabulary];
        with_data(hidden, |hidden| {
            with_data(weight, |weight| {
                with_data(grad, |grad| {
                    let weight = View::new(weight, width, vocabulary);
                    let (by_log_prob, by_entropy) = grad.split_at(self.targets.len());
                    let grads = by_log_prob.chunks(rows).zip(by_entropy.chunks(rows));
                    let chunks = hidden.chunks(rows * width).zip(self.targets.chunks(rows));
                    let outputs = grad_hidden.chunks_mut(rows * width);
                    for (((hidden, targets), (a, b)), grad_hidden) in chunks.zip(grads).zip(outputs)
                    {
                        let logits = &mut logits[..targets.len() * vocabulary];
                        let hidden = View::new(hidden, targets.len(), width);
                        matmul(hidden, weight, logits, false);
                        let rows = logits.chunks_exact_mut(vocabulary).zip(targets);
                        for ((row, &target), (&a, &b)) in rows.zip(a.iter().zip(b)) {
                            let distribution = Distribution::of(row, self.inverse_temperature);
                            distribution.derivative(row, target as usize, a, b);
                        }
                        let logits = View::new(logits, targets.len(), vocabulary);
                        matmul(logits, weight.transposed(), grad_hidden, false);
                        matmul(hidden.transposed(), logits, &mut grad_weight, true);
                    }
                    Ok(())
                })
            })
        })?;
        Ok((
            Some(tensor_like(grad_hidden, hidden)?),
            Some(tensor_like(grad_weight, weight)?),
        ))
    }
}
