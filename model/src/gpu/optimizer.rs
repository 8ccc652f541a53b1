//! AdamW on a GPU: the trained numbers and both their moments stay in its memory, a step is one
//! kernel per parameter, and the network takes over the new numbers on the device.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::backend::{Argument, Buffer, Element, Gpu, Operand};
use super::matrix::{int, pointers};
use crate::cpu::adamw::{AdamWState, Step};
use crate::gpu::layers::{Factors, Learning, Linear};
use crate::gpu::tape::Gradients;
use crate::{Error, Result, Weights};

/// A parameter under training.
#[derive(Debug)]
struct Parameter {
    shape: Vec<usize>,
    numbers: Buffer,
    /// The network has the nearest numbers of bf16.
    is_rounded: bool,
    moments: [Buffer; 2],
}

impl Parameter {
    /// Gives `take` what the network computes with.
    fn with_used<T>(&self, take: impl FnOnce(&Buffer) -> Result<T>) -> Result<T> {
        if !self.is_rounded {
            return take(&self.numbers);
        }
        let nearest = self.numbers.duplicate()?;
        let count = nearest.length();
        let buffers = pointers([&self.numbers, &nearest]);
        nearest.gpu().each("nearest_bf16", count, &buffers)?;
        take(&nearest)
    }
}

/// The trained parameters of a model.
#[derive(Debug)]
pub(crate) struct Trained {
    gpu: Gpu,
    parameters: BTreeMap<String, Parameter>,
    /// Weights that an adapter is added to, by module. They stay in host memory: on the device
    /// they would take as much memory as the network's, or twice as much where those are bf16.
    bases: BTreeMap<String, Arc<Vec<f32>>>,
}

