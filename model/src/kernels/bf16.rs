//! Products of numbers in bf16, the upper half of an f32, summed in f32 in one reproducible order.
//!
//! An output is one chain over the pairs of k: what the instruction of AVX-512 BF16 computes, which
//! `tile` has in plain Rust too. A number below the normal ones is zero wherever it occurs. Sums are kept in the output between tiles, so that sizes of tiles do not show, nor do rows
//! that are computed beside a row.

mod round;
mod tile;
mod vectors;

use super::matmul::View;
use crate::spare::{reused, zeros};
use round::{Line, round_panels, round_rows};
use std::ops::Range;
use tile::{PANEL, Tile};
pub(crate) use vectors::has_vectors;

/// Pairs of k of a tile: its rows stay in the first cache and its panels in the second.
const TILE_PAIRS: usize = 512;

/// Rows and panels of a tile: all registers.
const TILE_ROWS: usize = 8;
const TILE_PANELS: usize = 3;

/// Panels of a matrix that are packed together, so that its rows are read in long pieces; a whole
/// number of tiles.
const PACKED_PANELS: usize = 12;

/// A matrix whose products sum over its rows: panels of columns, in each panel pair after pair of
/// rows. What a panel lacks in columns, or the last pair in rows, is zero.
#[derive(Debug)]
pub(crate) struct Panels {
    /// `[panel][pair][PANEL]`
    data: Vec<Line>,
    pairs: usize,
    columns: usize,
}

impl Panels {
    /// The numbers of `matrix`, rounded.
    pub(crate) fn new(matrix: View<'_>) -> Self {
        let (pairs, columns) = (matrix.rows().div_ceil(2), matrix.columns());
        let mut data = zeros(columns.div_ceil(PANEL) * pairs);
        round_panels(matrix, 0..columns, 0..pairs, &mut data);
        Panels {
            data,
            pairs,
            columns,
        }
    }
}

