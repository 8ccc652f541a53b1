//! Qwen2 in f64, out of the tensor library's elementary operations and its own
//! gradients, read from a Hugging Face folder: what somebody writes who has
//! the exported files and a textbook. It shares no line with the trainer.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A model whose parameters have the files' names and layout: `[out, in]`.
pub(super) struct Qwen2 {
    config: Value,
    pub(super) parameters: BTreeMap<String, Var>,
}

/// Log-probs and entropies of the tokens 1.. of a sequence, in nats.
pub(super) struct Streams {
    pub(super) log_probs: Tensor,
    pub(super) entropies: Tensor,
}

/// Every tensor of a safetensors file, widened.
pub(super) fn tensors(file: &Path) -> Result<BTreeMap<String, Tensor>> {
    candle_core::safetensors::load(file, &Device::Cpu)?
        .into_iter()
        .map(|(name, tensor)| Ok((name, tensor.to_dtype(DType::F64)?)))
        .collect()
}

impl Qwen2 {
    pub(super) fn load(folder: &Path) -> Result<Self> {
        let config = std::fs::read(folder.join("config.json"))?;
        let parameters = tensors(&folder.join("model.safetensors"))?
            .into_iter()
            .map(|(name, tensor)| Ok((name, Var::from_tensor(&tensor)?)))
            .collect::<Result<_>>()?;
        Ok(Self {
            config: serde_json::from_slice(&config).unwrap(),
            parameters,
        })
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    fn number(&self, key: &str) -> f64 {
        self.config[key].as_f64().unwrap()
    }

    fn get(&self, name: &str) -> &Tensor {
        self.parameters[name].as_tensor()
    }

    fn dense(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let y = x.matmul(&self.get(&format!("{name}.weight")).t()?)?;
        match self.parameters.get(&format!("{name}.bias")) {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        let rms = (mean + self.number("rms_norm_eps"))?.sqrt()?;
        x.broadcast_div(&rms)?.broadcast_mul(self.get(name))
    }

    /// `[length, heads · width]` to `[heads, length, width]`.
    fn split(x: &Tensor, heads: usize) -> Result<Tensor> {
        let (length, columns) = x.dims2()?;
        x.reshape((length, heads, columns / heads))?
            .transpose(0, 1)?
            .contiguous()
    }

    /// Rotary positions 0.., halves paired as Hugging Face pairs them.
    fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let (_, length, width) = x.dims3()?;
        let (half, theta) = (width / 2, self.number("rope_theta"));
        let table = |f: fn(f64) -> f64| {
            let angle =
                |i: usize| (i / half) as f64 * theta.powf(-2.0 * (i % half) as f64 / width as f64);
            let numbers: Vec<f64> = (0..length * half).map(|i| f(angle(i))).collect();
            Tensor::from_vec(numbers, (1, length, half), &Device::Cpu)
        };
        let (cos, sin) = (table(f64::cos)?, table(f64::sin)?);
        let (x1, x2) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
        let y1 = (x1.broadcast_mul(&cos)? - x2.broadcast_mul(&sin)?)?;
        let y2 = (x2.broadcast_mul(&cos)? + x1.broadcast_mul(&sin)?)?;
        Tensor::cat(&[y1, y2], 2)
    }

    fn attention(&self, h: &Tensor, layer: &str) -> Result<Tensor> {
        let (heads, groups) = (
            self.size("num_attention_heads"),
            self.size("num_key_value_heads"),
        );
        let (length, hidden) = h.dims2()?;
        let width = hidden / heads;
        let project = |name: &str| self.dense(h, &format!("{layer}.self_attn.{name}"));
        let repeat = |x: Tensor| {
            x.unsqueeze(1)?
                .broadcast_as((groups, heads / groups, length, width))?
                .reshape((heads, length, width))
        };
        let q = self.rotate(&Self::split(&project("q_proj")?, heads)?)?;
        let k = repeat(self.rotate(&Self::split(&project("k_proj")?, groups)?)?)?;
        let v = repeat(Self::split(&project("v_proj")?, groups)?)?;
        let scores = (q.matmul(&k.t()?)? / (width as f64).sqrt())?;
        let later: Vec<f64> = (0..length * length)
            .map(|i| if i % length > i / length { -1e30 } else { 0.0 })
            .collect();
        let later = Tensor::from_vec(later, (1, length, length), &Device::Cpu)?;
        let scores = log_softmax(&scores.broadcast_add(&later)?)?;
        let mixed = scores.exp()?.matmul(&v)?.transpose(0, 1)?;
        self.dense(
            &mixed.reshape((length, hidden))?,
            &format!("{layer}.self_attn.o_proj"),
        )
    }

    /// One sequence, alone, without padding.
    pub(super) fn streams(&self, ids: &[u32], temperature: f64) -> Result<Streams> {
        let index = Tensor::from_slice(ids, ids.len(), &Device::Cpu)?;
        let embedding = self.get("model.embed_tokens.weight");
        let mut x = embedding.index_select(&index, 0)?;
        for layer in 0..self.size("num_hidden_layers") {
            let layer = format!("model.layers.{layer}");
            let h = self.norm(&x, &format!("{layer}.input_layernorm.weight"))?;
            x = (x + self.attention(&h, &layer)?)?;
            let h = self.norm(&x, &format!("{layer}.post_attention_layernorm.weight"))?;
            let gate = self.dense(&h, &format!("{layer}.mlp.gate_proj"))?;
            let silu = (&gate / (gate.neg()?.exp()? + 1.0)?)?;
            let inner = (silu * self.dense(&h, &format!("{layer}.mlp.up_proj"))?)?;
            x = (x + self.dense(&inner, &format!("{layer}.mlp.down_proj"))?)?;
        }
        let x = self.norm(&x, "model.norm.weight")?;
        let x = x.narrow(0, 0, ids.len() - 1)?;
        let head = match self.parameters.get("lm_head.weight") {
            Some(head) => head.as_tensor(),
            None => embedding,
        };
        let log_probs = log_softmax(&(x.matmul(&head.t()?)? / temperature)?)?;
        let targets = index.narrow(0, 1, ids.len() - 1)?.unsqueeze(1)?;
        let entropies = (log_probs.exp()? * &log_probs)?.sum(D::Minus1)?.neg()?;
        Ok(Streams {
            log_probs: log_probs.gather(&targets, 1)?.squeeze(1)?,
            entropies,
        })
    }
}

fn log_softmax(x: &Tensor) -> Result<Tensor> {
    let x = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?;
    x.broadcast_sub(&x.exp()?.sum_keepdim(D::Minus1)?.log()?)
}
