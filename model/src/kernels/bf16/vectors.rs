//! Tiles of a product by AVX-512 BF16.

use super::tile::{PANEL, Tile, plainly};

/// Whether this processor has AVX-512 BF16.
pub(crate) fn has_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Writes a tile's part of the output, by the instruction where it is there.
///
/// # Safety
/// As for [`plainly`].
pub(super) unsafe fn compute(tile: &Tile<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        match has_vectors() {
            #[cfg(target_arch = "x86_64")]
            true => wide::compute(tile),
            _ => plainly(tile),
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
    /// The processor has the instructions; else as for `tile::plainly`.
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
            // The panels of the next tile are fetched: weights kept in bf16 come from memory.
            let next = C * tile.panel_lines;
            // Pointers that move: an index would be computed anew, and checked, for each number.
            let mut factors: [*const u32; R] =
                std::array::from_fn(|r| tile.left.as_ptr().wrapping_add((row + r) * row_stride));
            let mut places: [*const [u32; PANEL]; C] =
                std::array::from_fn(|c| tile.right.as_ptr().wrapping_add(c * tile.panel_lines));
            for _ in 0..tile.pairs {
                let mut lines = [bf16(_mm512_set1_epi32(0)); C];
                for c in 0..C {
                    fetch::<false>(places[c].wrapping_add(next).cast());
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
    use super::super::round::pair;
    use super::super::tile::add_pair;
    use super::*;
    use crate::kernels::tests::numbers;

    /// Of a tile whose last panel is not full; each output is the chain over its pairs.
    #[test]
    fn a_tile_without_the_instruction_is_the_same() {
        let [rows, pairs, columns] = [7, 5, 2 * PANEL + 3];
        let two = |count: usize, seed| -> Vec<u32> {
            let numbers = numbers(2 * count, seed);
            numbers.chunks(2).map(|two| pair(two[0], two[1])).collect()
        };
        let (left, right) = (two(rows * pairs, 3), two(3 * pairs * PANEL, 5));
        let (right, before) = (right.as_chunks().0, numbers(rows * columns, 7));
        for accumulate in [false, true] {
            let by = |instruction: bool| {
                let mut output = before.clone();
                let tile = Tile {
                    left: &left,
                    strides: [pairs, 1],
                    rows,
                    right,
                    panel_lines: pairs,
                    panels: 3,
                    pairs,
                    output: output.as_mut_ptr(),
                    columns: [columns; 2],
                    accumulate,
                };
                // SAFETY: the output is as large as the tile.
                unsafe {
                    match instruction {
                        true => compute(&tile),
                        false => plainly(&tile),
                    }
                }
                output
            };
            let plain = by(false);
            assert!(by(true) == plain, "accumulate {accumulate}");
            for (place, found) in plain.iter().enumerate() {
                let (row, column) = (place / columns, place % columns);
                let start = if accumulate { before[place] } else { 0.0 };
                let chain = (0..pairs).fold(start, |sum, at| {
                    let line = &right[column / PANEL * pairs + at];
                    add_pair(sum, [left[row * pairs + at], line[column % PANEL]])
                });
                assert_eq!(*found, chain, "row {row}, column {column}");
            }
        }
    }

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
