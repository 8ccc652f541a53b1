//! `config.json` of a Qwen2 or Qwen3 model: the sizes that the forward pass needs,
//! checked on reading, with every other key kept so that saving gives the file
//! back. An architecture that would be computed wrongly is refused by name.

use crate::folder::family::Architecture;
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
    /// Numbers per head; not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Longest sequence, in tokens.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
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
        let heads = reader.size("num_attention_heads")?;
        let hidden_size = reader.size("hidden_size")?;
        let config = ModelConfig {
            architecture,
            hidden_size,
            intermediate_size: reader.size("intermediate_size")?,
            num_hidden_layers: reader.size("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: match raw.get("num_key_value_heads") {
                None | Some(Value::Null) => heads,
                Some(_) => reader.size("num_key_value_heads")?,
            },
            head_dim: match raw.get("head_dim") {
                None | Some(Value::Null) => architecture.default_head_width(hidden_size, heads),
                Some(_) => reader.size("head_dim")?,
            },
            vocab_size: reader.size("vocab_size")?,
            max_position_embeddings: reader.size("max_position_embeddings")?,
            rms_norm_eps: reader.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: reader.rope_theta()?,
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
        let architecture = self.architecture.token_classification();
        raw.insert("architectures".into(), json!([architecture]));
        raw.insert("num_labels".into(), json!(1));
        raw.insert("id2label".into(), json!({"0": "value"}));
        raw.insert("label2id".into(), json!({"value": 0}));
        Self::from_json(raw, path)
    }

    /// The same model, whose file says that its weights are float32, as every model is
    /// saved here: `transformers` loads what the file says.
    pub(crate) fn saying_float32(&self) -> Self {
        let mut config = self.clone();
        // `torch_dtype` is what versions before 5 read and later ones still do.
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
            config.raw.insert(key.into(), json!("float32"));
        }
        config
    }

    /// Numbers of all query heads of a token.
    pub fn query_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Numbers of all key (or value) heads of a token.
    pub fn key_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Whether queries, keys and values have biases.
    pub fn has_biases(&self) -> bool {
        self.architecture == Architecture::Qwen2
    }

    /// Whether every head of queries and keys is normed before its rotation.
    pub fn norms_heads(&self) -> bool {
        self.architecture == Architecture::Qwen3
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

struct Reader<'a> {
    raw: &'a Map<String, Value>,
    path: &'a Path,
}

