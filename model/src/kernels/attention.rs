//! Causal attention of query rows over one sequence's keys and values.
//!
//! The result of a (query row, head) is a function of that query and of the keys
//! and values up to its own position, in ascending order: scores are one chain of
//! multiply-adds over the head's width, the maximum is exact, exponentials are
//! summed over sixteen fixed lanes, values are mixed key by key. Decoding a token,
//! prefilling it and scoring it are this same code, hence the same bits.
//!
//! Keys are kept across (`[width][64]` per block), so that a query meets 64 keys
//! at a time without a reduction; values are kept along (`[64][width]`). Up to
//! four (row, head) pairs that share a key head go through a block together.

use super::{LANES, Lanes, exp, fused_rows, lines, max_lanes, sum_lanes, vectorised};

/// Keys per block.
pub(crate) const BLOCK: usize = 64;

/// Keys and values of one sequence in one layer, in blocks of [`BLOCK`] positions.
#[derive(Debug, Clone)]
pub(crate) struct KeyValues {
    heads: usize,
    width: usize,
    /// Head width rounded up to whole lanes; the rest is zero.
    padded: usize,
    length: usize,
    /// `[block][head][width][BLOCK]`
    keys: Vec<f32>,
    /// `[block][head][BLOCK][padded]`
    values: Vec<f32>,
}

impl KeyValues {
    /// No positions yet, for `heads` key heads of `width` numbers.
    pub(crate) fn new(heads: usize, width: usize) -> Self {
        let padded = width.next_multiple_of(LANES);
        KeyValues {
            heads,
            width,
            padded,
            length: 0,
            keys: Vec::new(),
            values: Vec::new(),
        }
    }

    /// How many positions are held.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Head width rounded up to whole lanes.
    pub(super) fn padded(&self) -> usize {
        self.padded
    }

    /// Adds positions; both slices are rows of `heads · width`.
    pub(crate) fn append(&mut self, keys: &[f32], values: &[f32]) {
        let row_width = self.heads * self.width;
        let blocks = (self.length + keys.len() / row_width).div_ceil(BLOCK);
        self.keys.resize(blocks * row_width * BLOCK, 0.0);
        self.values
            .resize(blocks * self.heads * self.padded * BLOCK, 0.0);
        for (key, value) in keys
            .chunks_exact(row_width)
            .zip(values.chunks_exact(row_width))
        {
            let (block, slot) = (self.length / BLOCK, self.length % BLOCK);
            for head in 0..self.heads {
                let columns = head * self.width..(head + 1) * self.width;
                let place = block * self.heads + head;
                let lines = &mut self.keys[place * self.width * BLOCK..][..self.width * BLOCK];
                for (line, &x) in lines.chunks_exact_mut(BLOCK).zip(&key[columns.clone()]) {
                    line[slot] = x;
                }
                let start = (place * BLOCK + slot) * self.padded;
                self.values[start..start + self.width].copy_from_slice(&value[columns]);
            }
            self.length += 1;
        }
    }

    /// A copy of the first `length` positions, of which there are as many.
    pub(crate) fn first(&self, length: usize) -> Self {
        let blocks = length.div_ceil(BLOCK);
        // What the last block holds beyond them is never read: attention masks it,
        // and appending overwrites it.
        let keys = self.keys[..blocks * self.heads * self.width * BLOCK].to_vec();
        let values = self.values[..blocks * self.heads * self.padded * BLOCK].to_vec();
        KeyValues {
            length,
            keys,
            values,
            ..*self
        }
    }

    #[inline(always)]
    fn key_block(&self, block: usize, head: usize) -> &[f32] {
        &self.keys[(block * self.heads + head) * self.width * BLOCK..][..self.width * BLOCK]
    }

    #[inline(always)]
    fn value_block(&self, block: usize, head: usize) -> &[f32] {
        &self.values[(block * self.heads + head) * self.padded * BLOCK..][..self.padded * BLOCK]
    }
}

/// `R` rows of one weight per key, `stride` apart; reused from tile to tile.
pub(super) struct Weights<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) stride: usize,
}

impl Weights<'_> {
    /// The weights of one block of keys, row by row.
    #[inline(always)]
    pub(super) fn block<const R: usize>(&self, block: usize) -> [&[f32; BLOCK]; R] {
        let mut rows = [&[0.0; BLOCK]; R];
        for (number, row) in rows.iter_mut().enumerate() {
            let start = number * self.stride + block * BLOCK;
            *row = self.data[start..start + BLOCK]
                .try_into()
                .expect("a block has BLOCK weights");
        }
        rows
    }

    #[inline(always)]
    pub(super) fn row(&mut self, row: usize) -> &mut [Lanes] {
        self.data[row * self.stride..(row + 1) * self.stride]
            .as_chunks_mut::<LANES>()
            .0
    }
}

/// weights\[r\]\[j\] = Σ_d vectors\[d\]\[r\] · key_j\[d\] for whole blocks of keys.
#[inline(always)]
pub(super) fn products<const R: usize>(
    vectors: &[[f32; R]],
    kv: &KeyValues,
    head: usize,
    weights: &mut Weights<'_>,
) {
    // Eight sums at a time hide the latency of the additions.
    if R <= 2 {
        products_by::<R, 4>(vectors, kv, head, weights);
    } else {
        products_by::<R, 2>(vectors, kv, head, weights);
    }
}

