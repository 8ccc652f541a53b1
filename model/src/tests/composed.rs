//! The supported families out of the tensor library's elementary operations, differentiated by
//! the library itself: the oracle of the kernels and of the explicit backward pass.

use std::collections::BTreeMap;

use candle_core::{D, Device, Result, Tensor, Var};

use crate::{Policy, TrainSequence};

/// A policy's parameters as variables of the tensor library.
pub(super) struct Composed<'a> {
    policy: &'a Policy,
    pub(super) variables: BTreeMap<String, Var>,
}

impl<'a> Composed<'a> {
    pub(super) fn new(policy: &'a Policy) -> Result<Self> {
        let mut variables = BTreeMap::new();
        for (name, parameter) in policy.weights().iter() {
            let numbers = parameter.numbers().to_vec();
            let variable = Var::from_vec(numbers, parameter.shape(), &Device::Cpu)?;
            variables.insert(name.to_owned(), variable);
        }
        Ok(Composed { policy, variables })
    }

    fn get(&self, name: &str) -> &Tensor {
        self.variables[name].as_tensor()
    }

    fn dense(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let y = x.matmul(self.get(&format!("{name}.weight")))?;
        match self.variables.get(&format!("{name}.bias")) {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        let rms = (mean + self.policy.config().rms_norm_eps)?.sqrt()?;
        x.broadcast_div(&rms)?.broadcast_mul(self.get(name))
    }

    /// `[length, heads · width]` to normed and rotated `[heads, length, width]`.
    fn heads(&self, x: &Tensor, heads: usize, rotate: bool, norm: &str) -> Result<Tensor> {
        let (length, columns) = x.dims2()?;
        let width = columns / heads;
        let x = x.reshape((length, heads, width))?;
        let x = match self.variables.contains_key(norm) {
            true => self.norm(&x, norm)?,
            false => x,
        };
        let x = x.transpose(0, 1)?.contiguous()?;
        if !rotate {
            return Ok(x);
        }
        let half = width / 2;
        let rope = &self.policy.config().rope;
        let (frequencies, factor) = (rope.frequencies(width), rope.attention_factor());
        let angles: Vec<f64> = (0..length * half)
            .map(|i| (i / half) as f64 * frequencies[i % half])
            .collect();
        let table = |f: fn(f64) -> f64| {
            let numbers: Vec<f32> = angles
                .iter()
                .map(|&angle| (factor * f(angle)) as f32)
                .collect();
            Tensor::from_vec(numbers, (1, length, half), &Device::Cpu)
        };
        let (cos, sin) = (table(f64::cos)?, table(f64::sin)?);
        let (x1, x2) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
        let y1 = (x1.broadcast_mul(&cos)? - x2.broadcast_mul(&sin)?)?;
        let y2 = (x2.broadcast_mul(&cos)? + x1.broadcast_mul(&sin)?)?;
        Tensor::cat(&[y1, y2], 2)
    }

    fn attention(&self, h: &Tensor, layer: &str) -> Result<Tensor> {
        let config = self.policy.config();
        let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        let (length, _) = h.dims2()?;
        let repeat = |t: Tensor| {
            let width = config.head_dim;
            t.unsqueeze(1)?
                .broadcast_as((kv_heads, heads / kv_heads, length, width))?
                .reshape((heads, length, width))
        };
        let q = self.heads(
            &self.dense(h, &format!("{layer}.self_attn.q_proj"))?,
            heads,
            true,
            &format!("{layer}.self_attn.q_norm.weight"),
        )?;
        let k = self.dense(h, &format!("{layer}.self_attn.k_proj"))?;
        let k = repeat(self.heads(
            &k,
            kv_heads,
            true,
            &format!("{layer}.self_attn.k_norm.weight"),
        )?)?;
        let v = self.dense(h, &format!("{layer}.self_attn.v_proj"))?;
        let v = repeat(self.heads(&v, kv_heads, false, "")?)?;
        let scores = q.matmul(&k.transpose(1, 2)?.contiguous()?)?;
        let scores = (scores / (config.head_dim as f64).sqrt())?;
        let mask: Vec<f32> = (0..length * length)
            .map(|i| if i % length > i / length { -1e30 } else { 0.0 })
            .collect();
        let mask = Tensor::from_vec(mask, (1, length, length), &Device::Cpu)?;
        let scores = scores.broadcast_add(&mask)?;
        let shifted = scores
            .broadcast_sub(&scores.max_keepdim(D::Minus1)?.detach())?
            .exp()?;
        let weights = shifted.broadcast_div(&shifted.sum_keepdim(D::Minus1)?)?;
        let mixed = weights.matmul(&v)?.transpose(0, 1)?;
        let mixed = mixed.reshape((length, config.query_width()))?;
        self.dense(&mixed, &format!("{layer}.self_attn.o_proj"))
    }

    /// Log-probabilities and entropies of tokens 1.. of one sequence.
    pub(super) fn streams(&self, ids: &[u32], temperature: f64) -> Result<(Tensor, Tensor)> {
        let index = Tensor::from_slice(ids, ids.len(), &Device::Cpu)?;
        let embedding = self.get("model.embed_tokens.weight");
        let mut x = embedding.index_select(&index, 0)?;
        for layer in 0..self.policy.config().num_hidden_layers {
            let layer = format!("model.layers.{layer}");
            let h = self.norm(&x, &format!("{layer}.input_layernorm.weight"))?;
            x = (x + self.attention(&h, &layer)?)?;
            let h = self.norm(&x, &format!("{layer}.post_attention_layernorm.weight"))?;
            let gate = self.dense(&h, &format!("{layer}.mlp.gate_proj"))?;
            let silu = (&gate / (gate.neg()?.exp()? + 1.0)?)?;
            let inner = (silu * self.dense(&h, &format!("{layer}.mlp.up_proj"))?)?;
            x = (x + self.dense(&inner, &format!("{layer}.mlp.down_proj"))?)?;
        }
        let x = self
            .norm(&x, "model.norm.weight")?
            .narrow(0, 0, ids.len() - 1)?;
        let head = match self.variables.get("lm_head.weight") {
            Some(head) => head.as_tensor().clone(),
            None => embedding.t()?,
        };
        let logits = (x.matmul(&head)? / temperature)?;
        let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
        let total = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
        let log_probs = shifted.broadcast_sub(&total)?;
        let targets = index.narrow(0, 1, ids.len() - 1)?.unsqueeze(1)?;
        let picked = log_probs.gather(&targets, 1)?.squeeze(1)?;
        let entropies = (log_probs.exp()? * &log_probs)?.sum(D::Minus1)?.neg()?;
        Ok((picked, entropies))
    }

    /// Gradients of Σ a·log_prob + b·entropy over the masked tokens.
    pub(super) fn gradients(
        &self,
        sequence: &TrainSequence,
        temperature: f64,
        coefficients: impl Fn(usize) -> (f64, f64),
    ) -> Result<BTreeMap<String, Vec<f32>>> {
        let (log_probs, entropies) = self.streams(&sequence.token_ids, temperature)?;
        let (mut by_log_prob, mut by_entropy) = (Vec::new(), Vec::new());
        for (token, &wanted) in sequence.loss_mask.iter().enumerate().skip(1) {
            let (a, b) = if wanted {
                coefficients(token)
            } else {
                (0.0, 0.0)
            };
            by_log_prob.push(a as f32);
            by_entropy.push(b as f32);
        }
        let constant = |x: Vec<f32>| Tensor::from_vec(x, log_probs.shape(), &Device::Cpu);
        let loss = ((&log_probs * constant(by_log_prob)?)?.sum_all()?
            + (entropies * constant(by_entropy)?)?.sum_all()?)?;
        let store = loss.backward()?;
        self.variables
            .iter()
            .map(|(name, variable)| {
                let gradient = store.get(variable).expect("every variable has a gradient");
                Ok((name.clone(), gradient.flatten_all()?.to_vec1()?))
            })
            .collect()
    }
}
