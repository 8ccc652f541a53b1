//! The derivative of [`Network::hidden`] on a GPU, layer by layer from the last to the first,
//! with the steps of `crate::cpu::backward`.

use super::backend::{Argument, Buffer, Launch};
use super::cache;
use super::matrix::{Columns, Matrix, Operands};
use super::network::Network;
use super::products::Dense;
use super::rows::Rows;
use super::tiles::{self, BackwardTiles, Kernels};
use crate::Result;
use crate::batch::Batch;
use crate::batch::Streams;
use crate::folder::names::{EMBEDDING, HEAD};
use crate::gpu::layers::{Factors, Layer, Learning, Linear, Norm};
use crate::gpu::list::List;
use crate::gpu::tape::Attention;
use crate::gpu::tape::Gradients;
use crate::gpu::tape::Kept;
use crate::gpu::tape::LayerTape;
use crate::gpu::tape::Tape;
use crate::gpu::tape::{self};
use std::collections::BTreeMap;

/// A packed batch of whole sequences, and the blocks of attention's derivative.
struct Packed<'a> {
    rows: &'a Rows,
    tiles: BackwardTiles,
}

impl Network {
    /// Adds the derivative by every trained parameter to `gradients`, given those by the streams that
    /// [`Network::predict`] computed from `hidden`; a tied head's is part of the embedding's.
    /// After an error `gradients` are of no use.
    pub(crate) fn backward(
        &self,
        batch: &Batch,
        tape: Tape,
        hidden: &Operands,
        (targets, inverse_temperature): (&[u32], f32),
        by: &Streams,
        gradients: &mut Gradients,
    ) -> Result<()> {
        let by_weight = match self.adapted {
            true => None,
            false => {
                let name = match self.head().transposed {
                    true => EMBEDDING,
                    false => HEAD,
                };
                let length = self.hidden * self.vocabulary;
                Some(tape::sum_to_add_to(gradients, &self.gpu, name, length)?)
            }
        };
        let grad = self.predict_backward(hidden, targets, inverse_temperature, by, by_weight)?;
        self.backward_states(batch, tape, grad, gradients)
    }

    /// The same without the head, given the derivative by the hidden states.
    pub(crate) fn backward_states(
        &self,
        batch: &Batch,
        tape: Tape,
        grad: Matrix,
        gradients: &mut Gradients,
    ) -> Result<()> {
        let (Some(last), Some(rows)) = (tape.last, tape.rows) else {
            return Ok(());
        };
        let packed = Packed {
            rows: &rows,
            tiles: BackwardTiles::new(&self.gpu, batch, self.group())?,
        };
        let mut by_last = self.gpu.matrix(last.rows(), last.width())?;
        self.norm_backward(
            &self.norm,
            last.all(),
            &grad,
            (&mut by_last, false),
            gradients,
        )?;
        drop(grad);
        let mut grad = by_last;
        let mut wanted = Some(rows.wanted());
        for (number, kept) in tape.layers.into_iter().enumerate().rev() {
            // Only the last layer, the first here, has selected rows.
            let wanted = wanted.take();
            let tape = match kept {
                Kept::Layer(tape) => *tape,
                Kept::Input(x) => self.layer_recorded(number, &rows, wanted, x)?.1,
            };
            let layer = &self.layers[number];
            grad = self.layer_backward(layer, &packed, wanted, tape, grad, gradients)?;
        }
        if !self.adapted {
            let length = self.embedding.length();
            let sum = tape::sum_to_add_to(gradients, &self.gpu, EMBEDDING, length)?;
            self.add_by_embedding(batch, &grad, sum)?;
        }
        Ok(())
    }

    /// Adds the rows of each id in their order, in one block per id.
    fn add_by_embedding(&self, batch: &Batch, grad: &Matrix, to: &Buffer) -> Result<()> {
        let mut rows_of = BTreeMap::<u32, Vec<u32>>::new();
        for (row, &id) in batch.ids.iter().enumerate() {
            rows_of.entry(id).or_default().push(row as u32);
        }
        let ids: Vec<u32> = rows_of.keys().copied().collect();
        let order: Vec<u32> = rows_of.values().flatten().copied().collect();
        let mut starts = vec![0];
        for rows in rows_of.values() {
            starts.push(starts[starts.len() - 1] + rows.len() as u32);
        }
        let lists = [&ids, &starts, &order].map(|list| self.gpu.upload(list));
        let [ids, starts, order] = lists;
        let (ids, starts, order) = (ids?, starts?, order?);
        let arguments = [
            grad.pointer(),
            ids.pointer(),
            starts.pointer(),
            order.pointer(),
            to.pointer(),
            Argument::Int(self.hidden as i32),
        ];
        self.gpu.rows("sum_rows_by_id", ids.length(), &arguments)
    }

