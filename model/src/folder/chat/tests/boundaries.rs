//! Whether a template fits episodes, by the ids around replies: with a tokenizer that writes blanks as
//! letters of its words, as sentencepiece does, and with templates that trim, add and forget.

use super::{chat, fixture, user};
use crate::folder::chat::{Chat, Message, Role};
use crate::{PolicyText, Tokenizer};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;

/// A tokenizer of letters, each its own id, in which `▁` stands for a blank and begins every stretch
/// between special tokens, or the text alone with `first`.
fn pieces(first: bool) -> Tokenizer {
    let mut vocab =
        BTreeMap::from([("<unk>", 0), ("<s>", 1), ("</s>", 2)].map(|(k, v)| (k.to_owned(), v)));
    let letters = ('!'..='~').chain(['▁', '\n', 'é']);
    for (at, letter) in letters.enumerate() {
        vocab.insert(letter.to_string(), at + 3);
    }
    let special = ["<unk>", "<s>", "</s>"].map(|content| {
        json!({"id": vocab[content], "content": content, "special": true, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    });
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    let (normalizer, splits) = match first {
        true => (Json::Null, metaspace),
        false => (
            json!({"type": "Sequence", "normalizers": [prepend, replace]}),
            Json::Null,
        ),
    };
    let decoder = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
    ]});
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": special,
        "normalizer": normalizer, "pre_tokenizer": splits, "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": vocab, "merges": []},
    });
    let files = BTreeMap::from([("tokenizer.json".to_owned(), file.to_string().into_bytes())]);
    Tokenizer::from_files(&files, Path::new("m")).unwrap()
}

fn spoken(template: &str) -> Chat {
    let named =
        [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    let path = "m/chat_template.jinja".into();
    Chat::new(template.to_owned(), named.into(), special.into(), path).unwrap()
}

/// Puts a blank before a reply, and trims it.
const BLANK: &str = "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}{{- '[Q] ' + m.content + ' [/Q]' }}{%- else %}{{- ' ' + m.content | trim + ' ' + eos_token }}{%- endif %}{%- endfor %}";

/// Headers in lines, as Zephyr's.
const LINES: &str = "{%- for m in messages %}{{- '[' + m.role + ']\\n' + m.content + eos_token + '\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '[assistant]\\n' }}{%- endif %}";

#[test]
fn blanks_that_a_template_adds_and_trims_play() {
    for first in [false, true] {
        let tokenizer = pieces(first);
        for template in [BLANK, LINES] {
            let chat = spoken(template);
            assert_eq!(chat.check(&tokenizer).unwrap(), Vec::<String>::new());
            // What is appended is what stands there in the whole conversation.
            let messages = [user("a"), Message::new(Role::Assistant, "b c"), user("d")];
            let whole = chat.prompt_ids(&tokenizer, &messages).unwrap();
            let end = chat.end_of_turn_id(&tokenizer).unwrap();
            let after = chat.observation_ids(&tokenizer, true, "d").unwrap();
            let at = whole.len() - after.len();
            assert_eq!(whole[at..], after, "{first} {template}");
            assert_eq!(whole[at - 1], end);
            let forced = chat.observation_ids(&tokenizer, false, "d").unwrap();
            assert!(forced.ends_with(&after) && forced.contains(&end));
        }
    }
}

#[test]
fn what_is_not_a_blank_or_a_thought_is_refused_with_the_key_that_helps() {
    for (from, to) in [
        // Other words in replies, and all questions but the last one left out.
        ("m.content | trim", "m.content | replace('Action', 'Act')"),
        (
            "m.content + ' [/Q]'",
            "(m.content if loop.last else 'x') + ' [/Q]'",
        ),
    ] {
        let template = BLANK.replace(from, to);
        assert_ne!(template, BLANK);
        let message = spoken(&template)
            .check(&pieces(false))
            .unwrap_err()
            .to_string();
        for word in [
            "rewrites earlier turns",
            "rollout.history: as_sampled",
            "chat_template.jinja",
        ] {
            assert!(message.contains(word), "{message}");
        }
    }
}

#[test]
fn thoughts_that_are_forgotten_or_opened_are_said() {
    let tokenizer = fixture().1;
    let template = |opening: &str| {
        format!(
            "{{%- for m in messages %}}{{{{- '<|im_start|>' + m.role + '\\n' + (m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' else m.content) + '<|im_end|>\\n' }}}}{{%- endfor %}}{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n{opening}' }}}}{{%- endif %}}"
        )
    };
    for opening in ["", "<think>\\n", "<think>\\n\\n</think>\\n\\n"] {
        let said = chat(&template(opening)).check(&tokenizer).unwrap();
        assert!(
            said.len() == 1 && said[0].contains("thoughts of earlier replies"),
            "{said:?}"
        );
    }
    let other = chat(&template("Answer: "))
        .check(&tokenizer)
        .unwrap_err()
        .to_string();
    assert!(other.contains("rewrites earlier turns"), "{other}");
}

#[test]
fn every_end_of_a_folder_ends_a_reply_and_the_templates_own_closes_it() {
    let own = tempfile::tempdir().unwrap();
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
        "chat_template.jinja",
    ] {
        let from = super::fixtures().join(name);
        if from.exists() {
            std::fs::copy(from, own.path().join(name)).unwrap();
        }
    }
    let tokenizer = fixture().1;
    let [end, text_end] =
        ["<|im_end|>", "<|endoftext|>"].map(|token| tokenizer.token_to_id(token).unwrap());
    let said = json!({ "eos_token_id": [text_end] });
    std::fs::write(own.path().join("generation_config.json"), said.to_string()).unwrap();
    let text = PolicyText::load(own.path()).unwrap();
    assert_eq!(text.eos_ids(), [text_end, end]);
    assert!(text.closes(&[5, end]) && !text.closes(&[5, text_end]) && !text.closes(&[]));
}
