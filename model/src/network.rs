//! The Qwen2 forward pass, one for everything: generation, scoring and training
//! give it a packed list of segments of sequences. Positions count per sequence
//! and attention stays inside it, so a row's result does not depend on what else
//! is in the batch.

use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::kernels::attention::{KeyValues, attend};
use crate::kernels::pointwise::RopeTable;
use crate::{Error, ModelConfig, Result, ops};

/// New tokens of some sequences, one after another.
pub(crate) struct Batch {
    ids: Vec<u32>,
    positions: Arc<[u32]>,
    /// Tokens of each segment.
    lengths: Arc<[usize]>,
}

impl Batch {
    /// Packs segments given as (tokens before it, its ids).
    pub(crate) fn new<'a>(segments: impl IntoIterator<Item = (usize, &'a [u32])>) -> Self {
        let (mut ids, mut positions, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for (past, segment) in segments {
            ids.extend_from_slice(segment);
            positions.extend((past..past + segment.len()).map(|position| position as u32));
            lengths.push(segment.len());
        }
        Batch {
            ids,
            positions: positions.into(),
            lengths: lengths.into(),
        }
    }
}

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
}

/// Rotary angles for every position a model may use.
pub(crate) fn rope_table(config: &ModelConfig) -> Arc<RopeTable> {
    let table = RopeTable::new(
        config.rope_theta,
        config.head_width(),
        config.max_position_embeddings,
    );
    Arc::new(table)
}

#[derive(Debug, Clone)]
struct Dense {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Dense {
    fn apply(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        ops::linear(x, &self.weight, self.bias.as_ref())
    }
}

#[derive(Debug, Clone)]
struct Layer {
    input_norm: Tensor,
    query: Dense,
    key: Dense,
    value: Dense,
    output: Dense,
    mlp_norm: Tensor,
    gate: Dense,
    up: Dense,
    down: Dense,
}

/// A model's tensors in the order they are used. Built of variables it records
/// what a backward pass needs; built of plain tensors it records nothing.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Tensor,
    rope: Arc<RopeTable>,
    heads: usize,
    kv_heads: usize,
    width: usize,
    eps: f32,
}

