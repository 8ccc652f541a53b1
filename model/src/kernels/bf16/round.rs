//! Numbers rounded to bf16, in pairs that follow one another along k.

use super::tile::PANEL;
use super::vectors::has_vectors;
use crate::kernels::matmul::View;
use crate::kernels::{fetch, vectorised};
use std::array::from_fn;
use std::ops::Range;

/// Sixteen pairs: a line of a panel, or what follows one another in a row.
pub(super) type Line = [u32; PANEL];

/// How many lines of a panel before they are made what they are made of is fetched: the processor
/// does not foresee pieces of rows or columns.
const AHEAD: usize = 2;

/// The nearest bf16, ties to even, in the lower bits.
#[inline(always)]
pub(super) fn half(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    let is_tiny = bits & 0x7f80_0000 == 0;
    let kept = if is_nan { bits | 0x0040_0000 } else { rounded };
    (if is_tiny { bits & 0x8000_0000 } else { kept }) >> 16
}

/// Two numbers that follow one another along k.
#[inline(always)]
pub(super) fn pair(first: f32, second: f32) -> u32 {
    half(first) | half(second) << 16
}

/// Writes the pairs of contiguous rows of `width`, so many for each row.
pub(super) fn round_rows(numbers: &[f32], width: usize, own: usize, pairs: &mut [u32]) {
    // Where nothing is between the rows, all are one.
    let (width, own) = match 2 * own == width {
        true => (numbers.len().max(1), pairs.len().max(1)),
        false => (width, own),
    };
    let rows = numbers.chunks(width).zip(pairs.chunks_mut(own));
    match has_vectors() {
        true => wide(
            #[inline(always)]
            || rows.for_each(|(row, pairs)| round_row::<true>(row, pairs)),
        ),
        false => vectorised(
            #[inline(always)]
            || rows.for_each(|(row, pairs)| round_row::<false>(row, pairs)),
        ),
    }
}

/// Writes some columns of a matrix, the first of a panel among them, and some pairs of its rows:
/// panels of as many lines as there are pairs. Behind the last row they are zero.
pub(super) fn round_panels(
    matrix: View<'_>,
    columns: Range<usize>,
    pairs: Range<usize>,
    panels: &mut [Line],
) {
    let part = Part {
        matrix,
        columns,
        rows: 2 * pairs.start..matrix.rows().min(2 * pairs.end),
        lines: pairs.len().max(1),
    };
    match has_vectors() {
        true => wide(
            #[inline(always)]
            || part.round::<true>(panels),
        ),
        false => vectorised(
            #[inline(always)]
            || part.round::<false>(panels),
        ),
    }
}

/// Rows and columns of a matrix that become panels of so many lines.
struct Part<'a> {
    matrix: View<'a>,
    columns: Range<usize>,
    rows: Range<usize>,
    lines: usize,
}

