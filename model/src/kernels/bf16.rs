//! Products of numbers in bf16, the upper half of an f32, summed in f32 in one reproducible order.
//!
//! An output is one chain over the pairs of k: of each pair the product of the second numbers is
//! added, then that of the first, each addition rounded once to the nearest. A number below the
//! normal ones is zero wherever it occurs. That is what the instruction VDPBF16PS computes, and
//! [`add_pair`] is the same for processors without it. Sums are kept in the output between
//! blocks, so that sizes of blocks do not show, nor do rows that are computed beside a row.

use super::matmul::View;
use super::vectorised;
use std::ops::Range;

/// Columns of a panel, the sums of one 512-bit register.
const PANEL: usize = 16;

/// Largest tile: its sums, a row of its panels and one factor fill the registers.
const TILE_ROWS: usize = 8;
const TILE_PANELS: usize = 3;

/// Pairs of k of a tile: its rows stay in the first cache and its panels in the second.
const TILE_PAIRS: usize = 512;

/// Panels of a matrix that are packed together, so that its rows are read in long pieces; a whole
/// number of tiles.
const PACKED_PANELS: usize = 4 * TILE_PANELS;

/// Whether this processor has the instructions.
pub(crate) fn is_available() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The nearest bf16, ties to even, in the lower bits.
#[inline(always)]
fn half(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    let is_tiny = bits & 0x7f80_0000 == 0;
    let kept = if is_nan { bits | 0x0040_0000 } else { rounded };
    (if is_tiny { bits & 0x8000_0000 } else { kept }) >> 16
}

/// Two numbers that follow one another along k.
#[inline(always)]
fn pair(first: f32, second: f32) -> u32 {
    half(first) | half(second) << 16
}

/// A matrix whose products sum over its rows: panels of columns, in each panel pair after pair of
/// rows. What a panel lacks in columns, or the last pair in rows, is zero.
#[derive(Debug)]
pub(crate) struct Panels {
    /// `[panel][pair][PANEL]`
    data: Vec<[u32; PANEL]>,
    pairs: usize,
    columns: usize,
}

impl Panels {
    /// The numbers of `matrix`, rounded.
    pub(crate) fn new(matrix: View<'_>) -> Self {
        let (pairs, columns) = (matrix.rows().div_ceil(2), matrix.columns());
        let mut data = vec![[0; PANEL]; columns.div_ceil(PANEL) * pairs];
        pack(matrix, 0..columns, 0..pairs, &mut data);
        Panels {
            data,
            pairs,
            columns,
        }
    }
}

/// Some columns of a matrix, the first of a panel among them, and some pairs of its rows, as
/// [`Panels`] have them.
fn pack(matrix: View<'_>, columns: Range<usize>, pairs: Range<usize>, panels: &mut [[u32; PANEL]]) {
    let (numbers, rows) = (
        matrix.numbers(),
        2 * pairs.start..matrix.rows().min(2 * pairs.end),
    );
    let lines = pairs.len().max(1);
    vectorised(
        #[inline(always)]
        || match matrix.is_transposed() {
            false => {
                let row = |row: usize| {
                    let start = row * matrix.columns();
                    &numbers[start + columns.start..start + columns.end]
                };
                for (at, first) in rows.clone().step_by(2).enumerate() {
                    let second = if first + 1 < rows.end {
                        row(first + 1)
                    } else {
                        &[]
                    };
                    along_rows(row(first), second, panels[at..].iter_mut().step_by(lines));
                }
            }
            true => {
                let height = matrix.rows();
                for (panel, first) in panels
                    .chunks_exact_mut(lines)
                    .zip(columns.clone().step_by(PANEL))
                {
                    for c in first..columns.end.min(first + PANEL) {
                        let numbers = &numbers[c * height + rows.start..c * height + rows.end];
                        across_rows(numbers, c - first, panel);
                    }
                }
            }
        },
    );
}

/// One pair of rows, into one line of each panel; an empty second row is one of zeros.
#[inline(always)]
fn along_rows<'a>(
    first: &[f32],
    second: &[f32],
    mut lines: impl Iterator<Item = &'a mut [u32; PANEL]>,
) {
    let (first, first_rest) = first.as_chunks::<PANEL>();
    let (second, second_rest) = second.as_chunks::<PANEL>();
    let zeros = std::iter::repeat(&[0.0; PANEL]);
    for ((first, second), line) in first.iter().zip(second.iter().chain(zeros)).zip(&mut lines) {
        for c in 0..PANEL {
            line[c] = pair(first[c], second[c]);
        }
    }
    if let Some(line) = lines.next().filter(|_| !first_rest.is_empty()) {
        *line = [0; PANEL];
        for (c, place) in line.iter_mut().enumerate().take(first_rest.len()) {
            *place = pair(
                first_rest[c],
                second_rest.get(c).copied().unwrap_or_default(),
            );
        }
    }
}

