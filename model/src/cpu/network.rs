//! The forward pass of all supported model families. Generation, scoring and training share
//! it and pass it packed segments of sequences. Positions count per sequence and attention
//! stays inside it, so a row's result does not depend on what else is in the batch.

use crate::batch::Batch;
use crate::cpu::layer::{Dense, Factors, Layer, Learns, Norm, Numbers};
use crate::cpu::tape::{Attention, Kept, LayerTape, Tape};
use crate::folder::adapter::factor_names;
use crate::folder::names::EMBEDDING;
use crate::folder::names::HEAD;
use crate::folder::parameter::transpose;
use crate::kernels::attention::attend;
use crate::kernels::dense::{Halves, Sizes, Weight};
use crate::kernels::key_values::KeyValues;
use crate::kernels::matmul::View;
use crate::kernels::pointwise::{RopeTable, rms_norm, rope, swiglu};
use crate::parallel::{self, ComputeOptions};
use crate::{Adapter, Error, ModelConfig, Result, Weights};
use std::sync::{Arc, Mutex, Weak};

/// Keys and values of one sequence in every layer.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    layers: Vec<KeyValues>,
}

impl Cache {
    /// Tokens held.
    pub(crate) fn length(&self) -> usize {
        self.layers.first().map_or(0, KeyValues::length)
    }

    /// Its first `tokens`, shared with it until either changes.
    pub(crate) fn first(&self, tokens: usize) -> Self {
        let layers = self.layers.iter().map(|layer| layer.first(tokens));
        Cache {
            layers: layers.collect(),
        }
    }
}

/// Rotary angles for every position a model may use.
pub(crate) fn rope_table(config: &ModelConfig) -> Arc<RopeTable> {
    Arc::new(RopeTable::new(
        &config.rope.frequencies(config.head_dim),
        config.rope.attention_factor(),
        config.max_position_embeddings,
    ))
}

/// A model's parameters in the order they are used; a clone shares them.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    pub(crate) embedding: Numbers,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Norm,
    /// `[hidden, vocabulary]`; `None` where the head is tied to the embedding or does not exist.
    pub(crate) head: Option<Numbers>,
    /// The embedding transposed, while generation uses it.
    turned: Arc<Mutex<Weak<Vec<f32>>>>,
    /// Where products are in bf16: those of the head.
    head_halves: Option<Halves>,
    pub(crate) rope: Arc<RopeTable>,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Elements per head.
    pub(crate) width: usize,
    pub(crate) eps: f32,
    /// Only the factors of an adapter are trained.
    pub(crate) adapted: bool,
}

