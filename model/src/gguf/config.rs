//! `config.json` and `generation_config.json` from the header of a GGUF file, and where a parameter
//! lies in it. What would be computed otherwise than the file's authors do is refused by name.

use super::file::{GgufFile, Place};
use crate::folder::names::{EMBEDDING, HEAD};
use crate::folder::parameter::is_dense;
use crate::folder::rope::{Rope, RopeScaling};
use crate::folder::weights::parameter_shapes;
use crate::policy_text::END_KEY;
use crate::{Architecture, Error, ModelConfig, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// `general.architecture` of the families that are read. Llama's is that of Mistral and of SmolLM, too.
const ARCHITECTURES: [Architecture; 3] = [
    Architecture::Llama,
    Architecture::Qwen2,
    Architecture::Qwen3,
];

/// Keys of models that compute something else under the name of a family, such as Granite's.
const OTHER_ARITHMETIC: [&str; 6] = [
    "attention.scale",
    "attention.clamp_kqv",
    "attention.causal",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
];

const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Llama 3's scaling, of which files hold the resulting factors alone: low and high factor, and the
/// original context.
const LLAMA3: (f64, f64, f64) = (1.0, 4.0, 8192.0);
/// Factors of heads that are wider than any model's.
const FACTORS_MAX: usize = 4096;
/// Factors are f32 that several converters compute in their own order.
const FACTOR_TOLERANCE: f64 = 1e-5;

/// Ids that end a message, and the others that a model's files name: as the header and as
/// Hugging Face call them.
const ENDS: [&str; 3] = ["eos", "eot", "eom"];
const IDS: [(&str, &str); 3] = [("bos", "bos"), ("padding", "pad"), ("eos", "eos")];

/// Where the parameters are: names of Hugging Face's, in their sorted order.
pub(super) type Places = BTreeMap<String, Place>;

/// What the header says of the model.
pub(super) struct Described {
    pub(super) config: ModelConfig,
    /// `generation_config.json`, where other ids end a message than `config.json` says.
    pub(super) generation: Option<Value>,
    pub(super) places: Places,
}

/// An id that the header names, found to be one of the tokens.
pub(super) fn id(file: &GgufFile, name: &str, tokens: usize) -> Result<Option<u64>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    match file.whole(&key)? {
        Some(id) if id >= tokens as u64 => Err(file.bad(format!(
            "{key} is {id}, and it has {tokens} tokens; take another file of this model"
        ))),
        id => Ok(id),
    }
}

/// Reads the header of a file with that many tokens.
pub(super) fn describe(file: &mut GgufFile, tokens: usize) -> Result<Described> {
    if let Some(count) = file.whole("split.count")?.filter(|count| *count > 1) {
        return Err(split(file, count)?);
    }
    let named = file.text("general.architecture")?.unwrap_or_default();
    let known = ARCHITECTURES
        .into_iter()
        .find(|known| known.model_type() == named);
    let Some(architecture) = known else {
        return Err(file.bad(format!(
            "general.architecture is {named:?}, which is not imported; {} are, with Mistral as llama: give a \
             model of these families",
            ARCHITECTURES.map(Architecture::model_type).join(", ")
        )));
    };
    let scaling = llama3(file)?;
    let raw = config(file, architecture, tokens, scaling)?;
    let config = ModelConfig::from_json(raw, &file.path)?;
    let ends = ENDS.iter().map(|name| id(file, name, tokens));
    let mut ends: Vec<u64> = ends
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    ends.sort_unstable();
    ends.dedup();
    // Several, or one that is not `config.json`'s.
    let said = config.raw(END_KEY).and_then(Value::as_u64);
    let generation =
        (!ends.is_empty() && ends != Vec::from_iter(said)).then(|| json!({"eos_token_id": ends}));
    Ok(Described {
        places: places(file, &config)?,
        config,
        generation,
    })
}

/// What to say of one part of several.
fn split(file: &GgufFile, count: u64) -> Result<Error> {
    let own = file.whole("split.no")?.unwrap_or(0) + 1;
    let name = file.path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(&format!("-{own:05}-of-{count:05}.gguf"));
    let stem = stem.unwrap_or("NAME");
    Ok(file.bad(format!(
        "is part {own} of {count}: {stem}-00001-of-{count:05}.gguf to {stem}-{count:05}-of-{count:05}.gguf; join them \
         with `llama-gguf-split --merge {stem}-00001-of-{count:05}.gguf {stem}.gguf` and import that"
    )))
}