impl Reader<'_> {
    fn bad(&self, message: String) -> Error {
        Error::Json {
            path: self.path.to_owned(),
            message,
        }
    }

    fn unsupported(&self, message: String) -> Error {
        Error::Unsupported {
            path: self.path.to_owned(),
            message,
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.raw.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.bad(format!("{key} must be a number, found {value}"))),
            },
        }
    }

    fn size(&self, key: &str) -> Result<usize> {
        match self.raw.get(key).map(|value| (value, value.as_u64())) {
            Some((_, Some(size))) if size > 0 => Ok(size as usize),
            Some((value, _)) => Err(self.bad(format!(
                "{key} must be a positive whole number, found {value}"
            ))),
            None => Err(self.bad(format!("{key} is missing"))),
        }
    }

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
            return Err(self.unsupported(format!(
                "model_type is {kind}{}, which is not supported; known are {}",
                which.unwrap_or_default(),
                known()
            )));
        };
        let own = [
            architecture.causal_lm(),
            architecture.token_classification(),
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

    /// Options that change the arithmetic and are not computed here.
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
        let biased = self.switch("attention_bias")?;
        if architecture == Architecture::Qwen3 && biased {
            return Err(self.unsupported("attention_bias of Qwen3 is not supported".to_owned()));
        }
        Ok(())
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

    /// A head of several labels says nothing that could be a value.
    fn has_value_head(&self, architecture: Architecture) -> Result<bool> {
        let critic = architecture.token_classification();
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

    /// The base as `transformers` 5 reads it: `rope_parameters` (or `rope_scaling`,
    /// its name before) comes before the key beside it. Where versions of
    /// `transformers` disagree, and where the frequencies are scaled, the file is refused.
    fn rope_theta(&self) -> Result<f64> {
        const THETA: &str = "rope_theta";
        let given = |key: &str| self.raw.get(key).filter(|value| !value.is_null());
        let beside = self.number(THETA)?;
        let (key, value) = match (given("rope_parameters"), given("rope_scaling")) {
            (Some(_), Some(_)) => {
                return Err(self.unsupported(
                    "rope_parameters and rope_scaling are both given, and transformers reads one of them; \
                     leave the other out"
                        .to_owned(),
                ));
            }
            (Some(value), None) => ("rope_parameters", value),
            (None, Some(value)) => ("rope_scaling", value),
            (None, None) => return self.checked_theta(THETA, beside.unwrap_or(10_000.0)),
        };
        let Some(inside) = value.as_object() else {
            return Err(self.bad(format!("{key} must be an object or null, found {value}")));
        };
        if let Some((layer, _)) = inside.iter().find(|(_, value)| value.is_object()) {
            return Err(self.unsupported(format!(
                "{key} has parameters by kind of layer ({layer}); one rope_type and one rope_theta for all \
                 layers are supported"
            )));
        }
        for name in ["rope_type", "type"] {
            match inside.get(name) {
                None | Some(Value::Null) => {}
                Some(kind) if kind == "default" => {}
                Some(kind) => {
                    return Err(self.unsupported(format!(
                        "{key}.{name} {kind} is not supported, only \"default\" is"
                    )));
                }
            }
        }
        let rotated = [
            inside.get("partial_rotary_factor"),
            self.raw.get("partial_rotary_factor"),
        ];
        if let Some(factor) = rotated
            .into_iter()
            .flatten()
            .find(|f| f.as_f64() != Some(1.0))
        {
            return Err(self.unsupported(format!(
                "partial_rotary_factor {factor} is not supported, only 1 is"
            )));
        }
        let theta = match inside.get(THETA) {
            None | Some(Value::Null) => beside.unwrap_or(10_000.0),
            Some(theta) => theta.as_f64().ok_or_else(|| {
                self.bad(format!("{key}.{THETA} must be a number, found {theta}"))
            })?,
        };
        if let Some(other) = beside.filter(|other| key == "rope_scaling" && *other != theta) {
            return Err(self.unsupported(format!(
                "{key}.{THETA} is {theta} and {THETA} is {other}; versions of transformers differ in which they \
                 read, so give one of them"
            )));
        }
        self.checked_theta(&format!("{key}.{THETA}"), theta)
    }

    fn checked_theta(&self, key: &str, theta: f64) -> Result<f64> {
        match theta > 0.0 && theta.is_finite() {
            true => Ok(theta),
            false => Err(self.bad(format!("{key} must be greater than 0, found {theta}"))),
        }
    }

    /// A switch; absent and null are `false`, as in `transformers`.
    fn switch(&self, key: &str) -> Result<bool> {
        match self.raw.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| self.bad(format!("{key} must be true or false, found {value}"))),
        }
    }

    /// Sizes far beyond any model would be listed, added up and asked of the allocator before a
    /// single weight is read.
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
        // Both become f32, in which they must be numbers too.
        for (key, found) in [
            ("rms_norm_eps", config.rms_norm_eps),
            ("rope_theta", config.rope_theta),
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
            && config.architecture == Architecture::Qwen2;
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
        assert_eq!((config.rope_theta, config.head_dim), (5000.0, 16));
        assert_eq!(parse(&config.to_text()).unwrap(), config);
        assert!(config.to_text().contains("odd key"));
        let newer = GOOD.replace(
            r#""rope_theta": 5000.0"#,
            r#""rope_parameters": {"rope_theta": 7.5, "rope_type": "default"}"#,
        );
        assert_eq!(parse(&newer).unwrap().rope_theta, 7.5);
    }

    /// What Qwen2Config and Qwen3Config of transformers 5.23 make of the same keys.
    #[test]
    fn the_rotary_base_is_read_as_transformers_reads_it_or_refused() {
        let with = |keys: &str| parse(&GOOD.replace("\"rope_theta\": 5000.0", keys));
        let other = "\"some\": 1";
        for (keys, theta) in [
            (other, 10_000.0),
            (r#""rope_theta": null, "rope_scaling": null"#, 10_000.0),
            (
                r#""rope_scaling": {"rope_type": "default", "rope_theta": 500000}"#,
                500_000.0,
            ),
            (
                r#""rope_scaling": {"type": "default"}, "rope_theta": 7.0"#,
                7.0,
            ),
            (
                r#""rope_scaling": {"rope_theta": 7}, "rope_theta": 7.0"#,
                7.0,
            ),
            (
                r#""rope_parameters": {"rope_theta": 500000}, "rope_theta": 7.0"#,
                500_000.0,
            ),
            (
                r#""rope_parameters": {"rope_theta": 3.5, "partial_rotary_factor": 1.0}"#,
                3.5,
            ),
        ] {
            assert_eq!(with(keys).unwrap().rope_theta, theta, "{keys}");
        }
        for (keys, words) in [
            (
                r#""rope_scaling": {"rope_theta": 500000}, "rope_theta": 7.0"#,
                ["500000", "rope_theta is 7"],
            ),
            (
                r#""rope_scaling": {"type": "default"}, "rope_parameters": {}"#,
                ["rope_scaling", "rope_parameters"],
            ),
            (
                r#""rope_scaling": {"rope_type": "linear", "factor": 2.0}"#,
                ["rope_scaling.rope_type", "linear"],
            ),
            (
                r#""rope_scaling": {"type": "dynamic"}"#,
                ["rope_scaling.type", "dynamic"],
            ),
            (
                r#""rope_parameters": {"rope_type": "llama3"}"#,
                ["rope_parameters.rope_type", "llama3"],
            ),
            (
                r#""rope_scaling": {"rope_type": "default", "type": "yarn"}"#,
                ["rope_scaling.type", "yarn"],
            ),
            (r#""rope_scaling": "yarn""#, ["rope_scaling", "object"]),
            (
                r#""rope_parameters": {"rope_theta": "5e5"}"#,
                ["rope_parameters.rope_theta", "number"],
            ),
            (
                r#""rope_parameters": {"rope_theta": 0}"#,
                ["rope_parameters.rope_theta", "greater than 0"],
            ),
            (r#""rope_theta": -1"#, ["rope_theta", "greater than 0"]),
            (
                r#""rope_parameters": {"full_attention": {"rope_theta": 5}}"#,
                ["full_attention", "one rope_type"],
            ),
            (
                r#""rope_parameters": {"partial_rotary_factor": 0.5}"#,
                ["partial_rotary_factor 0.5", "only 1"],
            ),
        ] {
            let message = with(keys).unwrap_err().to_string();
            for word in words.iter().chain(&["config.json"]) {
                assert!(message.contains(word), "{keys}: {message}");
            }
        }
    }

    #[test]
    fn what_is_saved_says_float32_under_the_keys_it_has() {
        let said = |keys: &str| {
            let text = GOOD.replace("\"odd key\": [1]", keys);
            let raw = parse(&text).unwrap().saying_float32().raw;
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
    fn an_unknown_architecture_is_refused_with_the_list_of_known_ones() {
        let text = GOOD.replace("\"qwen2\"", "\"llama\"").replace(
            "\"odd key\": [1]",
            "\"architectures\": [\"LlamaForCausalLM\"]",
        );
        let message = parse(&text).unwrap_err().to_string();
        for word in [
            "llama",
            "LlamaForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen3ForCausalLM",
        ] {
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn what_would_be_computed_wrongly_is_refused_by_name() {
        for (from, to, word) in [
            ("\"qwen2\"", "\"llama\"", "llama"),
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
                "\"rope_scaling\": {\"type\": \"yarn\"}",
                "yarn",
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
