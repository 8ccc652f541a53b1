//! The parts of a network: dense layers, norms, and the layers that have them.

use crate::kernels::dense::{Halves, Sizes, Weight};
use crate::kernels::matmul::View;
use std::sync::Arc;

/// A parameter's numbers, shared with [`crate::Weights`].
pub(crate) type Numbers = Arc<Vec<f32>>;

/// The part of a dense layer that training changes.
#[derive(Debug, Clone)]
pub(crate) enum Learns {
    /// Weight and bias.
    All,
    /// Nothing: the layer belongs to the base of an adapter.
    Nothing,
    /// The factors of the adapter whose product is merged into the weight.
    Factors(Factors),
}

/// The adapter of one dense weight.
#[derive(Debug, Clone)]
pub(crate) struct Factors {
    /// Names of A and B.
    pub(crate) names: [String; 2],
    /// `[in, rank]`
    pub(crate) a: Numbers,
    /// `[rank, out]`
    pub(crate) b: Numbers,
    pub(crate) rank: usize,
    pub(crate) scale: f32,
}

/// A dense layer of the network.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    /// Hugging Face name without `.weight` and `.bias`.
    pub(crate) name: String,
    pub(crate) sizes: Sizes,
    pub(crate) weight: Numbers,
    /// Where products are in bf16.
    pub(crate) halves: Option<Halves>,
    pub(crate) bias: Option<Numbers>,
    pub(crate) learns: Learns,
}

impl Dense {
    /// Its weight.
    pub(crate) fn weight(&self) -> Weight<'_> {
        let numbers = View::new(&self.weight, self.sizes.inner, self.sizes.width);
        Weight::new(numbers, self.halves.as_ref())
    }

    pub(crate) fn apply(&self, x: &[f32]) -> Vec<f32> {
        let bias = self.bias.as_ref().map(|bias| bias.as_slice());
        self.weight().apply(x, bias)
    }

    pub(crate) fn add_to(&self, y: &mut [f32], x: &[f32]) {
        self.weight().add_to(y, x);
    }
}

/// A norm's weight and its Hugging Face name.
#[derive(Debug, Clone)]
pub(crate) struct Norm {
    pub(crate) name: String,
    pub(crate) weight: Numbers,
}

#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) input_norm: Norm,
    pub(crate) query: Dense,
    pub(crate) key: Dense,
    pub(crate) value: Dense,
    /// Norms of every query head and every key head before the rotation (Qwen3).
    pub(crate) head_norms: Option<[Norm; 2]>,
    pub(crate) output: Dense,
    pub(crate) mlp_norm: Norm,
    pub(crate) gate: Dense,
    pub(crate) up: Dense,
    pub(crate) down: Dense,
}

impl Layer {
    pub(crate) fn dense(&self) -> [&Dense; 7] {
        let Layer {
            query,
            key,
            value,
            output,
            gate,
            up,
            down,
            ..
        } = self;
        [query, key, value, output, gate, up, down]
    }
}