/// The keys of `config.json`.
fn config(
    file: &GgufFile,
    architecture: Architecture,
    tokens: usize,
    llama3: Option<Value>,
) -> Result<Map<String, Value>> {
    let family = architecture.model_type();
    let key = |name: &str| format!("{family}.{name}");
    let size = |name: &str| file.size(&key(name));
    let refused = |name: &str, found: String, only: String| {
        file.bad(format!(
            "{} is {found}, which is not supported; only {only} is",
            key(name)
        ))
    };
    let (hidden, heads) = (size("embedding_length")?, size("attention.head_count")?);
    let width = file
        .whole(&key("attention.key_length"))?
        .unwrap_or(hidden / heads);
    let context = size("context_length")?;
    for (name, only) in [
        ("attention.value_length", width),
        ("rope.dimension_count", width),
        ("expert_count", 0),
        ("attention.sliding_window", context),
    ] {
        if let Some(found) = file.whole(&key(name))?.filter(|found| *found != only) {
            return Err(refused(name, found.to_string(), only.to_string()));
        }
    }
    for name in OTHER_ARITHMETIC {
        if let Some(found) = file.value(&key(name)) {
            let found = format!("there ({found:?})");
            return Err(refused(name, found, "a file without it".to_owned()));
        }
    }
    let epsilon = "attention.layer_norm_rms_epsilon";
    let Some(epsilon) = file.real(&key(epsilon))? else {
        return Err(file.bad(format!(
            "{} is missing; take another file of this model",
            key(epsilon)
        )));
    };
    let rows = file.tensors.get("token_embd.weight");
    let rows = rows
        .and_then(|place| place.sizes.get(1))
        .copied()
        .unwrap_or(0);
    if tokens > rows {
        return Err(file.bad(format!(
            "has {tokens} tokens and {rows} rows in token_embd.weight: an id without weights; take another file \
             of this model"
        )));
    }
    let mut raw = json!({
        "architectures": [architecture.causal_lm()],
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": size("feed_forward_length")?,
        "num_hidden_layers": size("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": file.whole(&key("attention.head_count_kv"))?.unwrap_or(heads),
        "head_dim": width,
        "vocab_size": rows,
        "max_position_embeddings": context,
        "hidden_act": "silu",
        "attention_bias": false,
        "rms_norm_eps": epsilon,
        "rope_theta": file.real(&key("rope.freq_base"))?.unwrap_or(10_000.0),
        "rope_scaling": scaling(file, family, context, llama3)?,
        "tie_word_embeddings": !file.tensors.contains_key("output.weight"),
        "torch_dtype": "float32",
    });
    for (theirs, ours) in IDS {
        if let Some(id) = id(file, theirs, tokens)? {
            raw[format!("{ours}_token_id")] = id.into();
        }
    }
    Ok(raw.as_object().cloned().unwrap_or_default())
}

/// `rope_scaling`; null where rotary frequencies are not scaled.
fn scaling(file: &GgufFile, family: &str, context: u64, llama3: Option<Value>) -> Result<Value> {
    let key = |name: &str| format!("{family}.rope.scaling.{name}");
    let old = file
        .real(&format!("{family}.rope.scale_linear"))?
        .filter(|factor| *factor != 1.0);
    let factor = file.real(&key("factor"))?.or(old).unwrap_or(1.0);
    // Without a type, a factor is linear.
    let kind = match file.text(&key("type"))? {
        None if factor != 1.0 => "linear",
        kind => kind.unwrap_or("none"),
    };
    let plain =
        |name: &str| Ok::<_, Error>(file.real(&key(name))?.is_none_or(|found| found == 1.0));
    let odd = [
        "attn_factor",
        "yarn_ext_factor",
        "yarn_attn_factor",
        "yarn_log_multiplier",
    ];
    let mut known = true;
    for name in odd {
        known &= plain(name)?;
    }
    match kind {
        "none" if llama3.is_some() => Ok(llama3.unwrap_or_default()),
        "none" => Ok(Value::Null),
        "linear" if llama3.is_none() => Ok(json!({"rope_type": "linear", "factor": factor})),
        "yarn" if llama3.is_none() && known => {
            let original = file.whole(&key("original_context_length"))?.unwrap_or(context);
            let mut said = json!({
                "rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original,
            });
            for name in ["beta_fast", "beta_slow"] {
                if let Some(beta) = file.real(&key(&format!("yarn_{name}")))? {
                    said[name] = beta.into();
                }
            }
            Ok(said)
        }
        other => Err(file.bad(format!(
            "{} is {other}{}, which is not imported; none, linear and yarn are, and Llama 3's factors",
            key("type"),
            match (llama3.is_some(), known) {
                (true, _) => format!(" beside {ROPE_FACTORS}"),
                (_, false) => format!(" with one of {}", odd.join(", ")),
                _ => String::new(),
            }
        ))),
    }
}

/// Finds the scaling of Llama 3 whose factors are in the file; refuses other factors.
fn llama3(file: &mut GgufFile) -> Result<Option<Value>> {
    let Some(place) = file.tensors.get(ROPE_FACTORS).cloned() else {
        return Ok(None);
    };
    if place.numbers() > FACTORS_MAX {
        return Err(file.bad(format!(
            "{ROPE_FACTORS} has {} numbers; take another file of this model",
            place.numbers()
        )));
    }
    let mut bytes = vec![0; place.bytes as usize];
    file.read(&place, 0, &mut bytes)?;
    let mut found = Vec::new();
    place.kind.widen(&bytes, &mut found);
    if found.iter().all(|factor| *factor == 1.0) {
        return Ok(None);
    }
    let family = file.text("general.architecture")?.unwrap_or_default();
    let theta = file
        .real(&format!("{family}.rope.freq_base"))?
        .unwrap_or(10_000.0);
    let factor = found.iter().copied().fold(1.0, f32::max).into();
    let (low, high, context) = LLAMA3;
    let plain = Rope {
        theta,
        scaling: RopeScaling::Default,
    };
    let scaled = Rope {
        theta,
        scaling: RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: context,
        },
    };
    let width = found.len() * 2;
    let pairs = plain
        .frequencies(width)
        .into_iter()
        .zip(scaled.frequencies(width));
    let same = |((plain, scaled), found): ((f64, f64), &f32)| {
        (plain / scaled - f64::from(*found)).abs() <= FACTOR_TOLERANCE * plain / scaled
    };
    match pairs.zip(&found).all(same) {
        true => Ok(Some(json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": context,
        }))),
        false => Err(file.bad(format!(
            "{ROPE_FACTORS} are not those of Llama 3 (low_freq_factor {low}, high_freq_factor {high}, original context \
             {context}), and others cannot be told from them; import the model from its own folder"
        ))),
    }
}

