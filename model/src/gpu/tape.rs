//! Activations that the forward pass on a GPU records for the backward pass.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::backend::{Buffer, Gpu};
use super::matrix::{Matrix, Operands};
use super::rows::Rows;
use crate::Result;

/// A gradient per parameter, by Hugging Face name, in the device's memory: the sum of those of some
/// units.
pub(crate) type Gradients = BTreeMap<String, Buffer>;

/// The sum of a parameter's gradients, and whether there is one: if not, it is uninitialised, and
/// the caller writes it instead of adding to it.
pub(super) fn sum<'a>(
    gradients: &'a mut Gradients,
    gpu: &Gpu,
    name: &str,
    length: usize,
) -> Result<(&'a Buffer, bool)> {
    match gradients.entry(name.to_owned()) {
        Entry::Occupied(sum) => Ok((sum.into_mut(), true)),
        Entry::Vacant(none) => Ok((none.insert(gpu.buffer(length)?), false)),
    }
}

/// The same, zero where there is none.
pub(super) fn sum_to_add_to<'a>(
    gradients: &'a mut Gradients,
    gpu: &Gpu,
    name: &str,
    length: usize,
) -> Result<&'a Buffer> {
    match gradients.entry(name.to_owned()) {
        Entry::Occupied(sum) => Ok(sum.into_mut()),
        Entry::Vacant(none) => Ok(none.insert(gpu.zeros(length)?)),
    }
}

/// Adds a gradient to the sum.
pub(super) fn add(gradients: &mut Gradients, name: &str, gradient: Buffer) -> Result<()> {
    match gradients.entry(name.to_owned()) {
        Entry::Occupied(sum) => sum.get().add(&gradient),
        Entry::Vacant(none) => {
            none.insert(gradient);
            Ok(())
        }
    }
}

/// Activations that the forward pass records for the backward pass.
#[derive(Debug)]
pub(crate) struct Tape {
    pub(super) layers: Vec<Kept>,
    /// Input of the final norm.
    pub(super) last: Option<Matrix>,
    pub(super) rows: Option<Rows>,
    /// Whether only inputs are kept.
    pub(super) checkpoints: bool,
}

/// The record of one layer: all activations, or its input only.
#[derive(Debug)]
pub(super) enum Kept {
    Layer(Box<LayerTape>),
    Input(Matrix),
}

impl Tape {
    pub(crate) fn new(checkpoints: bool) -> Self {
        Tape {
            layers: Vec::new(),
            last: None,
            rows: None,
            checkpoints,
        }
    }
}

/// Rows of one layer, as in `crate::cpu::tape::LayerTape`.
#[derive(Debug)]
pub(super) struct LayerTape {
    pub(super) x: Matrix,
    pub(super) attention: Attention,
    pub(super) middle: Matrix,
    pub(super) gate_and_up: Matrix,
}

/// Rows of one layer's attention.
#[derive(Debug)]
pub(super) struct Attention {
    /// The projections, whose queries and keys are not normed yet, if the model has head norms.
    pub(super) unnormed: Option<Matrix>,
    pub(super) queries: Operands,
    /// For whole sequences; otherwise they are in caches.
    pub(super) keys_and_values: Option<[Operands; 2]>,
    pub(super) mixed: Operands,
    /// `[row][head]`, logarithms of the sums of attention's weights.
    pub(super) log_sums: Buffer,
}