impl Network {
    /// Arranges `weights`, into which `adapter` is merged; their shapes are those of `config`. Products
    /// are computed in f32, or in bf16.
    pub(crate) fn new(
        config: &ModelConfig,
        rope: Arc<RopeTable>,
        weights: &Weights,
        adapter: Option<&Adapter>,
        bf16: bool,
    ) -> Result<Self> {
        let halves = || bf16.then(Halves::default);
        let learns = |module: &str| {
            let Some(adapter) = adapter else {
                return Learns::All;
            };
            adapter.factors(module).map_or(Learns::Nothing, |[a, b]| {
                Learns::Factors(Factors {
                    names: factor_names(module),
                    a: a.shared(),
                    b: b.shared(),
                    rank: adapter.options().rank(),
                    scale: adapter.options().scale(),
                })
            })
        };
        let get = |name: String| match weights.get(&name) {
            Some(parameter) => Ok((name, parameter)),
            None => Err(Error::Request(format!("the weights lack {name}"))),
        };
        let norm = |name: String| {
            let (name, parameter) = get(name)?;
            let weight = parameter.shared();
            Ok::<_, Error>(Norm { name, weight })
        };
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for layer in 0..config.num_hidden_layers {
            let at = |part: &str| format!("model.layers.{layer}.{part}");
            let dense = |part: &str, biased: bool| {
                let (_, weight) = get(at(&format!("{part}.weight")))?;
                let bias = match biased {
                    true => Some(get(at(&format!("{part}.bias")))?.1.shared()),
                    false => None,
                };
                Ok::<_, Error>(Dense {
                    name: at(part),
                    sizes: Sizes {
                        inner: weight.shape()[0],
                        width: weight.shape()[1],
                    },
                    weight: weight.shared(),
                    halves: halves(),
                    bias,
                    learns: learns(&at(part)),
                })
            };
            let biased = config.has_biases();
            let head_norms = match config.norms_heads() {
                true => Some([
                    norm(at("self_attn.q_norm.weight"))?,
                    norm(at("self_attn.k_norm.weight"))?,
                ]),
                false => None,
            };
            layers.push(Layer {
                input_norm: norm(at("input_layernorm.weight"))?,
                query: dense("self_attn.q_proj", biased)?,
                key: dense("self_attn.k_proj", biased)?,
                value: dense("self_attn.v_proj", biased)?,
                head_norms,
                output: dense("self_attn.o_proj", false)?,
                mlp_norm: norm(at("post_attention_layernorm.weight"))?,
                gate: dense("mlp.gate_proj", false)?,
                up: dense("mlp.up_proj", false)?,
                down: dense("mlp.down_proj", false)?,
            });
        }
        let embedding = get(EMBEDDING.to_owned())?.1;
        let head = match config.value_head || config.tie_word_embeddings {
            true => None,
            false => Some(get(HEAD.to_owned())?.1.shared()),
        };
        Ok(Network {
            embedding: embedding.shared(),
            layers,
            norm: norm("model.norm.weight".to_owned())?,
            head,
            turned: Arc::default(),
            head_halves: halves(),
            rope,
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            width: config.head_dim,
            eps: config.rms_norm_eps as f32,
            adapted: adapter.is_some(),
        })
    }

    /// An empty cache for one sequence.
    pub(crate) fn cache(&self) -> Cache {
        let layer = || KeyValues::new(self.kv_heads, self.width);
        Cache {
            layers: vec![layer(); self.layers.len()],
        }
    }

    /// Longest sequence the rotary table covers.
    pub(crate) fn positions_max(&self) -> usize {
        self.rope.positions()
    }

    /// Rows of the vocabulary.
    pub(crate) fn vocabulary(&self) -> usize {
        self.embedding.len() / self.hidden
    }

