//! The products of attention on a tile of up to four (row, head) pairs, register by register.
//! Every number is one chain of fused multiply-adds, so its bits depend neither on the width of
//! a register nor on the number of registers in use. The code uses registers explicitly, since
//! LLVM compiles loops over lanes to shuffles that cost more than the arithmetic, and innermost loops
//! are without iterators: one that stays a call has every sum written to memory for it.

use pulp::Simd;

use super::{Lanes, fetch};
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
    let blocks = weights.stride / BLOCK;
    for block in 0..blocks {
        let keys = S::as_simd_f32s(kv.key_block(block, head)).0;
        let next = kv.key_block((block + 1).min(blocks - 1), head).as_ptr();
        by_registers!(BLOCK / S::F32_LANES, R, S, |column| block_products(
            simd,
            vectors,
            (keys, next),
            (block, column),
            weights
        ));
    }
}

#[inline(always)]
fn block_products<S: Simd, const R: usize, const C: usize>(
    simd: S,
    vectors: [&[f32; HEAD_WIDTH_MAX]; R],
    (keys, next): (&[S::f32s], *const f32),
    (block, column): (usize, usize),
    weights: &mut Weights<'_>,
) {
    let mut sums = [[simd.splat_f32s(0.0); C]; R];
    let registers = BLOCK / S::F32_LANES;
    let (mut d, width) = (0, keys.len() / registers);
    while d < width {
        let at = d * registers + column;
        // Each block is memory of its own, which no processor expects.
        for c in 0..C {
            fetch::<true>(next.wrapping_add((at + c) * S::F32_LANES));
        }
        fuse(
            simd,
            numbers(vectors, d % HEAD_WIDTH_MAX),
            &keys[at..at + C],
            &mut sums,
        );
        d += 1;
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
    let (blocks, registers) = (weights.stride / BLOCK, kv.padded() / S::F32_LANES);
    for block in 0..blocks {
        let values = S::as_simd_f32s(kv.value_block(block, head)).0;
        let next = kv.value_block((block + 1).min(blocks - 1), head).as_ptr();
        let weights = weights.block::<R>(block);
        let keys = BLOCK.min(count - block * BLOCK);
        let mut j = 0;
        while j < keys {
            let at = j * registers + column;
            for c in 0..C {
                fetch::<true>(next.wrapping_add((at + c) * S::F32_LANES));
            }
            let factors = numbers(weights, j % BLOCK);
            fuse(simd, factors, &values[at..at + C], &mut sums);
            j += 1;
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
    // By index: a copy of slices would leave them in memory instead of registers.
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
        let keys = BLOCK.min(count - block * BLOCK);
        let mut j = 0;
        while j < keys {
            let mut factors = [simd.splat_f32s(0.0); R];
            for r in 0..R {
                factors[r] = simd.splat_f32s(weights[r][j % BLOCK]);
            }
            let line = &mut lines[j * registers + column..][..C];
            for c in 0..C {
                for r in 0..R {
                    line[c] = simd.mul_add_f32s(factors[r], rows[r][c], line[c]);
                }
            }
            j += 1;
        }
    }
}