impl Part<'_> {
    #[inline(always)]
    fn round<const WIDE: bool>(&self, panels: &mut [Line]) {
        match self.matrix.is_transposed() {
            false => self.along_rows::<WIDE>(panels),
            true => self.across_rows::<WIDE>(panels),
        }
    }

    /// Two rows at a time into a line of each panel.
    #[inline(always)]
    fn along_rows<const WIDE: bool>(&self, panels: &mut [Line]) {
        let width = self.matrix.columns();
        let row = |row: usize| {
            let from = row * width..(row + 1) * width;
            &self.matrix.numbers()[from][self.columns.clone()]
        };
        for (at, first) in self.rows.clone().step_by(2).enumerate() {
            let second = match first + 1 < self.rows.end {
                true => row(first + 1),
                false => &[],
            };
            let first = row(first);
            fetch_behind(first, 2 * AHEAD * width);
            fetch_behind(second, 2 * AHEAD * width);
            let (first, first_rest) = first.as_chunks::<PANEL>();
            let (second, second_rest) = second.as_chunks::<PANEL>();
            let zeros = std::iter::repeat(&[0.0; PANEL]);
            let mut lines = panels[at..].iter_mut().step_by(self.lines);
            let pairs = first.iter().zip(second.iter().chain(zeros));
            for ((first, second), line) in pairs.zip(&mut lines) {
                *line = line_of::<WIDE>(first, second);
            }
            if let Some(line) = lines.next().filter(|_| !first_rest.is_empty()) {
                let number = |rest: &[f32], c| rest.get(c).copied().unwrap_or_default();
                *line = from_fn(|c| pair(number(first_rest, c), number(second_rest, c)));
            }
        }
        let made = self.rows.len().div_ceil(2);
        if made < self.lines {
            let count = self.columns.len().div_ceil(PANEL);
            for panel in panels.chunks_exact_mut(self.lines).take(count) {
                panel[made..].fill([0; PANEL]);
            }
        }
    }

    /// Panel by panel, whose columns lie one after another, in blocks that are turned.
    #[inline(always)]
    fn across_rows<const WIDE: bool>(&self, panels: &mut [Line]) {
        let height = self.matrix.rows();
        let firsts = self.columns.clone().step_by(PANEL);
        for (panel, first) in panels.chunks_exact_mut(self.lines).zip(firsts) {
            let count = PANEL.min(self.columns.end - first);
            let column = |c: usize| {
                let from = (first + c) * height..(first + c + 1) * height;
                &self.matrix.numbers()[from][self.rows.clone()]
            };
            for (block, lines) in panel.chunks_mut(PANEL).enumerate() {
                let mut turned = [[0; PANEL]; PANEL];
                for (c, turned) in turned.iter_mut().enumerate().take(count) {
                    let rest = &column(c)[block * 2 * PANEL..];
                    fetch_behind(&rest[..rest.len().min(2 * PANEL)], AHEAD * 2 * PANEL);
                    match rest.first_chunk() {
                        Some(numbers) => *turned = pairs_of::<WIDE>(numbers),
                        None => round_row::<false>(rest, turned),
                    }
                }
                let turned = turn::<WIDE>(&turned);
                lines.copy_from_slice(&turned[..lines.len()]);
            }
        }
    }
}

/// Has as many numbers fetched, so far behind these.
#[inline(always)]
fn fetch_behind(numbers: &[f32], distance: usize) {
    for line in numbers.chunks(PANEL) {
        fetch::<true>(line.as_ptr().wrapping_add(distance));
    }
}

/// Writes the pairs of a row.
#[inline(always)]
fn round_row<const WIDE: bool>(numbers: &[f32], pairs: &mut [u32]) {
    let (numbers, rest) = numbers.as_chunks::<{ 2 * PANEL }>();
    let lines = pairs.as_chunks_mut::<PANEL>().0;
    for (numbers, line) in numbers.iter().zip(lines) {
        *line = pairs_of::<WIDE>(numbers);
    }
    let start = numbers.len() * PANEL;
    for (two, place) in rest.chunks(2).zip(&mut pairs[start..]) {
        *place = pair(two[0], two.get(1).copied().unwrap_or_default());
    }
}

/// The pairs of numbers that follow one another.
#[inline(always)]
fn pairs_of<const WIDE: bool>(numbers: &[f32; 2 * PANEL]) -> Line {
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        // SAFETY: only [`wide`] has such code called.
        return unsafe { instructions::pairs_of(numbers) };
    }
    from_fn(|i| pair(numbers[2 * i], numbers[2 * i + 1]))
}

/// The pairs of numbers that lie in two rows.
#[inline(always)]
fn line_of<const WIDE: bool>(first: &[f32; PANEL], second: &[f32; PANEL]) -> Line {
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        // SAFETY: only [`wide`] has such code called.
        return unsafe { instructions::line_of(first, second) };
    }
    from_fn(|c| pair(first[c], second[c]))
}

