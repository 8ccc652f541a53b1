//! Derivative of causal attention over whole sequences, or over a tree of them. The weights are
//! recomputed from queries and keys instead of being kept: they would need length² numbers. Sums
//! over query rows run in ascending order of the rows.

use pulp::{Simd, WithSimd};

use super::attention::{Tiling, softmax_weights};
use super::tile::{NO_VECTORS, Vectors, Weights, mix, products, spread};
use super::{LANES, dot};
use crate::kernels::key_values::{BLOCK, KeyValues};

/// A run of rows that continues the path of the segments before it, cut at `past` positions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) past: usize,
    pub(crate) rows: usize,
}

/// The rows of all segments, of heads · width numbers.
#[derive(Clone, Copy)]
pub(crate) struct AttentionRows<'a> {
    pub(crate) queries: &'a [f32],
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    /// The output of the forward pass.
    pub(crate) output: &'a [f32],
    /// Derivative of the loss by `output`.
    pub(crate) grad: &'a [f32],
}

/// Derivatives by queries, keys and values, to be written.
pub(crate) struct AttentionGradients<'a> {
    pub(crate) queries: &'a mut [f32],
    pub(crate) keys: &'a mut [f32],
    pub(crate) values: &'a mut [f32],
}

/// Back-propagates `rows.grad` through [`super::attention::attend`].
pub(crate) fn attend_backward(
    segments: &[Segment],
    rows: AttentionRows<'_>,
    (heads, kv_heads, width): (usize, usize, usize),
    gradients: AttentionGradients<'_>,
) {
    let derive = Derive::new(segments, rows, (heads, kv_heads, width), gradients);
    pulp::Arch::new().dispatch(derive);
}

struct Derive<'a> {
    segments: &'a [Segment],
    rows: AttentionRows<'a>,
    tiling: Tiling,
    /// Of the current segment's path.
    kv: KeyValues,
    /// Values transposed and keys row by row, for ∂weights and ∂queries with the same kernels.
    swapped: KeyValues,
    gradients: AttentionGradients<'a>,
}

/// Derivatives by the keys and values of the current segment's path, and buffers of one tile.
struct Buffers {
    /// The row of each position of the path.
    path: Vec<usize>,
    /// `[key head][longest path][padded]`
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Length of the longest path.
    longest: usize,
    /// Of one tile: its queries, ∂output and ∂queries, softmax weights and the derivative
    /// by the scores.
    queries: Vectors,
    grads: Vectors,
    mixed: Vectors,
    weights: Vec<f32>,
    scores: Vec<f32>,
}

/// The tile whose first pair is number `pair` of key head `head` in a segment, which begins at
/// `row` after `past` positions.
#[derive(Clone, Copy)]
struct Place {
    head: usize,
    pair: usize,
    row: usize,
    past: usize,
}

impl WithSimd for Derive<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (tiling, padded) = (self.tiling, self.kv.padded());
        let kv_heads = tiling.heads / tiling.group;
        let ends = self.segments.iter().map(|s| s.past + s.rows);
        let longest = ends.max().unwrap_or(0);
        let stride = longest.next_multiple_of(BLOCK);
        let mut buffers = Buffers {
            path: Vec::with_capacity(longest),
            keys: vec![0.0; kv_heads * longest * padded],
            values: vec![0.0; kv_heads * longest * padded],
            longest,
            queries: NO_VECTORS,
            grads: NO_VECTORS,
            mixed: NO_VECTORS,
            weights: vec![0.0; 4 * stride],
            scores: vec![0.0; 4 * stride],
        };
        let narrow = kv_heads * tiling.width;
        let mut row = 0;
        for &Segment { past, rows } in self.segments {
            self.leave(past, &mut buffers);
            let columns = row * narrow..(row + rows) * narrow;
            let (keys, values) = (&self.rows.keys[columns.clone()], &self.rows.values[columns]);
            self.kv.append(keys, values);
            self.swapped.append(values, keys);
            buffers.path.extend(row..row + rows);
            let pairs = rows * tiling.group;
            for head in 0..kv_heads {
                let mut place = Place {
                    head,
                    pair: 0,
                    row,
                    past,
                };
                while place.pair < pairs {
                    place.pair += match pairs - place.pair {
                        4.. => self.tile::<S, 4>(simd, place, &mut buffers),
                        2.. => self.tile::<S, 2>(simd, place, &mut buffers),
                        _ => self.tile::<S, 1>(simd, place, &mut buffers),
                    };
                }
            }
            row += rows;
        }
        self.leave(0, &mut buffers);
    }
}

