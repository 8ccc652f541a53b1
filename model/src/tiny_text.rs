//! A small tokenizer and a plain chat template, generated from a seed, so that a
//! model can be created without downloading anything.
//!
//! Byte-level BPE with GPT-2's or Qwen2's split of text into words. The trainer is our own:
//! it breaks every tie by token id, so the same corpus gives the same bytes on
//! every machine.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
};

use crate::{Chat, Error, Result, Tokenizer, tiny_words};

/// Special tokens; their index is their id.
pub const SPECIAL_TOKENS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// Ends and pads documents.
pub const PAD_ID: u32 = 0;
/// Ends a turn.
pub const EOS_ID: u32 = 2;

/// ChatML without a default system message: only given messages are in the prompt.
const CHAT_TEMPLATE: &str = "{%- for message in messages %}\
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\
{%- endfor %}\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

/// The same, with tools in the form of Qwen2.5's instruct models, in fewer words.
const TOOLS_TEMPLATE: &str = include_str!("tiny_tools.jinja");

/// The byte 0x20 in the spelling of a byte-level vocabulary.
const SPACE: char = 'Ġ';
/// Number of words, number of lines, and seed of the corpus of [`invented_tokenizer`].
const CORPUS: (usize, usize, u64) = (600, 20_000, 0x0041_6774);

/// How Qwen2 splits text into words: from its `tokenizer.json`.
const QWEN2_WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How a new tokenizer splits text into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Splitting {
    /// GPT-2's pattern; numbers below 100 are one token each.
    #[default]
    Gpt2,
    /// Qwen2's normalizer and pattern, which takes digits apart, as transformers 5 does with every
    /// tokenizer of that family.
    Qwen2,
}

impl Splitting {
    /// The words of a text, in the spelling of a byte-level vocabulary.
    fn words(self, text: &str) -> Result<Vec<String>> {
        let failed = |e| Error::Request(format!("cannot split the corpus into words: {e}"));
        let mut words = PreTokenizedString::from(text);
        if self == Splitting::Qwen2 {
            let pattern = SplitPattern::Regex(QWEN2_WORDS.to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            let split = split.map_err(failed)?;
            split.pre_tokenize(&mut words).map_err(failed)?;
        }
        let regex = self == Splitting::Gpt2;
        let bytes = ByteLevel::new(false, true, regex);
        bytes.pre_tokenize(&mut words).map_err(failed)?;
        Ok(words
            .get_splits(OffsetReferential::Original, OffsetType::None)
            .into_iter()
            .map(|(word, _, _)| word.to_owned())
            .collect())
    }

    /// `normalizer` and `pre_tokenizer` of `tokenizer.json`.
    fn to_json(self) -> (serde_json::Value, serde_json::Value) {
        match self {
            Splitting::Gpt2 => (json!(null), byte_level(true)),
            Splitting::Qwen2 => {
                let split = json!({
                    "type": "Split", "pattern": {"Regex": QWEN2_WORDS}, "behavior": "Isolated",
                    "invert": false,
                });
                let both = json!([split, byte_level(false)]);
                (
                    json!({"type": "NFC"}),
                    json!({"type": "Sequence", "pretokenizers": both}),
                )
            }
        }
    }

    /// The class that transformers builds for it.
    fn class(self) -> &'static str {
        match self {
            Splitting::Gpt2 => "PreTrainedTokenizerFast",
            Splitting::Qwen2 => "Qwen2Tokenizer",
        }
    }
}

fn byte_level(use_regex: bool) -> serde_json::Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex,
    })
}

type Pair = (u32, u32);

/// Which chat template a new model gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Template {
    /// Messages alone.
    #[default]
    Plain,
    /// Messages, tools and the answers to calls.
    Tools,
}

/// The chat template for tokenizers trained here.
pub fn chat(template: Template) -> Chat {
    let template = match template {
        Template::Plain => CHAT_TEMPLATE,
        Template::Tools => TOOLS_TEMPLATE,
    };
    let named = [
        ("eos_token", SPECIAL_TOKENS[2]),
        ("pad_token", SPECIAL_TOKENS[0]),
    ];
    Chat::new(
        template.to_owned(),
        named
            .map(|(name, token)| (name.to_owned(), token.to_owned()))
            .into(),
        SPECIAL_TOKENS.map(str::to_owned).to_vec(),
        "chat_template.jinja".into(),
    )
    .expect("the template is a constant that the tests render")
}