/// One column, whose numbers lie one after another, into its place in each line of a panel.
#[inline(always)]
fn across_rows(numbers: &[f32], c: usize, panel: &mut [[u32; PANEL]]) {
    /// Pairs that are rounded at a time.
    const TOGETHER: usize = 64;
    for (numbers, lines) in numbers.chunks(2 * TOGETHER).zip(panel.chunks_mut(TOGETHER)) {
        let mut pairs = [0; TOGETHER];
        in_pairs(numbers, &mut pairs);
        for (line, pair) in lines.iter_mut().zip(&pairs) {
            line[c] = *pair;
        }
    }
}

/// The pairs of a row.
#[inline(always)]
fn in_pairs(numbers: &[f32], pairs: &mut [u32]) {
    let (two, last) = numbers.as_chunks::<2>();
    for (place, [first, second]) in pairs.iter_mut().zip(two) {
        *place = pair(*first, *second);
    }
    if let [last] = last {
        pairs[two.len()] = pair(*last, 0.0);
    }
}

/// The left side of a product, of bf16 pairs: rows one after another, or the columns of panels.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Left<'a> {
    Rows(&'a Rows),
    Columns(&'a Panels),
}

/// Rows, rounded; each begins a pair.
#[derive(Debug)]
pub(crate) struct Rows {
    data: Vec<u32>,
    count: usize,
    pairs: usize,
}

impl Rows {
    /// The numbers of contiguous rows of `width`, rounded.
    pub(crate) fn new(numbers: &[f32], width: usize) -> Self {
        let (count, pairs) = (numbers.len() / width, width.div_ceil(2));
        let mut data = vec![0; count * pairs];
        vectorised(
            #[inline(always)]
            || match width % 2 {
                0 => in_pairs(numbers, &mut data),
                _ => {
                    for (row, pairs) in numbers.chunks(width).zip(data.chunks_mut(pairs)) {
                        in_pairs(row, pairs);
                    }
                }
            },
        );
        Rows { data, count, pairs }
    }
}

impl<'a> Left<'a> {
    fn count(self) -> usize {
        match self {
            Left::Rows(rows) => rows.count,
            Left::Columns(panels) => panels.columns,
        }
    }

    fn pairs(self) -> usize {
        match self {
            Left::Rows(rows) => rows.pairs,
            Left::Columns(panels) => panels.pairs,
        }
    }

    /// The pairs of the rows from `row`, a multiple of [`TILE_ROWS`], and from pair `pair` on; and
    /// how far apart rows and pairs are there.
    fn at(self, row: usize, pair: usize) -> (&'a [u32], [usize; 2]) {
        match self {
            Left::Rows(rows) => (&rows.data[row * rows.pairs + pair..], [rows.pairs, 1]),
            Left::Columns(panels) => {
                let lines = panels.data[row / PANEL * panels.pairs + pair..].as_flattened();
                (&lines[row % PANEL..], [1, PANEL])
            }
        }
    }
}

/// The right side of a product: panels, or a matrix that is rounded while it is multiplied.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Right<'a> {
    Panels(&'a Panels),
    Matrix(View<'a>),
}

impl Right<'_> {
    fn columns(self) -> usize {
        match self {
            Right::Panels(panels) => panels.columns,
            Right::Matrix(matrix) => matrix.columns(),
        }
    }

    fn pairs(self) -> usize {
        match self {
            Right::Panels(panels) => panels.pairs,
            Right::Matrix(matrix) => matrix.rows().div_ceil(2),
        }
    }
}

/// The product in the memory of `output`.
pub(crate) fn product_in(mut output: Vec<f32>, left: Left<'_>, right: Right<'_>) -> Vec<f32> {
    let count = left.count() * right.columns();
    output.clear();
    output.reserve_exact(count);
    if right.pairs() == 0 {
        output.resize(count, 0.0);
        return output;
    }
    // SAFETY: there is room for `count` numbers; without accumulation all of them are written and
    // none is read before.
    unsafe {
        multiply(left, right, output.as_mut_ptr(), false);
        output.set_len(count);
    }
    output
}

/// `output = left·right`, or the chains of `output` go on with it.
pub(crate) fn product_to(output: &mut [f32], left: Left<'_>, right: Right<'_>, accumulate: bool) {
    assert_eq!(
        output.len(),
        left.count() * right.columns(),
        "output has another size"
    );
    if !accumulate && right.pairs() == 0 {
        output.fill(0.0);
    }
    // SAFETY: `output` is as large as the product.
    unsafe { multiply(left, right, output.as_mut_ptr(), accumulate) };
}

/// Some rows of a product by some panels, over some pairs.
struct Tile<'a> {
    left: &'a [u32],
    /// How far apart rows and pairs are in `left`.
    strides: [usize; 2],
    rows: usize,
    right: &'a [[u32; PANEL]],
    /// Lines of a panel of `right`.
    panel_lines: usize,
    panels: usize,
    pairs: usize,
    output: *mut f32,
    /// Columns of the tile, and of a row of the output.
    columns: [usize; 2],
    /// Whether the sums go on from those in the output.
    accumulate: bool,
}

