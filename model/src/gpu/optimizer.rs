//! AdamW on a GPU: the trained numbers and both their moments stay in its memory, and a step
//! is one kernel per parameter.

use std::collections::BTreeMap;

use super::backend::{Argument, Buffer, Gpu};
use super::backward::Gradients;
use super::matrix::pointers;
use crate::adamw::{AdamWState, Step};
use crate::{Error, Result, Weights};

/// A parameter under training.
#[derive(Debug)]
struct Trained {
    shape: Vec<usize>,
    numbers: Buffer,
    moments: [Buffer; 2],
}

/// What an optimizer changes.
#[derive(Debug)]
pub(crate) struct Optimizer {
    trained: BTreeMap<String, Trained>,
}

impl Optimizer {
    /// Copies the weights and the state of their optimizer.
    ///
    /// # Errors
    /// They do not fit.
    pub(crate) fn upload(gpu: &Gpu, weights: &Weights, state: &AdamWState) -> Result<Self> {
        let trained = state.iter().map(|(name, shape, [first, second])| {
            let Some(parameter) = weights.get(name) else {
                return Err(Error::Request(format!("the weights lack {name}")));
            };
            let trained = Trained {
                shape: shape.to_vec(),
                numbers: gpu.upload(parameter.numbers())?,
                moments: [gpu.upload(first)?, gpu.upload(second)?],
            };
            Ok((name.to_owned(), trained))
        });
        Ok(Optimizer {
            trained: trained.collect::<Result<_>>()?,
        })
    }

    /// Makes a step. A gradient is dropped once it has been used.
    pub(crate) fn step(&self, step: &Step<'_>, mut gradients: Gradients) -> Result<()> {
        for (name, trained) in &self.trained {
            let numbers = &trained.numbers;
            let gpu = numbers.gpu();
            // Where nothing contributed moments decay as under a zero gradient.
            let gradient = match gradients.remove(name) {
                Some(gradient) => gradient,
                None => gpu.zeros(numbers.length())?,
            };
            let [first, second] = &trained.moments;
            let buffers = pointers([numbers, &gradient, first, second]);
            let constants = step.pass(&trained.shape).constants().map(Argument::Float);
            let arguments = [buffers.as_slice(), &constants].concat();
            gpu.each("adamw", numbers.length(), &arguments)?;
        }
        Ok(())
    }

    /// The trained numbers, in place of those in `weights`.
    pub(crate) fn fetch(&self, weights: &mut Weights) -> Result<()> {
        for (name, trained) in &self.trained {
            let numbers = trained.numbers.download(trained.numbers.length())?;
            weights.replace(name, |_| numbers);
        }
        Ok(())
    }

    /// Both moments of a parameter.
    pub(crate) fn moments(&self, name: &str) -> Result<[Vec<f32>; 2]> {
        let Some(Trained { moments, .. }) = self.trained.get(name) else {
            return Err(Error::Request(format!("{name} is not trained")));
        };
        let [first, second] = moments;
        let length = first.length();
        Ok([first.download(length)?, second.download(length)?])
    }
}

/// Global L2 norm.
pub(crate) fn norm(gradients: &Gradients) -> Result<f64> {
    let squares = gradients.values().map(|g| g.gpu().sum_of_squares(g));
    Ok(squares.sum::<Result<f64>>()?.sqrt())
}
