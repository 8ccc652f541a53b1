//! The products of attention on a tile of up to four (row, head) pairs, register by register.
//! Every number is one chain of fused multiply-adds, so its bits depend neither on the width of
//! a register nor on the number of registers in use. The code uses registers explicitly, since
//! LLVM compiles loops over lanes to shuffles that cost more than the arithmetic.

use pulp::Simd;

use super::Lanes;
use crate::kernels::key_values::HEAD_WIDTH_MAX;
use crate::kernels::key_values::{BLOCK, KeyValues};

/// Up to four vectors of a head's width; elements beyond it are zero.
pub(super) type Vectors = [[f32; HEAD_WIDTH_MAX]; 4];

/// Zeros.
pub(super) const NO_VECTORS: Vectors = [[0.0; HEAD_WIDTH_MAX]; 4];

/// `R` rows of one weight per key, `stride` apart; reused from tile to tile.
pub(super) struct Weights<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) stride: usize,
}

impl Weights<'_> {
    /// The weights of one block of keys, row by row.
    #[inline(always)]
    fn block<const R: usize>(&self, block: usize) -> [&[f32; BLOCK]; R] {
        let mut rows = [&[0.0; BLOCK]; R];
        for (number, row) in rows.iter_mut().enumerate() {
            let start = number * self.stride + block * BLOCK;
            *row = self.data[start..start + BLOCK]
                .try_into()
                .expect("a block has BLOCK weights");
        }
        rows
    }

    /// One row, in whole lanes.
    #[inline(always)]
    pub(super) fn row(&mut self, row: usize) -> &mut [Lanes] {
        self.data[row * self.stride..(row + 1) * self.stride]
            .as_chunks_mut()
            .0
    }
}

/// Element `at` of each row.
#[inline(always)]
fn numbers<const R: usize, const N: usize>(rows: [&[f32; N]; R], at: usize) -> [f32; R] {
    rows.map(|row| row[at])
}

/// The first `R` vectors.
#[inline(always)]
fn first<const R: usize>(vectors: &Vectors) -> [&[f32; HEAD_WIDTH_MAX]; R] {
    let mut rows = [&vectors[0]; R];
    for (row, vector) in rows.iter_mut().zip(vectors) {
        *row = vector;
    }
    rows
}

/// sums\[r\]\[c\] += factors\[r\] · line\[c\].
#[inline(always)]
fn fuse<S: Simd, const R: usize, const C: usize>(
    simd: S,
    factors: [f32; R],
    line: &[S::f32s],
    sums: &mut [[S::f32s; C]; R],
) {
    for r in 0..R {
        let factor = simd.splat_f32s(factors[r]);
        for c in 0..C {
            sums[r][c] = simd.mul_add_f32s(factor, line[c], sums[r][c]);
        }
    }
}

/// Calls `$work::<…, C>(…, column)` for registers from 0 to `$registers`, as many at a time
/// as leave room for factors and lines beside `R` rows of sums.
macro_rules! by_registers {
    ($registers:expr, $r:ident, $s:ident, |$column:ident| $work:ident($($argument:expr),*)) => {
        let mut $column = 0;
        while $column < $registers {
            let left = $registers - $column;
            if left >= 4 && ($r <= 2 || $s::F32_LANES >= 16) {
                $work::<$s, $r, 4>($($argument),*);
                $column += 4;
            } else if left >= 2 {
                $work::<$s, $r, 2>($($argument),*);
                $column += 2;
            } else {
                $work::<$s, $r, 1>($($argument),*);
                $column += 1;
            }
        }
    };
}

/// weights\[r\]\[j\] = Σ_d vectors\[r\]\[d\] · key_j\[d\] for whole blocks of keys of one head.
#[inline(always)]
pub(super) fn products<S: Simd, const R: usize>(
    simd: S,
    vectors: &Vectors,
    (kv, head): (&KeyValues, usize),
    weights: &mut Weights<'_>,
) {
    let vectors = first::<R>(vectors);
    for block in 0..weights.stride / BLOCK {
        let keys = S::as_simd_f32s(kv.key_block(block, head)).0;
        by_registers!(BLOCK / S::F32_LANES, R, S, |column| block_products(
            simd,
            vectors,
            keys,
            (block, column),
            weights
        ));
    }
}

