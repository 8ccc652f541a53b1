//! Gradients of all parameters, and their sum over units in a fixed binary tree,
//! so that neither the number of threads nor the number of workers that share
//! a minibatch ever shows in a result.

use crate::Result;
use crate::gpu::{self, Gpu};
use crate::kernels::pointwise::{add_assign, sum_of_squares};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

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

/// A gradient per parameter, by Hugging Face name, in the in-memory layout.
#[derive(Debug, Clone, Default)]
pub struct Gradients {
    by_name: BTreeMap<String, Vec<f32>>,
    spare: Arc<Spare>,
}

impl PartialEq for Gradients {
    fn eq(&self, other: &Self) -> bool {
        self.by_name == other.by_name
    }
}

impl Gradients {
    /// None yet; their memory is taken from `spare`.
    pub(crate) fn new(spare: &Arc<Spare>) -> Self {
        Gradients {
            by_name: BTreeMap::new(),
            spare: Arc::clone(spare),
        }
    }

    /// An empty vector for a gradient of so many numbers.
    pub(crate) fn room(&self, count: usize) -> Vec<f32> {
        self.spare.take(count)
    }

    /// A gradient of so many zeros, to be added to.
    pub(crate) fn zeros(&self, count: usize) -> Vec<f32> {
        let mut zeros = self.room(count);
        zeros.resize(count, 0.0);
        zeros
    }

    pub(crate) fn insert(&mut self, name: &str, gradient: Vec<f32>) {
        self.by_name.insert(name.to_owned(), gradient);
    }

    /// A copy in a GPU's memory.
    pub(crate) fn upload(&self, gpu: &Gpu) -> Result<gpu::Gradients> {
        let uploaded = self.iter().map(|(name, gradient)| {
            let buffer = gpu.upload(gradient)?;
            Ok((name.to_owned(), buffer))
        });
        uploaded.collect()
    }

    /// The gradient of a parameter; none where nothing contributed.
    pub fn get(&self, name: &str) -> Option<&[f32]> {
        self.by_name.get(name).map(Vec::as_slice)
    }

    /// Gradients in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[f32])> {
        self.by_name
            .iter()
            .map(|(name, gradient)| (name.as_str(), gradient.as_slice()))
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Vec<f32>> {
        self.by_name.remove(name)
    }

    /// Global L2 norm, in f64.
    pub fn norm(&self) -> f64 {
        self.by_name
            .values()
            .map(|gradient| sum_of_squares(gradient))
            .sum::<f64>()
            .sqrt()
    }

    pub(crate) fn add(&mut self, other: Gradients) {
        for (name, gradient) in other.by_name {
            match self.by_name.get_mut(&name) {
                Some(own) => {
                    add_assign(own, &gradient);
                    self.spare.give(gradient);
                }
                None => {
                    self.by_name.insert(name, gradient);
                }
            }
        }
    }
}
