//! How attention's work is divided into blocks: (row, query head) pairs of one sequence that
//! iterate over its keys together (`kernels/attention.cu`). The division does not affect results.

use super::backend::{Buffer, Gpu};
use crate::Result;
use crate::batch::Batch;
use crate::kernels::key_values::BLOCK as PAGE;
use std::ops::Range;

/// Threads per block of the attention kernels.
pub(super) const THREADS: u32 = 128;

/// Pairs of a block with many rows, of one with few rows, and of one in the derivative by keys.
const MANY_PAIRS: usize = 32;
const FEW_PAIRS: usize = 8;
const PAIRS_BY_KEYS: usize = 16;

/// Key positions that a block with few rows reads.
const SPAN: usize = 4 * PAGE;

/// The place of an only span, which is not merged.
const ALONE: u32 = u32::MAX;

/// Widest head of the kernels.
pub(super) const WIDTH_MAX: usize = 128;

/// Shared memory that a block may request, in f32 numbers: every GPU from compute capability 8.0
/// on has that much on request.
#[cfg(any(test, feature = "cuda"))]
pub(super) const SHARED_MAX: usize = 96 * 1024 / size_of::<f32>();

/// A kernel, by the width of heads it is made for, and its shared memory in f32 numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel {
    pub(super) name: &'static str,
    pub(super) shared: usize,
}

/// The kernels for one width of heads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernels {
    pub(super) many: Kernel,
    pub(super) few: Kernel,
    pub(super) by_queries: Kernel,
    pub(super) by_keys: Kernel,
}

impl Kernels {
    pub(super) fn of(width: usize) -> Self {
        let wide = width > 64;
        // As in `tiles.cuh`: rows are padded by four numbers.
        let vector = if wide { 128 } else { 64 } + 4;
        let weights = PAGE + 4;
        let kernel = |names: [&'static str; 2], shared| Kernel {
            name: names[usize::from(wide)],
            shared,
        };
        // Per pair a query, weights, four parts of a sum and six numbers; and a page.
        let forward = |pairs| pairs * (vector + weights + 10) + PAGE * vector;
        Kernels {
            many: kernel(["attend_64", "attend_128"], forward(MANY_PAIRS)),
            few: kernel(["attend_span_64", "attend_span_128"], forward(FEW_PAIRS)),
            by_queries: kernel(
                ["attend_backward_queries_64", "attend_backward_queries_128"],
                MANY_PAIRS * (2 * vector + weights) + PAGE * vector,
            ),
            by_keys: kernel(
                ["attend_backward_keys_64", "attend_backward_keys_128"],
                2 * (PAGE * vector + PAIRS_BY_KEYS * (vector + weights)),
            ),
        }
    }
}

/// The blocks of a forward pass, as the kernels read them.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Per entry: the sequence's first row, the first pair, the sequence's number of pairs.
    pub(super) many: Vec<u32>,
    /// The same, then the span, and the place of its partial result.
    pub(super) few: Vec<u32>,
    /// The same as `many`, then the first place, and the number of places.
    pub(super) merges: Vec<u32>,
    /// Number of places of spans that are to be merged.
    pub(super) places: usize,
}

/// Numbers of one entry in each list.
pub(super) const MANY_ENTRY: usize = 3;
pub(super) const FEW_ENTRY: usize = 5;

impl Blocks {
    /// The blocks of a batch in which `group` query heads share a key head.
    pub(super) fn new(batch: &Batch, group: usize) -> Self {
        let mut blocks = Blocks::default();
        let mut row = 0;
        for &rows in &batch.lengths {
            let pairs = rows * group;
            let tile = |pair: usize| [row, pair, pairs].map(|number| number as u32);
            if pairs > 2 * FEW_PAIRS {
                let tiles = (0..pairs).step_by(MANY_PAIRS).flat_map(tile);
                blocks.many.extend(tiles);
            } else {
                for pair in (0..pairs).step_by(FEW_PAIRS) {
                    let last = (pair + FEW_PAIRS).min(pairs) - 1;
                    let keys = batch.positions[row + last / group] as usize + 1;
                    blocks.add_few(tile(pair), keys.div_ceil(SPAN));
                }
            }
            row += rows;
        }
        blocks
    }