impl Network {
    /// Takes the tensors by Hugging Face name; `head` is `[hidden, vocabulary]`.
    pub(crate) fn new<'a>(
        config: &ModelConfig,
        rope: Arc<RopeTable>,
        head: Tensor,
        get: impl Fn(&str) -> Option<&'a Tensor>,
    ) -> Result<Self> {
        let get = |name: String| {
            get(&name)
                .cloned()
                .ok_or_else(|| Error::Request(format!("no tensor {name}")))
        };
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for layer in 0..config.num_hidden_layers {
            let at = |part: &str| get(format!("model.layers.{layer}.{part}"));
            let dense = |part: &str, biased: bool| {
                let bias = if biased {
                    Some(at(&format!("{part}.bias"))?)
                } else {
                    None
                };
                Ok::<_, Error>(Dense {
                    weight: at(&format!("{part}.weight"))?,
                    bias,
                })
            };
            layers.push(Layer {
                input_norm: at("input_layernorm.weight")?,
                query: dense("self_attn.q_proj", true)?,
                key: dense("self_attn.k_proj", true)?,
                value: dense("self_attn.v_proj", true)?,
                output: dense("self_attn.o_proj", false)?,
                mlp_norm: at("post_attention_layernorm.weight")?,
                gate: dense("mlp.gate_proj", false)?,
                up: dense("mlp.up_proj", false)?,
                down: dense("mlp.down_proj", false)?,
            });
        }
        Ok(Network {
            embedding: get("model.embed_tokens.weight".to_owned())?,
            layers,
            norm: get("model.norm.weight".to_owned())?,
            head,
            rope,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            width: config.head_width(),
            eps: config.rms_norm_eps as f32,
        })
    }

    /// The output head, `[hidden, vocabulary]`.
    pub(crate) fn head(&self) -> &Tensor {
        &self.head
    }

    /// The rotary table, to be shared.
    pub(crate) fn rope(&self) -> Arc<RopeTable> {
        Arc::clone(&self.rope)
    }

    /// An empty cache for one sequence.
    pub(crate) fn cache(&self) -> Cache {
        Cache {
            layers: vec![KeyValues::new(self.kv_heads, self.width); self.layers.len()],
        }
    }

    /// Longest sequence the rotary table covers.
    pub(crate) fn positions_max(&self) -> usize {
        self.rope.positions()
    }

    /// Normed hidden states `[rows.len(), hidden]` of the wanted rows of the batch.
    /// With caches (one per segment) the new keys and values are appended to them
    /// and attention runs over them; without, every segment starts its sequence.
    pub(crate) fn hidden(
        &self,
        batch: &Batch,
        rows: &[u32],
        mut caches: Option<&mut [&mut Cache]>,
    ) -> Result<Tensor> {
        let device = self.embedding.device();
        let select = |x: &Tensor, rows: &[u32]| -> candle_core::Result<Tensor> {
            x.index_select(&Tensor::from_slice(rows, rows.len(), device)?, 0)
        };
        let rotation = ops::Rotation {
            positions: Arc::clone(&batch.positions),
            table: Arc::clone(&self.rope),
        };
        let mut x = select(&self.embedding, &batch.ids)?;
        for (number, layer) in self.layers.iter().enumerate() {
            let h = ops::rms_norm(&x, &layer.input_norm, self.eps)?;
            let queries = ops::rope(&layer.query.apply(&h)?, &rotation, self.heads)?;
            let keys = ops::rope(&layer.key.apply(&h)?, &rotation, self.kv_heads)?;
            let values = layer.value.apply(&h)?;
            let mut mixed = match &mut caches {
                None => ops::attention(
                    &queries,
                    &keys,
                    &values,
                    &batch.lengths,
                    self.heads,
                    self.kv_heads,
                )?,
                Some(caches) => {
                    self.attend_cached(number, batch, caches, (&queries, &keys, &values))?
                }
            };
            // From here on rows go their own ways: the last layer needs the wanted ones only.
            if number + 1 == self.layers.len() {
                mixed = select(&mixed, rows)?;
                x = select(&x, rows)?;
            }
            x = (x + layer.output.apply(&mixed)?)?;
            let h = ops::rms_norm(&x, &layer.mlp_norm, self.eps)?;
            let inner = ops::swiglu(&layer.gate.apply(&h)?, &layer.up.apply(&h)?)?;
            x = (x + layer.down.apply(&inner)?)?;
        }
        Ok(ops::rms_norm(&x, &self.norm, self.eps)?)
    }

    fn attend_cached(
        &self,
        layer: usize,
        batch: &Batch,
        caches: &mut [&mut Cache],
        (queries, keys, values): (&Tensor, &Tensor, &Tensor),
    ) -> candle_core::Result<Tensor> {
        let (wide, narrow) = (self.heads * self.width, self.kv_heads * self.width);
        let mut output = vec![0.0; queries.elem_count()];
        ops::with_data(queries, |queries| {
            ops::with_data(keys, |keys| {
                ops::with_data(values, |values| {
                    let mut row = 0;
                    for (cache, &length) in caches.iter_mut().zip(batch.lengths.iter()) {
                        let end = row + length;
                        let kv = &mut cache.layers[layer];
                        let past = kv.length();
                        kv.append(
                            &keys[row * narrow..end * narrow],
                            &values[row * narrow..end * narrow],
                        );
                        let own = row * wide..end * wide;
                        attend(
                            &queries[own.clone()],
                            past,
                            self.heads,
                            kv,
                            &mut output[own],
                        );
                        row = end;
                    }
                    Ok(())
                })
            })
        })?;
        Tensor::from_vec(output, queries.shape(), &Device::Cpu)
    }
}
