//! Low-rank adapters (LoRA, arXiv:2106.09685) in PEFT's layout: a dense weight
//! W of the base becomes W + s·B·A with s = alpha / rank, and only A and B are
//! trained.
//!
//! The product is merged into the dense weights once, when a policy is built (or, on a GPU,
//! after each step that trains it), and generation, scoring and the forward pass of training
//! all read the merged weights. Sampled tokens are therefore scored with the same bits (I7)
//! without a second path through the network. The price is a copy of every adapted weight
//! per policy in memory; weights that are not adapted are shared with the base.

use crate::folder::names::ADAPTER_CONFIG;
use crate::folder::names::FACTOR_A;
use crate::folder::names::FACTOR_B;
use crate::kernels::matmul::{View, matmul};
use crate::tiny_words::Choices;
use crate::{Error, ModelConfig, Parameter, Result, Weights, parameter_shapes};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The dense layers that can be adapted, as they are named in every block.
pub const LORA_MODULES: [&str; 7] = [
    "down_proj",
    "gate_proj",
    "k_proj",
    "o_proj",
    "q_proj",
    "up_proj",
    "v_proj",
];

/// PEFT's name for all of them.
pub const ALL_LINEAR: &str = "all-linear";

const WEIGHTS: &str = "adapter_model.safetensors";

/// Largest rank: no weight of a known model has that many rows.
const RANK_MAX: usize = 65_536;

/// PEFT's prefix of a module's own name.
const PREFIX: &str = "base_model.model.";

/// Rank, scale and adapted modules of an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraOptions {
    rank: usize,
    alpha: f64,
    /// Some of [`LORA_MODULES`], in their order.
    modules: Vec<&'static str>,
}

impl LoraOptions {
    /// Checks the options; the error says which one is wrong and why.
    pub fn new<'a>(
        rank: i64,
        alpha: f64,
        modules: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, String> {
        let rank = usize::try_from(rank).ok();
        let rank = rank.filter(|rank| (1..=RANK_MAX).contains(rank));
        let rank = rank.ok_or_else(|| {
            format!("the rank of an adapter is at least 1 and at most {RANK_MAX}")
        })?;
        if !(alpha.is_finite() && alpha > 0.0) {
            return Err(format!(
                "the alpha of an adapter is positive, found {alpha}"
            ));
        }
        if !((alpha / rank as f64) as f32).is_finite() {
            return Err(format!(
                "the alpha of an adapter over its rank is a number of 32 bits, found {alpha} over {rank}"
            ));
        }
        let mut wanted = [false; LORA_MODULES.len()];
        for module in modules {
            match LORA_MODULES.iter().position(|known| *known == module) {
                Some(at) => wanted[at] = true,
                None if module == ALL_LINEAR => wanted.fill(true),
                None => {
                    return Err(format!(
                        "there is no module `{module}` to adapt; known are {}, and {ALL_LINEAR} for all of them",
                        LORA_MODULES.join(", ")
                    ));
                }
            }
        }
        let modules: Vec<_> = (LORA_MODULES.into_iter().zip(wanted))
            .filter_map(|(module, wanted)| wanted.then_some(module))
            .collect();
        if modules.is_empty() {
            return Err("no module is adapted; name some".to_owned());
        }
        Ok(LoraOptions {
            rank,
            alpha,
            modules,
        })
    }

    /// Reads `adapter_config.json` of an adapter's folder.
    pub fn load(dir: &Path) -> Result<Self> {
        Ok(read_config(dir)?.0)
    }

    /// Columns of A.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The factor of B·A.
    pub fn scale(&self) -> f32 {
        (self.alpha / self.rank as f64) as f32
    }

    /// Names and in-memory shapes of the factors for a base of `config`.
    pub fn shapes(&self, config: &ModelConfig) -> BTreeMap<String, Vec<usize>> {
        let mut shapes = BTreeMap::new();
        for (name, shape) in parameter_shapes(config) {
            let Some(module) = name.strip_suffix(".weight") else {
                continue;
            };
            let part = module.rsplit('.').next().unwrap_or_default();
            if self.modules.contains(&part) {
                let [a, b] = factor_names(module);
                shapes.insert(a, vec![shape[0], self.rank]);
                shapes.insert(b, vec![self.rank, shape[1]]);
            }
        }
        shapes
    }
}