/// The left side of a product, of bf16 pairs: rows one after another, or the columns of panels.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Left<'a> {
    Rows(&'a Rows),
    Columns(&'a Panels),
}

/// Rows, rounded; each begins a pair, and the last number of an odd row has a zero beside it.
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
        let mut data = zeros(count * pairs);
        round_rows(numbers, width, pairs, &mut data);
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

    /// The pairs of the rows of a tile from `row` on, and from pair `pair` on; and how far apart rows
    /// and pairs are there.
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

/// Some columns of the product, from the first of a panel on, in the memory of `output`.
pub(crate) fn product_in(
    output: Vec<f32>,
    left: Left<'_>,
    right: Right<'_>,
    columns: Range<usize>,
) -> Vec<f32> {
    let count = left.count() * columns.len();
    let mut output = reused(output, count);
    if left.pairs() == 0 {
        output.resize(count, 0.0);
        return output;
    }
    // SAFETY: there is room for `count` numbers; without accumulation all of them are written and
    // none is read before.
    unsafe {
        multiply(left, right, columns, output.as_mut_ptr(), false);
        output.set_len(count);
    }
    output
}

/// `output = left·right`, or the chains of `output` go on with it, for some columns of the right
/// side, from the first of a panel on; the output has no others.
pub(crate) fn product_to(
    output: &mut [f32],
    left: Left<'_>,
    right: Right<'_>,
    columns: Range<usize>,
    accumulate: bool,
) {
    assert_eq!(
        output.len(),
        left.count() * columns.len(),
        "output has another size"
    );
    if !accumulate && left.pairs() == 0 {
        output.fill(0.0);
    }
    // SAFETY: `output` is as large as the product.
    unsafe { multiply(left, right, columns, output.as_mut_ptr(), accumulate) };
}

/// Writes those columns of the product to `output`, row by row, or goes on with the sums that are
/// there.
///
/// # Safety
/// `output` must have room for them, and be initialised where its sums go on.
unsafe fn multiply(
    left: Left<'_>,
    right: Right<'_>,
    columns: Range<usize>,
    output: *mut f32,
    accumulate: bool,
) {
    let (rows, pairs) = (left.count(), left.pairs());
    assert_eq!(pairs, right.pairs(), "inner sizes differ");
    let begins = columns.start.is_multiple_of(PANEL);
    assert!(begins && columns.end <= right.columns(), "no such columns");
    let mut packed = match right {
        Right::Panels(_) => Vec::new(),
        Right::Matrix(_) => vec![[0; PANEL]; PACKED_PANELS * TILE_PAIRS],
    };
    for first in columns.clone().step_by(PACKED_PANELS * PANEL) {
        let columns_end = columns.end.min(first + PACKED_PANELS * PANEL);
        for pair in (0..pairs).step_by(TILE_PAIRS) {
            let block = pair..pairs.min(pair + TILE_PAIRS);
            let (panels, panel_lines) = match right {
                Right::Panels(panels) => (&panels.data[first / PANEL * pairs + pair..], pairs),
                Right::Matrix(matrix) => {
                    let length = block.len();
                    round_panels(matrix, first..columns_end, block.clone(), &mut packed);
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
                        output: output.wrapping_add(row * columns.len() + start - columns.start),
                        columns: [width, columns.len()],
                        accumulate: accumulate || pair > 0,
                    };
                    // SAFETY: rows, columns and pairs of the tile are those of both sides, and its
                    // output the caller's, initialised by the pairs before where there are any.
                    unsafe { vectors::compute(&tile) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::round::{half, pair};
    use super::tile::{Two, add_pair};
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
        let pairs = (0..k)
            .step_by(2)
            .map(|at| -> Two { [two(&a, at), two(&b, at)] });
        pairs.fold(start, add_pair)
    }

    /// Every side of a product, beside every other, and sums that go on.
    fn checked(m: usize, k: usize, n: usize) {
        let (a, b, start) = (numbers(m * k, 11), numbers(k * n, 7), numbers(m * n, 13));
        let (across, turned) = (transpose(&a, m, k), transpose(&b, k, n));
        let weight = View::new(&b, k, n);
        // A tied head is read in the embedding's memory layout.
        let tied = View::new(&turned, n, k).transposed();
        let panels = Panels::new(weight);
        let rows = Rows::new(&a, k);
        let columns = Panels::new(View::new(&across, k, m));
        let chain = |start: f32, place: usize| {
            let (row, column) = (place / n, place % n);
            in_order(start, |i| a[row * k + i], |i| b[i * n + column], k)
        };
        let fresh: Vec<f32> = (0..m * n).map(|place| chain(0.0, place)).collect();
        let more: Vec<f32> = (0..m * n).map(|place| chain(start[place], place)).collect();
        for left in [Left::Rows(&rows), Left::Columns(&columns)] {
            for right in [
                Right::Panels(&panels),
                Right::Matrix(weight),
                Right::Matrix(tied),
            ] {
                let place = format!("m {m} k {k} n {n} {left:?} {right:?}");
                let found = product_in(vec![f32::NAN; 3], left, right, 0..n);
                assert!(found == fresh, "{place:.80}");
                let mut found = start.clone();
                product_to(&mut found, left, right, 0..n, true);
                assert!(found == more, "{place:.80}");
                product_to(&mut found, left, right, 0..n, false);
                assert!(found == fresh, "{place:.80}");
            }
        }
    }

    #[test]
    fn every_shape_gives_the_promised_bits() {
        for k in [1, 2, 3, 64, 177, 1024, 1027, 2500] {
            for n in [1, 5, 16, 48, 65, 200] {
                for m in [1, 2, 3, 7, 8, 13, 21] {
                    checked(m, k, n);
                }
            }
        }
    }

    #[test]
    fn a_product_is_close_to_the_exact_one() {
        let (m, k, n) = (9, 300, 33);
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let right = Right::Matrix(View::new(&b, k, n));
        let found = product_in(Vec::new(), Left::Rows(&Rows::new(&a, k)), right, 0..n);
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
