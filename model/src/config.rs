//! `config.json` of a Qwen2-family model: the sizes that the forward pass needs,
//! checked on reading, with every other key kept so that saving gives the file
//! back. An architecture that would be computed wrongly is refused by name.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// Widest head the attention kernels have room for.
const HEAD_WIDTH_MAX: usize = 256;

/// The architecture of a critic.
const TOKEN_CLASSIFICATION: &str = "Qwen2ForTokenClassification";

/// Sizes and constants of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
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
        reader.check_architecture()?;
        let heads = reader.size("num_attention_heads")?;
        let config = ModelConfig {
            hidden_size: reader.size("hidden_size")?,
            intermediate_size: reader.size("intermediate_size")?,
            num_hidden_layers: reader.size("num_hidden_layers")?,
            num_attention_heads: heads,
            num_key_value_heads: match raw.get("num_key_value_heads") {
                None | Some(Value::Null) => heads,
                Some(_) => reader.size("num_key_value_heads")?,
            },
            vocab_size: reader.size("vocab_size")?,
            max_position_embeddings: reader.size("max_position_embeddings")?,
            rms_norm_eps: reader.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: reader.rope_theta()?,
            tie_word_embeddings: raw
                .get("tie_word_embeddings")
                .and_then(Value::as_bool)
                .unwrap_or(false),
            value_head: reader.has_value_head()?,
            raw: raw.clone(),
        };
        reader.check_sizes(&config)?;
        Ok(config)
    }

    /// The same model with a value head, as `transformers` names it.
    pub(crate) fn with_value_head(&self, path: &Path) -> Result<Self> {
        let mut raw = self.raw.clone();
        raw.insert("architectures".into(), json!([TOKEN_CLASSIFICATION]));
        raw.insert("num_labels".into(), json!(1));
        raw.insert("id2label".into(), json!({"0": "value"}));
        raw.insert("label2id".into(), json!({"value": 0}));
        Self::from_json(raw, path)
    }

    /// Numbers per head.
    pub fn head_width(&self) -> usize {
        self.hidden_size / self.num_attention_heads
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

    fn check_architecture(&self) -> Result<()> {
        let model_type = self.raw.get("model_type").and_then(Value::as_str);
        if model_type != Some("qwen2") {
            return Err(self.unsupported(format!(
                "model_type is {}; only \"qwen2\" (Qwen2, Qwen2.5) is supported",
                model_type.map_or("missing".to_owned(), |t| format!("{t:?}")),
            )));
        }
        for name in self
            .raw
            .get("architectures")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            if name != "Qwen2ForCausalLM" && name != TOKEN_CLASSIFICATION {
                return Err(self.unsupported(format!(
                    "architecture {name} is not supported, only \"Qwen2ForCausalLM\" is \
                     (and \"{TOKEN_CLASSIFICATION}\" with one label, for a critic)"
                )));
            }
        }
        match self.raw.get("hidden_act").and_then(Value::as_str) {
            None | Some("silu") => {}
            Some(act) => {
                return Err(self.unsupported(format!("hidden_act {act:?}; only \"silu\" is")));
            }
        }
        if self.raw.get("use_sliding_window").and_then(Value::as_bool) == Some(true) {
            return Err(self.unsupported("sliding-window attention is not supported".to_owned()));
        }
        Ok(())
    }

    /// A head of several labels says nothing that could be a value.
    fn has_value_head(&self) -> Result<bool> {
        let architectures = self.raw.get("architectures").and_then(Value::as_array);
        let classifies =
            architectures.is_some_and(|all| all.iter().any(|a| a == TOKEN_CLASSIFICATION));
        let named = self.raw.get("id2label").and_then(Value::as_object);
        let labels = named.map(|labels| labels.len() as f64);
        let labels = labels.or(self.number("num_labels")?).unwrap_or(2.0);
        match classifies && labels != 1.0 {
            true => Err(self.unsupported(format!(
                "{TOKEN_CLASSIFICATION} with {labels} labels is no critic; one label is needed"
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
        let width = config.head_width();
        if !hidden.is_multiple_of(heads) || !width.is_multiple_of(2) || width > HEAD_WIDTH_MAX {
            return Err(self.unsupported(format!(
                "hidden_size {hidden} over {heads} heads must give an even head width of at most \
                 {HEAD_WIDTH_MAX}"
            )));
        }
        if let Some(head_dim) = self.number("head_dim")?
            && head_dim != width as f64
        {
            return Err(self.unsupported(format!(
                "head_dim {head_dim} differs from hidden_size / num_attention_heads = {width}"
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
        assert_eq!((config.rope_theta, config.head_width()), (5000.0, 16));
        assert_eq!(parse(&config.to_text()).unwrap(), config);
        assert!(config.to_text().contains("odd key"));
        let newer = GOOD.replace(
            r#""rope_theta": 5000.0"#,
            r#""rope_parameters": {"rope_theta": 7.5, "rope_type": "default"}"#,
        );
        assert_eq!(parse(&newer).unwrap().rope_theta, 7.5);
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