impl<'a> Derive<'a> {
    fn new(
        segments: &'a [Segment],
        rows: AttentionRows<'a>,
        (heads, kv_heads, width): (usize, usize, usize),
        gradients: AttentionGradients<'a>,
    ) -> Self {
        Derive {
            segments,
            rows,
            tiling: Tiling {
                heads,
                group: heads / kv_heads,
                width,
            },
            kv: KeyValues::new(kv_heads, width),
            swapped: KeyValues::new(kv_heads, width),
            gradients,
        }
    }

    /// Cuts the path at `past` positions: nothing further depends on those after them, so their
    /// derivatives are complete.
    fn leave(&mut self, past: usize, buffers: &mut Buffers) {
        let (width, padded) = (self.tiling.width, self.kv.padded());
        let kv_heads = self.tiling.heads / self.tiling.group;
        for (position, &row) in buffers.path.iter().enumerate().skip(past) {
            for head in 0..kv_heads {
                let from = (head * buffers.longest + position) * padded;
                let to = (row * kv_heads + head) * width;
                for (buffer, target) in [
                    (&mut buffers.keys, &mut *self.gradients.keys),
                    (&mut buffers.values, &mut *self.gradients.values),
                ] {
                    target[to..to + width].copy_from_slice(&buffer[from..from + width]);
                    buffer[from..from + padded].fill(0.0);
                }
            }
        }
        buffers.path.truncate(past);
        self.kv.truncate(past);
        self.swapped.truncate(past);
    }

    /// Computes `R` pairs of key head `head`; returns `R`.
    #[inline(always)]
    fn tile<S: Simd, const R: usize>(
        &mut self,
        simd: S,
        place: Place,
        buffers: &mut Buffers,
    ) -> usize {
        let Place { head, pair, .. } = place;
        let tiling = self.tiling;
        let (keys, swapped) = ((&self.kv, head), (&self.swapped, head));
        let (width, padded) = (tiling.width, self.kv.padded());
        let first = place.row * tiling.heads * width;
        let [from, output, grad] =
            [self.rows.queries, self.rows.output, self.rows.grad].map(|rows| &rows[first..]);
        let scale = 1.0 / (width as f32).sqrt();
        let mut positions = [place.past; R];
        for (r, position) in positions.iter_mut().enumerate() {
            *position += tiling.place(head, pair + r).0;
        }
        let count = positions[R - 1] + 1;
        let stride = count.next_multiple_of(BLOCK);
        let (queries, grads) = (&mut buffers.queries, &mut buffers.grads);
        tiling.gather::<R>(from, head, pair, scale, queries);
        tiling.gather::<R>(grad, head, pair, 1.0, grads);

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
            let shared = dot(&grad[columns.clone()], &output[columns]);
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
        let by_queries = &mut self.gradients.queries[first..];
        tiling.scatter(&buffers.mixed, head, pair, [scale; R], by_queries);
        let own = head * buffers.longest * padded..(head + 1) * buffers.longest * padded;
        let (by_keys, by_values) = (&mut buffers.keys[own.clone()], &mut buffers.values[own]);
        spread::<S, R>(simd, &scores, count, queries, (padded, by_keys));
        spread::<S, R>(simd, &weights, count, grads, (padded, by_values));
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
            let rows = AttentionRows {
                queries: &queries,
                keys: &keys,
                values: &values,
                output: &output,
                grad: &grad,
            };
            let (past, sizes) = (0, (heads, kv_heads, width));
            let segments = [Segment { past, rows: length }];
            let derive = |found: &mut [Vec<f32>; 3], with: &dyn Fn(Derive<'_>)| {
                let [by_queries, by_keys, by_values] = found;
                let gradients = AttentionGradients {
                    queries: by_queries,
                    keys: by_keys,
                    values: by_values,
                };
                with(Derive::new(&segments, rows, sizes, gradients));
            };
            let mut found = [vec![0.0; wide], vec![0.0; narrow], vec![0.0; narrow]];
            derive(&mut found, &|derive| pulp::Arch::new().dispatch(derive));

            for registers in 0..4 {
                let mut again = [vec![0.0; wide], vec![0.0; narrow], vec![0.0; narrow]];
                let mut other = vec![0.0; wide];
                let attend = Attend::new(&queries, 0, heads, &kv, &mut other);
                match registers {
                    0 => Scalar.vectorize(attend),
                    1 => Scalar128b.vectorize(attend),
                    2 => Scalar256b.vectorize(attend),
                    _ => Scalar512b.vectorize(attend),
                }
                derive(&mut again, &|derive| match registers {
                    0 => Scalar.vectorize(derive),
                    1 => Scalar128b.vectorize(derive),
                    2 => Scalar256b.vectorize(derive),
                    _ => Scalar512b.vectorize(derive),
                });
                assert_eq!(other, output, "{heads} heads of {width}, {registers}");
                assert_eq!(again, found, "{heads} heads of {width}, {registers}");
            }
        }
    }
}
