//! `tokenizer.json`, `tokenizer_config.json` and the chat template from the header of a GGUF file: byte-level
//! BPE with its merges, or sentencepiece's BPE, whose merges are ordered by its scores.

use super::config::id;
use super::file::{GgufFile, Value};
use super::pre_tokenizer::Split;
use crate::{Error, Result};
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// `tokenizer.ggml.token_type`: ordinary, unknown, special, an added word, and one that fills a gap.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;
/// Longer ones are no tokens, and sentencepiece's merges grow with the square of it.
const TOKEN_BYTES_MAX: usize = 1 << 10;
/// Sentencepiece's mark for a blank.
const BLANK: &str = "\u{2581}";

/// The files, by name, and what is told of them.
pub(super) struct Vocabulary {
    pub(super) files: BTreeMap<&'static str, String>,
    /// The name of its pre-tokenizer; `llama` for sentencepiece.
    pub(super) kind: String,
    pub(super) chat_template: bool,
}

/// Reads the vocabulary of a header.
pub(super) fn read(file: &GgufFile) -> Result<Vocabulary> {
    let tokens = file.list("tokenizer.ggml.tokens", Value::text)?;
    let types = file.list("tokenizer.ggml.token_type", Value::whole)?;
    if tokens.is_empty() || types.len() != tokens.len() {
        return Err(file.bad(format!(
            "has {} tokens and {} types of tokens (tokenizer.ggml.tokens and .token_type); take another file of this \
             model",
            tokens.len(),
            types.len()
        )));
    }
    if let Some(long) = tokens.iter().find(|token| token.len() > TOKEN_BYTES_MAX) {
        return Err(file.bad(format!(
            "has a token of {} bytes, above {TOKEN_BYTES_MAX}; take another file of this model",
            long.len()
        )));
    }
    let mut ids = BTreeMap::new();
    for (id, token) in tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| types[*id] != UNUSED)
    {
        if let Some(first) = ids.insert(*token, id) {
            return Err(file.bad(format!(
                "names token {token:?} twice, as {first} and {id}; take another file of this model"
            )));
        }
    }
    let added = tokens
        .iter()
        .zip(&types)
        .enumerate()
        .filter(|(_, (_, kind))| [UNKNOWN, CONTROL, USER_DEFINED].contains(kind));
    let added = added.map(|(id, (content, kind))| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": *kind != USER_DEFINED,
        })
    });
    let mut vocabulary = Map::new();
    let mut by_id: Vec<_> = ids.iter().map(|(token, id)| (*id, *token)).collect();
    by_id.sort_unstable();
    vocabulary.extend(
        by_id
            .into_iter()
            .map(|(id, token)| (token.to_owned(), id.into())),
    );
    let named =
        |name: &str| Ok::<_, Error>(id(file, name, tokens.len())?.map(|id| tokens[id as usize]));
    let model = file.text("tokenizer.ggml.model")?.unwrap_or_default();
    let (kind, begins, mut json) = match model {
        "gpt2" => byte_level(file, vocabulary)?,
        "llama" => {
            let words = ids.iter().filter(|(_, id)| types[**id] == NORMAL);
            let words = words.map(|(token, id)| (*token, *id)).collect();
            let unknown = named("unknown")?.or_else(|| {
                types
                    .iter()
                    .position(|t| *t == UNKNOWN)
                    .map(|id| tokens[id])
            });
            sentencepiece(file, vocabulary, &words, unknown)?
        }
        other => {
            return Err(file.bad(format!(
                "tokenizer.ggml.model is {other:?}; gpt2 (byte-level BPE) and llama (sentencepiece) are imported"
            )));
        }
    };
    json["added_tokens"] = added.collect();
    let begins = file
        .switch("tokenizer.ggml.add_bos_token")?
        .unwrap_or(begins);
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
        "add_bos_token": begins,
        "add_eos_token": file.switch("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
    });
    for (theirs, ours) in [
        ("bos", "bos"),
        ("eos", "eos"),
        ("padding", "pad"),
        ("unknown", "unk"),
    ] {
        if let Some(token) = named(theirs)? {
            config[format!("{ours}_token")] = token.into();
        }
    }
    if let Some(bos_id) = id(file, "bos", tokens.len())?.filter(|_| begins) {
        let token = tokens[bos_id as usize];
        let bos = json!({"SpecialToken": {"id": token, "type_id": 0}});
        let pair = ["A", "B"].map(|of| json!({"Sequence": {"id": of, "type_id": 0}}));
        json["post_processor"] = json!({
            "type": "TemplateProcessing", "single": [bos, pair[0]], "pair": [bos, pair[0], pair[1]],
            "special_tokens": {(token): {"id": token, "ids": [bos_id], "tokens": [token]}},
        });
    }
    let mut files = BTreeMap::from([
        ("tokenizer.json", pretty(&json)),
        ("tokenizer_config.json", pretty(&config)),
    ]);
    let template = file.text("tokenizer.chat_template")?.map(str::to_owned);
    let chat_template = template.is_some();
    files.extend(template.map(|template| ("chat_template.jinja", template)));
    Ok(Vocabulary {
        files,
        kind,
        chat_template,
    })
}

