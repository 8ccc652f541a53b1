//! Qwen2 in f64, built from the tensor library's elementary operations and its autograd, read from
//! a Hugging Face folder: an independent implementation from the exported files and a textbook. It
//! shares no code with the trainer.

use candle_core::{D, DType, Device, Result, Tensor, Var};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A model whose parameters have the files' names and layout: `[out, in]`.
pub(super) struct Qwen2 {
    config: Value,
    /// Frozen parameters: none, or the base of an adapter.
    frozen: BTreeMap<String, Tensor>,
    /// Trainable parameters.
    pub(super) parameters: BTreeMap<String, Var>,
    /// Factor of an adapter's product: alpha / rank.
    scale: f64,
}

/// Log-probs and entropies of the tokens 1.. of a sequence, in nats.
pub(super) struct Streams {
    pub(super) log_probs: Tensor,
    pub(super) entropies: Tensor,
}

const EMBEDDING: &str = "model.embed_tokens.weight";

fn json_of(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn variables(file: &Path) -> Result<BTreeMap<String, Var>> {
    tensors(file)?
        .into_iter()
        .map(|(name, tensor)| Ok((name, Var::from_tensor(&tensor)?)))
        .collect()
}

/// Every tensor of a safetensors file, converted to f64.
pub(super) fn tensors(file: &Path) -> Result<BTreeMap<String, Tensor>> {
    candle_core::safetensors::load(file, &Device::Cpu)?
        .into_iter()
        .map(|(name, tensor)| Ok((name, tensor.to_dtype(DType::F64)?)))
        .collect()
}

impl Qwen2 {
    pub(super) fn load(folder: &Path) -> Result<Self> {
        Ok(Self {
            config: json_of(&folder.join("config.json")),
            frozen: BTreeMap::new(),
            parameters: variables(&folder.join("model.safetensors"))?,
            scale: 0.0,
        })
    }

    /// A policy with its adapter merged, where only the adapter is trained: the merged product is
    /// subtracted first.
    pub(super) fn load_adapted(policy: &Path, adapter: &Path) -> Result<Self> {
        let settings = json_of(&adapter.join("adapter_config.json"));
        let number = |key: &str| settings[key].as_f64().unwrap();
        let mut model = Self {
            config: json_of(&policy.join("config.json")),
            frozen: BTreeMap::new(),
            parameters: variables(&adapter.join("adapter_model.safetensors"))?,
            scale: number("lora_alpha") / number("r"),
        };
        for (name, merged) in tensors(&policy.join("model.safetensors"))? {
            let base = match model.product(&name)? {
                Some(product) => (merged - product)?,
                None => merged,
            };
            model.frozen.insert(name, base.detach());
        }
        Ok(model)
    }

    /// The adapter's delta of a weight, `[out, in]`: alpha / rank · B A (arXiv:2106.09685).
    fn product(&self, name: &str) -> Result<Option<Tensor>> {
        let module = name.trim_end_matches(".weight");
        let part = |half: &str| {
            let name = format!("base_model.model.{module}.{half}.weight");
            self.parameters.get(&name)
        };
        match (part("lora_A"), part("lora_B")) {
            (Some(a), Some(b)) => Ok(Some((b.matmul(a)? * self.scale)?)),
            _ => Ok(None),
        }
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap() as usize
    }

    fn number(&self, key: &str) -> f64 {
        self.config[key].as_f64().unwrap()
    }

    /// A parameter by its name in the folder; `None` if the model has none.
    fn find(&self, name: &str) -> Result<Option<Tensor>> {
        if let Some(parameter) = self.parameters.get(name) {
            return Ok(Some(parameter.as_tensor().clone()));
        }
        let Some(base) = self.frozen.get(name) else {
            return Ok(None);
        };
        Ok(Some(match self.product(name)? {
            Some(product) => (base + product)?,
            None => base.clone(),
        }))
    }

    fn get(&self, name: &str) -> Result<Tensor> {
        Ok(self.find(name)?.expect("the folder has every tensor"))
    }

    fn dense(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let y = x.matmul(&self.get(&format!("{name}.weight"))?.t()?)?;
        match self.find(&format!("{name}.bias"))? {
            Some(bias) => y.broadcast_add(&bias),
            None => Ok(y),
        }
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        let rms = (mean + self.number("rms_norm_eps"))?.sqrt()?;
        x.broadcast_div(&rms)?.broadcast_mul(&self.get(name)?)
    }

    /// Reshapes `[length, heads · width]` to `[heads, length, width]`.
    fn split(x: &Tensor, heads: usize) -> Result<Tensor> {
        let (length, columns) = x.dims2()?;
        x.reshape((length, heads, columns / heads))?
            .transpose(0, 1)?
            .contiguous()
    }

    /// Rotary embedding for positions 0.., with halves paired as in Hugging Face.
    fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let (_, length, width) = x.dims3()?;
        // transformers 5 writes it below `rope_parameters`.
        let theta = ["/rope_theta", "/rope_parameters/rope_theta"];
        let theta = theta
            .iter()
            .find_map(|place| self.config.pointer(place)?.as_f64());
        let (half, theta) = (width / 2, theta.unwrap());
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

    /// The hidden states that predict tokens 1.. of a sequence, `[length - 1, hidden]`: a single
    /// sequence without padding.
    fn states(&self, ids: &[u32]) -> Result<Tensor> {
        let index = Tensor::from_slice(ids, ids.len(), &Device::Cpu)?;
        let mut x = self.get(EMBEDDING)?.index_select(&index, 0)?;
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
        x.narrow(0, 0, ids.len() - 1)
    }

    pub(super) fn streams(&self, ids: &[u32], temperature: f64) -> Result<Streams> {
        let head = match self.find("lm_head.weight")? {
            Some(head) => head,
            None => self.get(EMBEDDING)?,
        };
        let logits = self.states(ids)?.matmul(&head.t()?)?;
        let log_probs = log_softmax(&(logits / temperature)?)?;
        let targets = Tensor::from_slice(&ids[1..], (ids.len() - 1, 1), &Device::Cpu)?;
        let entropies = (log_probs.exp()? * &log_probs)?.sum(D::Minus1)?.neg()?;
        Ok(Streams {
            log_probs: log_probs.gather(&targets, 1)?.squeeze(1)?,
            entropies,
        })
    }

    /// A critic's values of the states before tokens 1.. of a sequence.
    pub(super) fn values(&self, ids: &[u32]) -> Result<Tensor> {
        self.dense(&self.states(ids)?, "score")?.squeeze(1)
    }
}

fn log_softmax(x: &Tensor) -> Result<Tensor> {
    let x = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?;
    x.broadcast_sub(&x.exp()?.sum_keepdim(D::Minus1)?.log()?)
}
