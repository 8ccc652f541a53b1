//! Activations that the forward pass on a GPU records for the backward pass.

use std::collections::BTreeMap;

use super::backend::Buffer;
use super::matrix::{Matrix, Operands};
use super::rows::Rows;

/// A gradient per parameter, by Hugging Face name, in the device's memory.
pub(crate) type Gradients = BTreeMap<String, Buffer>;

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