impl Trained {
    /// Copies the weights and the state of their optimizer. The network has the weights, or where it
    /// `is_rounded` the nearest numbers of bf16. `bases` are the weights that an adapter is added to,
    /// by module.
    ///
    /// # Errors
    /// They do not fit into the device's memory.
    pub(crate) fn upload<'a>(
        gpu: &Gpu,
        (weights, is_rounded): (&Weights, bool),
        state: &AdamWState,
        bases: impl Iterator<Item = (&'a str, &'a crate::Parameter)>,
    ) -> Result<Self> {
        let parameters = state.iter().map(|(name, shape, [first, second])| {
            let Some(parameter) = weights.get(name) else {
                return Err(Error::Request(format!("the weights lack {name}")));
            };
            let parameter = Parameter {
                shape: shape.to_vec(),
                numbers: gpu.upload(parameter.numbers())?,
                is_rounded,
                moments: [gpu.upload(first)?, gpu.upload(second)?],
            };
            Ok((name.to_owned(), parameter))
        });
        let parameters = parameters.collect::<Result<_>>()?;
        let bases = bases.map(|(module, base)| (module.to_owned(), base.shared()));
        Ok(Trained {
            gpu: gpu.clone(),
            parameters,
            bases: bases.collect(),
        })
    }

    /// Makes a step. A gradient is dropped once it has been used.
    pub(crate) fn step(&self, step: &Step<'_>, mut gradients: Gradients) -> Result<()> {
        for (name, parameter) in &self.parameters {
            let numbers = &parameter.numbers;
            // Without a gradient the moments decay as under a zero gradient.
            let gradient = match gradients.remove(name) {
                Some(gradient) => gradient,
                None => self.gpu.zeros(numbers.length())?,
            };
            let [first, second] = &parameter.moments;
            let buffers = pointers([numbers, &gradient, first, second]);
            let constants = step.pass(&parameter.shape).constants().map(Argument::Float);
            let arguments = [buffers.as_slice(), &constants].concat();
            self.gpu.each("adamw", numbers.length(), &arguments)?;
        }
        Ok(())
    }

    /// Downloads the parameters that are `wanted` into `weights`.
    pub(crate) fn fetch(&self, weights: &mut Weights, wanted: impl Fn(&str) -> bool) -> Result<()> {
        for (name, parameter) in &self.parameters {
            if wanted(name) {
                let numbers = parameter.with_used(|used| used.download(used.length()))?;
                weights.replace(name, |_| numbers);
            }
        }
        Ok(())
    }

    /// Downloads the numbers that steps change into `weights`.
    pub(crate) fn masters(&self, weights: &mut Weights) -> Result<()> {
        for (name, Parameter { numbers, .. }) in &self.parameters {
            let numbers = numbers.download(numbers.length())?;
            weights.replace(name, |_| numbers);
        }
        Ok(())
    }

    fn parameter(&self, name: &str) -> Result<&Parameter> {
        let missing = || Error::Request(format!("{name} is not trained"));
        self.parameters.get(name).ok_or_else(missing)
    }

    /// Both moments of a parameter.
    pub(crate) fn moments(&self, name: &str) -> Result<[Vec<f32>; 2]> {
        let [first, second] = &self.parameter(name)?.moments;
        let length = first.length();
        Ok([first.download(length)?, second.download(length)?])
    }

    /// Overwrites `old` from `first` on with the numbers of a parameter, if it is trained.
    pub(super) fn renew_numbers(
        &self,
        name: &str,
        old: &mut Arc<Buffer>,
        first: usize,
    ) -> Result<()> {
        match self.parameters.get(name) {
            Some(parameter) => {
                parameter.with_used(|used| own(old)?.set(used, (0, first), used.length()))
            }
            None => Ok(()),
        }
    }

    /// The same for all of `old`, rounded to operands.
    pub(super) fn renew_operands(&self, name: &str, old: &mut Arc<Buffer<Operand>>) -> Result<()> {
        match self.parameters.get(name) {
            Some(parameter) => parameter.with_used(|used| used.round_into(own(old)?)),
            None => Ok(()),
        }
    }

    /// Overwrites the columns of `old` from `first` on with the weight of a dense layer; rows of
    /// `old` are `stride` elements apart.
    pub(super) fn renew_columns(
        &self,
        module: &str,
        old: &mut Arc<Buffer<Operand>>,
        (first, stride): (usize, usize),
    ) -> Result<()> {
        let parameter = self.parameter(&format!("{module}.weight"))?;
        let width = int(parameter.shape[1]);
        let to = own(old)?.pointer_at(first);
        parameter.with_used(|used| {
            let arguments = [used.pointer(), to, width, int(stride)];
            self.gpu.each("to_columns", used.length(), &arguments)
        })
    }

    /// The same for a weight plus the product of its factors, with the same bits as the merge of
    /// [`crate::Adapter`].
    pub(super) fn merge(
        &self,
        module: &str,
        factors: &Factors,
        old: &mut Arc<Buffer<Operand>>,
        (first, stride): (usize, usize),
    ) -> Result<()> {
        let [a, b] = factors.names.each_ref().map(|name| self.parameter(name));
        let (a, b) = (a?, b?);
        let Some(base) = self.bases.get(module) else {
            return Err(Error::Request(format!("{module} has no adapter")));
        };
        let base = self.gpu.upload(base)?;
        let arguments = [
            base.pointer(),
            a.numbers.pointer(),
            b.numbers.pointer(),
            own(old)?.pointer_at(first),
            Argument::Float(factors.scale),
            int(factors.rank),
            int(b.numbers.length() / factors.rank),
            int(stride),
        ];
        self.gpu.each("merge_factors", base.length(), &arguments)
    }
}

impl Linear {
    /// Takes over the parameters that `trained` has changed.
    pub(super) fn renew(&mut self, trained: &Trained) -> Result<()> {
        for part in &mut self.parts {
            let (name, columns) = (&part.name, (part.first, self.width));
            match &mut part.learns {
                Learning::All => {
                    trained.renew_columns(name, &mut self.weight, columns)?;
                    if let Some(bias) = &mut self.bias {
                        trained.renew_numbers(&format!("{name}.bias"), bias, part.first)?;
                    }
                }
                Learning::Factors(factors) => {
                    let [a, b] = &factors.names;
                    trained.renew_operands(a, &mut factors.a)?;
                    trained.renew_operands(b, &mut factors.b)?;
                    trained.merge(name, factors, &mut self.weight, columns)?;
                }
                Learning::Nothing => {}
            }
        }
        Ok(())
    }
}

/// Memory that is not shared: that of `numbers`, or a copy that replaces it.
fn own<T: Element>(numbers: &mut Arc<Buffer<T>>) -> Result<&Buffer<T>> {
    if Arc::get_mut(numbers).is_none() {
        *numbers = Arc::new(numbers.duplicate()?);
    }
    Ok(numbers)
}

/// Global L2 norm.
pub(crate) fn norm(gradients: &Gradients) -> Result<f64> {
    let squares = gradients.values().map(|g| g.gpu().sum_of_squares(g));
    Ok(squares.sum::<Result<f64>>()?.sqrt())
}
