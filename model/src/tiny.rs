//! A model of under a million parameters, initialised from a seed.
//!
//! Plain random weights need millions of tokens before attention learns to look
//! back and copy, which is most of what an agent in a text world does. The initial
//! weights therefore contain the two halves of a copying circuit: heads of the first
//! layer attend to the token one to three positions back, whatever it is, and heads
//! of later layers attend to positions with content similar to the current one and
//! copy it. Training refines this circuit instead of having to find it.
//!
//! The position that the first layer's heads attend to is a constant query and key. Qwen2 has
//! biases for that. In families without biases the first number of the residual stream is a
//! constant that no layer writes to, and its rows of the first layer's weights act as the biases.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use crate::tiny_text::{self, EOS_ID, PAD_ID, Splitting, Template};
use crate::tiny_words::Choices;
use crate::{
    Architecture, Error, ModelConfig, Parameter, Policy, Result, Tokenizer, Weights,
    parameter_shapes,
};

/// Standard deviation of every weight without structure.
const STD: f64 = 0.05;
/// The same of values, and of the content that matching queries and keys share.
const MATCHED_STD: f64 = 0.08;
/// The same of a query's own part, beside the content that it shares with its key.
const UNMATCHED_STD: f64 = 0.024;
/// First-layer queries and keys depend little on the content, so that position decides.
const FIRST_LAYER_SCALE: f64 = 0.25;
/// Squared amplitudes of the fastest rotary frequencies in the first layer's biases. At the
/// head's own distance the score is their sum over the root of the head width. That distance
/// then gets 0.92 of the attention up to about 80 tokens, 0.84 at 150 and 0.76 at 300, where
/// the phases begin to coincide again.
const AMPLITUDES_SQUARED: [f64; 6] = [30.0, 20.0, 12.0, 8.0, 5.0, 3.0];
/// How many tokens back the first layer's heads attend, in turn.
const DISTANCES: [f64; 4] = [1.0, 2.0, 1.0, 3.0];
/// The constant in the embedding of a family without biases, in standard deviations of the rest.
const CONSTANT: f64 = 4.0;
/// Index of the constant in the residual stream.
const CONSTANT_AT: usize = 0;

/// Sizes of a tiny model.
#[derive(Debug, Clone, PartialEq)]
pub struct TinyShape {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of the MLP's inner layer.
    pub intermediate: usize,
    /// Vocabulary.
    pub vocab: usize,
    /// How its new tokenizer splits text.
    pub splitting: Splitting,
    /// Its chat template.
    pub template: Template,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Base of the rotary frequencies.
    pub theta: f64,
    /// Longest sequence, in tokens.
    pub tokens_max: usize,
}

impl Default for TinyShape {
    fn default() -> Self {
        TinyShape {
            architecture: Architecture::Qwen2,
            hidden: 128,
            layers: 4,
            heads: 4,
            kv_heads: 2,
            intermediate: 384,
            vocab: 1024,
            splitting: Splitting::default(),
            template: Template::default(),
            tied: true,
            theta: 10_000.0,
            tokens_max: 4096,
        }
    }
}

impl TinyShape {
    /// The sizes of Qwen2.5-0.5B, for benches.
    pub fn half_billion() -> Self {
        TinyShape {
            hidden: 896,
            layers: 24,
            heads: 14,
            kv_heads: 2,
            intermediate: 4864,
            vocab: 151_936,
            ..TinyShape::default()
        }
    }

