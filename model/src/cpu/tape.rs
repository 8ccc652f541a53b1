//! Activations that the forward pass records for the backward pass.

/// Activations that the forward pass records for the backward pass.
#[derive(Debug)]
pub(crate) struct Tape {
    pub(crate) layers: Vec<Kept>,
    /// Input of the final norm.
    pub(crate) last: Vec<f32>,
    /// Whether only inputs are kept.
    pub(crate) checkpoints: bool,
}

/// The record of one layer.
#[derive(Debug)]
pub(crate) enum Kept {
    /// Everything.
    Layer(Box<LayerTape>),
    /// Its input only: the backward pass runs it forward again.
    Input(Vec<f32>),
}

impl Tape {
    /// With `checkpoints` only each layer's input is kept, and its forward pass runs
    /// twice (arXiv:1604.06174).
    pub(crate) fn new(checkpoints: bool) -> Self {
        Tape {
            layers: Vec::new(),
            last: Vec::new(),
            checkpoints,
        }
    }
}

/// Rows of one layer. In the last layer `middle`, `gate` and `up` hold the wanted
/// rows only.
#[derive(Debug)]
pub(crate) struct LayerTape {
    /// Input of the layer.
    pub(crate) x: Vec<f32>,
    pub(crate) attention: Attention,
    /// Residual stream between attention and MLP.
    pub(crate) middle: Vec<f32>,
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
}

/// The rows of one layer's attention.
#[derive(Debug)]
pub(crate) struct Attention {
    /// Queries and keys before their norms, where the model has them.
    pub(crate) unnormed: Option<[Vec<f32>; 2]>,
    /// Rotated.
    pub(crate) queries: Vec<f32>,
    /// Rotated.
    pub(crate) keys: Vec<f32>,
    pub(crate) values: Vec<f32>,
    /// Output of attention.
    pub(crate) mixed: Vec<f32>,
}
