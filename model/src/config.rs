//! `config.json` of a Qwen2 or Qwen3 model: the sizes that the forward pass needs,
//! checked on reading, with every other key kept so that saving gives the file
//! back. An architecture that would be computed wrongly is refused by name.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// Widest head the attention kernels have room for.
pub(crate) const HEAD_WIDTH_MAX: usize = 256;

/// A family of models that this crate computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Qwen2 and Qwen2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen3, dense: no biases; queries and keys are normed per head.
    Qwen3,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Qwen2, Self::Qwen3];

    /// `model_type` of a `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The `architectures` entry of a language model.
    pub fn causal_lm(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }

    /// The `architectures` entry of a critic.
    fn token_classification(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForTokenClassification",
            Self::Qwen3 => "Qwen3ForTokenClassification",
        }
    }

    /// `head_dim` where the file gives none: what `transformers` takes.
    fn default_head_width(self, hidden_size: usize, heads: usize) -> usize {
        match self {
            Self::Qwen2 => hidden_size / heads,
            Self::Qwen3 => 128,
        }
    }

    /// What is supported, for messages.
    fn known() -> String {
        let names = Self::ALL.map(|a| {
            let (model, critic) = (a.causal_lm(), a.token_classification());
            format!(
                "{model} (model_type {:?}; as a critic {critic})",
                a.model_type()
            )
        });
        names.join(", ")
    }
}

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
        let adapter = dir.join(crate::lora::CONFIG);
        if !path.exists() && adapter.exists() {
            return Err(Error::Unsupported {
                path: adapter,
                message: "belongs to an adapter alone; give its base as \
                          actor_rollout_ref.model.path and this folder as \
                          actor_rollout_ref.model.lora_adapter_path"
                    .to_owned(),
            });
        }
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let raw = serde_json::from_str(&text).map_err(|e| Error::Json {
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
            tie_word_embeddings: raw
                .get("tie_word_embeddings")
                .and_then(Value::as_bool)
                .unwrap_or(false),
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
        match self.raw.get("hidden_act").and_then(Value::as_str) {
            None | Some("silu") => {}
            Some(act) => {
                return Err(self.unsupported(format!("hidden_act {act:?}; only \"silu\" is")));
            }
        }
        if self.raw.get("use_sliding_window").and_then(Value::as_bool) == Some(true) {
            return Err(self.unsupported("sliding-window attention is not supported".to_owned()));
        }
        let kinds = self.raw.get("layer_types").and_then(Value::as_array);
        if let Some(kind) = kinds
            .into_iter()
            .flatten()
            .find(|&kind| kind != "full_attention")
        {
            return Err(self.unsupported(format!(
                "layer_types has {kind}; only \"full_attention\" is supported"
            )));
        }
        let biased = self.raw.get("attention_bias").and_then(Value::as_bool);
        if architecture == Architecture::Qwen3 && biased == Some(true) {
            return Err(self.unsupported("attention_bias of Qwen3 is not supported".to_owned()));
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

    fn rope_theta(&self) -> Result<f64> {
        let parameters = self.raw.get("rope_parameters").and_then(Value::as_object);
        for scaling in [
            parameters,
            self.raw.get("rope_scaling").and_then(Value::as_object),
        ]
        .into_iter()
        .flatten()
        {
            let kind = scaling
                .get("rope_type")
                .or(scaling.get("type"))
                .and_then(Value::as_str);
            if let Some(kind) = kind.filter(|&kind| kind != "default") {
                return Err(self.unsupported(format!(
                    "rope type {kind:?} is not supported, only \"default\" is"
                )));
            }
        }
        let inner = parameters
            .and_then(|p| p.get("rope_theta"))
            .and_then(Value::as_f64);
        match inner {
            Some(theta) => Ok(theta),
            None => Ok(self.number("rope_theta")?.unwrap_or(10_000.0)),
        }
    }

    fn check_sizes(&self, config: &ModelConfig) -> Result<()> {
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