    fn layer_backward(
        &self,
        layer: &Layer,
        packed: &Packed<'_>,
        wanted: Option<List<'_>>,
        tape: LayerTape,
        mut grad: Matrix,
        gradients: &mut Gradients,
    ) -> Result<Matrix> {
        let rows = packed.rows;
        let LayerTape {
            x,
            attention,
            middle,
            gate_and_up,
        } = tape;
        self.mlp_backward(layer, middle, gate_and_up, &mut grad, gradients)?;

        // middle = x + output(attention(query(h), key(h), value(h))), h = norm(x)
        let selected = match wanted {
            Some(wanted) => Some(attention.mixed.select(wanted)?),
            None => None,
        };
        let mixed = selected.as_ref().unwrap_or(&attention.mixed);
        let mut grad_mixed = (layer.output).backward(mixed, &[grad.operands()?], gradients)?;
        if let Some(wanted) = wanted {
            grad_mixed = grad_mixed.scatter(wanted, rows.count)?;
            grad = grad.scatter(wanted, rows.count)?;
        }
        let [mut grad_queries, mut grad_keys, grad_values] =
            self.attention_backward(packed, &attention, &grad_mixed)?;
        grad_queries.rotate_back(rows.positions(), &self.angles)?;
        grad_keys.rotate_back(rows.positions(), &self.angles)?;
        if let (Some([by_query, by_key]), Some(unnormed)) = (&layer.head_norms, &attention.unnormed)
        {
            let [queries, keys, _] = self.columns_of(unnormed);
            for (norm, x, grad) in [
                (by_query, queries, &mut grad_queries),
                (by_key, keys, &mut grad_keys),
            ] {
                let mut by_x = x.like()?;
                self.norm_backward(norm, x, grad, (&mut by_x, false), gradients)?;
                *grad = by_x;
            }
        }
        let h = x.norm_operands(&layer.input_norm.weight, self.eps)?;
        let grads = [grad_queries, grad_keys, grad_values];
        layer.projections.derive_biases(&grads, gradients)?;
        let rounded = grads.each_ref().map(Matrix::operands);
        drop(grads);
        let [queries, keys, values] = rounded;
        let grads = [queries?, keys?, values?];
        let grad_h = layer.projections.backward(&h, &grads, gradients)?;
        let to = (&mut grad, true);
        self.norm_backward(&layer.input_norm, x.all(), &grad_h, to, gradients)?;
        Ok(grad)
    }

    /// next = middle + down(swiglu(gate(h), up(h))), h = norm(middle): turns the derivative by
    /// `next` into the one by `middle`.
    fn mlp_backward(
        &self,
        layer: &Layer,
        middle: Matrix,
        gate_and_up: Matrix,
        grad: &mut Matrix,
        gradients: &mut Gradients,
    ) -> Result<()> {
        let grad_inner = {
            let inner = gate_and_up.swiglu()?;
            (layer.down).backward(&inner, &[grad.operands()?], gradients)?
        };
        let grads = gate_and_up.swiglu_backward(&grad_inner)?;
        drop((gate_and_up, grad_inner));
        let h = middle.norm_operands(&layer.mlp_norm.weight, self.eps)?;
        let grad_h = layer.gate_and_up.backward(&h, &grads, gradients)?;
        let to = (grad, true);
        self.norm_backward(&layer.mlp_norm, middle.all(), &grad_h, to, gradients)
    }

