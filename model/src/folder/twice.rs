//! What the files of a model's folder say twice, and differently: which of them counts is the rule of
//! `transformers` 5, and is said. (Tied weights that differ, and two spellings of RoPE, are refused
//! where they are read.)

use crate::folder::files::read_if_there;
use crate::folder::tokenizer::Tokenizer;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::Path;

/// Named special tokens of which two files speak.
const TOKENS: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];

/// A line for each thing of which two files of the folder say different things. Files that are
/// missing, or damaged, say nothing here.
pub fn said_twice(dir: &Path, tokenizer: &Tokenizer) -> Vec<String> {
    let read = |name: &str| -> Map<String, Value> {
        let bytes = read_if_there(&dir.join(name)).ok().flatten();
        serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default()
    };
    let [config, generation, text, map] = [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ]
    .map(read);
    let mut said = Vec::new();
    let mut differ = |what: &str, first: (&str, String), second: (&str, String), counts: &str| {
        let ((file, value), (other, says)) = (first, second);
        said.push(format!(
            "{what}: {file} says {value}, {other} says {says}; {counts}"
        ));
    };
    let ends = |from: &Map<String, Value>| ids(from.get("eos_token_id"));
    let (own, generating) = (ends(&config), ends(&generation));
    if let (Some(own), Some(generating)) = (&own, &generating)
        && own != generating
    {
        differ(
            "end of a reply",
            ("config.json", format!("{own:?}")),
            ("generation_config.json", format!("{generating:?}")),
            "generation_config.json counts",
        );
    }
    let end = text.get("eos_token").and_then(spelling);
    let id = end.and_then(|end| tokenizer.token_to_id(end));
    if let (Some(end), Some(id), Some(used)) = (end, id, generating.or(own))
        && !used.contains(&u64::from(id))
    {
        differ(
            "end of a reply",
            ("the model", format!("{used:?}")),
            ("tokenizer_config.json", format!("{end:?} ({id})")),
            "a reply ends with the model's, and with the chat template's own",
        );
    }
    let dtype = ["dtype", "torch_dtype"].map(|key| config.get(key).filter(|v| !v.is_null()));
    if let [Some(dtype), Some(former)] = dtype
        && dtype != former
    {
        differ(
            "type of the weights",
            ("dtype", dtype.to_string()),
            ("torch_dtype", former.to_string()),
            "the weights are read in the type that they have",
        );
    }
    let positions = config.get("max_position_embeddings");
    let limits = [positions, text.get("model_max_length")];
    if let [Some(positions), Some(length)] = limits.map(|limit| limit.and_then(Value::as_f64))
        && length < positions
    {
        differ(
            "context",
            ("config.json", positions.to_string()),
            ("tokenizer_config.json", length.to_string()),
            "config.json counts",
        );
    }
    let counts = match text.contains_key("added_tokens_decoder") {
        true => "tokenizer_config.json counts",
        false => {
            "special_tokens_map.json counts, as tokenizer_config.json has no added_tokens_decoder"
        }
    };
    for name in TOKENS {
        let both = [&text, &map].map(|file| file.get(name).and_then(spelling));
        if let [Some(named), Some(mapped)] = both
            && named != mapped
        {
            differ(
                name,
                ("tokenizer_config.json", format!("{named:?}")),
                ("special_tokens_map.json", format!("{mapped:?}")),
                counts,
            );
        }
    }
    said
}

/// A token is written as a string or as an object with its `content`.
pub(crate) fn spelling(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// A number or a list of them.
fn ids(value: Option<&Value>) -> Option<BTreeSet<u64>> {
    let list = match value? {
        Value::Null => return None,
        Value::Array(list) => list.as_slice(),
        one => std::slice::from_ref(one),
    };
    Some(list.iter().filter_map(Value::as_u64).collect())
}