/// A tokenizer of `vocab` tokens trained on invented lines only.
pub fn invented_tokenizer(splitting: Splitting, vocab: usize) -> Result<Tokenizer> {
    let (words, lines, seed) = CORPUS;
    let words = tiny_words::words(seed, words);
    let lines = tiny_words::lines(seed, &words, lines);
    train_tokenizer(splitting, lines, vocab)
}

/// Trains a byte-level BPE tokenizer of exactly `vocab` tokens: the special
/// tokens, 256 bytes, with GPT-2's splitting ` 0` to ` 99` (a number with its leading
/// space is one token), then the most frequent pairs.
pub fn train_tokenizer(
    splitting: Splitting,
    corpus: impl Iterator<Item = String>,
    vocab: usize,
) -> Result<Tokenizer> {
    let mut trainer = Trainer::new();
    if splitting == Splitting::Gpt2 {
        trainer.merge_numbers();
    }
    if vocab < trainer.tokens.len() {
        return Err(Error::Request(format!(
            "a tokenizer of {vocab} tokens is too small: special tokens, bytes and numbers take {}",
            trainer.tokens.len()
        )));
    }
    let mut counts = BTreeMap::new();
    for text in corpus {
        for word in splitting.words(&text)? {
            *counts.entry(word).or_insert(0) += 1;
        }
    }
    trainer.learn(counts, vocab);
    if trainer.tokens.len() < vocab {
        return Err(Error::Request(format!(
            "the corpus gives {} tokens, {vocab} were asked for; ask for fewer or give more text",
            trainer.tokens.len()
        )));
    }
    let pretty = |value: &serde_json::Value| {
        let mut bytes = serde_json::to_vec_pretty(value).expect("a JSON value serialises");
        bytes.push(b'\n');
        bytes
    };
    let files = BTreeMap::from([
        (
            "tokenizer.json".to_owned(),
            pretty(&trainer.to_json(splitting)),
        ),
        (
            "tokenizer_config.json".to_owned(),
            pretty(&tokenizer_config(splitting)),
        ),
    ]);
    Tokenizer::from_files(&files, Path::new("new tokenizer"))
}

fn tokenizer_config(splitting: Splitting) -> serde_json::Value {
    json!({
        "tokenizer_class": splitting.class(),
        "eos_token": SPECIAL_TOKENS[2],
        "pad_token": SPECIAL_TOKENS[0],
        "clean_up_tokenization_spaces": false,
        "model_max_length": 1_000_000_000,
    })
}

struct Trainer {
    /// Token spellings; the index is the id.
    tokens: Vec<String>,
    letters: BTreeMap<char, u32>,
    /// Pairs in the order of their rank, with the id of the merged token.
    merges: Vec<(Pair, u32)>,
}

impl Trainer {
    fn new() -> Self {
        let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
        alphabet.sort_unstable();
        let mut tokens: Vec<String> = SPECIAL_TOKENS.map(str::to_owned).to_vec();
        let mut letters = BTreeMap::new();
        for letter in alphabet {
            letters.insert(letter, tokens.len() as u32);
            tokens.push(letter.to_string());
        }
        Trainer {
            tokens,
            letters,
            merges: Vec::new(),
        }
    }

    fn merge(&mut self, pair: Pair) -> u32 {
        let id = self.tokens.len() as u32;
        let whole = self.tokens[pair.0 as usize].clone() + &self.tokens[pair.1 as usize];
        self.tokens.push(whole);
        self.merges.push((pair, id));
        id
    }

    /// First in rank, so nothing learned later can split a number.
    fn merge_numbers(&mut self) {
        let digits: Vec<u32> = ('0'..='9').map(|digit| self.letters[&digit]).collect();
        let space = self.letters[&SPACE];
        let ones: Vec<u32> = digits.iter().map(|&d| self.merge((space, d))).collect();
        for &tens in &ones[1..] {
            for &digit in &digits {
                self.merge((tens, digit));
            }
        }
    }

