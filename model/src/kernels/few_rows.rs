//! Products of a few dozen rows with a matrix, as decode computes them for every weight. Memory
//! bounds those of up to some eight rows, and none is worth a copy of the weight, so it is read
//! once, along its rows; a kernel for large products goes down its columns, one page of memory
//! further with every step.
//!
//! The order of additions is [`super::matmul`]'s.

use crate::kernels::fetch;
use pulp::{Simd, WithSimd};
use std::ops::Range;

/// Longest piece of k that one call sums; later pieces are added to the output.
pub(super) const K_PIECE: usize = 512;

/// Columns that are processed together: the sums of eight rows take half of a first cache of 32 KB,
/// those of more rows a part of a second one.
const fn strip(rows: usize) -> usize {
    if rows <= 8 { 512 } else { 256 }
}

/// Rows of the matrix that are read together.
const TOGETHER: usize = 4;

/// `output = a·b`, or `output += a·b`, of contiguous row-major matrices and some columns of b, which
/// are all of the output.
pub(super) struct FewRows<'a> {
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
    pub(super) rows: usize,
    /// Numbers of a row of b.
    pub(super) width: usize,
    pub(super) columns: Range<usize>,
    pub(super) output: &'a mut [f32],
    pub(super) accumulate: bool,
}

impl WithSimd for FewRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let inner = self.a.len() / self.rows;
        let strip = strip(self.rows);
        let mut sums = vec![0.0; self.rows * strip];
        for start in self.columns.clone().step_by(strip) {
            let width = strip.min(self.columns.end - start);
            for piece in (0..inner).step_by(K_PIECE) {
                sums.fill(0.0);
                let end = inner.min(piece + K_PIECE);
                let mut k = piece;
                while k < end {
                    k += if end - k >= TOGETHER {
                        self.lines::<S, TOGETHER>(simd, k, start, width, &mut sums)
                    } else {
                        self.lines::<S, 1>(simd, k, start, width, &mut sums)
                    };
                }
                self.write(start, width, &sums, self.accumulate || piece > 0);
            }
        }
    }
}

impl FewRows<'_> {
    /// Adds the products with `K` rows of the matrix from row `k` on; returns `K`.
    #[inline(always)]
    fn lines<S: Simd, const K: usize>(
        &self,
        simd: S,
        k: usize,
        start: usize,
        width: usize,
        sums: &mut [f32],
    ) -> usize {
        let mut lines = [&self.b[..0]; K];
        for (number, line) in lines.iter_mut().enumerate() {
            let first = (k + number) * self.width + start;
            *line = &self.b[first..first + width];
        }
        let mut row = 0;
        while row < self.rows {
            let sums = &mut sums[row * strip(self.rows)..];
            row += match self.rows - row {
                4.. => self.fuse::<S, 4, K>(simd, (row, k), lines, sums),
                2.. => self.fuse::<S, 2, K>(simd, (row, k), lines, sums),
                _ => self.fuse::<S, 1, K>(simd, (row, k), lines, sums),
            };
        }
        K
    }

    /// The same for `R` rows of sums from row `row` on; returns `R`.
    #[inline(always)]
    fn fuse<S: Simd, const R: usize, const K: usize>(
        &self,
        simd: S,
        (row, k): (usize, usize),
        lines: [&[f32]; K],
        sums: &mut [f32],
    ) -> usize {
        let (inner, strip) = (self.a.len() / self.rows, strip(self.rows));
        let mut factors = [[0.0; K]; R];
        for (r, factors) in factors.iter_mut().enumerate() {
            factors.copy_from_slice(&self.a[(row + r) * inner + k..][..K]);
        }
        let mut splats = [[simd.splat_f32s(0.0); K]; R];
        for r in 0..R {
            for i in 0..K {
                splats[r][i] = simd.splat_f32s(factors[r][i]);
            }
        }
        let registers = lines[0].len() / S::F32_LANES;
        let mut wide = [S::as_simd_f32s(lines[0]).0; K];
        for (wide, line) in wide.iter_mut().zip(lines) {
            *wide = &S::as_simd_f32s(line).0[..registers];
        }
        let places = S::as_mut_simd_f32s(&mut sums[..R * strip]).0;
        // A strip of a row is no longer than a page, at whose end the processor's own foresight ends.
        let next = K * self.width * size_of::<f32>();
        for c in 0..registers {
            let mut line = [simd.splat_f32s(0.0); K];
            for i in 0..K {
                line[i] = wide[i][c];
                if row == 0 {
                    fetch::<false>(
                        wide[i]
                            .as_ptr()
                            .wrapping_add(c)
                            .wrapping_byte_add(next)
                            .cast(),
                    );
                }
            }
            for r in 0..R {
                let place = &mut places[r * (strip / S::F32_LANES) + c];
                let mut sum = *place;
                for i in 0..K {
                    sum = simd.mul_add_f32s(splats[r][i], line[i], sum);
                }
                *place = sum;
            }
        }
        for c in registers * S::F32_LANES..lines[0].len() {
            for r in 0..R {
                let mut sum = sums[r * strip + c];
                for i in 0..K {
                    sum = factors[r][i].mul_add(lines[i][c], sum);
                }
                sums[r * strip + c] = sum;
            }
        }
        R
    }

    #[inline(always)]
    fn write(&mut self, start: usize, width: usize, sums: &[f32], accumulate: bool) {
        let start = start - self.columns.start;
        let rows = self.output.chunks_exact_mut(self.columns.len());
        for (row, sums) in rows.zip(sums.chunks_exact(strip(self.rows))) {
            for (y, sum) in row[start..start + width].iter_mut().zip(sums) {
                *y = if accumulate { *y + sum } else { *sum };
            }
        }
    }
}
