//! Derivative of causal attention over one whole sequence. The weights are
//! recomputed from queries and keys instead of being kept: they would need
//! length² numbers. Sums over query rows run in ascending order of the rows.

use pulp::{Simd, WithSimd};

use super::attention::{Tiling, softmax_weights};
use super::tile::{NO_VECTORS, Vectors, Weights, mix, products, spread};
use super::{LANES, dot};
use crate::kernels::key_values::{BLOCK, KeyValues};

/// One sequence from its first position on: rows of heads · width numbers.
#[derive(Clone, Copy)]
pub(crate) struct Sequence<'a> {
    pub(crate) queries: &'a [f32],
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    /// The output of the forward pass.
    pub(crate) output: &'a [f32],
    /// Derivative of the loss by `output`.
    pub(crate) grad: &'a [f32],
}

/// Derivatives by queries, keys and values, to be written.
pub(crate) struct SequenceGradients<'a> {
    pub(crate) queries: &'a mut [f32],
    pub(crate) keys: &'a mut [f32],
    pub(crate) values: &'a mut [f32],
}

/// Back-propagates `sequence.grad` through [`super::attention::attend`].
pub(crate) fn attend_backward(
    sequence: Sequence<'_>,
    heads: usize,
    kv_heads: usize,
    width: usize,
    gradients: SequenceGradients<'_>,
) {
    let derive = Derive::new(sequence, heads, kv_heads, width, gradients);
    pulp::Arch::new().dispatch(derive);
}

struct Derive<'a> {
    sequence: Sequence<'a>,
    tiling: Tiling,
    kv: KeyValues,
    /// Values transposed and keys row by row, for ∂weights and ∂queries with the same kernels.
    swapped: KeyValues,
    gradients: SequenceGradients<'a>,
}

/// Buffers of one key head.
struct Buffers {
    /// `[length][padded]`
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Of one tile: its queries, ∂output and ∂queries, softmax weights and the derivative
    /// by the scores.
    queries: Vectors,
    grads: Vectors,
    mixed: Vectors,
    weights: Vec<f32>,
    scores: Vec<f32>,
}

impl WithSimd for Derive<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (tiling, length, padded) = (self.tiling, self.kv.length(), self.kv.padded());
        let longest = length.next_multiple_of(BLOCK);
        let mut buffers = Buffers {
            keys: vec![0.0; length * padded],
            values: vec![0.0; length * padded],
            queries: NO_VECTORS,
            grads: NO_VECTORS,
            mixed: NO_VECTORS,
            weights: vec![0.0; 4 * longest],
            scores: vec![0.0; 4 * longest],
        };
        let (width, kv_heads) = (tiling.width, tiling.heads / tiling.group);
        for head in 0..kv_heads {
            buffers.keys.fill(0.0);
            buffers.values.fill(0.0);
            let pairs = length * tiling.group;
            let mut pair = 0;
            while pair < pairs {
                pair += match pairs - pair {
                    4.. => self.tile::<S, 4>(simd, (head, pair), &mut buffers),
                    2.. => self.tile::<S, 2>(simd, (head, pair), &mut buffers),
                    _ => self.tile::<S, 1>(simd, (head, pair), &mut buffers),
                };
            }
            for (from, to) in [
                (&buffers.keys, &mut *self.gradients.keys),
                (&buffers.values, &mut *self.gradients.values),
            ] {
                let rows = from
                    .chunks_exact(padded)
                    .zip(to.chunks_exact_mut(kv_heads * width));
                for (from, to) in rows {
                    to[head * width..(head + 1) * width].copy_from_slice(&from[..width]);
                }
            }
        }
    }
}

impl<'a> Derive<'a> {
    fn new(
        sequence: Sequence<'a>,
        heads: usize,
        kv_heads: usize,
        width: usize,
        gradients: SequenceGradients<'a>,
    ) -> Self {
        let mut kv = KeyValues::new(kv_heads, width);
        kv.append(sequence.keys, sequence.values);
        let mut swapped = KeyValues::new(kv_heads, width);
        swapped.append(sequence.values, sequence.keys);
        Derive {
            sequence,
            tiling: Tiling {
                heads,
                group: heads / kv_heads,
                width,
            },
            kv,
            swapped,
            gradients,
        }
    }