    /// The shape that `tiny` or `tiny?layers=2&vocab=512…` names; `None` where `path`
    /// is not a preset. The error lists the known options.
    pub fn preset(path: &str) -> Result<Option<Self>, String> {
        let options = match path.strip_prefix("tiny") {
            Some("") => "",
            Some(rest) => match rest.strip_prefix('?') {
                Some(options) => options,
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        let mut shape = TinyShape::default();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            if name == "arch" {
                let known = Architecture::ALL.map(Architecture::model_type);
                let found = known.iter().position(|known| *known == value);
                shape.architecture = found.map(|at| Architecture::ALL[at]).ok_or_else(|| {
                    format!(
                        "`arch={value}` is not known; known are {}",
                        known.join(", ")
                    )
                })?;
                continue;
            }
            if name == "tokenizer" {
                shape.splitting = match value {
                    "gpt2" => Splitting::Gpt2,
                    "qwen2" => Splitting::Qwen2,
                    _ => return Err(format!("`{option}` is not known; known are gpt2, qwen2")),
                };
                continue;
            }
            if name == "template" {
                shape.template = match value {
                    "plain" => Template::Plain,
                    "tools" => Template::Tools,
                    _ => return Err(format!("`{option}` is not known; known are plain, tools")),
                };
                continue;
            }
            let field = match name {
                "hidden" => &mut shape.hidden,
                "layers" => &mut shape.layers,
                "heads" => &mut shape.heads,
                "kv_heads" => &mut shape.kv_heads,
                "intermediate" => &mut shape.intermediate,
                "vocab" => &mut shape.vocab,
                _ => {
                    return Err(format!(
                        "`tiny` has no option `{name}`; known are arch, hidden, layers, heads, \
                         kv_heads, intermediate, vocab, tokenizer, template"
                    ));
                }
            };
            let number = value.parse().ok().filter(|number| *number > 0);
            *field = number.ok_or_else(|| format!("`{option}` is not a positive whole number"))?;
        }
        Ok(Some(shape))
    }

    /// The `config.json` of this shape.
    pub fn config(&self) -> Result<ModelConfig> {
        let mut value = json!({
            "architectures": [self.architecture.causal_lm()],
            "model_type": self.architecture.model_type(),
            "attention_dropout": 0.0,
            "bos_token_id": null,
            "eos_token_id": EOS_ID,
            "pad_token_id": PAD_ID,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": STD,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.tokens_max,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_theta": self.theta,
            "sliding_window": null,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "float32",
            "use_cache": true,
            "use_sliding_window": false,
            "vocab_size": self.vocab,
        });
        if !self.architecture.facts().biases {
            value["attention_bias"] = json!(false);
            value["head_dim"] = json!(self.hidden / self.heads.max(1));
        }
        let serde_json::Value::Object(raw) = value else {
            return Err(Error::Request("the shape is no JSON object".to_owned()));
        };
        ModelConfig::from_json(raw, Path::new("tiny shape"))
    }

    /// A new policy: initial weights of `seed`, `tokenizer`, and its chat template.
    pub fn policy(&self, seed: u64, tokenizer: Tokenizer) -> Result<Policy> {
        let weights = self.init_weights(seed)?;
        Policy::new(
            self.config()?,
            weights,
            tokenizer,
            tiny_text::chat(self.template),
        )
    }

    /// Initial weights: each parameter has a random stream that depends on `seed` and its name.
    pub fn init_weights(&self, seed: u64) -> Result<Weights> {
        let config = self.config()?;
        let birth = Birth {
            seed,
            shape: self,
            width: config.head_dim,
        };
        let mut parameters = BTreeMap::new();
        for (name, dims) in parameter_shapes(&config) {
            let numbers = birth.parameter(&name, dims.iter().product());
            parameters.insert(name, Parameter::new(dims, numbers));
        }
        Ok(Weights::new(parameters))
    }
}

/// Makes parameters in the in-memory layout, where a dense weight is `[in, out]`.
struct Birth<'a> {
    seed: u64,
    shape: &'a TinyShape,
    /// Elements per head.
    width: usize,
}

