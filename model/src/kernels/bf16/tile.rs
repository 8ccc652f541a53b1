//! A tile of a product: some rows by some panels, over some pairs.

/// Columns of a panel, the sums of one 512-bit register.
pub(super) const PANEL: usize = 16;

/// Some rows of a product by some panels, over some pairs.
pub(super) struct Tile<'a> {
    pub(super) left: &'a [u32],
    /// How far apart rows and pairs are in `left`.
    pub(super) strides: [usize; 2],
    pub(super) rows: usize,
    pub(super) right: &'a [[u32; PANEL]],
    /// Lines of a panel of `right`.
    pub(super) panel_lines: usize,
    pub(super) panels: usize,
    pub(super) pairs: usize,
    pub(super) output: *mut f32,
    /// Columns of the tile, and of a row of the output.
    pub(super) columns: [usize; 2],
    /// Whether the sums go on from those in the output.
    pub(super) accumulate: bool,
}

/// A pair of either side.
pub(super) type Two = [u32; 2];

/// A number below the normal ones is zero wherever it occurs.
fn normal(x: f32) -> f32 {
    match x.is_subnormal() {
        true => 0.0f32.copysign(x),
        false => x,
    }
}

/// A sum with the product of the first numbers of two pairs, or of the second ones, rounded once.
fn add_product<const SECOND: bool>(sum: f32, [a, b]: Two) -> f32 {
    let shift = if SECOND { 0 } else { 16 };
    let number = |pair: u32| normal(f32::from_bits(pair << shift & 0xffff_0000));
    normal(number(a).mul_add(number(b), normal(sum)))
}

/// A sum with the products of two pairs, as VDPBF16PS adds them.
pub(super) fn add_pair(sum: f32, pair: Two) -> f32 {
    add_product::<false>(add_product::<true>(sum, pair), pair)
}

/// A tile without the instruction.
///
/// # Safety
/// The output has room for the tile, and is initialised where its sums go on.
pub(super) unsafe fn plainly(tile: &Tile<'_>) {
    let [row_stride, pair_stride] = tile.strides;
    for row in 0..tile.rows {
        for column in 0..tile.columns[0] {
            // SAFETY: the caller's promise.
            let place = unsafe { &mut *tile.output.add(row * tile.columns[1] + column) };
            let mut sum = if tile.accumulate { *place } else { 0.0 };
            let panel = &tile.right[column / PANEL * tile.panel_lines..][..tile.pairs];
            for (at, line) in panel.iter().enumerate() {
                let factor = tile.left[row * row_stride + at * pair_stride];
                sum = add_pair(sum, [factor, line[column % PANEL]]);
            }
            *place = sum;
        }
    }
}
