//! The lists that a forward pass reads of a batch: ids, positions, where keys and values are, and
//! how attention's work is divided into blocks. They are built on the CPU and uploaded as one.

use super::backend::{Argument, Buffer, Gpu};
use super::cache::{Cache, Pages};
use super::tiles::{Blocks, FEW_ENTRY, MANY_ENTRY};
use crate::Result;
use crate::batch::Batch;
use crate::gpu::list::List;
use std::ops::Range;

/// The lists of a batch, in host memory.
#[derive(Debug)]
pub(super) struct Lists {
    ids: Vec<u32>,
    positions: Vec<u32>,
    /// The rows whose states are wanted.
    wanted: Vec<u32>,
    pages: Pages,
    blocks: Blocks,
}

/// Sizes that lists are rounded up to, so that similar steps have the same sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sizes {
    pub(super) rows: usize,
    few: usize,
    merges: usize,
    pages: usize,
}

impl Lists {
    /// The lists of a batch of whole sequences, whose rows of keys
    /// have `kv_width` elements; `group` query heads share a key head.
    pub(super) fn of_rows(
        gpu: &Gpu,
        batch: &Batch,
        wanted: &[u32],
        (kv_width, group): (usize, usize),
    ) -> Self {
        let pages = Pages::of_rows(gpu, batch, kv_width);
        Lists::new(batch, wanted, pages, group)
    }

    /// The lists of a batch whose segments have a cache each, which is extended for the batch's
    /// tokens. Segments without one, of one token each, use `spare`.
    pub(super) fn of_caches(
        gpu: &Gpu,
        batch: &Batch,
        wanted: &[u32],
        caches: &mut [&mut Cache],
        spare: Option<&Cache>,
        group: usize,
    ) -> Result<Self> {
        let pages = Pages::of_caches(gpu, batch, caches, spare)?;
        Ok(Lists::new(batch, wanted, pages, group))
    }

    fn new(batch: &Batch, wanted: &[u32], pages: Pages, group: usize) -> Self {
        Lists {
            ids: batch.ids.clone(),
            positions: batch.positions.clone(),
            wanted: wanted.to_vec(),
            pages,
            blocks: Blocks::new(batch, group),
        }
    }

    /// Pads the lists, which already have their final number of rows, with entries that cause no
    /// work.
    pub(super) fn round_up(&mut self) -> Sizes {
        let rows = self.ids.len();
        let [few, merges] = self.blocks.round_up();
        let pages = &mut self.pages.places;
        // A block of few rows reads four pages.
        let least = (few * 4).max(1);
        pages.resize(pages.len().next_power_of_two().max(least), 0);
        Sizes {
            rows,
            few,
            merges,
            pages: pages.len(),
        }
    }

    /// The lists one after another, pages first: the place of a page takes two numbers and must be
    /// aligned to 8 bytes.
    fn numbers(&self) -> Vec<u32> {
        let halves = |&place: &u64| [place as u32, (place >> 32) as u32];
        let pages: Vec<u32> = self.pages.places.iter().flat_map(halves).collect();
        let mut numbers = pages;
        for list in self.after_pages() {
            numbers.extend_from_slice(list);
        }
        numbers
    }

    fn after_pages(&self) -> [&[u32]; 9] {
        [
            &self.ids,
            &self.positions,
            &self.wanted,
            &self.pages.starts,
            &self.blocks.many,
            &self.blocks.few,
            &self.blocks.merges,
            &self.pages.own,
            &self.pages.copies,
        ]
    }
}

/// The lists in a device's memory.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) count: usize,
    /// Whether keys and values are in caches.
    pub(super) is_cached: bool,
    /// Number of places of spans that are to be merged.
    pub(super) span_places: usize,
    numbers: Buffer<u32>,
    /// Ranges of [`Lists::after_pages`], in that order.
    at: [Range<usize>; 9],
}

impl Rows {
    pub(super) fn upload(gpu: &Gpu, lists: &Lists) -> Result<Self> {
        let mut end = 2 * lists.pages.places.len();
        let at = lists.after_pages().map(|list| {
            let first = end;
            end += list.len();
            first..end
        });
        Ok(Rows {
            count: lists.ids.len(),
            is_cached: lists.pages.are_cached,
            span_places: lists.blocks.places,
            numbers: gpu.upload(&lists.numbers())?,
            at,
        })
    }

    /// Overwrites the lists with others of the same sizes.
    pub(super) fn refill(&self, lists: &Lists) -> Result<()> {
        self.numbers.refill(&lists.numbers())
    }

    fn list(&self, number: usize) -> List<'_> {
        let at = &self.at[number];
        List {
            numbers: &self.numbers,
            first: at.start,
            length: at.len(),
        }
    }

    pub(super) fn ids(&self) -> List<'_> {
        self.list(0)
    }

    pub(super) fn positions(&self) -> List<'_> {
        self.list(1)
    }

    pub(super) fn wanted(&self) -> List<'_> {
        self.list(2)
    }

    /// The arguments by which kernels find the pages of a row's path.
    pub(super) fn pages(&self) -> [Argument; 2] {
        [self.list(3).pointer(), self.numbers.pointer()]
    }

    /// The same for the page that a row writes to.
    pub(super) fn own_pages(&self) -> [Argument; 2] {
        match self.is_cached {
            true => self.pages(),
            false => [self.list(7).pointer(), self.numbers.pointer()],
        }
    }

    /// Rows whose keys and values are copied behind all rows.
    pub(super) fn copies(&self) -> List<'_> {
        self.list(8)
    }

    /// Blocks of many rows, blocks of few rows, and merges of the latter: their number and their
    /// list.
    pub(super) fn blocks(&self) -> [(usize, Argument); 3] {
        [(4, MANY_ENTRY), (5, FEW_ENTRY), (6, FEW_ENTRY)].map(|(number, entry)| {
            let list = self.list(number);
            (list.length / entry, list.pointer())
        })
    }
}
