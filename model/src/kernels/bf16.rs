//! Products of numbers in bf16, the upper half of an f32, summed in f32 in one reproducible order.
//!
//! An output is one chain, of pairs of k or of blocks of pairs: what the instruction of a [`Unit`]
//! computes, which `tile` has in plain Rust too. A number below the normal ones is zero wherever it
//! occurs. Sums are kept in the output between tiles, so that sizes of tiles do not show, nor do rows
//! that are computed beside a row.

mod amx;
mod round;
mod tile;
mod unit;
mod vectors;

use super::matmul::View;
use crate::spare::{reused, zeros};
pub(crate) use amx::refusal;
use round::{Line, round_panels, round_rows, turn_panel};
use std::ops::Range;
use tile::{PANEL, Tile};
pub(crate) use unit::Unit;
pub(crate) use vectors::has_vectors;

/// Pairs of k of a tile: its rows stay in the first cache and its panels in the second. Whole blocks.
const TILE_PAIRS: usize = 512;

/// Panels of a matrix that are packed together, so that its rows are read in long pieces; a whole
/// number of tiles.
const PACKED_PANELS: usize = 12;

/// A matrix whose products sum over its rows: panels of columns, in each panel pair after pair of
/// rows. What a panel lacks in columns, or in rows up to what the unit multiplies at once, is zero.
#[derive(Debug)]
pub(crate) struct Panels {
    unit: Unit,
    /// `[panel][pair][PANEL]`
    data: Vec<Line>,
    pairs: usize,
    columns: usize,
}

impl Panels {
    /// The numbers of `matrix`, rounded.
    pub(crate) fn new(unit: Unit, matrix: View<'_>) -> Self {
        let (pairs, columns) = (unit.pairs(matrix.rows()), matrix.columns());
        let mut data = zeros(columns.div_ceil(PANEL) * pairs);
        round_panels(matrix, 0..columns, 0..pairs, &mut data);
        Panels {
            unit,
            data,
            pairs,
            columns,
        }
    }

    /// Their columns as rows.
    fn turned(&self) -> Rows {
        let mut data = zeros(self.columns * self.pairs);
        // Of nothing there is no panel.
        let length = self.pairs.max(1);
        for (panel, rows) in (self.data.chunks(length)).zip(data.chunks_mut(PANEL * length)) {
            turn_panel(panel, rows);
        }
        Rows {
            unit: self.unit,
            data,
            count: self.columns,
            pairs: self.pairs,
        }
    }
}