    /// Adds the blocks of a tile of few rows over `spans` spans.
    fn add_few(&mut self, tile: [u32; 3], spans: usize) {
        if spans == 1 {
            self.few.extend(tile.into_iter().chain([0, ALONE]));
            return;
        }
        for span in 0..spans {
            let more = [span as u32, (self.places + span) as u32];
            self.few.extend(tile.into_iter().chain(more));
        }
        let more = [self.places as u32, spans as u32];
        self.merges.extend(tile.into_iter().chain(more));
        self.places += spans;
    }

    /// Pads the lists of blocks with few rows with empty blocks, and makes room for as many spans
    /// to be merged; returns the number of blocks, and of merges.
    pub(super) fn round_up(&mut self) -> [usize; 2] {
        let few = match self.few.len() / FEW_ENTRY {
            0 => 0,
            few => few.next_power_of_two(),
        };
        // A merge has at least two spans.
        let merges = if self.merges.is_empty() { 0 } else { few / 2 };
        self.few.resize(few * FEW_ENTRY, 0);
        self.merges.resize(merges * FEW_ENTRY, 0);
        self.places = if merges == 0 { 0 } else { few };
        [few, merges]
    }
}

/// Numbers that the partial results of `places` spans take until they are merged.
pub(super) fn spans_length(places: usize, kv_heads: usize, width: usize) -> usize {
    places * kv_heads * FEW_PAIRS * (width + 2)
}

/// The blocks of a backward pass over whole sequences.
#[derive(Debug)]
pub(super) struct BackwardTiles {
    /// As [`Blocks::many`].
    pub(super) queries: Buffer<u32>,
    /// Per entry: the first row of up to a page, one past its last row, one past the last row of
    /// its subtree.
    pub(super) keys: Buffer<u32>,
}

impl BackwardTiles {
    pub(super) fn new(gpu: &Gpu, batch: &Batch, group: usize) -> Result<Self> {
        let (mut queries, mut keys) = (Vec::new(), Vec::new());
        // The runs of rows of the current path.
        let mut path: Vec<Range<usize>> = Vec::new();
        let mut row = 0;
        for &rows in &batch.lengths {
            let pairs = rows * group;
            let starts = (0..pairs).step_by(MANY_PAIRS);
            queries.extend(starts.flat_map(|pair| [row, pair, pairs].map(|n| n as u32)));
            leave(&mut path, batch.past(row), row, &mut keys);
            path.push(row..row + rows);
            row += rows;
        }
        leave(&mut path, 0, row, &mut keys);
        Ok(BackwardTiles {
            queries: gpu.upload(&queries)?,
            keys: gpu.upload(&keys)?,
        })
    }

    /// Number of blocks in each list.
    pub(super) fn counts(&self) -> [usize; 2] {
        [&self.queries, &self.keys].map(|list| list.length() / MANY_ENTRY)
    }
}

/// Cuts a path at `past` positions: the subtrees of the rows after them end before row `end`. Lists
/// these rows, page by page.
fn leave(path: &mut Vec<Range<usize>>, past: usize, end: usize, pages: &mut Vec<u32>) {
    let mut before = 0;
    let mut kept = path.len();
    for (number, run) in path.iter_mut().enumerate() {
        let stays = past.saturating_sub(before).min(run.len());
        before += run.len();
        let left = run.start + stays..run.end;
        for first in left.clone().step_by(PAGE) {
            let last = (first + PAGE).min(left.end);
            pages.extend([first, last, end].map(|number| number as u32));
        }
        run.end = left.start;
        if stays == 0 {
            kept = kept.min(number);
        }
    }
    path.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_asks_for_more_shared_memory_than_there_is() {
        for width in [6, 64, 65, WIDTH_MAX] {
            let of = Kernels::of(width);
            for kernel in [of.many, of.few, of.by_queries, of.by_keys] {
                assert!(kernel.shared <= SHARED_MAX, "{kernel:?}");
            }
        }
    }
}