    /// Merges the most frequent pair, the one with the lowest ids on ties, until there
    /// are `vocab` tokens or nothing is left to merge.
    fn learn(&mut self, counts: BTreeMap<String, i64>, vocab: usize) {
        let mut words: Vec<(Vec<u32>, i64)> = counts
            .into_iter()
            .map(|(word, count)| (word.chars().map(|c| self.letters[&c]).collect(), count))
            .collect();
        for &(pair, whole) in &self.merges {
            for (ids, _) in &mut words {
                replace(ids, pair, whole);
            }
        }
        let mut frequencies: BTreeMap<Pair, i64> = BTreeMap::new();
        for (ids, count) in &words {
            add_pairs(&mut frequencies, ids, *count);
        }
        while self.tokens.len() < vocab {
            let best = frequencies
                .iter()
                .max_by_key(|&(&pair, &count)| (count, std::cmp::Reverse(pair)));
            let Some((&pair, _)) = best.filter(|&(_, &count)| count > 0) else {
                return;
            };
            let whole = self.merge(pair);
            for (ids, count) in &mut words {
                if ids.windows(2).any(|two| (two[0], two[1]) == pair) {
                    add_pairs(&mut frequencies, ids, -*count);
                    replace(ids, pair, whole);
                    add_pairs(&mut frequencies, ids, *count);
                }
            }
            frequencies.retain(|_, count| *count > 0);
        }
    }

    fn to_json(&self, splitting: Splitting) -> serde_json::Value {
        let (normalizer, pre_tokenizer) = splitting.to_json();
        let ids: serde_json::Map<_, _> = (self.tokens.iter().enumerate())
            .map(|(id, token)| (token.clone(), json!(id)))
            .collect();
        let spelling = |id: u32| &self.tokens[id as usize];
        let merges: Vec<_> = (self.merges.iter())
            .map(|&((left, right), _)| json!([spelling(left), spelling(right)]))
            .collect();
        let added: Vec<_> = (SPECIAL_TOKENS.iter().enumerate())
            .map(|(id, token)| {
                json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": true,
                })
            })
            .collect();
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": null,
            "decoder": byte_level(true),
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": ids, "merges": merges,
            },
        })
    }
}

fn add_pairs(frequencies: &mut BTreeMap<Pair, i64>, ids: &[u32], count: i64) {
    for two in ids.windows(2) {
        *frequencies.entry((two[0], two[1])).or_insert(0) += count;
    }
}