/// JSON with a line for every entry.
pub(super) fn pretty(value: &Json) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value serialises") + "\n"
}

/// Everything of `tokenizer.json` but the tokens that are added; its name, and whether texts begin with the
/// first token where the file does not say.
type Described = (String, bool, Json);

fn byte_level(file: &GgufFile, vocabulary: Map<String, Json>) -> Result<Described> {
    const PRE: &str = "tokenizer.ggml.pre";
    let Some(name) = file.text(PRE)? else {
        return Err(file.bad(format!(
            "does not name its pre-tokenizer ({PRE}), without which texts get other ids: take a newer file of this \
             model, of May 2024 or later"
        )));
    };
    let Some(split) = Split::named(name) else {
        return Err(file.bad(format!(
            "{PRE} is {name:?}, a pre-tokenizer that is not known here; known are {}: import the model from its own \
             folder",
            Split::known()
        )));
    };
    let merges = file.list("tokenizer.ggml.merges", Value::text)?;
    let steps = split.patterns.iter().map(|pattern| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    });
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let steps: Vec<Json> = steps.chain([bytes.clone()]).collect();
    let normalizer = split.composes.then(|| json!({"type": "NFC"}));
    let model = bpe(
        vocabulary,
        json!(merges),
        split.ignores_merges,
        (false, None),
    );
    let all = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "post_processor": bytes, "decoder": bytes,
        "model": model,
    });
    Ok((name.to_owned(), split.begins, all))
}

fn bpe(
    vocabulary: Map<String, Json>,
    merges: Json,
    ignores_merges: bool,
    (falls_back, unknown): (bool, Option<&str>),
) -> Json {
    json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": unknown.is_some(), "byte_fallback": falls_back,
        "ignore_merges": ignores_merges, "vocab": vocabulary, "merges": merges,
    })
}

/// Sentencepiece merges the pair whose union has the highest score, so that a pair's rank is its union's.
fn sentencepiece(
    file: &GgufFile,
    vocabulary: Map<String, Json>,
    words: &BTreeMap<&str, usize>,
    unknown: Option<&str>,
) -> Result<Described> {
    let scores = file.list("tokenizer.ggml.scores", Value::real)?;
    if words.values().any(|id| *id >= scores.len()) {
        return Err(file.bad(format!(
            "has {} scores (tokenizer.ggml.scores) for {} tokens; take another file of this model",
            scores.len(),
            vocabulary.len()
        )));
    }
    let mut merges = Vec::new();
    for (word, id) in words {
        for (at, _) in word.char_indices().skip(1) {
            let (left, right) = word.split_at(at);
            if let (Some(l), Some(r)) = (words.get(left), words.get(right)) {
                merges.push((*id, (*l, *r), [left, right]));
            }
        }
    }
    merges.sort_by(|(a, pair_a, _), (b, pair_b, _)| {
        let by_score = scores[*b].total_cmp(&scores[*a]);
        by_score.then(a.cmp(b)).then(pair_a.cmp(pair_b))
    });
    let merges: Vec<_> = merges.into_iter().map(|(.., pair)| pair).collect();
    let prefixed = file
        .switch("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    let mut normalizers =
        vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": BLANK})];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": BLANK}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefixed {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": BLANK}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let all = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers}, "pre_tokenizer": null,
        "post_processor": null, "decoder": {"type": "Sequence", "decoders": decoders},
        "model": bpe(vocabulary, json!(merges), false, (true, unknown)),
    });
    Ok(("llama".to_owned(), true, all))
}
