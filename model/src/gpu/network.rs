//! [`crate::cpu::network::Network`] on a GPU: its parameters in the device's memory and the same
//! forward pass over packed segments for generation, scoring and training.

use super::backend::{Argument, Buffer, Gpu, Launch, Operand};
use super::cache::{self, Cache};
use super::matrix::{Angles, Columns, Matrix, Operands, int};
use super::optimizer::Trained;
use super::products::Dense;
use super::rows::{Lists, Rows};
use super::tiles::{self, Kernels};
use crate::batch::Batch;
use crate::cpu::layer;
use crate::cpu::network;
use crate::folder::names::{EMBEDDING, HEAD};
use crate::gpu::layers::Layer;
use crate::gpu::layers::Linear;
use crate::gpu::layers::Norm;
use crate::gpu::layers::Shared;
use crate::gpu::list::List;
use crate::gpu::tape::{Attention, Kept, LayerTape, Tape};
use crate::{Error, Result};
use std::sync::Arc;

/// A model's parameters in the device's memory; a clone shares them.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    pub(super) gpu: Gpu,
    /// `[vocabulary, hidden]`
    pub(super) embedding: Shared<Operand>,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Norm,
    /// `[hidden, vocabulary]`; `None` where the head is tied to the embedding or does not exist.
    head: Option<Shared<Operand>>,
    pub(super) angles: Arc<Angles>,
    pub(super) hidden: usize,
    pub(super) vocabulary: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Elements per head.
    pub(super) width: usize,
    pub(super) eps: f32,
    /// Only the factors of an adapter are trained.
    pub(super) adapted: bool,
}

impl Network {
    /// Copies the parameters of `network`.
    ///
    /// # Errors
    /// They do not fit into the device's memory, or heads are wider than the kernels support.
    pub(crate) fn upload(gpu: &Gpu, network: &network::Network) -> Result<Self> {
        if network.width > tiles::WIDTH_MAX {
            return Err(Error::Device {
                name: gpu.name().to_owned(),
                message: format!(
                    "heads of {} numbers are wider than its kernels', which end at {}; use \
                     \"cpu\"",
                    network.width,
                    tiles::WIDTH_MAX,
                ),
            });
        }
        let norm = |norm: &layer::Norm| {
            Ok::<_, Error>(Norm {
                name: norm.name.clone(),
                weight: Arc::new(gpu.upload(&norm.weight)?),
            })
        };
        let linear = |layers: &[&layer::Dense]| Linear::upload(gpu, layers);
        let layer = |layer: &layer::Layer| {
            Ok::<_, Error>(Layer {
                input_norm: norm(&layer.input_norm)?,
                projections: linear(&[&layer.query, &layer.key, &layer.value])?,
                head_norms: match &layer.head_norms {
                    Some([query, key]) => Some([norm(query)?, norm(key)?]),
                    None => None,
                },
                output: linear(&[&layer.output])?,
                mlp_norm: norm(&layer.mlp_norm)?,
                gate_and_up: linear(&[&layer.gate, &layer.up])?,
                down: linear(&[&layer.down])?,
            })
        };
        Ok(Network {
            gpu: gpu.clone(),
            embedding: Arc::new(gpu.upload_operands(&network.embedding)?),
            layers: network.layers.iter().map(layer).collect::<Result<_>>()?,
            norm: norm(&network.norm)?,
            head: match &network.head {
                Some(head) => Some(Arc::new(gpu.upload_operands(head)?)),
                None => None,
            },
            angles: Arc::new(Angles {
                cosines: gpu.upload(network.rope.cosines())?,
                sines: gpu.upload(network.rope.sines())?,
                half: network.width / 2,
            }),
            hidden: network.hidden,
            vocabulary: network.vocabulary(),
            heads: network.heads,
            kv_heads: network.kv_heads,
            width: network.width,
            eps: network.eps,
            adapted: network.adapted,
        })
    }

