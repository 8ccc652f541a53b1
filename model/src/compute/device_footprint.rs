//! What computations with a network take of a GPU's memory, counted in bytes that exist at the same
//! time in `gpu`. Nothing fragments it there: what is freed is given to the next that asks.

use crate::compute::footprint::Footprint;
use crate::gpu::{CHUNK_ROWS, TILE};
use crate::{Dtype, LoraOptions, ModelConfig, parameter_shapes};

/// Bytes of an f32 number.
const NUMBER: u128 = 4;

/// Gradients of all trained parameters that exist at the same time, at least: the sum of a run of
/// units, and one that waits for it. Others wait in host memory where the device is full.
const GRADIENTS: u128 = 2;

/// Counts of bytes, of which peaks are 0.91 to 1.0 where all tokens of a unit are trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFootprint {
    shape: Footprint,
    heads: u128,
    /// Bytes of an operand.
    operand: u128,
    network: u128,
    /// Numbers that training changes.
    trained: u128,
    /// Numbers of the largest weight.
    largest: u128,
}

impl DeviceFootprint {
    /// The footprint of a network of this shape, of which all is trained, or the adapter.
    pub fn of(config: &ModelConfig, adapter: Option<&LoraOptions>, dtype: Dtype) -> Self {
        let operand = match dtype {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        };
        let size = |shape: &Vec<usize>| shape.iter().map(|&n| n as u128).product::<u128>();
        let shapes = parameter_shapes(config);
        let bytes = |shape: &Vec<usize>| match shape.len() {
            2 => operand * size(shape),
            _ => NUMBER * size(shape),
        };
        let factors = adapter.map(|adapter| adapter.shapes(config));
        let angles = NUMBER * (config.max_position_embeddings * config.head_dim) as u128;
        let factor_bytes: u128 = factors.iter().flatten().map(|(_, s)| bytes(s)).sum();
        DeviceFootprint {
            shape: Footprint::of(config),
            heads: config.num_attention_heads as u128,
            operand,
            network: shapes.values().map(bytes).sum::<u128>() + angles + factor_bytes,
            trained: factors.as_ref().unwrap_or(&shapes).values().map(size).sum(),
            largest: shapes.values().map(size).max().unwrap_or(0),
        }
    }

    /// The network alone, as it is uploaded: numbers that become operands come as f32.
    pub fn network(&self) -> u128 {
        match self.operand {
            NUMBER => self.network,
            _ => self.network + NUMBER * self.largest,
        }
    }

    /// Training in units of `tokens`: the network, the trained numbers with both moments,
    /// gradients, and the larger of a unit and of an adapter's step, which uploads a weight to add to.
    pub fn training(&self, tokens: u128, checkpointed: bool) -> u128 {
        let numbers = NUMBER * self.trained * (3 + GRADIENTS);
        self.network + numbers + self.unit(tokens, checkpointed).max(NUMBER * self.largest)
    }

    /// What training takes with nothing in it: one gradient, without sequences.
    pub fn training_least(&self) -> u128 {
        self.network + NUMBER * self.trained * 4
    }

    /// Scoring `tokens` together.
    pub fn scoring(&self, tokens: u128) -> u128 {
        let rows = padded(tokens);
        let pass = rows * self.forward();
        let head = rows * (NUMBER + self.operand) * self.shape.hidden + self.logits(rows);
        self.network + pass.max(head)
    }

    /// Generation of so many `rows` at once with a prefill of `prefill` tokens, and `cached` tokens in
    /// caches. Recorded steps have memory of their own.
    pub fn generating(&self, rows: u128, prefill: u128, cached: u128) -> u128 {
        let steps = (padded(rows + prefill) + padded(rows)) * self.forward();
        let logits = NUMBER * padded(rows) * self.shape.vocabulary;
        self.network + steps + logits + cached * self.cached()
    }

    /// Keys and values of a token in all layers.
    fn cached(&self) -> u128 {
        self.shape.layers * 2 * self.shape.key_width * self.operand
    }

    /// A gradient unit: tapes, and the larger of the head's and of a layer's way back.
    fn unit(&self, tokens: u128, checkpointed: bool) -> u128 {
        let (rows, hidden) = (padded(tokens), NUMBER * self.shape.hidden);
        let (kept, again) = match checkpointed {
            true => (self.shape.layers * hidden, self.tape() - hidden),
            false => (self.shape.layers * self.tape(), 0),
        };
        // The last layer's output, and that normed.
        let kept = kept + hidden + self.operand * self.shape.hidden;
        let by_logits = self.chunk(rows) * (self.operand * self.shape.vocabulary + hidden);
        let head = rows * hidden + self.logits(rows) + by_logits;
        // The derivative of the residual stream; the MLP's product with the derivative by it, or that
        // with those by gate and up.
        let product = self.operand * self.shape.intermediate;
        let mlp = NUMBER * self.shape.intermediate
            + product
            + product.max(self.operand * self.shape.hidden);
        rows * kept + head.max(rows * (again + hidden + mlp))
    }

    /// Rows whose logits exist at a time.
    fn chunk(&self, rows: u128) -> u128 {
        rows.min(CHUNK_ROWS as u128)
    }

    /// A chunk of logits and its hidden states.
    fn logits(&self, rows: u128) -> u128 {
        self.chunk(rows) * (NUMBER * self.shape.vocabulary + self.operand * self.shape.hidden)
    }

    /// Of a layer, per row: input, attention, middle, gate and up.
    fn tape(&self) -> u128 {
        NUMBER * 2 * (self.shape.hidden + self.shape.intermediate) + self.attention()
    }

    /// Queries, keys, values and output of attention, and the sums of its weights; the projections
    /// where heads are normed.
    fn attention(&self) -> u128 {
        let projections = match self.shape.norms_heads {
            true => NUMBER * (self.shape.query_width + 2 * self.shape.key_width),
            false => 0,
        };
        let operands = 2 * (self.shape.query_width + self.shape.key_width);
        self.operand * operands + NUMBER * self.heads + projections
    }

    /// One layer of a pass that nothing goes back through, per row: its input, and the larger of
    /// attention with its projections, and of gate and up beside the norm or the product.
    fn forward(&self) -> u128 {
        let projections = NUMBER * (self.shape.query_width + 2 * self.shape.key_width);
        let mlp = NUMBER * 2 * self.shape.intermediate;
        let mlp = mlp + self.operand * self.shape.intermediate.max(self.shape.hidden);
        NUMBER * self.shape.hidden + mlp.max(projections + self.attention())
    }
}

/// Rows of a matrix for so many tokens.
fn padded(tokens: u128) -> u128 {
    tokens.next_multiple_of(TILE as u128)
}