    /// Derivatives by queries, keys and values.
    fn attention_backward(
        &self,
        packed: &Packed<'_>,
        attention: &Attention,
        grad: &Matrix,
    ) -> Result<[Matrix; 3]> {
        let queries = &attention.queries;
        let keys_and_values =
            (attention.keys_and_values.as_ref()).expect("what is trained on are whole sequences");
        let rows = queries.rows();
        let like = |matrix: &Operands| self.gpu.matrix::<f32>(rows, matrix.width());
        let [keys, values] = keys_and_values;
        let [by_queries, by_keys, by_values] = [like(queries)?, like(keys)?, like(values)?];
        let deltas = self.gpu.buffer::<f32>(rows * self.heads)?;
        let kernels = Kernels::of(self.width);
        let (log_sums, deltas) = (attention.log_sums.pointer(), deltas.pointer());
        let (mixed, grad) = (attention.mixed.pointer(), grad.pointer());
        let queries = queries.pointer();
        let launch = |kernel: tiles::Kernel, blocks, list: &Buffer<u32>, others: &[&[Argument]]| {
            self.gpu.launch(&Launch {
                kernel: kernel.name,
                grid: (blocks, self.kv_heads),
                block: tiles::THREADS,
                shared: kernel.shared,
                arguments: &[
                    &[list.pointer(), queries],
                    others.concat().as_slice(),
                    &self.head_sizes(),
                ]
                .concat(),
            })
        };
        let [of_queries, of_keys] = packed.tiles.counts();
        let positions = [packed.rows.positions().pointer()];
        let narrow = self.kv_heads * self.width;
        let bases = cache::bases(&self.gpu, 0, narrow, Some(keys_and_values));
        let outputs = [mixed, grad, log_sums, deltas, by_queries.pointer()];
        let others: [&[Argument]; 4] = [&positions, &packed.rows.pages(), &bases, &outputs];
        let list = &packed.tiles.queries;
        launch(kernels.by_queries, of_queries, list, &others)?;
        let inputs = [keys.pointer(), values.pointer(), grad, log_sums, deltas];
        let outputs = [by_keys.pointer(), by_values.pointer()];
        let list = &packed.tiles.keys;
        launch(kernels.by_keys, of_keys, list, &[&inputs, &outputs])?;
        Ok([by_queries, by_keys, by_values])
    }

    /// Adds the derivative by a norm's weight; the one by its input is written to, or
    /// added to, `by_x`.
    fn norm_backward(
        &self,
        norm: &Norm,
        x: Columns<'_>,
        grad: &Matrix,
        (by_x, accumulate): (&mut Matrix, bool),
        gradients: &mut Gradients,
    ) -> Result<()> {
        let by_weight = x.norm_backward(&norm.weight, grad, self.eps, by_x, accumulate)?;
        match self.adapted {
            true => Ok(()),
            false => tape::add(gradients, &norm.name, by_weight),
        }
    }
}

impl Linear {
    /// Adds the derivatives by the trained parameters, given those by the output of each layer;
    /// returns the one by the input.
    fn backward(
        &self,
        x: &Operands,
        grads: &[Operands],
        gradients: &mut Gradients,
    ) -> Result<Matrix> {
        let mut by_x = x.gpu().matrix(x.rows(), self.inner)?;
        for (number, (part, grad)) in self.parts.iter().zip(grads).enumerate() {
            let weight = self.dense().columns(part.first, part.width);
            by_x.add_times_transposed(grad, weight, number > 0)?;
            match &part.learns {
                Learning::All => {
                    x.derive_weight(grad, &format!("{}.weight", part.name), gradients)?
                }
                Learning::Factors(factors) => {
                    factors.derive(x, grad, (self.inner, part.width), gradients)?;
                }
                Learning::Nothing => {}
            }
        }
        Ok(by_x)
    }

    /// Adds the derivatives by the biases, if there are any and they are trained.
    fn derive_biases(&self, grads: &[Matrix], gradients: &mut Gradients) -> Result<()> {
        if self.bias.is_none() {
            return Ok(());
        }
        for (part, grad) in self.parts.iter().zip(grads) {
            if matches!(part.learns, Learning::All) {
                tape::add(
                    gradients,
                    &format!("{}.bias", part.name),
                    grad.column_sums()?,
                )?;
            }
        }
        Ok(())
    }
}

impl Factors {
    /// Adds xᵀ·(s·g·Bᵀ), the derivative by A, and (s·x·A)ᵀ·g, the one by B.
    fn derive(
        &self,
        x: &Operands,
        grad: &Operands,
        (inner, width): (usize, usize),
        gradients: &mut Gradients,
    ) -> Result<()> {
        let by_middle = grad.times_transposed(Dense::new(&self.b, self.rank, width))?;
        let middle = x.times(Dense::new(&self.a, inner, self.rank))?;
        by_middle.scale(self.scale)?;
        middle.scale(self.scale)?;
        let [a, b] = &self.names;
        x.derive_weight(&by_middle.operands()?, a, gradients)?;
        middle.operands()?.derive_weight(grad, b, gradients)
    }
}