/// Rows and columns exchanged.
#[inline(always)]
fn turn<const WIDE: bool>(block: &[Line; PANEL]) -> [Line; PANEL] {
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        // SAFETY: only [`wide`] has such code called.
        return unsafe { instructions::turn(block) };
    }
    from_fn(|row| from_fn(|column| block[column][row]))
}

/// Runs `work` with the instructions for bf16, which must be there.
fn wide(work: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has them, as the caller has asked.
    unsafe {
        instructions::run(work);
    }
    #[cfg(not(target_arch = "x86_64"))]
    work();
}

#[cfg(target_arch = "x86_64")]
mod instructions {
    use super::{Line, PANEL};
    use std::arch::x86_64::{
        __m256bh, __m256i, __m512bh, __m512i, _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh,
        _mm512_cvtneps_pbh, _mm512_loadu_ps, _mm512_or_si512, _mm512_setzero_si512,
        _mm512_shuffle_i32x4, _mm512_slli_epi32, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
        _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    };
    use std::mem::transmute;

    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn run(work: impl FnOnce()) {
        work();
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn pairs_of(numbers: &[f32; 2 * PANEL]) -> Line {
        // SAFETY: what is read is inside `numbers`; a register and a line have 512 bits.
        unsafe {
            let low = _mm512_loadu_ps(numbers.as_ptr());
            let high = _mm512_loadu_ps(numbers.as_ptr().add(PANEL));
            transmute::<__m512bh, Line>(_mm512_cvtne2ps_pbh(high, low))
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn line_of(first: &[f32; PANEL], second: &[f32; PANEL]) -> Line {
        // SAFETY: what is read is inside the rows; a register and a line have 512 bits.
        unsafe {
            let halves: __m256bh = _mm512_cvtneps_pbh(_mm512_loadu_ps(first.as_ptr()));
            let first = _mm512_cvtepu16_epi32(transmute::<__m256bh, __m256i>(halves));
            let halves: __m256bh = _mm512_cvtneps_pbh(_mm512_loadu_ps(second.as_ptr()));
            let second = _mm512_cvtepu16_epi32(transmute::<__m256bh, __m256i>(halves));
            transmute::<__m512i, Line>(_mm512_or_si512(first, _mm512_slli_epi32(second, 16)))
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) fn turn(block: &[Line; PANEL]) -> [Line; PANEL] {
        // SAFETY: a register and a line have 512 bits.
        let r: [__m512i; PANEL] = unsafe { transmute(*block) };
        let mut t = [_mm512_setzero_si512(); PANEL];
        for i in 0..PANEL / 2 {
            t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        // Quarter q of number 4f + j is column 4q + j of rows 4f to 4f + 3.
        let mut u = t;
        for f in (0..PANEL).step_by(4) {
            for j in 0..2 {
                u[f + 2 * j] = _mm512_unpacklo_epi64(t[f + j], t[f + j + 2]);
                u[f + 2 * j + 1] = _mm512_unpackhi_epi64(t[f + j], t[f + j + 2]);
            }
        }
        let mut lines = u;
        for j in 0..4 {
            // The even quarters of two fours, and the odd ones.
            let even = _mm512_shuffle_i32x4(u[j], u[4 + j], 0x88);
            let odd = _mm512_shuffle_i32x4(u[j], u[4 + j], 0xdd);
            let other_even = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0x88);
            let other_odd = _mm512_shuffle_i32x4(u[8 + j], u[12 + j], 0xdd);
            lines[j] = _mm512_shuffle_i32x4(even, other_even, 0x88);
            lines[4 + j] = _mm512_shuffle_i32x4(odd, other_odd, 0x88);
            lines[8 + j] = _mm512_shuffle_i32x4(even, other_even, 0xdd);
            lines[12 + j] = _mm512_shuffle_i32x4(odd, other_odd, 0xdd);
        }
        // SAFETY: as above.
        unsafe { transmute(lines) }
    }
}
