//! Gradients of all parameters, and their sum over units in a fixed binary tree,
//! so that the number of threads never shows in a result.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::kernels::pointwise::{add_assign, sum_of_squares};
use crate::parallel::{self, ComputeOptions};
use crate::{Error, Result};

/// A gradient per parameter, by Hugging Face name, in the in-memory layout.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gradients {
    by_name: BTreeMap<String, Vec<f32>>,
}

impl Gradients {
    pub(crate) fn insert(&mut self, name: &str, gradient: Vec<f32>) {
        self.by_name.insert(name.to_owned(), gradient);
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

    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Vec<f32>> {
        self.by_name.get_mut(name)
    }

    /// Global L2 norm, in f64.
    pub fn norm(&self) -> f64 {
        self.by_name
            .values()
            .map(|gradient| sum_of_squares(gradient))
            .sum::<f64>()
            .sqrt()
    }

    fn add(&mut self, other: Gradients) {
        for (name, gradient) in other.by_name {
            match self.by_name.get_mut(&name) {
                Some(own) => add_assign(own, &gradient),
                None => {
                    self.by_name.insert(name, gradient);
                }
            }
        }
    }
}

/// The gradient of a minibatch, summed over its `count` units, and the total of
/// the tokens that `unit` says went through a forward pass.
pub(crate) fn over_units(
    options: &ComputeOptions<'_>,
    count: usize,
    unit: impl Fn(usize) -> Result<(Option<Gradients>, usize)> + Sync,
) -> Result<(Gradients, usize)> {
    let tree = GradientTree::new(count);
    let tokens = parallel::map(options, count, |number| {
        let (gradients, tokens) = unit(number).map_err(|error| match error {
            Error::Request(message) => Error::Request(format!("unit {number}: {message}")),
            other => other,
        })?;
        tree.add(number, gradients);
        Ok(tokens)
    })?;
    Ok((tree.finish(), tokens.into_iter().sum()))
}

/// Node (level, index) of the tree covers the units [index·2^level, (index+1)·2^level).
type Node = (u32, usize);

/// Sums the units' gradients as they arrive, in any order, always along the same
/// tree. Taken in unit order by T threads it holds O(T + log units) sets.
pub(crate) struct GradientTree {
    units: usize,
    waiting: Mutex<BTreeMap<Node, Option<Gradients>>>,
}

impl GradientTree {
    pub(crate) fn new(units: usize) -> Self {
        GradientTree {
            units,
            waiting: Mutex::default(),
        }
    }

    /// Adds a unit's gradients; none for a unit that contributes nothing.
    pub(crate) fn add(&self, unit: usize, mut sum: Option<Gradients>) {
        let (mut level, mut index) = (0u32, unit);
        loop {
            let width = self.units.div_ceil(1 << level);
            let sibling = index ^ 1;
            // A last node without a sibling rises unchanged; the root stays.
            if width == 1 || sibling < width {
                let mut waiting = self.waiting.lock().expect("no thread panics holding this");
                let Some(other) = waiting.remove(&(level, sibling)) else {
                    waiting.insert((level, index), sum);
                    return;
                };
                drop(waiting);
                let (left, right) = if index < sibling {
                    (sum, other)
                } else {
                    (other, sum)
                };
                sum = match (left, right) {
                    (Some(mut left), Some(right)) => {
                        left.add(right);
                        Some(left)
                    }
                    (left, right) => left.or(right),
                };
            }
            level += 1;
            index /= 2;
        }
    }

    /// The sum over all units; empty where none contributed.
    pub(crate) fn finish(self) -> Gradients {
        let waiting = self
            .waiting
            .into_inner()
            .expect("no thread panics holding this");
        waiting.into_values().next().flatten().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_of_arrival_gives_the_same_bits_and_every_unit_counts_once() {
        let unit = |i: usize| {
            let mut gradients = Gradients::default();
            gradients.insert("w", vec![1.0 / (i + 1) as f32, 1.0]);
            (i % 5 != 3).then_some(gradients)
        };
        for units in 1..20 {
            let forward = GradientTree::new(units);
            (0..units).for_each(|i| forward.add(i, unit(i)));
            let backward = GradientTree::new(units);
            (0..units).rev().for_each(|i| backward.add(i, unit(i)));
            let forward = forward.finish();
            assert_eq!(forward, backward.finish());
            let count = (0..units).filter(|i| i % 5 != 3).count();
            assert_eq!(forward.get("w").unwrap()[1], count as f32);
        }
        assert_eq!(GradientTree::new(0).finish(), Gradients::default());
    }
}