    /// The head's weight, `[hidden, vocabulary]`.
    pub(crate) fn head(&self) -> Weight<'_> {
        let numbers = match &self.head {
            Some(head) => View::new(head, self.hidden, self.vocabulary()),
            None => View::new(&self.embedding, self.vocabulary(), self.hidden).transposed(),
        };
        Weight::new(numbers, self.head_halves.as_ref())
    }

    /// The parameter that the head's gradient belongs to.
    pub(crate) fn head_name(&self) -> &'static str {
        match self.head {
            Some(_) => HEAD,
            None => EMBEDDING,
        }
    }

    /// Prepares for products of few rows and returns the head's weight as [`Network::logits`] reads
    /// it. A tied one is transposed once and shared by its holders: generation multiplies few rows at
    /// a time with all of it, along its rows. In bf16 all weights are rounded once and kept, and the
    /// head needs no other layout.
    pub(crate) fn generating_head(&self) -> Numbers {
        if self.head_halves.is_some() {
            let alone = ComputeOptions::default();
            self.keep_halves(&alone).expect("rounding does not fail");
            return Arc::default();
        }
        if let Some(head) = &self.head {
            return Arc::clone(head);
        }
        let mut turned = self.turned.lock().expect("no thread panics holding this");
        if let Some(turned) = turned.upgrade() {
            return turned;
        }
        let new = transpose(&self.embedding, self.vocabulary(), self.hidden);
        let new = Arc::new(new);
        *turned = Arc::downgrade(&new);
        new
    }

    /// Rounds all weights once for all products from now on, where these are in bf16.
    pub(crate) fn keep_halves(&self, options: &ComputeOptions<'_>) -> Result<()> {
        if self.head_halves.is_none() {
            return Ok(());
        }
        let dense = self.layers.iter().flat_map(Layer::dense);
        let mut weights: Vec<Weight<'_>> = dense.map(Dense::weight).collect();
        weights.push(self.head());
        parallel::map(options, weights.len(), |number| {
            weights[number].keep_halves();
            Ok(())
        })?;
        Ok(())
    }

    /// Bytes of the weights that a forward pass multiplies with.
    pub(crate) fn product_bytes(&self) -> usize {
        let dense = self.layers.iter().flat_map(Layer::dense);
        let numbers = dense.map(|dense| dense.weight.len()).sum::<usize>();
        let number_bytes = if self.head_halves.is_some() { 2 } else { 4 };
        (numbers + self.hidden * self.vocabulary()) * number_bytes
    }

    /// Bytes of a token's keys and values, in all layers.
    pub(crate) fn cache_token_bytes(&self) -> usize {
        self.layers.len() * KeyValues::token_bytes(self.kv_heads, self.width)
    }

    /// Raw logits of hidden states, by [`Network::generating_head`].
    pub(crate) fn logits(&self, hidden: &[f32], head: &[f32]) -> Vec<f32> {
        if self.head_halves.is_some() {
            return self.head().apply(hidden, None);
        }
        let sizes = Sizes {
            inner: self.hidden,
            width: self.vocabulary(),
        };
        Weight::f32(head, sizes).apply(hidden, None)
    }

    /// Normed hidden states of the wanted `rows` of the batch. With caches (one per segment)
    /// the new keys and values are appended to them and attention runs over them; without,
    /// every segment continues the path of those before it. The tape records what the backward pass
    /// needs.
    pub(crate) fn hidden(
        &self,
        batch: &Batch,
        rows: &[u32],
        mut caches: Option<&mut [&mut Cache]>,
        mut tape: Option<&mut Tape>,
    ) -> Vec<f32> {
        let mut x = select(&self.embedding, &batch.ids, self.hidden);
        for number in 0..self.layers.len() {
            // Rows of the last layer are independent after attention: only the wanted ones are
            // needed.
            let wanted = (number + 1 == self.layers.len()).then_some(rows);
            let caches = caches.as_deref_mut();
            x = match &mut tape {
                Some(tape) if !tape.checkpoints => {
                    let (next, layer) = self.layer_recorded(number, batch, wanted, x);
                    tape.layers.push(Kept::Layer(Box::new(layer)));
                    next
                }
                tape => {
                    if let Some(tape) = tape {
                        tape.layers.push(Kept::Input(x.clone()));
                    }
                    self.layer(number, batch, wanted, caches, x)
                }
            };
        }
        let normed = rms_norm(&x, &self.norm.weight, self.eps);
        if let Some(tape) = tape {
            tape.last = x;
        }
        normed
    }

    /// One layer's output. Attention's memory is freed before the MLP begins, whose product reuses
    /// the memory of its gate. If `wanted` rows are named, only they are computed after attention.
    fn layer(
        &self,
        number: usize,
        batch: &Batch,
        wanted: Option<&[u32]>,
        caches: Option<&mut [&mut Cache]>,
        x: Vec<f32>,
    ) -> Vec<f32> {
        let layer = &self.layers[number];
        let attention = self.attention(number, batch, caches, &x);
        let mut stream = match wanted {
            Some(rows) => select(&x, rows, self.hidden),
            None => x,
        };
        self.add_attended(layer, &attention, wanted, &mut stream);
        drop(attention);
        let (gate, up) = self.gate_and_up(layer, &stream);
        layer.down.add_to(&mut stream, &swiglu(gate, &up));
        stream
    }

    /// The same for whole sequences, with what the backward pass needs.
    pub(crate) fn layer_recorded(
        &self,
        number: usize,
        batch: &Batch,
        wanted: Option<&[u32]>,
        x: Vec<f32>,
    ) -> (Vec<f32>, LayerTape) {
        let layer = &self.layers[number];
        let attention = self.attention(number, batch, None, &x);
        let mut middle = match wanted {
            Some(rows) => select(&x, rows, self.hidden),
            None => x.clone(),
        };
        self.add_attended(layer, &attention, wanted, &mut middle);
        let (gate, up) = self.gate_and_up(layer, &middle);
        let mut next = middle.clone();
        layer.down.add_to(&mut next, &swiglu(gate.clone(), &up));
        let tape = LayerTape {
            x,
            attention,
            middle,
            gate,
            up,
        };
        (next, tape)
    }

    fn add_attended(
        &self,
        layer: &Layer,
        attention: &Attention,
        wanted: Option<&[u32]>,
        stream: &mut [f32],
    ) {
        let selected = wanted.map(|rows| select(&attention.mixed, rows, self.heads * self.width));
        let mixed = selected.as_deref().unwrap_or(&attention.mixed);
        layer.output.add_to(stream, mixed);
    }

    fn gate_and_up(&self, layer: &Layer, stream: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let h = rms_norm(stream, &layer.mlp_norm.weight, self.eps);
        (layer.gate.apply(&h), layer.up.apply(&h))
    }

    /// A layer's attention over the rows of `x`, its input.
    fn attention(
        &self,
        number: usize,
        batch: &Batch,
        caches: Option<&mut [&mut Cache]>,
        x: &[f32],
    ) -> Attention {
        let layer = &self.layers[number];
        let h = rms_norm(x, &layer.input_norm.weight, self.eps);
        let mut queries = layer.query.apply(&h);
        let mut keys = layer.key.apply(&h);
        let values = layer.value.apply(&h);
        drop(h);
        let unnormed = self.norm_heads(layer, &mut queries, &mut keys);
        for (rows, heads) in [(&mut queries, self.heads), (&mut keys, self.kv_heads)] {
            rope(rows, &batch.positions, heads, &self.rope, false);
        }
        let mixed = self.attend(number, batch, caches, (&queries, &keys, &values));
        Attention {
            unnormed,
            queries,
            keys,
            values,
            mixed,
        }
    }

    /// Applies the norms to every head of queries and keys where the model has them; returns
    /// the queries and keys from before.
    fn norm_heads(
        &self,
        layer: &Layer,
        queries: &mut Vec<f32>,
        keys: &mut Vec<f32>,
    ) -> Option<[Vec<f32>; 2]> {
        let [by_query, by_key] = layer.head_norms.as_ref()?;
        let normed = [
            rms_norm(queries, &by_query.weight, self.eps),
            rms_norm(keys, &by_key.weight, self.eps),
        ];
        let [new_queries, new_keys] = normed;
        Some([
            std::mem::replace(queries, new_queries),
            std::mem::replace(keys, new_keys),
        ])
    }

    /// Attention of every segment over its past and itself: with caches each by itself, without
    /// along one path.
    fn attend(
        &self,
        layer: usize,
        batch: &Batch,
        caches: Option<&mut [&mut Cache]>,
        (queries, keys, values): (&[f32], &[f32], &[f32]),
    ) -> Vec<f32> {
        let Some(caches) = caches else {
            return self.attend_path(batch, queries, keys, values);
        };
        let (wide, narrow) = (self.heads * self.width, self.kv_heads * self.width);
        let mut output = vec![0.0; queries.len()];
        let (mut row, mut rest) = (0, output.as_mut_slice());
        let segments = batch.lengths.iter().map(|&length| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(length * wide);
            rest = others;
            row += length;
            (row - length..row, own)
        });
        let kvs = caches.iter_mut().map(|cache| &mut cache.layers[layer]);
        parallel::divided(kvs.zip(segments).collect(), |(kv, (rows, output))| {
            let past = kv.length();
            let own = rows.start * narrow..rows.end * narrow;
            kv.append(&keys[own.clone()], &values[own]);
            let queries = &queries[rows.start * wide..rows.end * wide];
            attend(queries, past, self.heads, kv, output);
        });
        output
    }
}

/// The rows of a row-major matrix that `rows` names.
pub(crate) fn select(matrix: &[f32], rows: &[u32], width: usize) -> Vec<f32> {
    let mut selected = Vec::with_capacity(rows.len() * width);
    for &row in rows {
        selected.extend_from_slice(&matrix[row as usize * width..(row as usize + 1) * width]);
    }
    selected
}
