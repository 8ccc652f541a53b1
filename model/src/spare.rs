//! Memory that training gives back and takes again.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// Memory of gradients that have been added or used up, for those to come. Where a step's
/// memory is fresh each time, the system's clearing of it is half of a large model's step.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// By how many numbers there is room for.
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
    /// An empty vector with room for so many numbers.
    pub(crate) fn take(&self, count: usize) -> Vec<f32> {
        let mut by_room = self.by_room.lock().expect("no thread panics holding this");
        let rooms = by_room.entry(count).or_default();
        rooms.taken += 1;
        let found = rooms.free.pop();
        drop(by_room);
        found.unwrap_or_else(|| Vec::with_capacity(count))
    }

    /// Keeps the memory of numbers that nobody needs, but never more than was taken: weights
    /// may come in a gradient's place that became weights.
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
