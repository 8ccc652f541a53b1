//! What multiplies numbers in bf16 on a processor, and which part of it does here.

use super::amx::{self, Shape};
use super::tile::{BLOCK, Tile, add_block, add_pair, plainly};
use super::vectors::{self, has_vectors};

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

    /// Pairs of so many numbers along k, filled up to whole blocks where it multiplies these.
    pub(super) fn pairs(self, numbers: usize) -> usize {
        let pairs = numbers.div_ceil(2);
        match self {
            Unit::Vectors => pairs,
            Unit::Matrices => pairs.next_multiple_of(BLOCK),
        }
    }

    /// Rows and panels of its largest tile: all of its registers.
    pub(super) fn tile(self) -> [usize; 2] {
        match self {
            Unit::Vectors => [8, 3],
            Unit::Matrices => [32, 2],
        }
    }

    /// Writes a tile's part of the output in this order, by the instructions where they are there.
    ///
    /// # Safety
    /// As for [`plainly`].
    pub(super) unsafe fn compute(self, tile: &Tile<'_>, shape: &mut Shape) {
        // SAFETY: the caller's promise; the instructions are there where they are used.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Unit::Vectors if has_vectors() => vectors::compute(tile),
                Unit::Vectors => plainly(tile, 1, |sum, pairs| add_pair(sum, pairs[0])),
                Unit::Matrices if amx::is_ready() => amx::compute(tile, shape),
                Unit::Matrices => plainly(tile, BLOCK, add_block),
            }
        }
    }
}
