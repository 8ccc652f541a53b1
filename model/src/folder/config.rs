//! `config.json` of a model: the sizes that the forward pass needs,
//! checked on reading, with every other key kept so that saving gives the file
//! back. An architecture that would be computed wrongly is refused by name.

use crate::dtype::Dtype;
use crate::folder::family::{Architecture, CANDLE_FAMILIES};
use crate::folder::reader::Reader;
use crate::folder::rope::Rope;
use crate::kernels::key_values::HEAD_WIDTH_MAX;
use crate::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Sizes and constants of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Elements per head; not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Longest sequence, in tokens.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Rotary frequencies.
    pub rope: Rope,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether the head gives one value per token instead of logits: a critic.
    pub value_head: bool,
    /// The whole file, unknown keys included, in its own order.
    raw: Map<String, Value>,
}

impl ModelConfig {
    /// Reads `config.json` of a policy folder.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let adapter = dir.join(crate::folder::names::ADAPTER_CONFIG);
        if !path.exists() && adapter.exists() {
            return Err(Error::Unsupported {
                path: adapter,
                message: "belongs to an adapter alone; give its base as \
                          actor_rollout_ref.model.path and this folder as \
                          actor_rollout_ref.model.lora_adapter_path"
                    .to_owned(),
            });
        }
        if !path.exists()
            && let Some(message) = crate::folder::files::other_format(dir)
        {
            let path = dir.to_owned();
            return Err(Error::Unsupported { path, message });
        }
        let text = crate::folder::files::read(&path)?;
        let raw = serde_json::from_slice(&text).map_err(|e| Error::Json {
            path: path.clone(),
            message: e.to_string(),
        })?;
        Self::from_json(raw, &path)
    }

    /// Reads the object of a `config.json`; `path` appears in messages.
    pub fn from_json(raw: Map<String, Value>, path: &Path) -> Result<Self> {
        let reader = Reader { raw: &raw, path };
        let architecture = reader.architecture()?;
        let facts = architecture.facts();
        let heads = reader.size("num_attention_heads")?;
        let hidden_size = reader.size("hidden_size")?;
        let max_position_embeddings = reader.size("max_position_embeddings")?;
        let config = ModelConfig {
            architecture,
            hidden_size,
            intermediate_size: reader.size("intermediate_size")?,
            num_hidden_layers: reader.size("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: match raw.get("num_key_value_heads") {
                None => facts.key_value_heads.unwrap_or(heads),
                Some(Value::Null) => heads,
                Some(_) => reader.size("num_key_value_heads")?,
            },
            head_dim: match raw.get("head_dim") {
                None | Some(Value::Null) => facts.head_dim.unwrap_or(hidden_size / heads),
                Some(_) => reader.size("head_dim")?,
            },
            vocab_size: reader.size("vocab_size")?,
            max_position_embeddings,
            rms_norm_eps: reader.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope: Rope::read(&reader, max_position_embeddings)?,
            tie_word_embeddings: reader.switch("tie_word_embeddings")?,
            value_head: reader.has_value_head(architecture)?,
            raw: raw.clone(),
        };
        reader.check_sizes(&config)?;
        Ok(config)
    }

    /// The same model with a value head, as `transformers` names it.
    pub(crate) fn with_value_head(&self, path: &Path) -> Result<Self> {
        let mut raw = self.raw.clone();
        let architecture = self.architecture.facts().token_classification;
        raw.insert("architectures".into(), json!([architecture]));
        raw.insert("num_labels".into(), json!(1));
        raw.insert("id2label".into(), json!({"0": "value"}));
        raw.insert("label2id".into(), json!({"value": 0}));
        Self::from_json(raw, path)
    }

    /// The same model with the dtype of its weights in its file, since `transformers` loads the
    /// dtype that the file names.
    pub(crate) fn saying(&self, dtype: Dtype) -> Self {
        let mut config = self.clone();
        // Versions before 5 read `torch_dtype`, and later ones still do.
        let given: Vec<&str> = ["dtype", "torch_dtype"]
            .into_iter()
            .filter(|key| self.raw.contains_key(*key))
            .collect();
        let keys = if given.is_empty() {
            vec!["torch_dtype"]
        } else {
            given
        };
        for key in keys {
            config.raw.insert(key.into(), json!(dtype.in_full()));
        }
        config
    }

    /// Elements of all query heads of a token.
    pub fn query_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Elements of all key (or value) heads of a token.
    pub fn key_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Whether queries, keys and values have biases.
    pub fn has_biases(&self) -> bool {
        self.architecture.facts().biases
    }

    /// Whether every head of queries and keys is normed before its rotation.
    pub fn norms_heads(&self) -> bool {
        self.architecture.facts().head_norms
    }

    /// The file's text: pretty-printed JSON in its own key order.
    pub fn to_text(&self) -> String {
        let value = Value::Object(self.raw.clone());
        let text = serde_json::to_string_pretty(&value).expect("a JSON value serialises");
        text + "\n"
    }

    /// A key that the forward pass does not need, such as `eos_token_id`.
    pub fn raw(&self, key: &str) -> Option<&Value> {
        self.raw.get(key)
    }
}