/// Names of the factors of a module such as `model.layers.0.self_attn.q_proj`.
pub fn factor_names(module: &str) -> [String; 2] {
    [FACTOR_A, FACTOR_B].map(|factor| format!("{PREFIX}{module}{factor}"))
}

/// Factors of some dense weights of a base. In memory A is `[in, rank]` and B is
/// `[rank, out]`, out-contiguous like every dense weight; files hold the opposite.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    options: LoraOptions,
    /// Where the base was found; written for other readers of the folder.
    base_name: String,
    weights: Weights,
}

impl Adapter {
    /// A new adapter that changes nothing yet, initialised as in PEFT: A uniform in
    /// ±1/√in, a function of `seed` and the module's name; B zero.
    pub fn new(config: &ModelConfig, options: LoraOptions, base_name: &str, seed: u64) -> Self {
        let mut parameters = BTreeMap::new();
        for (name, shape) in options.shapes(config) {
            let count = shape.iter().product();
            let numbers = match name.ends_with(FACTOR_A) {
                true => uniform(seed, &name, count, 1.0 / (shape[0] as f64).sqrt()),
                false => vec![0.0; count],
            };
            parameters.insert(name, Parameter::new(shape, numbers));
        }
        Adapter {
            options,
            base_name: base_name.to_owned(),
            weights: Weights::new(parameters),
        }
    }

    /// Reads an adapter's folder for a base of `config`; one that does not fit the
    /// base is refused with the tensor named.
    pub fn load(dir: &Path, config: &ModelConfig) -> Result<Self> {
        let (options, base_name) = read_config(dir)?;
        let weights = Weights::load_one(
            dir.join(WEIGHTS),
            options.shapes(config),
            "adapter_config.json on this base",
            "is missing; the adapter does not belong to this base",
        )?;
        Ok(Adapter {
            options,
            base_name,
            weights,
        })
    }

    /// Writes `adapter_config.json` and `adapter_model.safetensors` as PEFT reads
    /// them. Equal adapters give equal bytes.
    pub fn save(&self, dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))?;
        // PEFT itself writes a whole number.
        let alpha = match self.options.alpha.fract() == 0.0 {
            true => json!(self.options.alpha as i64),
            false => json!(self.options.alpha),
        };
        let config = json!({
            "alpha_pattern": {},
            "auto_mapping": null,
            "base_model_name_or_path": self.base_name,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "init_lora_weights": true,
            "layers_pattern": null,
            "layers_to_transform": null,
            "lora_alpha": alpha,
            "lora_dropout": 0.0,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": self.options.rank,
            "rank_pattern": {},
            "revision": null,
            "target_modules": self.options.modules,
            "task_type": "CAUSAL_LM",
            "use_dora": false,
            "use_rslora": false,
        });
        let path = dir.join(ADAPTER_CONFIG);
        let text = serde_json::to_string_pretty(&config).expect("a JSON value serialises");
        std::fs::write(&path, text + "\n").map_err(Error::io(&path))?;
        self.weights.save_as(dir, "adapter_model")
    }

    /// Rank, scale and adapted modules.
    pub fn options(&self) -> &LoraOptions {
        &self.options
    }

    /// The factors by PEFT's names.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The factors alone.
    pub(crate) fn into_weights(self) -> Weights {
        self.weights
    }

    /// The same adapter with other factors.
    pub(crate) fn with_weights(&self, weights: Weights) -> Self {
        Adapter {
            weights,
            ..self.clone()
        }
    }

    /// A and B of a module, if it is adapted.
    pub(crate) fn factors(&self, module: &str) -> Option<[&Parameter; 2]> {
        let [a, b] = factor_names(module);
        Some([self.weights.get(&a)?, self.weights.get(&b)?])
    }

    /// The weights of `base` that it changes, by module, and their factors A and B.
    pub(crate) fn adapted<'a>(
        &'a self,
        base: &'a Weights,
    ) -> impl Iterator<Item = (&'a str, &'a Parameter, [&'a Parameter; 2])> {
        base.iter().filter_map(|(name, parameter)| {
            let module = name.strip_suffix(".weight")?;
            Some((module, parameter, self.factors(module)?))
        })
    }

    /// The base's weights with every adapted one replaced by W + s·A·B, computed by
    /// the same kernel everywhere, so that the bits are always the same. A new adapter, whose B is
    /// zero, changes none of them: they stay shared.
    pub(crate) fn merge(&self, base: &Weights) -> Weights {
        let mut merged = base.clone().in_f32();
        let scale = self.options.scale();
        for (module, parameter, [a, b]) in self.adapted(base) {
            // −0 + 0 is 0, another bit pattern.
            let changes_with_zero = |x: &f32| x.to_bits() == (-0.0_f32).to_bits();
            if b.numbers().iter().all(|x| *x == 0.0)
                && !parameter.numbers().iter().any(changes_with_zero)
            {
                continue;
            }
            let (inner, width) = (parameter.shape()[0], parameter.shape()[1]);
            let scaled: Vec<f32> = a.numbers().iter().map(|x| x * scale).collect();
            merged.replace(&format!("{module}.weight"), |old| {
                let mut sum = old.to_vec();
                let factors = (
                    View::new(&scaled, inner, self.options.rank),
                    View::new(b.numbers(), self.options.rank, width),
                );
                matmul(factors.0, factors.1, 0..width, &mut sum, true);
                sum
            });
        }
        merged
    }
}

