//! Memory for many numbers, and a pool of it for gradients.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// Bytes of a large page.
const LARGE: usize = 2 << 20;

/// An empty vector with capacity for `count` numbers; where these are many, on large pages if the
/// system has some: a product that goes down the columns of a large weight meets another page of
/// 4 KB with every step, and fresh memory is cleared page by page.
pub(crate) fn room<T>(count: usize) -> Vec<T> {
    let room = Vec::with_capacity(count);
    #[cfg(target_os = "linux")]
    if count * size_of::<T>() >= 2 * LARGE {
        /// The advice is refused for a part of a page.
        const PAGE: usize = 4096;
        let start = (room.as_ptr() as usize).next_multiple_of(PAGE);
        let end = (room.as_ptr() as usize + count * size_of::<T>()) / PAGE * PAGE;
        // SAFETY: the pages are inside the allocation, and the advice changes no content. Whether it
        // is taken does not matter.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
    room
}

/// The memory of `numbers`, emptied, or new memory where it has no room for `count`.
pub(crate) fn reused<T>(mut numbers: Vec<T>, count: usize) -> Vec<T> {
    numbers.clear();
    match numbers.capacity() < count {
        true => room(count),
        false => numbers,
    }
}

/// So many zeros.
pub(crate) fn zeros<T: Clone + Default>(count: usize) -> Vec<T> {
    let mut zeros = room(count);
    zeros.resize(count, T::default());
    zeros
}

/// Memory of gradients that are no longer needed, kept for later ones. With fresh memory in each
/// step, the operating system's clearing of it takes half of a large model's step.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// By capacity, in numbers.
    by_room: Mutex<BTreeMap<usize, Rooms>>,
}

/// Vectors of one size.
#[derive(Debug, Default)]
struct Rooms {
    free: Vec<Vec<f32>>,
    /// How many are currently lent out.
    taken: usize,
}

impl Spare {
    /// An empty vector with capacity for `count` numbers.
    pub(crate) fn take(&self, count: usize) -> Vec<f32> {
        let mut by_room = self.by_room.lock().expect("no thread panics holding this");
        let rooms = by_room.entry(count).or_default();
        rooms.taken += 1;
        let found = rooms.free.pop();
        drop(by_room);
        found.unwrap_or_else(|| room(count))
    }

    /// Keeps the memory of unneeded numbers, but never more than was taken. Old weights
    /// may be given instead of a gradient whose memory now holds the new weights.
    pub(crate) fn give(&self, mut numbers: Vec<f32>) {
        let mut by_room = self.by_room.lock().expect("no thread panics holding this");
        if let Some(rooms) = by_room.get_mut(&numbers.capacity())
            && rooms.taken > 0
        {
            numbers.clear();
            rooms.taken -= 1;
            rooms.free.push(numbers);
        }
    }
}
