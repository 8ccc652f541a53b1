//! The derivative of [`Network::hidden`], layer by layer from the last to the first. Norms and
//! activations are recomputed; products, queries, keys and values are kept by the forward pass.

use crate::batch::Batch;
use crate::cpu::gradients::Gradients;
use crate::cpu::layer::{Dense, Factors, Layer, Learns, Norm};
use crate::cpu::network::{Network, select};
use crate::cpu::tape::Kept;
use crate::cpu::tape::LayerTape;
use crate::cpu::tape::Tape;
use crate::folder::names::EMBEDDING;
use crate::kernels::dense::{Sizes, Weight};
use crate::kernels::pointwise::{
    add_assign, column_sums, rms_norm, rms_norm_backward, rope, swiglu, swiglu_backward,
};
use std::mem::replace;

impl Network {
    /// Adds every trained parameter's derivative but the head's to `gradients`, given the
    /// derivative `grad` by the hidden states that [`Network::hidden`] returned. A tied head's is
    /// already there, as the embedding's.
    pub(crate) fn backward(
        &self,
        batch: &Batch,
        rows: &[u32],
        tape: Tape,
        grad: &[f32],
        gradients: &mut Gradients,
    ) {
        let by_hidden = grad;
        let mut grad = vec![0.0; tape.last.len()];
        self.norm_backward(&self.norm, &tape.last, by_hidden, &mut grad, gradients);
        let mut wanted = Some(rows);
        for (number, kept) in tape.layers.into_iter().enumerate().rev() {
            // Only the last layer, the first here, has selected rows.
            let rows = wanted.take();
            let tape = match kept {
                Kept::Layer(tape) => *tape,
                Kept::Input(x) => self.layer_recorded(number, batch, rows, x).1,
            };
            grad = self.layer_backward(&self.layers[number], batch, rows, tape, grad, gradients);
        }
        if self.adapted {
            return;
        }
        let by_head = gradients.remove(EMBEDDING);
        let mut by_embedding = by_head.unwrap_or_else(|| gradients.zeros(self.embedding.len()));
        for (&id, grad) in batch.ids.iter().zip(grad.chunks_exact(self.hidden)) {
            let start = id as usize * self.hidden;
            add_assign(&mut by_embedding[start..start + self.hidden], grad);
        }
        gradients.insert(EMBEDDING, by_embedding);
    }

    fn layer_backward(
        &self,
        layer: &Layer,
        batch: &Batch,
        rows: Option<&[u32]>,
        tape: LayerTape,
        mut grad: Vec<f32>,
        gradients: &mut Gradients,
    ) -> Vec<f32> {
        let LayerTape {
            x,
            attention,
            middle,
            gate,
            up,
        } = tape;
        self.mlp_backward(layer, middle, gate, up, &mut grad, gradients);

        // middle = x + output(attention(query(h), key(h), value(h))), h = norm(x)
        let wanted = rows.map(|rows| select(&attention.mixed, rows, self.heads * self.width));
        let mixed = wanted.as_deref().unwrap_or(&attention.mixed);
        let mut grad_mixed = layer.output.backward(mixed, &grad, gradients);
        if let Some(rows) = rows {
            grad_mixed = scatter(&grad_mixed, rows, batch.ids.len());
            grad = scatter(&grad, rows, batch.ids.len());
        }
        let [mut grad_queries, mut grad_keys, grad_values] =
            self.attention_backward(batch, &attention, &grad_mixed);
        for (rows, heads) in [
            (&mut grad_queries, self.heads),
            (&mut grad_keys, self.kv_heads),
        ] {
            rope(rows, &batch.positions, heads, &self.rope, true);
        }
        if let (Some(norms), Some(unnormed)) = (&layer.head_norms, &attention.unnormed) {
            let [by_query, by_key] = norms;
            for (norm, x, grad) in [
                (by_query, &unnormed[0], &mut grad_queries),
                (by_key, &unnormed[1], &mut grad_keys),
            ] {
                let by_normed = replace(grad, vec![0.0; x.len()]);
                self.norm_backward(norm, x, &by_normed, grad, gradients);
            }
        }
        let h = rms_norm(&x, &layer.input_norm.weight, self.eps);
        let mut grad_h = layer.query.backward(&h, &grad_queries, gradients);
        layer
            .key
            .backward_to(&mut grad_h, &h, &grad_keys, gradients);
        layer
            .value
            .backward_to(&mut grad_h, &h, &grad_values, gradients);
        self.norm_backward(&layer.input_norm, &x, &grad_h, &mut grad, gradients);
        grad
    }

