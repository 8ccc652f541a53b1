//! Causal attention of query rows over one sequence's keys and values.
//!
//! The result of a (query row, head) is a function of that query and of the keys and values up to
//! its own position, in ascending order: scores are one chain of multiply-adds over the head's
//! width, the maximum is exact, exponentials are summed over sixteen fixed lanes, values are mixed
//! key by key. Decode, prefill and scoring run this same code, and therefore give the same bits.
//!
//! Keys are stored transposed (`[width][64]` per block), so that a query is multiplied with
//! 64 keys at a time without a reduction; values are stored row by row (`[64][width]`). Up
//! to four (row, head) pairs that share a key head go through a block together.

use super::tile::{NO_VECTORS, Vectors, Weights, mix, products};
use super::{LANES, exp, max_lanes, sum_lanes};
use crate::kernels::key_values::BLOCK;
use crate::kernels::key_values::KeyValues;
use pulp::{Simd, WithSimd};

/// Unnormalised softmax weights exp(score − max) of `R` queries, zero after each
/// query's own position; returns their sums.
#[inline(always)]
pub(super) fn softmax_weights<S: Simd, const R: usize>(
    simd: S,
    queries: &Vectors,
    positions: &[usize; R],
    keys: (&KeyValues, usize),
    weights: &mut Weights<'_>,
) -> [f32; R] {
    products::<S, R>(simd, queries, keys, weights);
    let mut totals = [0.0; R];
    for r in 0..R {
        let start = r * weights.stride;
        weights.data[start + positions[r] + 1..start + weights.stride].fill(f32::NEG_INFINITY);
        let row = weights.row(r);
        let mut max = [f32::NEG_INFINITY; LANES];
        for chunk in row.iter() {
            for lane in 0..LANES {
                max[lane] = if chunk[lane] > max[lane] {
                    chunk[lane]
                } else {
                    max[lane]
                };
            }
        }
        let max = max_lanes(&max);
        let mut sums = [0.0; LANES];
        for chunk in row.iter_mut() {
            for lane in 0..LANES {
                chunk[lane] = exp(chunk[lane] - max);
                sums[lane] += chunk[lane];
            }
        }
        totals[r] = sum_lanes(&sums);
    }
    totals
}

/// Which (row, head) pairs of a segment form a tile.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    /// Query heads.
    pub(super) heads: usize,
    /// Query heads that share a key head.
    pub(super) group: usize,
    /// Elements per head.
    pub(super) width: usize,
}

impl Tiling {
    /// Row and first column of pair number `pair` of key head `head`.
    #[inline(always)]
    pub(super) fn place(&self, head: usize, pair: usize) -> (usize, usize) {
        let row = pair / self.group;
        (
            row,
            row * self.heads * self.width + (head * self.group + pair % self.group) * self.width,
        )
    }

    /// `R` vectors of the pairs from `first` on.
    #[inline(always)]
    pub(super) fn gather<const R: usize>(
        &self,
        rows: &[f32],
        head: usize,
        first: usize,
        scale: f32,
        vectors: &mut Vectors,
    ) {
        for (r, vector) in vectors.iter_mut().enumerate().take(R) {
            let start = self.place(head, first + r).1;
            for (y, x) in vector.iter_mut().zip(&rows[start..start + self.width]) {
                *y = x * scale;
            }
        }
    }

    /// The inverse of [`Tiling::gather`]: vector `r` times `scales[r]`.
    #[inline(always)]
    pub(super) fn scatter<const R: usize>(
        &self,
        vectors: &Vectors,
        head: usize,
        first: usize,
        scales: [f32; R],
        rows: &mut [f32],
    ) {
        for (r, (vector, scale)) in vectors.iter().zip(scales).enumerate() {
            let start = self.place(head, first + r).1;
            for (y, x) in rows[start..start + self.width].iter_mut().zip(vector) {
                *y = x * scale;
            }
        }
    }
}

/// Buffers of a tile, reused from tile to tile.
struct Scratch {
    queries: Vectors,
    mixed: Vectors,
    weights: Vec<f32>,
}

/// Attention of the rows of `queries` (`heads` heads each), the first of them at
/// position `first_position`, over `kv`, which already holds their own keys.
pub(crate) fn attend(
    queries: &[f32],
    first_position: usize,
    heads: usize,
    kv: &KeyValues,
    output: &mut [f32],
) {
    let attend = Attend::new(queries, first_position, heads, kv, output);
    pulp::Arch::new().dispatch(attend);
}

pub(super) struct Attend<'a> {
    queries: &'a [f32],
    first_position: usize,
    tiling: Tiling,
    kv: &'a KeyValues,
    output: &'a mut [f32],
}

impl WithSimd for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let tiling = self.tiling;
        let pairs = self.queries.len() / (tiling.heads * tiling.width) * tiling.group;
        let longest = self.kv.length.next_multiple_of(BLOCK);
        let scratch = &mut Scratch {
            queries: NO_VECTORS,
            mixed: NO_VECTORS,
            weights: vec![0.0; 4 * longest],
        };
        for head in 0..self.kv.heads {
            let mut pair = 0;
            while pair < pairs {
                pair += match pairs - pair {
                    4.. => self.tile::<S, 4>(simd, (head, pair), scratch),
                    2.. => self.tile::<S, 2>(simd, (head, pair), scratch),
                    _ => self.tile::<S, 1>(simd, (head, pair), scratch),
                };
            }
        }
    }
}

impl<'a> Attend<'a> {
    pub(super) fn new(
        queries: &'a [f32],
        first_position: usize,
        heads: usize,
        kv: &'a KeyValues,
        output: &'a mut [f32],
    ) -> Self {
        Attend {
            queries,
            first_position,
            tiling: Tiling {
                heads,
                group: heads / kv.heads,
                width: kv.width,
            },
            kv,
            output,
        }
    }

    /// Computes `R` pairs of key head `head`; returns `R`.
    #[inline(always)]
    fn tile<S: Simd, const R: usize>(
        &mut self,
        simd: S,
        (head, pair): (usize, usize),
        scratch: &mut Scratch,
    ) -> usize {
        let (tiling, keys) = (self.tiling, (self.kv, head));
        let mut positions = [self.first_position; R];
        for (r, position) in positions.iter_mut().enumerate() {
            *position += tiling.place(head, pair + r).0;
        }
        let count = positions[R - 1] + 1;
        let scale = 1.0 / (tiling.width as f32).sqrt();
        tiling.gather::<R>(self.queries, head, pair, scale, &mut scratch.queries);
        let stride = count.next_multiple_of(BLOCK);
        let mut weights = Weights {
            data: &mut scratch.weights[..R * stride],
            stride,
        };
        let sums = softmax_weights::<S, R>(simd, &scratch.queries, &positions, keys, &mut weights);
        mix::<S, R>(simd, &weights, count, keys, &mut scratch.mixed);
        let scales = sums.map(|sum| 1.0 / sum);
        tiling.scatter(&scratch.mixed, head, pair, scales, self.output);
        R
    }
}