impl Birth<'_> {
    fn parameter(&self, name: &str, count: usize) -> Vec<f32> {
        let first_layer = name.starts_with("model.layers.0.");
        let part = name.rsplit_once("layers.").map_or(name, |(_, part)| part);
        let part = part.split_once('.').map_or(part, |(_, part)| part);
        if !self.shape.architecture.facts().biases {
            return self.without_biases(name, part, first_layer, count);
        }
        self.unbiased(name, part, first_layer, count)
    }

    /// A parameter, without the position part of families without biases.
    fn unbiased(&self, name: &str, part: &str, first_layer: bool, count: usize) -> Vec<f32> {
        match part {
            "self_attn.q_proj.weight" if first_layer => {
                self.normal(name, count, STD * FIRST_LAYER_SCALE)
            }
            "self_attn.k_proj.weight" if first_layer => {
                self.normal(name, count, STD * FIRST_LAYER_SCALE)
            }
            "self_attn.q_proj.weight" => self.matched_queries(name, count),
            "self_attn.k_proj.weight" | "self_attn.v_proj.weight" => {
                self.normal(name, count, MATCHED_STD)
            }
            "self_attn.o_proj.weight" => self.copying_output(name),
            "self_attn.q_proj.bias" if first_layer => self.place_queries(),
            "self_attn.k_proj.bias" if first_layer => self.place_keys(),
            _ if name.ends_with("norm.weight") => vec![1.0; count],
            _ if name.ends_with(".bias") => vec![0.0; count],
            _ => self.normal(name, count, STD),
        }
    }

    /// A parameter of a family without biases, where a constant of the residual stream
    /// replaces them: queries and keys of the first layer read the position from it,
    /// other queries, keys and values do not read it, and nothing writes to it.
    fn without_biases(&self, name: &str, part: &str, first_layer: bool, count: usize) -> Vec<f32> {
        let hidden = self.shape.hidden;
        let mut numbers = self.unbiased(name, part, first_layer, count);
        let row = CONSTANT_AT * (count / hidden)..(CONSTANT_AT + 1) * (count / hidden);
        // The constant after the first norm, beside numbers of magnitude 1.
        let seen = CONSTANT / ((hidden as f64 - 1.0 + CONSTANT.powi(2)) / hidden as f64).sqrt();
        let place = |bias: Vec<f32>| bias.into_iter().map(move |x| (f64::from(x) / seen) as f32);
        match part {
            "self_attn.q_proj.weight" if first_layer => {
                numbers.splice(row, place(self.place_queries()));
            }
            "self_attn.k_proj.weight" if first_layer => {
                numbers.splice(row, place(self.place_keys()));
            }
            "self_attn.q_proj.weight" | "self_attn.k_proj.weight" | "self_attn.v_proj.weight" => {
                numbers[row].fill(0.0);
            }
            "self_attn.o_proj.weight" | "mlp.down_proj.weight" => {
                let rows = numbers.chunks_exact_mut(hidden);
                rows.for_each(|row| row[CONSTANT_AT] = 0.0);
            }
            // A normed head has the length of the root of its width; this weight gives the
            // position the score that it has in a Qwen2.
            "self_attn.q_norm.weight" | "self_attn.k_norm.weight" if first_layer => {
                let length = self.frequencies().map(|(a, _)| a * a).sum::<f64>();
                numbers.fill((length / self.width as f64).sqrt() as f32);
            }
            _ if name == "model.embed_tokens.weight" => {
                let rows = numbers.chunks_exact_mut(hidden);
                rows.for_each(|row| row[CONSTANT_AT] = (CONSTANT * STD) as f32);
            }
            _ => {}
        }
        numbers
    }

    /// The sum of twelve uniform numbers has variance 1 and is close enough to normal
    /// here; unlike a logarithm and a cosine it is the same on every machine.
    fn normal(&self, name: &str, count: usize, std: f64) -> Vec<f32> {
        let mut choices = Choices::new(self.seed, name);
        let mut bytes = [0; 24];
        (0..count)
            .map(|_| {
                choices.fill(&mut bytes);
                let pairs = bytes.as_chunks::<2>().0;
                let sum: u32 = pairs
                    .iter()
                    .map(|&b| u32::from(u16::from_le_bytes(b)))
                    .sum();
                // Half a step per number makes the mean exactly 0.
                ((f64::from(sum) + 6.0) / 65_536.0 - 6.0) * std
            })
            .map(|x| x as f32)
            .collect()
    }

    /// The key and value head that a query head reads.
    fn group(&self, head: usize) -> usize {
        head / (self.shape.heads / self.shape.kv_heads)
    }

    /// Each query head matches its group's key: both read the same content.
    fn matched_queries(&self, name: &str, count: usize) -> Vec<f32> {
        let key_columns = self.shape.kv_heads * self.width;
        let keys = self.normal(
            &name.replace("q_proj", "k_proj"),
            self.shape.hidden * key_columns,
            MATCHED_STD,
        );
        let mut queries = self.normal(name, count, UNMATCHED_STD);
        let columns = self.shape.heads * self.width;
        for (at, query) in queries.iter_mut().enumerate() {
            let (row, head, d) = (at / columns, at % columns / self.width, at % self.width);
            *query += keys[row * key_columns + self.group(head) * self.width + d];
        }
        queries
    }

    /// W_o = W_vᵀ per head: content is written back to where it was read.
    fn copying_output(&self, name: &str) -> Vec<f32> {
        let hidden = self.shape.hidden;
        let value_columns = self.shape.kv_heads * self.width;
        let values = self.normal(
            &name.replace("o_proj", "v_proj"),
            hidden * value_columns,
            MATCHED_STD,
        );
        let mut output = Vec::with_capacity(self.shape.heads * self.width * hidden);
        for head in 0..self.shape.heads {
            for d in 0..self.width {
                let column = self.group(head) * self.width + d;
                output.extend((0..hidden).map(|row| values[row * value_columns + column]));
            }
        }
        output
    }

    /// Amplitude and angular frequency of each rotary pair of a head.
    fn frequencies(&self) -> impl Iterator<Item = (f64, f64)> {
        let (theta, width) = (self.shape.theta, self.width);
        (0..width / 2).map(move |pair| {
            let squared = AMPLITUDES_SQUARED.get(pair).copied().unwrap_or(0.0);
            let frequency = theta.powf(-2.0 * pair as f64 / width as f64);
            (squared.sqrt(), frequency)
        })
    }

    /// A constant key, which the rotation turns by an angle per frequency and position.
    fn place_keys(&self) -> Vec<f32> {
        let mut head = vec![0.0; self.width];
        for (pair, (amplitude, _)) in self.frequencies().enumerate() {
            head[pair] = amplitude as f32;
        }
        head.repeat(self.shape.kv_heads)
    }

    /// The same vector rotated back by the head's distance o: the score of a key at
    /// distance δ is Σ a_f² cos(w_f (δ − o)), largest at δ = o.
    fn place_queries(&self) -> Vec<f32> {
        let mut bias = Vec::with_capacity(self.shape.heads * self.width);
        for distance in DISTANCES.iter().cycle().take(self.shape.heads) {
            let turned = |sign: f64, f: fn(f64) -> f64| {
                self.frequencies()
                    .map(move |(a, w)| (sign * a * f(w * distance)) as f32)
            };
            bias.extend(turned(1.0, f64::cos));
            bias.extend(turned(-1.0, f64::sin));
        }
        bias
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(weights: &Weights, name: &str) -> Vec<f32> {
        weights.get(name).unwrap().numbers().to_vec()
    }

    fn other() -> TinyShape {
        TinyShape {
            hidden: 48,
            layers: 2,
            heads: 6,
            kv_heads: 2,
            intermediate: 40,
            vocab: 400,
            tied: false,
            ..TinyShape::default()
        }
    }

    #[test]
    fn the_default_shape_has_the_measured_size() {
        let shape = TinyShape::default();
        let weights = shape.init_weights(1).unwrap();
        assert_eq!(weights.parameter_count(), 919_680);
    }

    #[test]
    fn a_seed_gives_the_same_numbers_and_another_seed_others() {
        let all = |seed| {
            let weights = other().init_weights(seed).unwrap();
            let names: Vec<String> = weights.iter().map(|(name, _)| name.to_owned()).collect();
            names
                .iter()
                .map(|name| numbers(&weights, name))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(5), all(5));
        assert_ne!(all(5), all(6));
        assert!(all(5).iter().flatten().all(|x| x.is_finite()));
    }

    #[test]
    fn unstructured_weights_look_normal() {
        let weights = TinyShape::default().init_weights(3).unwrap();
        for (name, std) in [
            ("model.embed_tokens.weight", 0.05),
            ("model.layers.2.mlp.up_proj.weight", 0.05),
            ("model.layers.0.self_attn.q_proj.weight", 0.0125),
            ("model.layers.3.self_attn.v_proj.weight", 0.08),
        ] {
            let x = numbers(&weights, name);
            let n = x.len() as f64;
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
            let variance = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
            assert!(mean.abs() < 4.0 * std / n.sqrt(), "{name}: mean {mean}");
            assert!(
                (variance.sqrt() / std - 1.0).abs() < 0.03,
                "{name}: {variance}"
            );
            let beyond_two = x.iter().filter(|x| f64::from(x.abs()) > 2.0 * std).count();
            assert!((beyond_two as f64 / n - 0.0455).abs() < 0.01, "{name}");
        }
    }

    #[test]
    fn presets_are_named_by_their_options() {
        let shape = |path: &str| TinyShape::preset(path);
        assert_eq!(shape("tiny"), Ok(Some(TinyShape::default())));
        let found = shape("tiny?arch=qwen3&layers=2").unwrap().unwrap();
        assert_eq!((found.architecture, found.layers), (Architecture::Qwen3, 2));
        assert_eq!(shape("tiny-model"), Ok(None));
        let found = shape("tiny?template=tools").unwrap().unwrap();
        assert_eq!(found.template, Template::Tools);
        for (path, word) in [
            ("tiny?arch=gemma", "llama"),
            ("tiny?tokenizer=3", "gpt2, qwen2"),
            ("tiny?template=chat", "plain, tools"),
            ("tiny?size=3", "no option `size`"),
            ("tiny?layers=0", "layers=0"),
        ] {
            let message = shape(path).unwrap_err();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn outputs_write_back_what_values_read() {
        for shape in [TinyShape::default(), other()] {
            let weights = shape.init_weights(2).unwrap();
            let width = shape.hidden / shape.heads;
            let values = numbers(&weights, "model.layers.1.self_attn.v_proj.weight");
            let output = numbers(&weights, "model.layers.1.self_attn.o_proj.weight");
            for (head, d, row) in [
                (0, 0, 0),
                (shape.heads - 1, width - 1, shape.hidden - 1),
                (1, 3, 7),
            ] {
                let group = head * shape.kv_heads / shape.heads;
                assert_eq!(
                    output[(head * width + d) * shape.hidden + row],
                    values[row * shape.kv_heads * width + group * width + d],
                );
            }
        }
    }

    /// Rotates a head's bias to a position as the forward pass does.
    fn rotated(bias: &[f32], position: f64, theta: f64) -> Vec<f64> {
        let half = bias.len() / 2;
        let mut out = vec![0.0; bias.len()];
        for f in 0..half {
            let angle = position * theta.powf(-2.0 * f as f64 / bias.len() as f64);
            let (x, y) = (f64::from(bias[f]), f64::from(bias[half + f]));
            out[f] = x * angle.cos() - y * angle.sin();
            out[half + f] = y * angle.cos() + x * angle.sin();
        }
        out
    }

    #[test]
    fn first_layer_heads_look_one_to_three_tokens_back() {
        let shape = TinyShape::default();
        let weights = shape.init_weights(9).unwrap();
        let queries = numbers(&weights, "model.layers.0.self_attn.q_proj.bias");
        let keys = numbers(&weights, "model.layers.0.self_attn.k_proj.bias");
        looks_back(&shape, &queries, &keys, 0.9);
    }

    /// A Qwen3 reads the position from the constant, together with the token's content,
    /// and norms it.
    #[test]
    fn so_do_those_of_a_qwen3() {
        let shape = TinyShape {
            architecture: Architecture::Qwen3,
            ..TinyShape::default()
        };
        let weights = shape.init_weights(9).unwrap();
        let (width, hidden) = (shape.hidden / shape.heads, shape.hidden);
        let embedding = numbers(&weights, "model.embed_tokens.weight");
        let normed = |x: &[f64], scale: f64| -> Vec<f32> {
            let square: f64 = x.iter().map(|x| x * x).sum();
            let rms = (square / x.len() as f64).sqrt();
            x.iter().map(|x| (x / rms * scale) as f32).collect()
        };
        let token: Vec<f64> = embedding[7 * hidden..8 * hidden]
            .iter()
            .map(|&x| f64::from(x))
            .collect();
        let token = normed(&token, 1.0);
        let read = |part: &str, heads: usize| -> Vec<f32> {
            let weight = numbers(
                &weights,
                &format!("model.layers.0.self_attn.{part}_proj.weight"),
            );
            let scale = numbers(
                &weights,
                &format!("model.layers.0.self_attn.{part}_norm.weight"),
            );
            let mut sums = vec![0.0; heads * width];
            for (x, row) in token.iter().zip(weight.chunks_exact(heads * width)) {
                for (sum, w) in sums.iter_mut().zip(row) {
                    *sum += f64::from(x * w);
                }
            }
            let heads = sums.chunks_exact(width);
            heads
                .flat_map(|head| normed(head, f64::from(scale[0])))
                .collect()
        };
        looks_back(
            &shape,
            &read("q", shape.heads),
            &read("k", shape.kv_heads),
            0.8,
        );
    }

    /// Heads whose queries and keys are constant attend to their own distance.
    fn looks_back(shape: &TinyShape, queries: &[f32], keys: &[f32], least: f64) {
        let width = shape.hidden / shape.heads;
        let last = 60;
        for (head, back) in [1, 2, 1, 3].into_iter().enumerate() {
            let query = rotated(
                &queries[head * width..][..width],
                f64::from(last),
                shape.theta,
            );
            let scores: Vec<f64> = (0..=last)
                .map(|position| {
                    let key = rotated(&keys[..width], f64::from(position), shape.theta);
                    let dot: f64 = query.iter().zip(&key).map(|(q, k)| q * k).sum();
                    (dot / (width as f64).sqrt()).exp()
                })
                .collect();
            let share = scores[(last - back) as usize] / scores.iter().sum::<f64>();
            assert!(share > least, "head {head}: {share}");
        }
    }

    #[test]
    fn a_new_policy_is_a_folder_that_loads_again() {
        let tokenizer = tiny_text::invented_tokenizer(Splitting::default(), 400).unwrap();
        let policy = other().policy(4, tokenizer.clone()).unwrap();
        assert_eq!(policy.eos_ids(), [EOS_ID]);
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        policy.save(first.path()).unwrap();
        let loaded = Policy::load(first.path(), &crate::Device::cpu()).unwrap();
        loaded.chat().check(loaded.tokenizer()).unwrap();
        loaded.save(second.path()).unwrap();
        for name in [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "chat_template.jinja",
        ] {
            let read = |dir: &Path| std::fs::read(dir.join(name)).unwrap();
            assert_eq!(read(first.path()), read(second.path()), "{name}");
        }
        let small = TinyShape {
            vocab: 399,
            ..other()
        };
        let message = small.policy(4, tokenizer).unwrap_err().to_string();
        assert!(
            message.contains("399") && message.contains("400"),
            "{message}"
        );
    }
}
