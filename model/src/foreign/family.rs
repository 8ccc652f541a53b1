//! The families that candle computes from a folder in Hugging Face's layout: what each one's
//! `config.json` must say, in the names and with the defaults of `transformers`, and what of it
//! candle computes otherwise, which is refused or bounds the length of a conversation.

use super::network::{Chunks, Network, Reach};
use crate::folder::family::CANDLE_FAMILIES;
use crate::folder::files;
use crate::folder::reader::Reader;
use crate::{Error, Result};
use candle_nn::VarBuilder;
use candle_transformers::models::{gemma, gemma2, gemma3, phi3, qwen2_moe, qwen3_moe};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A family by its `model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Gemma,
    Gemma2,
    Gemma3,
    Phi3,
    Qwen2Moe,
    Qwen3Moe,
}

impl Family {
    /// In the order of [`CANDLE_FAMILIES`].
    const ALL: [Self; CANDLE_FAMILIES.len()] = [
        Self::Gemma,
        Self::Gemma2,
        Self::Gemma3,
        Self::Phi3,
        Self::Qwen2Moe,
        Self::Qwen3Moe,
    ];

    fn of(model_type: &str) -> Option<Self> {
        let at = CANDLE_FAMILIES
            .iter()
            .position(|name| *name == model_type)?;
        Some(Self::ALL[at])
    }

    /// What `transformers` takes where a file leaves a key out; sizes of a network are never left out.
    fn defaults(self) -> Value {
        let heads = json!({
            "attention_bias": false, "head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
            "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
        });
        let experts = json!({
            "attention_bias": false, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "hidden_act": "silu",
            "decoder_sparse_step": 1, "norm_topk_prob": false, "max_window_layers": 28, "qkv_bias": true,
            "use_sliding_window": false, "tie_word_embeddings": false,
        });
        let (family, own) = match self {
            Self::Gemma => (heads, json!({"max_position_embeddings": 8192})),
            Self::Gemma2 => (
                heads,
                json!({
                    "max_position_embeddings": 8192, "sliding_window": 4096, "final_logit_softcapping": 30.0,
                    "attn_logit_softcapping": 50.0,
                }),
            ),
            Self::Gemma3 => (
                heads,
                json!({
                    "max_position_embeddings": 131_072, "sliding_window": 4096, "rope_theta": 1e6,
                    "rope_local_base_freq": 1e4,
                }),
            ),
            Self::Phi3 => (
                json!({"rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": false}),
                json!({"max_position_embeddings": 4096}),
            ),
            Self::Qwen2Moe => (experts, json!({"max_position_embeddings": 32_768})),
            Self::Qwen3Moe => (
                experts,
                json!({"max_position_embeddings": 32_768, "head_dim": 128}),
            ),
        };
        let both = [family, own].into_iter().filter_map(|part| match part {
            Value::Object(part) => Some(part),
            _ => None,
        });
        Value::Object(both.flatten().collect())
    }
}

/// What a folder's `config.json` says.
#[derive(Debug)]
pub(super) struct Described {
    family: Family,
    path: PathBuf,
    /// By candle's names.
    config: Map<String, Value>,
    pub(super) vocab_size: usize,
    /// `eos_token_id`.
    pub(super) end: Option<Value>,
    /// Whether the head is the embedding.
    pub(super) tied: bool,
    pub(super) reach: Reach,
}

/// Sizes beyond any model: they would take all memory before a weight is read.
const SIZES: [(&str, usize); 10] = [
    ("hidden_size", 1 << 20),
    ("intermediate_size", 1 << 22),
    ("num_hidden_layers", 1 << 12),
    ("num_attention_heads", 1 << 16),
    ("num_key_value_heads", 1 << 16),
    ("head_dim", 1 << 16),
    ("vocab_size", 1 << 24),
    ("max_position_embeddings", 1 << 28),
    ("num_experts", 1 << 16),
    ("decoder_sparse_step", 1 << 12),
];

impl Described {
    /// Reads a folder's `config.json`.
    ///
    /// # Errors
    /// A family that candle does not compute, or a model of it that it would compute otherwise.
    pub(super) fn load(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let text = files::read(&path)?;
        let raw: Map<String, Value> = serde_json::from_slice(&text).map_err(|e| Error::Json {
            path: path.clone(),
            message: e.to_string(),
        })?;
        let reader = Reader {
            raw: &raw,
            path: &path,
        };
        let named = raw.get("model_type").and_then(Value::as_str);
        let Some(family) = named.and_then(Family::of) else {
            return Err(reader.unsupported(format!(
                "model_type is {}, which the engine candle does not compute; it computes {}, and GGUF files of \
                 {}. The engine own computes {}",
                named.map_or("missing".to_owned(), |name| format!("{name:?}")),
                CANDLE_FAMILIES.join(", "),
                super::gguf::ARCHITECTURES.join(", "),
                crate::Architecture::ALL.map(crate::Architecture::model_type).join(", "),
            )));
        };
        let config = named_as_candle(family, &raw, &reader)?;
        let reader = Reader {
            raw: &config,
            path: &path,
        };
        for (key, most) in SIZES.iter().filter(|(key, _)| config.contains_key(*key)) {
            if reader.size(key)? > *most {
                return Err(
                    reader.unsupported(format!("{key} is beyond any model; at most {most} is"))
                );
            }
        }
        refuse(family, &reader)?;
        let reach = reach(family, &reader)?;
        Ok(Self {
            family,
            vocab_size: reader.size("vocab_size")?,
            end: raw.get(crate::policy_text::END_KEY).cloned(),
            tied: reader.switch("tie_word_embeddings")?,
            config: with_windows(family, &reader, &reach)?,
            reach,
            path,
        })
    }

    /// `model_type`.
    pub(super) fn name(&self) -> &'static str {
        CANDLE_FAMILIES[self.family as usize]
    }

    /// The network with these weights, for conversations of at most `context` ids.
    ///
    /// # Errors
    /// A key that is missing or of another kind; candle's message where it does not find a weight, or
    /// finds another shape.
    pub(super) fn network(&self, context: usize, weights: VarBuilder<'_>) -> Result<Network> {
        let built = match self.family {
            Family::Gemma => {
                gemma::Model::new(false, &self.read(context)?, weights).map(Network::Gemma)
            }
            Family::Gemma2 => {
                gemma2::Model::new(false, &self.read(context)?, weights).map(Network::Gemma2)
            }
            Family::Gemma3 => {
                gemma3::Model::new(false, &self.read(context)?, weights).map(Network::Gemma3)
            }
            Family::Phi3 => phi3::Model::new(&self.read(context)?, weights).map(Network::Phi3),
            Family::Qwen2Moe => {
                qwen2_moe::Model::new(&self.read(context)?, weights).map(Network::Qwen2Moe)
            }
            Family::Qwen3Moe => qwen3_moe::ModelForCausalLM::new(&self.read(context)?, weights)
                .map(Network::Qwen3Moe),
        };
        built.map_err(|e| Error::Candle {
            path: self.path.with_file_name(crate::folder::names::MODEL),
            message: format!(
                "{e}; {} describes another model than the weights are, or they are not whole: copy the folder again",
                self.path.display()
            ),
        })
    }

    /// The config as candle reads it. The tables of positions and the caches are as long as a
    /// conversation may be.
    fn read<T: DeserializeOwned>(&self, context: usize) -> Result<T> {
        let mut config = self.config.clone();
        config.insert("max_position_embeddings".to_owned(), json!(context));
        serde_json::from_value(Value::Object(config)).map_err(|e| Error::Json {
            path: self.path.clone(),
            message: e.to_string(),
        })
    }
}

/// The keys of a file with the family's defaults, by the names that candle reads.
fn named_as_candle(
    family: Family,
    raw: &Map<String, Value>,
    reader: &Reader<'_>,
) -> Result<Map<String, Value>> {
    let mut config = match family.defaults() {
        Value::Object(defaults) => defaults,
        _ => Map::new(),
    };
    let given = raw.iter().filter(|(key, value)| {
        // Of a window alone, null says something else than nothing.
        !value.is_null() || (key.as_str() == "sliding_window")
    });
    config.extend(given.map(|(key, value)| (key.clone(), value.clone())));
    if let Some(experts) = config.remove("num_local_experts") {
        config.insert("num_experts".to_owned(), experts);
    }
    if family == Family::Gemma {
        // Earlier files have this one, and `gelu` for its approximation by tanh.
        let act = raw.get("hidden_activation").filter(|act| !act.is_null());
        let act = act.or(raw.get("hidden_act")).filter(|act| *act != "gelu");
        let act = act.filter(|act| !act.is_null()).cloned();
        config.remove("hidden_act");
        config.insert(
            "hidden_activation".to_owned(),
            act.unwrap_or(json!("gelu_pytorch_tanh")),
        );
    }
    if !config.contains_key("num_key_value_heads") {
        config.insert(
            "num_key_value_heads".to_owned(),
            json!(reader.size("num_attention_heads")?),
        );
    }
    for key in ["rope_parameters", "rope_scaling"] {
        rotation(key, raw, reader, &mut config)?;
    }
    if config.get("partial_rotary_factor").and_then(Value::as_f64) == Some(1.0) {
        config.remove("partial_rotary_factor");
    }
    for unread in [
        "rope_scaling",
        "rope_parameters",
        "eos_token_id",
        "bos_token_id",
    ] {
        config.remove(unread);
    }
    Ok(config)
}

/// The frequencies in an object of the file, of all layers or by their kind.
fn rotation(
    key: &str,
    raw: &Map<String, Value>,
    reader: &Reader<'_>,
    config: &mut Map<String, Value>,
) -> Result<()> {
    let Some(rope) = raw.get(key).and_then(Value::as_object) else {
        return Ok(());
    };
    let kinds = [
        ("full_attention", "rope_theta"),
        ("sliding_attention", "rope_local_base_freq"),
    ];
    let by_kind = kinds
        .iter()
        .filter_map(|(kind, name)| Some((rope.get(*kind)?.as_object()?, *name)));
    for (rope, name) in std::iter::once((rope, "rope_theta")).chain(by_kind) {
        let kind = rope.get("rope_type").or(rope.get("type"));
        if let Some(kind) = kind.filter(|kind| *kind != "default") {
            return Err(reader.unsupported(format!(
                "{key} has the type {kind}, which candle does not compute for this family as transformers does; only \
                 \"default\" is supported"
            )));
        }
        for (given, name) in [
            ("rope_theta", name),
            ("partial_rotary_factor", "partial_rotary_factor"),
        ] {
            if let Some(value) = rope.get(given) {
                config.insert(name.to_owned(), value.clone());
            }
        }
    }
    Ok(())
}

/// Refuses what candle would compute otherwise.
fn refuse(family: Family, reader: &Reader<'_>) -> Result<()> {
    let get = |key: &str| reader.raw.get(key).cloned().unwrap_or(Value::Null);
    let is_gemma = matches!(family, Family::Gemma | Family::Gemma2 | Family::Gemma3);
    let by_heads = || -> Result<Value> {
        Ok(json!(
            reader.size("hidden_size")? / reader.size("num_attention_heads")?
        ))
    };
    let wanted = [
        ("quantization_config", true, Value::Null),
        ("use_bidirectional_attention", is_gemma, json!(false)),
        ("tie_word_embeddings", is_gemma, json!(true)),
        (
            "query_pre_attn_scalar",
            matches!(family, Family::Gemma2 | Family::Gemma3),
            get("head_dim"),
        ),
        ("qkv_bias", family == Family::Qwen2Moe, json!(true)),
        (
            "head_dim",
            matches!(family, Family::Qwen2Moe | Family::Phi3),
            by_heads()?,
        ),
        ("use_sliding_window", true, json!(false)),
        ("mlp_only_layers", true, json!([])),
    ];
    for (key, _, only) in wanted.into_iter().filter(|(_, concerns, _)| *concerns) {
        let found = get(key);
        if found != only && !found.is_null() {
            return Err(reader.unsupported(format!(
                "{key} is {found}, which candle does not compute; only {only} is supported"
            )));
        }
    }
    Ok(())
}

/// The config with its windows as candle is to have them, where `reach` bounds a conversation.
fn with_windows(family: Family, reader: &Reader<'_>, reach: &Reach) -> Result<Map<String, Value>> {
    let mut config = reader.raw.clone();
    let window = match (family, reach.chunks) {
        (Family::Gemma3, Chunks::Below(window)) => {
            config.insert("sliding_window_pattern".to_owned(), json!(pattern(reader)?));
            json!(window)
        }
        // These want a number.
        (Family::Gemma3 | Family::Qwen2Moe, _) => json!(reach.positions),
        _ => Value::Null,
    };
    config.insert("sliding_window".to_owned(), window);
    Ok(config)
}

/// Every how many layers one looks at everything.
fn pattern(reader: &Reader<'_>) -> Result<usize> {
    let layers = reader.size("num_hidden_layers")?;
    let Some(kinds) = reader.raw.get("layer_types").and_then(Value::as_array) else {
        return match reader.raw.contains_key("sliding_window_pattern") {
            true => reader.size("sliding_window_pattern"),
            false => Ok(6),
        };
    };
    let is_full = |kind: &Value| kind == "full_attention";
    let every = kinds
        .iter()
        .position(is_full)
        .map_or(layers + 1, |at| at + 1);
    let mut places = kinds.iter().enumerate();
    match kinds.len() == layers && places.all(|(at, kind)| is_full(kind) == ((at + 1) % every == 0)) {
        true => Ok(every),
        false => Err(reader.unsupported(format!(
            "layer_types is no list of {layers} kinds in which every n-th is \"full_attention\", and candle computes \
             no other"
        ))),
    }
}

/// How far candle computes what `transformers` does.
fn reach(family: Family, reader: &Reader<'_>) -> Result<Reach> {
    const POSITIONS: &str = "max_position_embeddings";
    const WINDOW: &str = "sliding_window";
    let positions = reader.size(POSITIONS)?;
    let window = match reader.raw.get(WINDOW) {
        None | Some(Value::Null) => None,
        // As mixtures of experts without one are saved.
        Some(none) if none == 0 => None,
        Some(_) => Some(reader.size(WINDOW)?),
    };
    let of = |positions: usize, key: &str, chunks| Reach {
        positions,
        why: format!("{key} of {}", reader.path.display()),
        chunks,
    };
    Ok(match (family, window) {
        (Family::Gemma3, Some(window)) => of(positions, POSITIONS, Chunks::Below(window)),
        // Candle looks at everything before, as is right up to the window.
        (Family::Gemma2 | Family::Phi3, Some(window)) if window < positions => {
            of(window, WINDOW, Chunks::Anywhere)
        }
        _ => of(positions, POSITIONS, Chunks::Anywhere),
    })
}
