//! Gradients of all parameters, on the CPU.

use crate::Result;
use crate::kernels::pointwise::{add_assign, sum_of_squares};
use crate::parallel::{self, ComputeOptions};
use crate::spare::Spare;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

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
    /// No gradients yet; their memory is taken from `spare`.
    pub(crate) fn new(spare: &Arc<Spare>) -> Self {
        Gradients {
            by_name: BTreeMap::new(),
            spare: Arc::clone(spare),
        }
    }

    /// An empty vector with capacity for a gradient of `count` numbers.
    pub(crate) fn room(&self, count: usize) -> Vec<f32> {
        self.spare.take(count)
    }

    /// A gradient of `count` zeros, to be added to.
    pub(crate) fn zeros(&self, count: usize) -> Vec<f32> {
        let mut zeros = self.room(count);
        zeros.resize(count, 0.0);
        zeros
    }

    pub(crate) fn insert(&mut self, name: &str, gradient: Vec<f32>) {
        self.by_name.insert(name.to_owned(), gradient);
    }

    /// The gradient of a parameter; `None` where nothing contributed.
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
    pub(crate) fn norm(&self, options: &ComputeOptions<'_>) -> Result<f64> {
        let all: Vec<&Vec<f32>> = self.by_name.values().collect();
        let squares = |number: usize| Ok(sum_of_squares(all[number]));
        let squares = parallel::map(options, all.len(), squares)?;
        Ok(squares.into_iter().sum::<f64>().sqrt())
    }

    /// Adds all of `other`; many numbers with the parameters divided over the threads.
    pub(crate) fn add(&mut self, mut other: Self, options: &ComputeOptions<'_>) -> Result<()> {
        /// Numbers from which a thread is worth its start.
        const MANY: usize = 1 << 22;
        let mut both = Vec::new();
        for (name, gradient) in other.drain() {
            match self.by_name.remove(&name) {
                Some(own) => both.push(Mutex::new((name, own, gradient))),
                None => self.insert(&name, gradient),
            }
        }
        let count = |pair: &Mutex<(_, Vec<f32>, _)>| pair.lock().map_or(0, |pair| pair.1.len());
        let few = both.iter().map(count).sum::<usize>() < MANY;
        let options = ComputeOptions {
            threads: if few { 1 } else { options.threads },
            ..*options
        };
        parallel::map(&options, both.len(), |number| {
            let mut pair = both[number].lock().expect("one thread takes it");
            let (_, own, gradient) = &mut *pair;
            add_assign(own, gradient);
            Ok(())
        })?;
        for pair in both {
            let (name, own, gradient) = pair.into_inner().expect("no thread has panicked");
            self.by_name.insert(name, own);
            self.spare.give(gradient);
        }
        Ok(())
    }

    pub(crate) fn add_one(&mut self, name: &str, gradient: Vec<f32>) {
        match self.by_name.get_mut(name) {
            Some(own) => {
                add_assign(own, &gradient);
                self.spare.give(gradient);
            }
            None => self.insert(name, gradient),
        }
    }

    /// Takes out all gradients.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (String, Vec<f32>)> {
        std::mem::take(&mut self.by_name).into_iter()
    }
}
