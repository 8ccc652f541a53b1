//! A pool of memory for gradients.

use std::collections::BTreeMap;
use std::sync::Mutex;

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
        found.unwrap_or_else(|| Vec::with_capacity(count))
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
