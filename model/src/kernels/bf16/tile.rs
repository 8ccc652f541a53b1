//! A tile of a product: some rows by some panels, over some pairs.

use super::amx::{self, BLOCK, Shape};

/// Columns of a panel, the sums of one 512-bit register.
pub(super) const PANEL: usize = 16;

/// A part of a processor that multiplies numbers in bf16, and so the order in which an output's
/// products are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// AVX-512 BF16: one chain over the pairs of k, [`add_pair`].
    Vectors,
    /// AMX: a chain over blocks of 16 pairs, [`add_block`].
    Matrices,
}

impl Unit {
    /// The fastest that this process may use.
    pub(crate) fn best() -> Option<Self> {
        match amx::is_ready() {
            true => Some(Unit::Matrices),
            false => has_vectors().then_some(Unit::Vectors),
        }
    }

    /// Pairs that it multiplies at once: sides of a product are filled up to whole ones with zeros.
    pub(super) fn step(self) -> usize {
        match self {
            Unit::Vectors => 1,
            Unit::Matrices => BLOCK,
        }
    }

    /// Pairs of so many numbers along k.
    pub(super) fn pairs(self, numbers: usize) -> usize {
        numbers.div_ceil(2).next_multiple_of(self.step())
    }

    /// Rows and panels of its largest tile: all of its registers.
    pub(super) fn tile(self) -> [usize; 2] {
        match self {
            Unit::Vectors => [8, 3],
            Unit::Matrices => [32, 2],
        }
    }
}

/// Whether this processor has AVX-512 BF16.
pub(crate) fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

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

impl Tile<'_> {
    /// Writes the tile's part of the output, in the order of a unit; by its instructions where they
    /// are there.
    ///
    /// # Safety
    /// The output has room for the tile, and is initialised where its sums go on.
    pub(super) unsafe fn compute(&self, unit: Unit, shape: &mut Shape) {
        // SAFETY: the caller's promise; the instructions are there where they are used.
        unsafe {
            match unit {
                #[cfg(target_arch = "x86_64")]
                Unit::Vectors if has_vectors() => wide::compute(self),
                Unit::Vectors => plainly(self, 1, |sum, pairs| add_pair(sum, pairs[0])),
                Unit::Matrices if amx::is_ready() => amx::compute(self, shape),
                Unit::Matrices => plainly(self, BLOCK, add_block),
            }
        }
    }
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

/// A sum with the products of a block, as TDPBF16PS adds them (Intel's manual, volume 2): a chain of
/// its own for the first numbers of the pairs and for the second ones, then their sum.
pub(super) fn add_block(sum: f32, block: &[Two]) -> f32 {
    let pairs = || block.iter().copied();
    let first = pairs().fold(0.0, add_product::<false>);
    let second = pairs().fold(0.0, add_product::<true>);
    normal(normal(sum) + normal(first + second))
}

/// A tile without the instruction, some pairs at a time.
///
/// # Safety
/// As for [`Tile::compute`].
pub(super) unsafe fn plainly(tile: &Tile<'_>, step: usize, add: impl Fn(f32, &[Two]) -> f32) {
    let [row_stride, pair_stride] = tile.strides;
    let mut pairs = vec![[0; 2]; tile.pairs];
    for row in 0..tile.rows {
        for column in 0..tile.columns[0] {
            // SAFETY: the caller's promise.
            let place = unsafe { &mut *tile.output.add(row * tile.columns[1] + column) };
            let sum = if tile.accumulate { *place } else { 0.0 };
            let panel = &tile.right[column / PANEL * tile.panel_lines..][..tile.pairs];
            for (at, (pair, line)) in pairs.iter_mut().zip(panel).enumerate() {
                let factor = tile.left[row * row_stride + at * pair_stride];
                *pair = [factor, line[column % PANEL]];
            }
            *place = pairs.chunks(step).fold(sum, &add);
        }
    }
}

/// Tiles by the instruction.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{PANEL, Tile};
    use crate::kernels::fetch;
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
        // Where the sums are few for an output, waiting for its memory is a tenth of the time.
        for r in 0..R {
            for c in 0..C {
                fetch::<true>(place(r, c));
            }
        }
        let mut sums = [[_mm512_setzero_ps(); C]; R];
        // SAFETY: the masks leave out what is no part of the tile's output; the pairs that are read
        // are inside both slices, as asserted.
        unsafe {
            if tile.accumulate {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for c in 0..C {
                        sums[c] = _mm512_maskz_loadu_ps(masks[c], place(r, c));
                    }
                }
            }
            // Pointers that move: an index would be computed anew, and checked, for each number.
            let mut factors: [*const u32; R] =
                std::array::from_fn(|r| tile.left.as_ptr().wrapping_add((row + r) * row_stride));
            let mut places: [*const [u32; PANEL]; C] =
                std::array::from_fn(|c| tile.right.as_ptr().wrapping_add(c * tile.panel_lines));
            for _ in 0..tile.pairs {
                let mut lines = [bf16(_mm512_set1_epi32(0)); C];
                for c in 0..C {
                    lines[c] = bf16(_mm512_loadu_si512(places[c].cast()));
                    places[c] = places[c].wrapping_add(1);
                }
                for r in 0..R {
                    let factor = bf16(_mm512_set1_epi32((*factors[r]).cast_signed()));
                    factors[r] = factors[r].wrapping_add(pair_stride);
                    for c in 0..C {
                        sums[r][c] = _mm512_dpbf16_ps(sums[r][c], factor, lines[c]);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for c in 0..C {
                    _mm512_mask_storeu_ps(place(r, c), masks[c], sums[c]);
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

    /// Numbers of all sizes, the smallest and the largest, zeros, infinities and NaN among them.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_instruction_adds_as_written_here() {
        if !has_vectors() {
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
            unsafe { wide::compute(&tile) };
            for ((sum, b), found) in sums.into_iter().zip(right).zip(found) {
                let expected = add_pair(sum, [left[0], b]);
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
}
