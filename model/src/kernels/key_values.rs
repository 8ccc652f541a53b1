//! Keys and values of one sequence in blocks of positions.

use std::sync::Arc;

use super::LANES;

/// Widest head the attention kernels have room for.
pub(crate) const HEAD_WIDTH_MAX: usize = 256;

/// Keys per block.
pub const BLOCK: usize = 64;

/// Keys and values of one sequence in one layer. Sequences with a common prefix share its blocks.
#[derive(Debug, Clone)]
pub(crate) struct KeyValues {
    pub(super) heads: usize,
    pub(super) width: usize,
    /// Head width rounded up to whole lanes; the rest is zero.
    padded: usize,
    pub(super) length: usize,
    /// Each of [`BLOCK`] positions: keys `[head][width][BLOCK]`, then
    /// values `[head][BLOCK][padded]`. Contents beyond the last position
    /// are never used: attention masks them, and appending overwrites them.
    blocks: Vec<Arc<Vec<f32>>>,
}

impl KeyValues {
    /// No positions yet, for `heads` key heads of `width` numbers.
    pub(crate) fn new(heads: usize, width: usize) -> Self {
        KeyValues {
            heads,
            width,
            padded: width.next_multiple_of(LANES),
            length: 0,
            blocks: Vec::new(),
        }
    }

    /// Bytes that a position takes.
    pub(crate) fn token_bytes(heads: usize, width: usize) -> usize {
        heads * (width + width.next_multiple_of(LANES)) * size_of::<f32>()
    }

    /// How many positions are held.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Head width rounded up to whole lanes.
    pub(super) fn padded(&self) -> usize {
        self.padded
    }

    /// Adds positions; both slices are rows of `heads · width`.
    pub(crate) fn append(&mut self, keys: &[f32], values: &[f32]) {
        let (width, padded) = (self.width, self.padded);
        let row_width = self.heads * width;
        let (keys_end, end) = (
            self.keys_end(),
            self.keys_end() + self.heads * padded * BLOCK,
        );
        let rows = keys
            .chunks_exact(row_width)
            .zip(values.chunks_exact(row_width));
        for (key, value) in rows {
            let (number, slot) = (self.length / BLOCK, self.length % BLOCK);
            if number == self.blocks.len() {
                self.blocks.push(Arc::new(vec![0.0; end]));
            }
            let (keys, values) = Arc::make_mut(&mut self.blocks[number]).split_at_mut(keys_end);
            for head in 0..self.heads {
                let columns = head * width..(head + 1) * width;
                let lines = &mut keys[head * width * BLOCK..][..width * BLOCK];
                for (line, &x) in lines.chunks_exact_mut(BLOCK).zip(&key[columns.clone()]) {
                    line[slot] = x;
                }
                let start = (head * BLOCK + slot) * padded;
                values[start..start + width].copy_from_slice(&value[columns]);
            }
            self.length += 1;
        }
    }

    /// Forgets all but the first `length` positions, which must exist; keeps their memory.
    pub(crate) fn truncate(&mut self, length: usize) {
        debug_assert!(length <= self.length, "{length} of {}", self.length);
        self.length = length;
    }

    /// The first `length` positions, which must exist.
    pub(crate) fn first(&self, length: usize) -> Self {
        KeyValues {
            length,
            blocks: self.blocks[..length.div_ceil(BLOCK)].to_vec(),
            ..*self
        }
    }

    /// The offset of the values in a block.
    #[inline(always)]
    fn keys_end(&self) -> usize {
        self.heads * self.width * BLOCK
    }

    #[inline(always)]
    pub(super) fn key_block(&self, block: usize, head: usize) -> &[f32] {
        &self.blocks[block][head * self.width * BLOCK..][..self.width * BLOCK]
    }

    #[inline(always)]
    pub(super) fn value_block(&self, block: usize, head: usize) -> &[f32] {
        &self.blocks[block][self.keys_end() + head * self.padded * BLOCK..][..self.padded * BLOCK]
    }
}