/// Writes the product to `output`, row by row, or goes on with the sums that are there.
///
/// # Safety
/// `output` must have room for the product, and be initialised where its sums go on.
unsafe fn multiply(left: Left<'_>, right: Right<'_>, output: *mut f32, accumulate: bool) {
    let (rows, pairs, columns) = (left.count(), right.pairs(), right.columns());
    assert_eq!(left.pairs(), pairs, "inner sizes differ");
    let fast = is_available();
    let mut packed = match right {
        Right::Panels(_) => Vec::new(),
        Right::Matrix(_) => vec![[0; PANEL]; PACKED_PANELS * TILE_PAIRS],
    };
    for first in (0..columns).step_by(PACKED_PANELS * PANEL) {
        let columns_end = columns.min(first + PACKED_PANELS * PANEL);
        for pair in (0..pairs).step_by(TILE_PAIRS) {
            let block = pair..pairs.min(pair + TILE_PAIRS);
            let (panels, panel_lines) = match right {
                Right::Panels(panels) => (&panels.data[first / PANEL * pairs + pair..], pairs),
                Right::Matrix(matrix) => {
                    let length = block.len();
                    pack(matrix, first..columns_end, block.clone(), &mut packed);
                    (&packed[..], length)
                }
            };
            for start in (first..columns_end).step_by(TILE_PANELS * PANEL) {
                let width = (TILE_PANELS * PANEL).min(columns_end - start);
                for row in (0..rows).step_by(TILE_ROWS) {
                    let (left, strides) = left.at(row, pair);
                    let tile = Tile {
                        left,
                        strides,
                        rows: TILE_ROWS.min(rows - row),
                        right: &panels[(start - first) / PANEL * panel_lines..],
                        panel_lines,
                        panels: width.div_ceil(PANEL),
                        pairs: block.len(),
                        // Inside the product.
                        output: output.wrapping_add(row * columns + start),
                        columns: [width, columns],
                        accumulate: accumulate || pair > 0,
                    };
                    // SAFETY: rows, columns and pairs of the tile are those of both sides, and its
                    // output the caller's, initialised by the pairs before where there are any.
                    unsafe {
                        match fast {
                            #[cfg(target_arch = "x86_64")]
                            true => wide::compute(&tile),
                            _ => plainly(&tile),
                        }
                    }
                }
            }
        }
    }
}

/// A sum with the products of two pairs, as VDPBF16PS adds them.
fn add_pair(sum: f32, a: u32, b: u32) -> f32 {
    let normal = |x: f32| {
        if x.is_subnormal() {
            0.0f32.copysign(x)
        } else {
            x
        }
    };
    let [first, second] = [16, 0].map(|shift| {
        let number = |pair: u32| normal(f32::from_bits(pair << shift & 0xffff_0000));
        (number(a), number(b))
    });
    let sum = normal(second.0.mul_add(second.1, normal(sum)));
    normal(first.0.mul_add(first.1, sum))
}

/// A tile without the instruction.
///
/// # Safety
/// As for [`multiply`], of the tile's part of the output.
unsafe fn plainly(tile: &Tile<'_>) {
    let [row_stride, pair_stride] = tile.strides;
    for row in 0..tile.rows {
        for column in 0..tile.columns[0] {
            // SAFETY: the caller's promise.
            let place = unsafe { &mut *tile.output.add(row * tile.columns[1] + column) };
            let mut sum = if tile.accumulate { *place } else { 0.0 };
            let panel = &tile.right[column / PANEL * tile.panel_lines..][..tile.pairs];
            for (at, line) in panel.iter().enumerate() {
                let factor = tile.left[row * row_stride + at * pair_stride];
                sum = add_pair(sum, factor, line[column % PANEL]);
            }
            *place = sum;
        }
    }
}