    /// next = middle + down(swiglu(gate(h), up(h))), h = norm(middle): turns the derivative by
    /// `next` into the one by `middle`.
    fn mlp_backward(
        &self,
        layer: &Layer,
        middle: Vec<f32>,
        mut gate: Vec<f32>,
        mut up: Vec<f32>,
        grad: &mut [f32],
        gradients: &mut Gradients,
    ) {
        let grad_inner = {
            let inner = swiglu(gate.clone(), &up);
            layer.down.backward(&inner, grad, gradients)
        };
        swiglu_backward(&mut gate, &mut up, &grad_inner);
        drop(grad_inner);
        let h = rms_norm(&middle, &layer.mlp_norm.weight, self.eps);
        let mut grad_h = layer.gate.backward(&h, &gate, gradients);
        layer.up.backward_to(&mut grad_h, &h, &up, gradients);
        self.norm_backward(&layer.mlp_norm, &middle, &grad_h, grad, gradients);
    }

    /// Adds the derivative by a norm's input to `by_x` and records the one by its weight.
    fn norm_backward(
        &self,
        norm: &Norm,
        x: &[f32],
        grad: &[f32],
        by_x: &mut [f32],
        gradients: &mut Gradients,
    ) {
        let by_weight = rms_norm_backward(x, &norm.weight, grad, self.eps, by_x);
        if !self.adapted {
            gradients.insert(&norm.name, by_weight);
        }
    }
}

impl Dense {
    /// Records the derivatives by the trained parameters, returns the one by the input.
    fn backward(&self, x: &[f32], grad: &[f32], gradients: &mut Gradients) -> Vec<f32> {
        self.learn(x, grad, gradients);
        self.weight().grad_input(grad)
    }

    /// As [`Dense::backward`], with the derivative by the input added to `by_x`.
    fn backward_to(&self, by_x: &mut [f32], x: &[f32], grad: &[f32], gradients: &mut Gradients) {
        self.learn(x, grad, gradients);
        self.weight().grad_input_to(by_x, grad, true);
    }

    fn learn(&self, x: &[f32], grad: &[f32], gradients: &mut Gradients) {
        match &self.learns {
            Learns::All => {
                let room = gradients.room(self.weight.len());
                let by_weight = self.weight().grad_weight(room, x, grad);
                gradients.insert(&format!("{}.weight", self.name), by_weight);
                if self.bias.is_some() {
                    let by_bias = column_sums(grad, self.sizes.width);
                    gradients.insert(&format!("{}.bias", self.name), by_bias);
                }
            }
            Learns::Factors(factors) => factors.derive(x, grad, self.sizes, gradients),
            Learns::Nothing => {}
        }
    }
}

impl Factors {
    /// With y = x·(W + s·A·B) the derivatives are s·xᵀ·(g·Bᵀ) by A and s·(x·A)ᵀ·g
    /// by B. They follow from the dense weight's xᵀ·g, which is never computed.
    fn derive(&self, x: &[f32], grad: &[f32], sizes: Sizes, gradients: &mut Gradients) {
        let (Sizes { inner, width }, rank) = (sizes, self.rank);
        let down = Weight::f32(&self.a, Sizes { inner, width: rank });
        let up = Weight::f32(&self.b, Sizes { inner: rank, width });
        let by_middle = up.grad_input(grad);
        let middle = down.apply(x, None);
        let by_a = down.grad_weight(gradients.room(self.a.len()), x, &by_middle);
        let by_b = up.grad_weight(gradients.room(self.b.len()), &middle, grad);
        for (name, mut gradient) in self.names.iter().zip([by_a, by_b]) {
            gradient.iter_mut().for_each(|x| *x *= self.scale);
            gradients.insert(name, gradient);
        }
    }
}

/// The derivative of [`select`]: rows that `rows` does not name are zero, and what belongs to one
/// row, which `rows` names several times in a row, is added.
fn scatter(selected: &[f32], rows: &[u32], count: usize) -> Vec<f32> {
    let width = selected.len() / rows.len();
    let mut matrix = vec![0.0; count * width];
    let mut before = None;
    for (&row, values) in rows.iter().zip(selected.chunks_exact(width)) {
        let target = &mut matrix[row as usize * width..(row as usize + 1) * width];
        match before.replace(row) == Some(row) {
            true => add_assign(target, values),
            false => target.copy_from_slice(values),
        }
    }
    matrix
}
