//! A layer on a GPU.

use std::borrow::Cow;
use std::sync::Arc;

use super::backend::{Buffer, Gpu, Operand};
use super::products::Dense;
use crate::Result;
use crate::cpu::layer::{self, Learns};

/// Numbers of a parameter, shared by networks until training changes one of them.
pub(super) type Shared<T = f32> = Arc<Buffer<T>>;

/// A norm's weight.
#[derive(Debug, Clone)]
pub(super) struct Norm {
    pub(super) name: String,
    pub(super) weight: Shared,
}

/// Dense layers with the same input: their weights are stored side by side, so that one product
/// computes all of them.
#[derive(Debug, Clone)]
pub(super) struct Linear {
    pub(super) inner: usize,
    /// Columns of all layers.
    pub(super) width: usize,
    /// `[inner, width]`
    pub(super) weight: Shared<Operand>,
    /// `[width]`
    pub(super) bias: Option<Shared>,
    pub(super) parts: Vec<Part>,
}

/// One of the layers.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) name: String,
    /// Its first column.
    pub(super) first: usize,
    pub(super) width: usize,
    pub(super) learns: Learning,
}

/// The part of a dense layer that training changes.
#[derive(Debug, Clone)]
pub(super) enum Learning {
    All,
    Nothing,
    Factors(Factors),
}

/// The adapter of a dense layer; A is `[in, rank]`, B `[rank, out]`.
#[derive(Debug, Clone)]
pub(super) struct Factors {
    pub(super) names: [String; 2],
    pub(super) a: Shared<Operand>,
    pub(super) b: Shared<Operand>,
    pub(super) rank: usize,
    pub(super) scale: f32,
}

impl Linear {
    pub(super) fn upload(gpu: &Gpu, layers: &[&layer::Dense]) -> Result<Self> {
        let (mut parts, mut width, mut inner) = (Vec::new(), 0, 0);
        for dense in layers {
            let learns = match &dense.learns {
                Learns::All => Learning::All,
                Learns::Nothing => Learning::Nothing,
                Learns::Factors(factors) => Learning::Factors(Factors {
                    names: factors.names.clone(),
                    a: Arc::new(gpu.upload_operands(&factors.a)?),
                    b: Arc::new(gpu.upload_operands(&factors.b)?),
                    rank: factors.rank,
                    scale: factors.scale,
                }),
            };
            parts.push(Part {
                name: dense.name.clone(),
                first: width,
                width: dense.sizes.width,
                learns,
            });
            (inner, width) = (dense.sizes.inner, width + dense.sizes.width);
        }
        let biases: Vec<&[f32]> = layers
            .iter()
            .filter_map(|l| l.bias.as_deref())
            .map(Vec::as_slice)
            .collect();
        Ok(Linear {
            inner,
            width,
            weight: Arc::new(gpu.upload_operands(&side_by_side(layers, inner, width))?),
            bias: match biases.is_empty() {
                true => None,
                false => Some(Arc::new(gpu.upload(&biases.concat())?)),
            },
            parts,
        })
    }

    /// The weights of all layers.
    pub(super) fn dense(&self) -> Dense<'_> {
        Dense::new(&self.weight, self.inner, self.width)
    }
}

/// The weights of layers as one matrix, `[inner, width]`.
fn side_by_side<'a>(layers: &[&'a layer::Dense], inner: usize, width: usize) -> Cow<'a, [f32]> {
    if let [one] = layers {
        return Cow::Borrowed(&one.weight);
    }
    let mut rows = Vec::with_capacity(inner * width);
    for row in 0..inner {
        for dense in layers {
            let width = dense.sizes.width;
            rows.extend_from_slice(&dense.weight[row * width..(row + 1) * width]);
        }
    }
    Cow::Owned(rows)
}

#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) input_norm: Norm,
    /// Queries, keys and values.
    pub(super) projections: Linear,
    pub(super) head_norms: Option<[Norm; 2]>,
    pub(super) output: Linear,
    pub(super) mlp_norm: Norm,
    pub(super) gate_and_up: Linear,
    pub(super) down: Linear,
}