/// Tiles by the instruction.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{PANEL, Tile};
    use std::arch::x86_64::{
        __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps,
        _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps,
    };

    /// # Safety
    /// The processor has the instructions; else as for [`super::plainly`].
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn compute(tile: &Tile<'_>) {
        let mut row = 0;
        while row < tile.rows {
            // SAFETY: the caller's promise.
            row += unsafe {
                match tile.rows - row {
                    8.. => by_panels::<8>(tile, row),
                    4.. => by_panels::<4>(tile, row),
                    2.. => by_panels::<2>(tile, row),
                    _ => by_panels::<1>(tile, row),
                }
            };
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn by_panels<const R: usize>(tile: &Tile<'_>, row: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            match tile.panels {
                1 => sums::<R, 1>(tile, row),
                2 => sums::<R, 2>(tile, row),
                _ => sums::<R, 3>(tile, row),
            }
        }
        R
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn sums<const R: usize, const C: usize>(tile: &Tile<'_>, row: usize) {
        let [row_stride, pair_stride] = tile.strides;
        let last = (row + R - 1) * row_stride + (tile.pairs - 1) * pair_stride;
        assert!(last < tile.left.len() && tile.panels == C);
        assert!((C - 1) * tile.panel_lines + tile.pairs <= tile.right.len());
        let masks: [u16; C] = std::array::from_fn(|c| {
            let columns = tile.columns[0] - c * PANEL;
            if columns >= PANEL {
                u16::MAX
            } else {
                (1 << columns) - 1
            }
        });
        let place = |r: usize, c: usize| {
            let at = (row + r) * tile.columns[1] + c * PANEL;
            tile.output.wrapping_add(at)
        };
        let mut sums = [[_mm512_setzero_ps(); C]; R];
        // SAFETY: the masks leave out what is no part of the tile's output; the pairs that are read
        // are inside both slices, as asserted.
        unsafe {
            if tile.accumulate {
                for r in 0..R {
                    for c in 0..C {
                        sums[r][c] = _mm512_maskz_loadu_ps(masks[c], place(r, c));
                    }
                }
            }
            let (left, right) = (tile.left.as_ptr(), tile.right.as_ptr());
            for pair in 0..tile.pairs {
                let mut lines = [bf16(_mm512_set1_epi32(0)); C];
                for c in 0..C {
                    let line = right.add(c * tile.panel_lines + pair);
                    lines[c] = bf16(_mm512_loadu_si512(line.cast()));
                }
                for r in 0..R {
                    let factor = *left.add((row + r) * row_stride + pair * pair_stride);
                    let factor = bf16(_mm512_set1_epi32(factor.cast_signed()));
                    for c in 0..C {
                        sums[r][c] = _mm512_dpbf16_ps(sums[r][c], factor, lines[c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    _mm512_mask_storeu_ps(place(r, c), masks[c], sums[r][c]);
                }
            }
        }
    }

    /// The same bits as 32 bf16.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn bf16(bits: __m512i) -> __m512bh {
        // SAFETY: both are 512 bits.
        unsafe { std::mem::transmute(bits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::parameter::transpose;
    use crate::kernels::tests::numbers;

    #[test]
    fn numbers_are_rounded_to_the_nearest_and_ties_to_even() {
        for (x, bits) in [
            (1.0, 0x3f80),
            (-1.0, 0xbf80),
            (f32::from_bits(0x3f80_8000), 0x3f80),
            (f32::from_bits(0x3f80_8001), 0x3f81),
            (f32::from_bits(0x3f81_8000), 0x3f82),
            (f32::MAX, 0x7f80),
            (f32::INFINITY, 0x7f80),
            (f32::from_bits(0x807f_ffff), 0x8000),
            (f32::from_bits(0x7f80_0001), 0x7fc0),
        ] {
            assert_eq!(half(x), bits, "{x:e}");
        }
    }

    /// The specified chain of one output.
    fn in_order(start: f32, a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32, k: usize) -> f32 {
        let number = |of: &dyn Fn(usize) -> f32, at: usize| if at < k { of(at) } else { 0.0 };
        let two = |of: &dyn Fn(usize) -> f32, at: usize| pair(number(of, at), number(of, at + 1));
        (0..k)
            .step_by(2)
            .fold(start, |sum, at| add_pair(sum, two(&a, at), two(&b, at)))
    }

    #[test]
    fn every_shape_gives_the_promised_bits() {
        for k in [1, 2, 3, 64, 177, 1024, 1027, 2500] {
            for n in [1, 5, 16, 48, 65, 200] {
                let b = numbers(k * n, 7);
                let turned = transpose(&b, k, n);
                let weight = View::new(&b, k, n);
                // A tied head is read in the embedding's memory layout.
                let tied = View::new(&turned, n, k).transposed();
                let panels = Panels::new(weight);
                for m in [1, 2, 3, 7, 8, 13, 21] {
                    let a = numbers(m * k, 11);
                    let (rows, across) = (Rows::new(&a, k), transpose(&a, m, k));
                    let columns = Panels::new(View::new(&across, k, m));
                    let start = numbers(m * n, 13);
                    let chain = |start: f32, place: usize| {
                        let (row, column) = (place / n, place % n);
                        in_order(start, |i| a[row * k + i], |i| b[i * n + column], k)
                    };
                    let fresh: Vec<f32> = (0..m * n).map(|place| chain(0.0, place)).collect();
                    let more: Vec<f32> =
                        (0..m * n).map(|place| chain(start[place], place)).collect();
                    for left in [Left::Rows(&rows), Left::Columns(&columns)] {
                        for right in [
                            Right::Panels(&panels),
                            Right::Matrix(weight),
                            Right::Matrix(tied),
                        ] {
                            let place = format!("m {m} k {k} n {n} {left:?} {right:?}");
                            let found = product_in(vec![f32::NAN; 3], left, right);
                            assert!(found == fresh, "{place:.80}");
                            let mut found = start.clone();
                            product_to(&mut found, left, right, true);
                            assert!(found == more, "{place:.80}");
                            product_to(&mut found, left, right, false);
                            assert!(found == fresh, "{place:.80}");
                        }
                    }
                }
            }
        }
    }

    /// Numbers of all sizes, the smallest and the largest, zeros, infinities and NaN among them.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_instruction_adds_as_written_here() {
        use super::wide::compute;
        if !is_available() {
            return eprintln!("this processor has no AVX-512 BF16");
        }
        let mut state = 1_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200_000 {
            // Exponents that meet: the product's and the sum's.
            let spread = [2, 20, 256][(random() % 3) as usize];
            let number = |random: u64, middle: u64| {
                let exponent = (middle + (random >> 20) % spread) % 256;
                (random >> 40 & 1) << 15 | exponent << 7 | (random >> 8 & 0x7f)
            };
            let middle = random() % 256;
            let mut two =
                |middle: u64| (number(random(), middle) | number(random(), middle) << 16) as u32;
            let left: [u32; 1] = [two(middle)];
            let right: [u32; PANEL] = std::array::from_fn(|_| two(254 - middle.min(254)));
            let sums: [f32; PANEL] =
                std::array::from_fn(|_| f32::from_bits((random() >> 13) as u32));
            let mut found = sums;
            let tile = Tile {
                left: &left,
                strides: [1, 1],
                rows: 1,
                right: &[right],
                panel_lines: 1,
                panels: 1,
                pairs: 1,
                output: found.as_mut_ptr(),
                columns: [PANEL; 2],
                accumulate: true,
            };
            // SAFETY: the processor has the instruction, and the output is a row of the tile.
            unsafe { compute(&tile) };
            for ((sum, b), found) in sums.into_iter().zip(right).zip(found) {
                let expected = add_pair(sum, left[0], b);
                let same =
                    expected.to_bits() == found.to_bits() || expected.is_nan() && found.is_nan();
                assert!(
                    same,
                    "{sum:e} {:x} {b:x}: {found:e}, not {expected:e}",
                    left[0]
                );
            }
        }
    }

    #[test]
    fn a_product_is_close_to_the_exact_one() {
        let (m, k, n) = (9, 300, 33);
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let right = Right::Matrix(View::new(&b, k, n));
        let found = product_in(Vec::new(), Left::Rows(&Rows::new(&a, k)), right);
        for (place, found) in found.iter().enumerate() {
            let (row, column) = (place / n, place % n);
            let product = |i: usize| f64::from(a[row * k + i]) * f64::from(b[i * n + column]);
            let exact: f64 = (0..k).map(product).sum();
            let scale: f64 = (0..k).map(|i| product(i).abs()).sum();
            assert!(
                (f64::from(*found) - exact).abs() < scale / 256.0,
                "{found} is not {exact}"
            );
        }
    }
}