/// The left side of a product, of bf16 pairs: rows one after another, or the columns of panels.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Left<'a> {
    Rows(&'a Rows),
    Columns(&'a Panels),
}

/// Rows, rounded; each begins a pair, and has zeros up to what the unit multiplies at once.
#[derive(Debug)]
pub(crate) struct Rows {
    unit: Unit,
    data: Vec<u32>,
    count: usize,
    pairs: usize,
}

impl Rows {
    /// The numbers of contiguous rows of `width`, rounded.
    pub(crate) fn new(unit: Unit, numbers: &[f32], width: usize) -> Self {
        let (count, pairs) = (numbers.len() / width, unit.pairs(width));
        let mut data = zeros(count * pairs);
        round_rows(numbers, width, pairs, &mut data);
        Rows {
            unit,
            data,
            count,
            pairs,
        }
    }
}

impl<'a> Left<'a> {
    fn unit(self) -> Unit {
        match self {
            Left::Rows(rows) => rows.unit,
            Left::Columns(panels) => panels.unit,
        }
    }

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

    /// Pairs, which are those of the unit.
    fn pairs(self, unit: Unit) -> usize {
        match self {
            Right::Panels(panels) => {
                assert_eq!(panels.unit, unit, "a side is another unit's");
                panels.pairs
            }
            Right::Matrix(matrix) => unit.pairs(matrix.rows()),
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
    let (unit, rows, pairs) = (left.unit(), left.count(), left.pairs());
    assert_eq!(pairs, right.pairs(unit), "inner sizes differ");
    let begins = columns.start.is_multiple_of(PANEL);
    assert!(begins && columns.end <= right.columns(), "no such columns");
    let mut packed = match right {
        Right::Panels(_) => Vec::new(),
        Right::Matrix(_) => vec![[0; PANEL]; PACKED_PANELS * TILE_PAIRS],
    };
    let turned = match (unit, left) {
        // Rows of the unit's registers lie in one piece.
        (Unit::Matrices, Left::Columns(panels)) => Some(panels.turned()),
        _ => None,
    };
    let left = turned.as_ref().map_or(left, Left::Rows);
    let [tile_rows, tile_panels] = unit.tile();
    let mut shape = amx::Shape::default();
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
            for start in (first..columns_end).step_by(tile_panels * PANEL) {
                let width = (tile_panels * PANEL).min(columns_end - start);
                for row in (0..rows).step_by(tile_rows) {
                    let (left, strides) = left.at(row, pair);
                    let tile = Tile {
                        left,
                        strides,
                        rows: tile_rows.min(rows - row),
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
                    unsafe { unit.compute(&tile, &mut shape) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::round::{half, pair};
    use super::tile::{Two, add_block, add_pair};
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

    const UNITS: [Unit; 2] = [Unit::Vectors, Unit::Matrices];

    /// The specified chain of one output.
    fn in_order(
        unit: Unit,
        start: f32,
        a: impl Fn(usize) -> f32,
        b: impl Fn(usize) -> f32,
        k: usize,
    ) -> f32 {
        let number = |of: &dyn Fn(usize) -> f32, at: usize| if at < k { of(at) } else { 0.0 };
        let two = |of: &dyn Fn(usize) -> f32, at: usize| pair(number(of, at), number(of, at + 1));
        let pairs = (0..k).step_by(2).map(|at| [two(&a, at), two(&b, at)]);
        let pairs: Vec<Two> = pairs.collect();
        match unit {
            Unit::Vectors => pairs.into_iter().fold(start, add_pair),
            Unit::Matrices => pairs.chunks(16).fold(start, add_block),
        }
    }

    /// Every side of a unit's product, beside every other, and sums that go on.
    fn checked(unit: Unit, m: usize, k: usize, n: usize) {
        let (a, b, start) = (numbers(m * k, 11), numbers(k * n, 7), numbers(m * n, 13));
        let (across, turned) = (transpose(&a, m, k), transpose(&b, k, n));
        let weight = View::new(&b, k, n);
        // A tied head is read in the embedding's memory layout.
        let tied = View::new(&turned, n, k).transposed();
        let panels = Panels::new(unit, weight);
        let rows = Rows::new(unit, &a, k);
        let columns = Panels::new(unit, View::new(&across, k, m));
        let chain = |start: f32, place: usize| {
            let (row, column) = (place / n, place % n);
            in_order(unit, start, |i| a[row * k + i], |i| b[i * n + column], k)
        };
        let fresh: Vec<f32> = (0..m * n).map(|place| chain(0.0, place)).collect();
        let more: Vec<f32> = (0..m * n).map(|place| chain(start[place], place)).collect();
        for left in [Left::Rows(&rows), Left::Columns(&columns)] {
            for right in [
                Right::Panels(&panels),
                Right::Matrix(weight),
                Right::Matrix(tied),
            ] {
                let place = format!("{unit:?} m {m} k {k} n {n} {left:?} {right:?}");
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
                    checked(Unit::Vectors, m, k, n);
                }
            }
        }
    }

    #[test]
    fn every_shape_gives_the_promised_bits_by_blocks() {
        for k in [1, 3, 32, 33, 177, 1056, 2049] {
            for n in [1, 16, 21, 37, 200] {
                for m in [1, 9, 16, 23, 41] {
                    // In plain Rust it takes long.
                    if m * k * n < 600_000 {
                        checked(Unit::Matrices, m, k, n);
                    }
                }
            }
        }
    }

    /// Of 513 pairs the second tile has one: the fifteen that fill it up to a block are zero, whatever
    /// the pairs of the first tile were.
    #[test]
    fn nothing_is_left_in_what_fills_a_block_up() {
        let (k, n) = (1026, 32);
        let mut b = vec![0.0; k * n];
        // The first column's pair 17, where the second panel's pair 1 of the second tile will lie.
        b[34 * n] = f32::INFINITY;
        let rows = Rows::new(Unit::Matrices, &vec![1.0; k], k);
        let right = Right::Matrix(View::new(&b, k, n));
        let found = product_in(Vec::new(), Left::Rows(&rows), right, 0..n);
        assert_eq!(found[0], f32::INFINITY);
        assert!(found[1..].iter().all(|&x| x == 0.0), "{found:?}");
    }

    /// Sixteen pairs whose products are a half of the last place of one, or twice that: the two chains
    /// keep them all, where sums that began at one would lose the halves.
    #[test]
    fn a_block_is_summed_apart_and_then_added() {
        let tiny = 2.0_f32.powi(-24);
        let block = [[pair(1.0, 0.5), pair(tiny, 4.0 * tiny)]; 16];
        let sum = 16.0 * tiny + 16.0 * 2.0 * tiny;
        assert_eq!(add_block(1.0, &block), 1.0 + sum);
        // A chain of pairs adds the second products, one last place each, and rounds the halves off
        // or up to even.
        let chain = block.into_iter().fold(1.0, add_pair);
        assert_ne!(chain, 1.0 + sum);
        // Below the normal numbers all is zero: products, operands, and what a sum began with.
        let small = [[pair(f32::MIN_POSITIVE, 0.0), pair(0.25, 0.0)]; 16];
        assert_eq!(add_block(f32::MIN_POSITIVE / 2.0, &small).to_bits(), 0);
    }

    #[test]
    fn a_product_is_close_to_the_exact_one() {
        let (m, k, n) = (9, 300, 33);
        let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
        let right = Right::Matrix(View::new(&b, k, n));
        for unit in UNITS {
            let found = product_in(Vec::new(), Left::Rows(&Rows::new(unit, &a, k)), right, 0..n);
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
}