/// Replaces `pair` by `whole` from left to right.
fn replace(ids: &mut Vec<u32>, pair: Pair, whole: u32) {
    let (mut read, mut write) = (0, 0);
    while read < ids.len() {
        let both = read + 1 < ids.len() && (ids[read], ids[read + 1]) == pair;
        ids[write] = if both { whole } else { ids[read] };
        read += 1 + usize::from(both);
        write += 1;
    }
    ids.truncate(write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_corpus_gives_the_same_bytes() {
        let files = || {
            let dir = tempfile::tempdir().unwrap();
            let tokenizer = invented_tokenizer(Splitting::Qwen2, 700).unwrap();
            tokenizer.save(dir.path()).unwrap();
            chat(Template::Plain).save(dir.path()).unwrap();
            [
                "tokenizer.json",
                "tokenizer_config.json",
                "chat_template.jinja",
            ]
            .map(|name| std::fs::read(dir.path().join(name)).unwrap())
        };
        assert_eq!(files(), files());
    }

    #[test]
    fn numbers_and_special_tokens_have_their_own_ids() {
        let tokenizer = invented_tokenizer(Splitting::Gpt2, 1024).unwrap();
        assert_eq!(tokenizer.vocab_size(), 1024);
        for (id, token) in SPECIAL_TOKENS.iter().enumerate() {
            assert_eq!(tokenizer.encode(token).unwrap(), [id as u32]);
        }
        for number in 0..100 {
            let text = format!(" {number}");
            assert_eq!(tokenizer.encode(&text).unwrap().len(), 1, "{text:?}");
        }
        // Frequent words of the corpus are single tokens, so it was learned from.
        assert_eq!(tokenizer.encode(" craft using get").unwrap().len(), 3);
        assert_eq!(tokenizer.encode("Action: get 12").unwrap().len(), 4);
    }

    /// Texts whose ids depend on the normalizer and on the pattern.
    const TEXTS: [&str; 8] = [
        "Action: get 12 dovan lepi",
        "craft 2 stick using 1 planks, 3 string\n\nGoal: craft rope.",
        "it's  they'LL\t\n  x",
        "100% (a_b)::c\r\n",
        "u\u{308}ber \u{fb01}n cafe\u{301} \u{1f642}",
        "  two  spaces ",
        "<|im_start|>user\nhello<|im_end|>\n",
        "\u{660}\u{661} \u{4f60}\u{597d}!!",
    ];

    /// Prints the ids that `AutoTokenizer` of transformers 5.24 gives each line of a JSON list, with
    /// the folder as the first argument.
    const TRANSFORMERS: &str = "\
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print(json.dumps([tokenizer(text, add_special_tokens=False)['input_ids'] for text in json.loads(sys.argv[2])]))
";

    #[test]
    fn qwen2_splitting_is_that_of_transformers() {
        let dir = tempfile::tempdir().unwrap();
        let shape = crate::TinyShape {
            vocab: 700,
            ..crate::TinyShape::default()
        };
        let tokenizer = invented_tokenizer(Splitting::Qwen2, 700).unwrap();
        shape
            .policy(1, tokenizer.clone())
            .unwrap()
            .save(dir.path())
            .unwrap();
        let ours: Vec<Vec<u32>> = TEXTS.map(|text| tokenizer.encode(text).unwrap()).into();
        let recorded: Vec<Vec<u32>> =
            serde_json::from_str(include_str!("tests/qwen2_splitting.json")).unwrap();
        assert_eq!(ours, recorded);
        // Once more with transformers itself, where it is installed.
        let texts = serde_json::to_string(&TEXTS).unwrap();
        let python = std::env::var("AGENTGYM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let output = std::process::Command::new(python)
            .args([
                "-c",
                TRANSFORMERS,
                &dir.path().display().to_string(),
                &texts,
            ])
            .output();
        let Ok(output) = output else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("No module named") {
            return;
        }
        let theirs: Vec<Vec<u32>> = serde_json::from_slice(&output.stdout).expect(&said);
        assert_eq!(ours, theirs);
    }

    #[test]
    fn a_saved_folder_loads_into_the_same_text() {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = invented_tokenizer(Splitting::Gpt2, 600).unwrap();
        tokenizer.save(dir.path()).unwrap();
        chat(Template::Plain).save(dir.path()).unwrap();
        let loaded = Tokenizer::load(dir.path()).unwrap();
        let loaded_chat = Chat::load(dir.path()).unwrap().unwrap();
        loaded_chat.check(&loaded).unwrap();
        assert_eq!(loaded_chat.end_of_turn_id(&loaded).unwrap(), EOS_ID);
        let messages = [crate::Message::new(
            crate::Role::User,
            "Goal: craft 2 stick. ü",
        )];
        assert_eq!(
            loaded_chat.prompt_ids(&loaded, &messages).unwrap(),
            chat(Template::Plain)
                .prompt_ids(&tokenizer, &messages)
                .unwrap()
        );
        assert_eq!(
            chat(Template::Plain).render(&messages, true).unwrap(),
            "<|im_start|>user\nGoal: craft 2 stick. ü<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn sizes_out_of_reach_are_refused() {
        let corpus = || ["abc abc".to_owned()].into_iter();
        let small = train_tokenizer(Splitting::Gpt2, corpus(), 300)
            .unwrap_err()
            .to_string();
        assert!(
            small.contains("too small") && small.contains("359"),
            "{small}"
        );
        let large = train_tokenizer(Splitting::Gpt2, corpus(), 2_000)
            .unwrap_err()
            .to_string();
        assert!(large.contains("the corpus gives"), "{large}");
    }

    #[test]
    fn pairs_are_replaced_from_left_to_right() {
        let mut ids = vec![1, 1, 1, 2, 1, 1];
        replace(&mut ids, (1, 1), 9);
        assert_eq!(ids, [9, 1, 2, 9]);
    }
}