#[inline(always)]
fn products_by<const R: usize, const C: usize>(
    vectors: &[[f32; R]],
    kv: &KeyValues,
    head: usize,
    weights: &mut Weights<'_>,
) {
    for block in 0..weights.stride / BLOCK {
        let keys = kv.key_block(block, head);
        for part in 0..BLOCK / (C * LANES) {
            let mut sums = [[[0.0; LANES]; C]; R];
            for (vector, line) in vectors.iter().zip(keys.chunks_exact(BLOCK)) {
                fused_rows(*vector, lines(&line[part * C * LANES..]), &mut sums);
            }
            for (r, sums) in sums.iter().enumerate() {
                let start = r * weights.stride + block * BLOCK + part * C * LANES;
                weights.data[start..start + C * LANES].copy_from_slice(sums.as_flattened());
            }
        }
    }
}

/// Unnormalised softmax weights exp(score − max) of `R` queries, zero after each
/// query's own position; returns their sums.
#[inline(always)]
pub(super) fn softmax_weights<const R: usize>(
    queries: &[[f32; R]],
    positions: &[usize; R],
    kv: &KeyValues,
    head: usize,
    weights: &mut Weights<'_>,
) -> [f32; R] {
    products(queries, kv, head, weights);
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

/// Σ_j weights\[r\]\[j\] · value_j, key by key, for `C` registers from `column` on.
#[inline(always)]
pub(super) fn mix<const R: usize, const C: usize>(
    weights: &Weights<'_>,
    keys: usize,
    kv: &KeyValues,
    head: usize,
    column: usize,
) -> [[Lanes; C]; R] {
    let mut sums = [[[0.0; LANES]; C]; R];
    for block in 0..weights.stride / BLOCK {
        let values = kv.value_block(block, head);
        let weights = weights.block::<R>(block);
        let count = BLOCK.min(keys - block * BLOCK);
        for (j, value) in values.chunks_exact(kv.padded).enumerate().take(count) {
            fused_rows(at(&weights, j), lines(&value[column..]), &mut sums);
        }
    }
    sums
}

/// Weight `j` of each row.
#[inline(always)]
pub(super) fn at<const R: usize>(weights: &[&[f32; BLOCK]; R], j: usize) -> [f32; R] {
    let mut own = [0.0; R];
    for (own, weights) in own.iter_mut().zip(weights) {
        *own = weights[j];
    }
    own
}

/// Which (row, head) pairs of a segment form a tile.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    /// Query heads.
    pub(super) heads: usize,
    /// Query heads that share a key head.
    pub(super) group: usize,
    /// Numbers per head.
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

    /// `R` vectors of the pairs from `first` on, transposed to \[width\]\[R\].
    #[inline(always)]
    pub(super) fn gather<const R: usize>(
        &self,
        rows: &[f32],
        head: usize,
        first: usize,
        scale: f32,
        vectors: &mut [[f32; R]],
    ) {
        for r in 0..R {
            let start = self.place(head, first + r).1;
            for (vector, x) in vectors.iter_mut().zip(&rows[start..start + self.width]) {
                vector[r] = x * scale;
            }
        }
    }
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
    let tiling = Tiling {
        heads,
        group: heads / kv.heads,
        width: kv.width,
    };
    let pairs = queries.len() / (heads * kv.width) * tiling.group;
    let longest = kv.length.next_multiple_of(BLOCK);
    let mut scratch = vec![0.0; 4 * longest];
    let scratch = scratch.as_mut_slice();
    for head in 0..kv.heads {
        vectorised(
            #[inline(always)]
            || {
                let mut pair = 0;
                while pair < pairs {
                    let left = pairs - pair;
                    let at = (head, pair, first_position);
                    pair += if left >= 4 {
                        attend_tile::<4>(queries, tiling, at, kv, scratch, output)
                    } else if left >= 2 {
                        attend_tile::<2>(queries, tiling, at, kv, scratch, output)
                    } else {
                        attend_tile::<1>(queries, tiling, at, kv, scratch, output)
                    };
                }
            },
        );
    }
}

#[inline(always)]
fn attend_tile<const R: usize>(
    queries: &[f32],
    tiling: Tiling,
    (head, pair, first_position): (usize, usize, usize),
    kv: &KeyValues,
    scratch: &mut [f32],
    output: &mut [f32],
) -> usize {
    let mut positions = [first_position; R];
    for (r, position) in positions.iter_mut().enumerate() {
        *position += tiling.place(head, pair + r).0;
    }
    let keys = positions[R - 1] + 1;
    let mut vectors = [[0.0; R]; 256];
    let vectors = &mut vectors[..tiling.width];
    tiling.gather(
        queries,
        head,
        pair,
        1.0 / (tiling.width as f32).sqrt(),
        vectors,
    );
    let stride = keys.next_multiple_of(BLOCK);
    let mut weights = Weights {
        data: &mut scratch[..R * stride],
        stride,
    };
    let sums = softmax_weights(vectors, &positions, kv, head, &mut weights);
    let mut column = 0;
    while column < tiling.width {
        if kv.padded - column >= 2 * LANES {
            let mixed = mix::<R, 2>(&weights, keys, kv, head, column);
            write_rows(&mixed, &sums, tiling, (head, pair), column, output);
            column += 2 * LANES;
        } else {
            let mixed = mix::<R, 1>(&weights, keys, kv, head, column);
            write_rows(&mixed, &sums, tiling, (head, pair), column, output);
            column += LANES;
        }
    }
    R
}

#[inline(always)]
fn write_rows<const R: usize, const C: usize>(
    mixed: &[[Lanes; C]; R],
    sums: &[f32; R],
    tiling: Tiling,
    (head, pair): (usize, usize),
    column: usize,
    output: &mut [f32],
) {
    for (r, mixed) in mixed.iter().enumerate() {
        let start = tiling.place(head, pair + r).1;
        let columns = column..tiling.width.min(column + C * LANES);
        let inverse = 1.0 / sums[r];
        for (y, x) in output[start + columns.start..start + columns.end]
            .iter_mut()
            .zip(mixed.as_flattened())
        {
            *y = x * inverse;
        }
    }
}