fn uniform(seed: u64, name: &str, count: usize, bound: f64) -> Vec<f32> {
    let mut choices = Choices::new(seed, name);
    let mut bytes = [0; 4];
    let mut number = || {
        choices.fill(&mut bytes);
        // The middle of one of 2^32 equal steps of (−1, 1).
        let step = f64::from(u32::from_le_bytes(bytes)) + 0.5;
        ((step / 2_147_483_648.0 - 1.0) * bound) as f32
    };
    (0..count).map(|_| number()).collect()
}

/// `adapter_config.json`: its options and the name of its base. Options that this
/// crate would compute differently from PEFT are refused.
fn read_config(dir: &Path) -> Result<(LoraOptions, String)> {
    let path = dir.join(ADAPTER_CONFIG);
    let text = crate::folder::files::read(&path)?;
    let bad = |message: String| Error::Json {
        path: path.clone(),
        message,
    };
    let raw: Map<String, Value> = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
    let is = |key: &str, plain: &[Value]| {
        let value = raw.get(key).unwrap_or(&Value::Null);
        value.is_null() || plain.contains(value)
    };
    let empty = [json!({}), json!([])];
    let beginnings = [
        json!(true),
        json!(false),
        json!("gaussian"),
        json!("orthogonal"),
        json!("eva"),
    ];
    for (key, plain) in [
        ("peft_type", &[json!("LORA")][..]),
        ("bias", &[json!("none")]),
        ("fan_in_fan_out", &[json!(false)]),
        ("use_rslora", &[json!(false)]),
        ("use_dora", &[json!(false)]),
        ("lora_bias", &[json!(false)]),
        ("rank_pattern", &empty),
        ("alpha_pattern", &empty),
        ("modules_to_save", &empty),
        ("layers_to_transform", &empty),
        ("exclude_modules", &empty),
        ("target_parameters", &empty),
        ("layer_replication", &empty),
        ("trainable_token_indices", &empty),
        ("alora_invocation_tokens", &empty),
        ("use_qalora", &[json!(false)]),
        ("use_bdlora", &[json!(false)]),
        ("kasa_config", &[]),
        ("monteclora_config", &[]),
        ("arrow_config", &[]),
        // Other initialisations, such as "pissa", change the base as well.
        ("init_lora_weights", &beginnings),
    ] {
        if !is(key, plain) {
            return Err(Error::Unsupported {
                path: path.clone(),
                message: format!(
                    "{key} is {}; a plain LoRA adapter of the same rank in every module is supported",
                    raw[key]
                ),
            });
        }
    }
    let number = |key: &str| {
        let value = raw.get(key).unwrap_or(&Value::Null);
        let found = value.as_f64();
        found.ok_or_else(|| bad(format!("{key} must be a number, found {value}")))
    };
    let rank = number("r")?;
    let rank = match rank.fract() == 0.0 {
        true => rank as i64,
        false => return Err(bad(format!("r must be a whole number, found {rank}"))),
    };
    let modules: Vec<&str> = match raw.get("target_modules") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let options = LoraOptions::new(rank, number("lora_alpha")?, modules).map_err(bad)?;
    let base = raw.get("base_model_name_or_path").and_then(Value::as_str);
    Ok((options, base.unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests;