    /// Computes `R` pairs of key head `head`; returns `R`.
    #[inline(always)]
    fn tile<S: Simd, const R: usize>(
        &mut self,
        simd: S,
        (head, pair): (usize, usize),
        buffers: &mut Buffers,
    ) -> usize {
        let (tiling, sequence) = (self.tiling, self.sequence);
        let (keys, swapped) = ((&self.kv, head), (&self.swapped, head));
        let (width, padded) = (tiling.width, self.kv.padded());
        let scale = 1.0 / (width as f32).sqrt();
        let mut positions = [0; R];
        for (r, position) in positions.iter_mut().enumerate() {
            *position = tiling.place(head, pair + r).0;
        }
        let count = positions[R - 1] + 1;
        let stride = count.next_multiple_of(BLOCK);
        let (queries, grads) = (&mut buffers.queries, &mut buffers.grads);
        tiling.gather::<R>(sequence.queries, head, pair, scale, queries);
        tiling.gather::<R>(sequence.grad, head, pair, 1.0, grads);

        let mut weights = Weights {
            data: &mut buffers.weights[..R * stride],
            stride,
        };
        let sums = softmax_weights::<S, R>(simd, queries, &positions, keys, &mut weights);
        let mut scores = Weights {
            data: &mut buffers.scores[..R * stride],
            stride,
        };
        products::<S, R>(simd, grads, swapped, &mut scores);
        for (r, sum) in sums.into_iter().enumerate() {
            let start = tiling.place(head, pair + r).1;
            let columns = start..start + width;
            // Σ_j weight_j · ∂weight_j = ∂output · output
            let shared = dot(&sequence.grad[columns.clone()], &sequence.output[columns]);
            let inverse = 1.0 / sum;
            let rows = weights.row(r).iter_mut().zip(scores.row(r));
            for (weights, scores) in rows {
                for lane in 0..LANES {
                    weights[lane] *= inverse;
                    scores[lane] = weights[lane] * (scores[lane] - shared);
                }
            }
        }
        mix::<S, R>(simd, &scores, count, swapped, &mut buffers.mixed);
        let by_queries = &mut *self.gradients.queries;
        tiling.scatter(&buffers.mixed, head, pair, [scale; R], by_queries);
        spread::<S, R>(simd, &scores, count, queries, (padded, &mut buffers.keys));
        spread::<S, R>(simd, &weights, count, grads, (padded, &mut buffers.values));
        R
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::attention::{Attend, attend};
    use crate::kernels::tests::numbers;
    use pulp::{Scalar, Scalar128b, Scalar256b, Scalar512b};

    /// Forward and backward, with registers of 1, 4, 8 and 16 numbers and with those that
    /// this machine has, for heads that fill their last register and heads that do not.
    #[test]
    fn every_width_of_registers_gives_the_same_bits() {
        for (heads, kv_heads, width, length) in [
            (4, 2, 32, 70),
            (3, 1, 24, 13),
            (2, 2, 80, 3),
            (7, 1, 16, 65),
        ] {
            let (wide, narrow) = (length * heads * width, length * kv_heads * width);
            let (queries, grad) = (numbers(wide, 1), numbers(wide, 2));
            let (keys, values) = (numbers(narrow, 3), numbers(narrow, 4));
            let mut kv = KeyValues::new(kv_heads, width);
            kv.append(&keys, &values);
            let mut output = vec![0.0; wide];
            attend(&queries, 0, heads, &kv, &mut output);
            let sequence = Sequence {
                queries: &queries,
                keys: &keys,
                values: &values,
                output: &output,
                grad: &grad,
            };
            let mut found = [vec![0.0; wide], vec![0.0; narrow], vec![0.0; narrow]];
            let [by_queries, by_keys, by_values] = &mut found;
            let gradients = SequenceGradients {
                queries: by_queries,
                keys: by_keys,
                values: by_values,
            };
            attend_backward(sequence, heads, kv_heads, width, gradients);

            for registers in 0..4 {
                let mut again = [vec![0.0; wide], vec![0.0; narrow], vec![0.0; narrow]];
                let [by_queries, by_keys, by_values] = &mut again;
                let gradients = SequenceGradients {
                    queries: by_queries,
                    keys: by_keys,
                    values: by_values,
                };
                let derive = Derive::new(sequence, heads, kv_heads, width, gradients);
                let mut other = vec![0.0; wide];
                let attend = Attend::new(&queries, 0, heads, &kv, &mut other);
                match registers {
                    0 => (Scalar.vectorize(attend), Scalar.vectorize(derive)),
                    1 => (Scalar128b.vectorize(attend), Scalar128b.vectorize(derive)),
                    2 => (Scalar256b.vectorize(attend), Scalar256b.vectorize(derive)),
                    _ => (Scalar512b.vectorize(attend), Scalar512b.vectorize(derive)),
                };
                assert_eq!(other, output, "{heads} heads of {width}, {registers}");
                assert_eq!(again, found, "{heads} heads of {width}, {registers}");
            }
        }
    }
}