    /// Takes over what `trained` has changed, in memory that no other network shares.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn renew(&mut self, trained: &Trained) -> Result<()> {
        trained.renew_operands(EMBEDDING, &mut self.embedding)?;
        if let Some(head) = &mut self.head {
            trained.renew_operands(HEAD, head)?;
        }
        let mut norms = vec![&mut self.norm];
        for layer in &mut self.layers {
            norms.extend([&mut layer.input_norm, &mut layer.mlp_norm]);
            norms.extend(layer.head_norms.iter_mut().flatten());
            for linear in [
                &mut layer.projections,
                &mut layer.output,
                &mut layer.gate_and_up,
                &mut layer.down,
            ] {
                linear.renew(trained)?;
            }
        }
        for norm in norms {
            trained.renew_numbers(&norm.name, &mut norm.weight, 0)?;
        }
        Ok(())
    }

    /// Uploads states, one row for every wanted row.
    pub(crate) fn upload_states(&self, states: &[f32]) -> Result<Matrix> {
        self.gpu.upload_matrix(states, self.hidden)
    }

    /// An empty cache for one sequence.
    pub(crate) fn cache(&self) -> Cache {
        Cache::new(self.layers.len(), self.kv_heads * self.width)
    }

    /// The head's weight.
    pub(super) fn head(&self) -> Dense<'_> {
        let (inner, width) = (self.hidden, self.vocabulary);
        match &self.head {
            Some(numbers) => Dense::new(numbers, inner, width),
            None => Dense::turned(&self.embedding, inner, width),
        }
    }

    /// Normed hidden states of the `wanted` rows of a batch of whole sequences, for the head; tape
    /// as in [`network::Network::hidden`].
    pub(crate) fn hidden(
        &self,
        batch: &Batch,
        wanted: &[u32],
        tape: Option<&mut Tape>,
    ) -> Result<Operands> {
        self.whole(batch, wanted, tape, |x| self.normed(x))
    }

    /// The same, downloaded, one row after the other.
    pub(crate) fn states(
        &self,
        batch: &Batch,
        wanted: &[u32],
        tape: Option<&mut Tape>,
    ) -> Result<Vec<f32>> {
        self.whole(batch, wanted, tape, |x| {
            x.all().norm(&self.norm.weight, self.eps)?.download()
        })
    }

    /// Applies `norm` to the last layer's output, for whole sequences.
    fn whole<T>(
        &self,
        batch: &Batch,
        wanted: &[u32],
        mut tape: Option<&mut Tape>,
        norm: impl Fn(&Matrix) -> Result<T>,
    ) -> Result<T> {
        let sizes = (self.kv_heads * self.width, self.group());
        let lists = Lists::of_rows(&self.gpu, batch, wanted, sizes);
        let rows = Rows::upload(&self.gpu, &lists)?;
        let x = self.layers(&rows, tape.as_deref_mut())?;
        let normed = norm(&x)?;
        if let Some(tape) = tape {
            tape.last = Some(x);
            tape.rows = Some(rows);
        }
        Ok(normed)
    }

    /// Normed hidden states of the wanted rows, whose keys and values are in caches.
    pub(super) fn hidden_of(&self, rows: &Rows) -> Result<Operands> {
        self.normed(&self.layers(rows, None)?)
    }

    fn normed(&self, x: &Matrix) -> Result<Operands> {
        x.norm_operands(&self.norm.weight, self.eps)
    }

    /// The last layer's output, for the wanted rows.
    fn layers(&self, rows: &Rows, mut tape: Option<&mut Tape>) -> Result<Matrix> {
        let mut x = self.gpu.embed(&self.embedding, rows.ids(), self.hidden)?;
        for number in 0..self.layers.len() {
            // Rows of the last layer are independent after attention: only the wanted ones are
            // needed.
            let wanted = (number + 1 == self.layers.len()).then(|| rows.wanted());
            x = match &mut tape {
                Some(tape) if !tape.checkpoints => {
                    let (next, layer) = self.layer_recorded(number, rows, wanted, x)?;
                    tape.layers.push(Kept::Layer(Box::new(layer)));
                    next
                }
                tape => {
                    if let Some(tape) = tape {
                        tape.layers.push(Kept::Input(x.duplicate()?));
                    }
                    self.layer(number, rows, wanted, x)?
                }
            };
        }
        Ok(x)
    }

    /// One layer's output, only for the `wanted` rows if they are named. Attention's memory is
    /// freed before the MLP begins.
    fn layer(
        &self,
        number: usize,
        rows: &Rows,
        wanted: Option<List<'_>>,
        x: Matrix,
    ) -> Result<Matrix> {
        let layer = &self.layers[number];
        let attention = self.attention(number, rows, &x)?;
        let mut stream = match wanted {
            Some(wanted) => x.select(wanted)?,
            None => x,
        };
        add_attended(layer, &attention, wanted, &mut stream)?;
        drop(attention);
        let gate_and_up = self.gate_and_up(layer, &stream)?;
        stream.add_times(&gate_and_up.swiglu()?, layer.down.dense())?;
        Ok(stream)
    }

    /// The same, with what the backward pass needs.
    pub(super) fn layer_recorded(
        &self,
        number: usize,
        rows: &Rows,
        wanted: Option<List<'_>>,
        x: Matrix,
    ) -> Result<(Matrix, LayerTape)> {
        let layer = &self.layers[number];
        let attention = self.attention(number, rows, &x)?;
        let mut middle = match wanted {
            Some(wanted) => x.select(wanted)?,
            None => x.duplicate()?,
        };
        add_attended(layer, &attention, wanted, &mut middle)?;
        let gate_and_up = self.gate_and_up(layer, &middle)?;
        let mut next = middle.duplicate()?;
        next.add_times(&gate_and_up.swiglu()?, layer.down.dense())?;
        let tape = LayerTape {
            x,
            attention,
            middle,
            gate_and_up,
        };
        Ok((next, tape))
    }

    fn gate_and_up(&self, layer: &Layer, stream: &Matrix) -> Result<Matrix> {
        let h = stream.norm_operands(&layer.mlp_norm.weight, self.eps)?;
        h.times(layer.gate_and_up.dense())
    }

    /// A layer's attention over the rows of `x`, its input.
    fn attention(&self, number: usize, rows: &Rows, x: &Matrix) -> Result<Attention> {
        let layer = &self.layers[number];
        let h = x.norm_operands(&layer.input_norm.weight, self.eps)?;
        let projected = h.times(layer.projections.dense())?;
        drop(h);
        let [queries, keys, values] = self.columns_of(&projected);
        let normed = match &layer.head_norms {
            Some([by_query, by_key]) => Some([
                queries.norm(&by_query.weight, self.eps)?,
                keys.norm(&by_key.weight, self.eps)?,
            ]),
            None => None,
        };
        let [from_queries, from_keys] = match &normed {
            Some([queries, keys]) => [queries.all(), keys.all()],
            None => [queries, keys],
        };
        let from = [from_queries, from_keys, values];
        let rotated: Operands = queries.like()?;
        let narrow = self.kv_heads * self.width;
        let keys_and_values: Option<[Operands; 2]> = match rows.is_cached {
            true => None,
            false => {
                let room = || self.gpu.matrix(rows.count + rows.copies().length(), narrow);
                Some([room()?, room()?])
            }
        };
        let bases = cache::bases(&self.gpu, number, narrow, keys_and_values.as_ref());
        let bias = layer.projections.bias.as_ref();
        let bias = bias.map_or(Argument::Pointer(0), |bias| bias.pointer());
        let (sources, strides) = (from.map(Columns::pointer), from.map(Columns::stride));
        let angles = self.angles.arguments(rows.positions());
        let sizes = [self.heads, self.kv_heads, self.angles.half].map(int);
        let arguments = [
            sources.as_slice(),
            &[bias],
            &strides,
            &angles,
            &rows.own_pages(),
            &bases,
            &[rotated.pointer()],
            &sizes,
        ];
        (self.gpu).rows("rotate_and_store", rows.count, &arguments.concat())?;
        if let (Some([keys, values]), copies @ 1..) = (&keys_and_values, rows.copies().length()) {
            let [keys, values] = [keys.pointer(), values.pointer()];
            let sources = rows.copies().pointer();
            let arguments = [keys, values, sources, int(rows.count), int(narrow)];
            self.gpu.rows("repeat_rows", copies, &arguments)?;
        }
        let unnormed = normed.is_some().then_some(projected);
        drop(normed);
        let (mixed, log_sums) = self.attend(rows, &rotated, bases)?;
        Ok(Attention {
            unnormed,
            queries: rotated,
            keys_and_values,
            mixed,
            log_sums,
        })
    }

    /// The columns of queries, keys and values in the projections.
    pub(super) fn columns_of<'a>(&self, projected: &'a Matrix) -> [Columns<'a>; 3] {
        let (wide, narrow) = (self.heads * self.width, self.kv_heads * self.width);
        let columns = [(0, wide), (wide, narrow), (wide + narrow, narrow)];
        columns.map(|(first, width)| projected.columns(first, width))
    }

    /// Attention's output for every row, whose keys and values are located by `bases` and its
    /// pages; and the logarithms of the sums of its weights.
    fn attend(
        &self,
        rows: &Rows,
        queries: &Operands,
        bases: [Argument; 2],
    ) -> Result<(Operands, Buffer)> {
        let mixed: Operands = self.gpu.matrix(rows.count, self.heads * self.width)?;
        let log_sums: Buffer = self.gpu.buffer(rows.count * self.heads)?;
        let outputs = [mixed.pointer(), log_sums.pointer()];
        let inputs = [
            [queries.pointer(), rows.positions().pointer()],
            rows.pages(),
            bases,
            outputs,
        ]
        .concat();
        let kernels = Kernels::of(self.width);
        let length = tiles::spans_length(rows.span_places, self.kv_heads, self.width);
        let spans: Buffer = self.gpu.buffer(length)?;
        let [many, few, merges] = rows.blocks();
        let sizes = self.head_sizes();
        let launch = |kernel, shared, (blocks, list), arguments: &[&[Argument]]| {
            self.gpu.launch(&Launch {
                kernel,
                grid: (blocks, self.kv_heads),
                block: tiles::THREADS,
                shared,
                arguments: &[&[list], arguments.concat().as_slice(), &sizes].concat(),
            })
        };
        let spans = [spans.pointer()];
        launch(kernels.many.name, kernels.many.shared, many, &[&inputs])?;
        let arguments: [&[Argument]; 2] = [&inputs, &spans];
        launch(kernels.few.name, kernels.few.shared, few, &arguments)?;
        launch("attend_merge", 0, merges, &[&spans, &outputs])?;
        Ok((mixed, log_sums))
    }

    /// Query heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The last arguments of the attention kernels.
    pub(super) fn head_sizes(&self) -> [Argument; 3] {
        [self.heads, self.kv_heads, self.width].map(|size| Argument::Int(size as i32))
    }
}

fn add_attended(
    layer: &Layer,
    attention: &Attention,
    wanted: Option<List<'_>>,
    stream: &mut Matrix,
) -> Result<()> {
    let selected = match wanted {
        Some(wanted) => Some(attention.mixed.select(wanted)?),
        None => None,
    };
    let mixed = selected.as_ref().unwrap_or(&attention.mixed);
    stream.add_times(mixed, layer.output.dense())
}