/// The name in a GGUF file of one of Hugging Face's.
fn name_in_file(name: &str) -> String {
    let own = match name {
        EMBEDDING => "token_embd.weight",
        HEAD => "output.weight",
        _ => "",
    };
    if !own.is_empty() {
        return own.to_owned();
    }
    let name = name
        .strip_prefix("model.")
        .unwrap_or(name)
        .replace("layers.", "blk.");
    let parts = [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    let part = parts
        .iter()
        .find(|(theirs, _)| name.contains(&format!(".{theirs}.")));
    match part {
        Some((theirs, ours)) => name.replace(theirs, ours),
        None => name.replace("norm.", "output_norm."),
    }
}

/// Finds every parameter of the model, and nothing else, in its shape.
fn places(file: &GgufFile, config: &ModelConfig) -> Result<Places> {
    let tensor = |tensor: &str, message: String| Error::Tensor {
        path: file.path.clone(),
        tensor: tensor.to_owned(),
        message,
    };
    let mut left = file.tensors.clone();
    left.remove(ROPE_FACTORS);
    let mut places = Places::new();
    for (name, mut shape) in parameter_shapes(config) {
        let own = name_in_file(&name);
        let Some(place) = left.remove(&own) else {
            return Err(tensor(
                &own,
                "is missing; take another file of this model".to_owned(),
            ));
        };
        // A file counts the numbers of a row first; in memory dense weights are transposed.
        if !is_dense(&name) {
            shape.reverse();
        }
        if place.sizes != shape {
            return Err(tensor(
                &own,
                format!(
                    "has the sizes {:?}, by the header {shape:?}; take another file of this model",
                    place.sizes
                ),
            ));
        }
        places.insert(name, place);
    }
    match left.into_keys().next() {
        None => Ok(places),
        Some(name) => Err(tensor(
            &name,
            format!(
                "is none that {} computes here: the model is of another kind",
                config.architecture.causal_lm()
            ),
        )),
    }
}
