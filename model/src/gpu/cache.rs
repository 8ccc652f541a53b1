//! Paged keys and values: pages of [`PAGE`] positions are either a sequence's own, in its cache,
//! or packed rows of a batch of whole sequences. A table lists the pages of every row, so
//! that one kernel reads both.
//!
//! Sequences with a common beginning have its pages in common. A page whose positions lie in several
//! runs of rows has a copy of them behind all rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::backend::{Argument, Buffer, Element as _, Gpu, Operand};
use super::matrix::Operands;
use crate::Result;
use crate::batch::Batch;
use crate::kernels::key_values::BLOCK as PAGE;

/// Bytes of `count` elements in pages.
fn bytes(gpu: &Gpu, count: usize) -> u64 {
    (count * Operand::size(gpu.dtype())) as u64
}

/// Keys and values of one sequence in every layer. A page is `[layers][keys, values][PAGE]
/// [kv_width]`; a copy of a prefix shares its pages until either writes to them.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    layers: usize,
    kv_width: usize,
    length: usize,
    pages: Vec<Arc<Buffer<Operand>>>,
}

impl Cache {
    pub(crate) fn new(layers: usize, kv_width: usize) -> Self {
        Cache {
            layers,
            kv_width,
            length: 0,
            pages: Vec::new(),
        }
    }

    /// Bytes of a token's keys and values in all layers.
    pub(crate) fn token_bytes(gpu: &Gpu, layers: usize, kv_width: usize) -> usize {
        layers * 2 * kv_width * Operand::size(gpu.dtype())
    }

    /// Tokens held.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// A copy of its first `tokens`.
    pub(crate) fn first(&self, tokens: usize) -> Self {
        Cache {
            length: tokens,
            pages: self.pages[..tokens.div_ceil(PAGE)].to_vec(),
            ..*self
        }
    }

    /// One uninitialised page.
    pub(super) fn page(&self, gpu: &Gpu) -> Result<Self> {
        let mut page = self.first(0);
        page.extend(gpu, 1)?;
        Ok(page)
    }

    /// Makes room for `tokens` more, in pages that no other cache shares.
    fn extend(&mut self, gpu: &Gpu, tokens: usize) -> Result<()> {
        if !self.length.is_multiple_of(PAGE)
            && let Some(last) = self.pages.last_mut()
            && Arc::get_mut(last).is_none()
        {
            *last = Arc::new(last.duplicate()?);
        }
        self.length += tokens;
        while self.pages.len() < self.length.div_ceil(PAGE) {
            let page = gpu.buffer(self.layers * 2 * PAGE * self.kv_width)?;
            self.pages.push(Arc::new(page));
        }
        Ok(())
    }
}

/// The pages of every row of a batch.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Addresses of pages in caches, or offsets of pages in packed rows.
    pub(super) places: Vec<u64>,
    /// For every row, the index in `places` of its path's first page.
    pub(super) starts: Vec<u32>,
    /// The same for writing its own keys and values, where they are packed rows.
    pub(super) own: Vec<u32>,
    /// The packed rows that are copied behind all rows, in order.
    pub(super) copies: Vec<u32>,
    pub(super) are_cached: bool,
}

impl Pages {
    /// The pages of caches, one per segment, extended for the batch's tokens; segments after the
    /// last cache use `spare`.
    pub(super) fn of_caches(
        gpu: &Gpu,
        batch: &Batch,
        caches: &mut [&mut Cache],
        spare: Option<&Cache>,
    ) -> Result<Self> {
        let (mut places, mut starts) = (Vec::new(), Vec::new());
        for (cache, &tokens) in caches.iter_mut().zip(&batch.lengths) {
            cache.extend(gpu, tokens)?;
            starts.extend(std::iter::repeat_n(places.len() as u32, tokens));
            places.extend(cache.pages.iter().map(|page| page.address()));
        }
        if let Some(spare) = spare {
            starts.resize(batch.ids.len(), places.len() as u32);
            places.extend(spare.pages.iter().map(|page| page.address()));
        }
        Ok(Pages {
            places,
            starts,
            are_cached: true,
            ..Pages::default()
        })
    }

    /// The pages of packed rows, whose keys have `kv_width` elements.
    pub(super) fn of_rows(gpu: &Gpu, batch: &Batch, kv_width: usize) -> Self {
        let mut pages = Pages::default();
        // The row of each position of the path, and the place of each copied page by its last row.
        let (mut path, mut copied) = (Vec::new(), BTreeMap::new());
        let row_bytes = bytes(gpu, kv_width);
        let mut first = 0;
        for &tokens in &batch.lengths {
            let past = batch.past(first);
            path.truncate(past);
            path.extend(first..first + tokens);
            // Where the row of position 0 would be if all of the path were in this run.
            let begin = (first as u64).wrapping_sub(past as u64);
            let is_apart = past == 0;
            let starts = std::iter::repeat_n(pages.places.len() as u32, tokens);
            pages.own.extend(starts.clone());
            let own = (0..past as u64 + tokens as u64).step_by(PAGE);
            let own = own.map(|position| begin.wrapping_add(position).wrapping_mul(row_bytes));
            pages.places.extend(own);
            if is_apart {
                pages.starts.extend(starts);
            } else {
                let start = pages.places.len() as u32;
                pages.starts.extend(std::iter::repeat_n(start, tokens));
                for page in path.chunks(PAGE) {
                    let (head, last) = (page[0], page[page.len() - 1]);
                    let row = match last - head == page.len() - 1 {
                        true => head,
                        false => *copied.entry(last).or_insert_with(|| {
                            let at = batch.ids.len() + pages.copies.len();
                            pages.copies.extend(page.iter().map(|row| *row as u32));
                            at
                        }),
                    };
                    pages.places.push(row as u64 * row_bytes);
                }
            }
            first += tokens;
        }
        pages
    }
}

/// The offsets from a page's place to the keys and to the values of a layer. `packed` are the
/// keys and values where they are packed rows and not in caches.
pub(super) fn bases(
    gpu: &Gpu,
    layer: usize,
    kv_width: usize,
    packed: Option<&[Operands; 2]>,
) -> [Argument; 2] {
    let bases = match packed {
        Some(packed) => packed.each_ref().map(Operands::address),
        None => [2 * layer, 2 * layer + 1].map(|part| bytes(gpu, part * PAGE * kv_width)),
    };
    bases.map(Argument::Count)
}