#[inline(always)]
fn block_products<S: Simd, const R: usize, const C: usize>(
    simd: S,
    vectors: [&[f32; HEAD_WIDTH_MAX]; R],
    keys: &[S::f32s],
    (block, column): (usize, usize),
    weights: &mut Weights<'_>,
) {
    let mut sums = [[simd.splat_f32s(0.0); C]; R];
    for (d, line) in keys.chunks_exact(BLOCK / S::F32_LANES).enumerate() {
        let factors = numbers(vectors, d % HEAD_WIDTH_MAX);
        fuse(simd, factors, &line[column..column + C], &mut sums);
    }
    for (r, sums) in sums.iter().enumerate() {
        let start = r * weights.stride + block * BLOCK;
        let row = S::as_mut_simd_f32s(&mut weights.data[start..start + BLOCK]).0;
        row[column..column + C].copy_from_slice(sums);
    }
}

/// mixed\[r\] = Σ_j weights\[r\]\[j\] · value_j over the first `count` keys, one after another.
#[inline(always)]
pub(super) fn mix<S: Simd, const R: usize>(
    simd: S,
    weights: &Weights<'_>,
    count: usize,
    (kv, head): (&KeyValues, usize),
    mixed: &mut Vectors,
) {
    by_registers!(kv.padded() / S::F32_LANES, R, S, |column| mix_columns(
        simd,
        weights,
        count,
        (kv, head),
        column,
        mixed
    ));
}

#[inline(always)]
fn mix_columns<S: Simd, const R: usize, const C: usize>(
    simd: S,
    weights: &Weights<'_>,
    count: usize,
    (kv, head): (&KeyValues, usize),
    column: usize,
    mixed: &mut Vectors,
) {
    let mut sums = [[simd.splat_f32s(0.0); C]; R];
    for block in 0..weights.stride / BLOCK {
        let values = S::as_simd_f32s(kv.value_block(block, head)).0;
        let weights = weights.block::<R>(block);
        let lines = values.chunks_exact(kv.padded() / S::F32_LANES);
        for (j, line) in lines.enumerate().take(BLOCK.min(count - block * BLOCK)) {
            let factors = numbers(weights, j % BLOCK);
            fuse(simd, factors, &line[column..column + C], &mut sums);
        }
    }
    for (row, sums) in mixed.iter_mut().zip(&sums) {
        S::as_mut_simd_f32s(row).0[column..column + C].copy_from_slice(sums);
    }
}

/// target_j += Σ_r weights\[r\]\[j\] · vectors\[r\] for the first `count` keys; a row of `target`
/// has `padded` numbers.
#[inline(always)]
pub(super) fn spread<S: Simd, const R: usize>(
    simd: S,
    weights: &Weights<'_>,
    count: usize,
    vectors: &Vectors,
    (padded, target): (usize, &mut [f32]),
) {
    let registers = padded / S::F32_LANES;
    let target = S::as_mut_simd_f32s(target).0;
    by_registers!(registers, R, S, |column| spread_columns(
        simd,
        weights,
        count,
        vectors,
        column,
        (registers, target)
    ));
}

#[inline(always)]
fn spread_columns<S: Simd, const R: usize, const C: usize>(
    simd: S,
    weights: &Weights<'_>,
    count: usize,
    vectors: &Vectors,
    column: usize,
    (registers, target): (usize, &mut [S::f32s]),
) {
    // By index: a copy of slices would leave them in memory instead of registers, and a chain of
    // iterators may stay a call.
    let mut rows = [[simd.splat_f32s(0.0); C]; R];
    for r in 0..R {
        let vector = &S::as_simd_f32s(&vectors[r]).0[column..column + C];
        #[expect(clippy::manual_memcpy)]
        for c in 0..C {
            rows[r][c] = vector[c];
        }
    }
    let blocks = target.chunks_mut(BLOCK * registers);
    for (block, lines) in blocks.enumerate().take(weights.stride / BLOCK) {
        let weights = weights.block::<R>(block);
        let lines = lines.chunks_exact_mut(registers);
        for (j, line) in lines.enumerate().take(BLOCK.min(count - block * BLOCK)) {
            let mut factors = [simd.splat_f32s(0.0); R];
            for r in 0..R {
                factors[r] = simd.splat_f32s(weights[r][j % BLOCK]);
            }
            let line = &mut line[column..column + C];
            for c in 0..C {
                for r in 0..R {
                    line[c] = simd.mul_add_f32s(factors[r], rows[r][c], line[c]);
                }
            }
        }
    }
}