impl Reader<'_> {
    fn architecture(&self) -> Result<Architecture> {
        let known = Architecture::known;
        let named = self.raw.get("model_type").and_then(Value::as_str);
        let found = Architecture::ALL
            .into_iter()
            .find(|a| named == Some(a.model_type()));
        let architectures = self.raw.get("architectures").and_then(Value::as_array);
        let mut names = architectures.into_iter().flatten();
        let Some(architecture) = found else {
            let kind = named.map_or("missing".to_owned(), |name| format!("{name:?}"));
            let which = names.next().map(|name| format!(" (architecture {name})"));
            let candle = match named.is_some_and(|name| CANDLE_FAMILIES.contains(&name)) {
                true => {
                    ". Of this one `agentgym-submit eval` plays evaluations with \
                         actor_rollout_ref.rollout.engine=candle; it is not trained"
                }
                false => "",
            };
            return Err(self.unsupported(format!(
                "model_type is {kind}{}, which is not supported; known are {}{candle}",
                which.unwrap_or_default(),
                known()
            )));
        };
        let own = [
            architecture.causal_lm(),
            architecture.facts().token_classification,
        ];
        if let Some(name) = names.find(|name| !own.iter().any(|own| name == own)) {
            return Err(self.unsupported(format!(
                "architecture {name} of model_type {:?} is not supported; known are {}",
                architecture.model_type(),
                known()
            )));
        }
        self.check_variants(architecture)?;
        Ok(architecture)
    }

    /// Refuses options that change the arithmetic and are not implemented.
    fn check_variants(&self, architecture: Architecture) -> Result<()> {
        match self.raw.get("hidden_act") {
            None | Some(Value::Null) => {}
            Some(act) if act == "silu" => {}
            Some(act) => {
                return Err(self.unsupported(format!(
                    "hidden_act {act} is not supported, only \"silu\" is"
                )));
            }
        }
        if let Some(found) = (self.raw.get("quantization_config")).filter(|found| !found.is_null())
        {
            let method = found.get("quant_method").and_then(Value::as_str);
            return Err(self.unsupported(format!(
                "quantization_config ({}) is not supported; give a model whose weights are plain bfloat16, \
                 float16 or float32",
                method.unwrap_or("no quant_method")
            )));
        }
        if self.switch("use_sliding_window")? {
            return Err(self.unsupported(
                "use_sliding_window true is not supported; attention over everything before is"
                    .to_owned(),
            ));
        }
        self.check_layer_types()?;
        for key in architecture.facts().refused {
            if self.switch(key)? {
                let family = architecture.model_type();
                return Err(self.unsupported(format!("{key} true of {family} is not supported")));
            }
        }
        self.check_window(architecture)
    }

    /// Refuses a sliding window below the longest sequence; a larger one has no effect.
    fn check_window(&self, architecture: Architecture) -> Result<()> {
        const KEY: &str = "sliding_window";
        let Some(default) = architecture.facts().sliding_window else {
            return Ok(());
        };
        let window = match self.raw.get(KEY) {
            None => default,
            Some(Value::Null) => return Ok(()),
            Some(_) => self.size(KEY)?,
        };
        let longest = self.size("max_position_embeddings")?;
        match window < longest {
            true => Err(self.unsupported(format!(
                "{KEY} {window} (null: none; absent: {default}) is not supported below \
                 max_position_embeddings, which is {longest}; set that to {window} and train on \
                 sequences within the window"
            ))),
            false => Ok(()),
        }
    }

    fn check_layer_types(&self) -> Result<()> {
        const KEY: &str = "layer_types";
        let kinds = match self.raw.get(KEY) {
            None | Some(Value::Null) => return Ok(()),
            Some(Value::Array(kinds)) => kinds,
            Some(other) => return Err(self.bad(format!("{KEY} must be a list, found {other}"))),
        };
        if let Some(kind) = kinds.iter().find(|&kind| kind != "full_attention") {
            return Err(self.unsupported(format!(
                "{KEY} has {kind}; only \"full_attention\" is supported"
            )));
        }
        let layers = self.size("num_hidden_layers")?;
        if kinds.len() != layers {
            return Err(self.bad(format!(
                "{KEY} has {} entries, num_hidden_layers is {layers}",
                kinds.len()
            )));
        }
        Ok(())
    }

    /// Refuses a head of several labels, which gives no single value.
    fn has_value_head(&self, architecture: Architecture) -> Result<bool> {
        let critic = architecture.facts().token_classification;
        let architectures = self.raw.get("architectures").and_then(Value::as_array);
        let classifies = architectures.is_some_and(|all| all.iter().any(|a| a == critic));
        let named = self.raw.get("id2label").and_then(Value::as_object);
        let labels = named.map(|labels| labels.len() as f64);
        let labels = labels.or(self.number("num_labels")?).unwrap_or(2.0);
        match classifies && labels != 1.0 {
            true => Err(self.unsupported(format!(
                "{critic} with {labels} labels is no critic; one label is needed"
            ))),
            false => Ok(classifies),
        }
    }

    /// Refuses sizes far beyond any model: they would cause huge lists, overflows and allocations
    /// before a single weight is read.
    fn check_limits(&self, config: &ModelConfig) -> Result<()> {
        for (key, found, most) in [
            ("hidden_size", config.hidden_size, 1 << 20),
            ("intermediate_size", config.intermediate_size, 1 << 22),
            ("num_hidden_layers", config.num_hidden_layers, 1 << 12),
            ("num_attention_heads", config.num_attention_heads, 1 << 16),
            ("vocab_size", config.vocab_size, 1 << 24),
            (
                "max_position_embeddings",
                config.max_position_embeddings,
                1 << 28,
            ),
        ] {
            if found > most {
                return Err(self.unsupported(format!(
                    "{key} {found} is beyond any model; at most {most} is"
                )));
            }
        }
        // Both are converted to f32, where they must stay finite.
        for (key, found) in [
            ("rms_norm_eps", config.rms_norm_eps),
            ("rope_theta", config.rope.theta),
        ] {
            if !(found > 0.0 && found <= f64::from(f32::MAX)) {
                return Err(self.bad(format!("{key} must be positive and finite, found {found}")));
            }
        }
        Ok(())
    }

    fn check_sizes(&self, config: &ModelConfig) -> Result<()> {
        self.check_limits(config)?;
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        let width = config.head_dim;
        let derived = self.raw.get("head_dim").is_none_or(Value::is_null)
            && config.architecture.facts().head_dim.is_none();
        if derived && !hidden.is_multiple_of(heads) {
            return Err(self.unsupported(format!(
                "hidden_size {hidden} does not split into {heads} heads, and there is no head_dim"
            )));
        }
        if !width.is_multiple_of(2) || width > HEAD_WIDTH_MAX {
            return Err(self.unsupported(format!(
                "a head of {width} numbers (head_dim, or hidden_size {hidden} over {heads} heads) \
                 must be even and at most {HEAD_WIDTH_MAX} wide"
            )));
        }
        if !heads.is_multiple_of(config.num_key_value_heads) {
            return Err(self.bad(format!(
                "num_attention_heads {heads} is no multiple of num_key_value_heads {}",
                config.num_key_value_heads
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ModelConfig> {
        ModelConfig::from_json(
            serde_json::from_str(text).unwrap(),
            Path::new("m/config.json"),
        )
    }

    const GOOD: &str = r#"{"model_type": "qwen2", "hidden_size": 64, "intermediate_size": 176,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 384, "max_position_embeddings": 512, "rope_theta": 5000.0, "odd key": [1]}"#;

    #[test]
    fn unknown_keys_survive_and_both_rope_spellings_are_read() {
        let config = parse(GOOD).unwrap();
        assert_eq!((config.rope.theta, config.head_dim), (5000.0, 16));
        assert_eq!(parse(&config.to_text()).unwrap(), config);
        assert!(config.to_text().contains("odd key"));
        let newer = GOOD.replace(
            r#""rope_theta": 5000.0"#,
            r#""rope_parameters": {"rope_theta": 7.5, "rope_type": "default"}"#,
        );
        assert_eq!(parse(&newer).unwrap().rope.theta, 7.5);
    }

    #[test]
    fn what_is_saved_says_float32_under_the_keys_it_has() {
        let said = |keys: &str| {
            let text = GOOD.replace("\"odd key\": [1]", keys);
            let raw = parse(&text).unwrap().saying(Dtype::F32).raw;
            ["dtype", "torch_dtype"].map(|key| raw.get(key).cloned())
        };
        let float32 = || Some(json!("float32"));
        assert_eq!(said(r#""dtype": "bfloat16""#), [float32(), None]);
        assert_eq!(said(r#""torch_dtype": "float16""#), [None, float32()]);
        let both = r#""torch_dtype": "bfloat16", "dtype": "bfloat16""#;
        assert_eq!(said(both), [float32(), float32()]);
        assert_eq!(said(r#""odd key": [1]"#), [None, float32()]);
    }

    #[test]
    fn qwen3_has_heads_of_its_own_width_and_keeps_its_file() {
        let text = GOOD.replace("\"qwen2\"", "\"qwen3\"").replace(
            "\"odd key\": [1]",
            "\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false, \"head_dim\": 24",
        );
        let config = parse(&text).unwrap();
        assert_eq!(config.architecture, Architecture::Qwen3);
        assert_eq!((config.query_width(), config.key_width()), (96, 48));
        assert!(config.norms_heads() && !config.has_biases());
        assert_eq!(parse(&config.to_text()).unwrap(), config);
        assert!(config.to_text().contains("\"head_dim\": 24"));
        let without = parse(&text.replace(", \"head_dim\": 24", "")).unwrap();
        assert_eq!(without.head_dim, 128);
        let critic = config.with_value_head(Path::new("c")).unwrap();
        assert!(critic.value_head && critic.to_text().contains("Qwen3ForTokenClassification"));
        for (from, to, word) in [
            ("false", "true", "attention_bias"),
            (
                "Qwen3ForCausalLM",
                "Qwen3MoeForCausalLM",
                "Qwen3MoeForCausalLM",
            ),
            ("\"qwen3\"", "\"qwen3_moe\"", "qwen3_moe"),
            ("\"head_dim\": 24", "\"head_dim\": 25", "25"),
            ("\"head_dim\": 24", "\"head_dim\": 0", "head_dim"),
        ] {
            let message = parse(&text.replace(from, to)).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn what_a_file_leaves_out_is_what_the_family_takes() {
        let leaving_out = |family: &str| {
            let text = GOOD.replace("qwen2", family);
            let text = text.replace("\"num_attention_heads\": 4", "\"num_attention_heads\": 32");
            parse(&text.replace("\"num_key_value_heads\": 2,", "")).unwrap()
        };
        for (family, key_value_heads, head_dim) in [
            ("llama", 32, 2),
            ("mistral", 8, 2),
            ("qwen2", 32, 2),
            ("qwen3", 32, 128),
        ] {
            let config = leaving_out(family);
            let found = (config.num_key_value_heads, config.head_dim);
            assert_eq!(found, (key_value_heads, head_dim), "{family}");
        }
        let mistral = GOOD.replace("qwen2", "mistral").replace("512", "5000");
        let window = parse(&mistral).unwrap_err().to_string();
        assert!(
            window.contains("sliding_window 4096") && window.contains("5000"),
            "{window}"
        );
        for window in ["null", "5000"] {
            let window = format!("\"sliding_window\": {window}");
            assert!(
                parse(&mistral.replace("\"odd key\": [1]", &window)).is_ok(),
                "{window}"
            );
        }
    }

    #[test]
    fn an_unknown_architecture_is_refused_with_the_list_of_known_ones() {
        let text = GOOD.replace("\"qwen2\"", "\"gemma\"").replace(
            "\"odd key\": [1]",
            "\"architectures\": [\"GemmaForCausalLM\"]",
        );
        let message = parse(&text).unwrap_err().to_string();
        for word in [
            "gemma",
            "GemmaForCausalLM",
            "Qwen2ForCausalLM",
            "MistralForCausalLM",
            "engine=candle",
        ] {
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn what_would_be_computed_wrongly_is_refused_by_name() {
        for (from, to, word) in [
            ("\"qwen2\"", "\"gemma\"", "gemma"),
            (
                "\"qwen2\"",
                "\"llama\", \"mlp_bias\": true",
                "mlp_bias true of llama",
            ),
            (
                "\"odd key\": [1]",
                "\"sliding_window\": 511, \"model_type\": \"mistral\"",
                "sliding_window 511",
            ),
            (
                "\"odd key\": [1]",
                "\"architectures\": [\"Qwen3ForCausalLM\"]",
                "Qwen3ForCausalLM",
            ),
            (
                "\"odd key\": [1]",
                "\"layer_types\": [\"full_attention\", \"sliding_attention\"]",
                "sliding_attention",
            ),
            (
                "\"odd key\": [1]",
                "\"rope_scaling\": {\"type\": \"dynamic\"}",
                "dynamic",
            ),
            (
                "\"odd key\": [1]",
                "\"use_sliding_window\": true",
                "sliding",
            ),
            (
                "\"odd key\": [1]",
                "\"use_sliding_window\": \"yes\"",
                "use_sliding_window",
            ),
            (
                "\"odd key\": [1]",
                "\"layer_types\": [\"full_attention\", \"full_attention\"]",
                "layer_types has 2 entries, num_hidden_layers is 3",
            ),
            (
                "\"odd key\": [1]",
                "\"layer_types\": \"full_attention\"",
                "a list",
            ),
            (
                "\"odd key\": [1]",
                "\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4}",
                "quantization_config (gptq)",
            ),
            ("\"odd key\": [1]", "\"hidden_act\": \"gelu\"", "gelu"),
            ("\"odd key\": [1]", "\"hidden_act\": 3", "hidden_act 3"),
            (
                "\"odd key\": [1]",
                "\"tie_word_embeddings\": 1",
                "tie_word_embeddings must be true or false",
            ),
            ("\"hidden_size\": 64", "\"hidden_size\": 63", "63"),
            ("\"hidden_size\": 64", "\"hidden_size\": -1", "hidden_size"),
        ] {
            let message = parse(&GOOD.replace(from, to)).unwrap_err().to_string();
            assert!(
                message.contains(word) && message.contains("config.json"),
                "{message}"
            );
        }
    }
}
