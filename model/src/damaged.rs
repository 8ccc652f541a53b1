//! Damaged or malicious files of model folders: readers either refuse or read them, without a
//! panic or excessive memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::folder::chat::Chat;
use crate::folder::tensor_file::TensorFile;
use crate::mutations::survives;
use crate::{LoraOptions, Message, ModelConfig, Role, Tokenizer, parameter_shapes};
use serde_json::Value as Json;

fn fixtures() -> PathBuf {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures").to_owned();
    std::env::var("AGENTGYM_FIXTURES")
        .unwrap_or_else(|_| default())
        .into()
}

/// The file of this name from each of the small models.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/base");
    let folders = [fixtures().join("qwen2-tiny"), base];
    let files = folders
        .iter()
        .filter_map(|folder| std::fs::read(folder.join(name)).ok());
    let files: Vec<_> = files.filter(|bytes| bytes.len() < 1 << 20).collect();
    assert!(!files.is_empty(), "{name}");
    files
}

#[test]
fn configs() {
    let dir = tempfile::tempdir().unwrap();
    survives(
        "config.json",
        &corpus("config.json"),
        4000,
        64 << 20,
        |bytes| {
            std::fs::write(dir.path().join("config.json"), bytes).unwrap();
            if let Ok(config) = ModelConfig::load(dir.path()) {
                assert!(config.query_width() > 0 && config.rms_norm_eps.is_finite());
                parameter_shapes(&config);
            }
        },
    );
}

#[cfg(feature = "candle")]
#[test]
fn gguf_files_and_configs_for_candle() {
    for (folder, name, cases) in [
        ("phi3-gguf", "model.gguf", 300),
        ("llama-q8-gguf", "model.gguf", 300),
        ("gemma3_text", "config.json", 600),
        ("qwen3_moe", "config.json", 600),
    ] {
        let from = fixtures().join("candle").join(folder);
        let dir = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&from).unwrap().flatten() {
            std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
        }
        let corpus = [std::fs::read(from.join(name)).unwrap()];
        survives(folder, &corpus, cases, 64 << 20, |bytes| {
            std::fs::write(dir.path().join(name), bytes).unwrap();
            if let Ok(policy) = crate::ForeignPolicy::load(dir.path(), 64, &crate::Device::cpu()) {
                assert!(policy.text().vocab_size() > 0);
            }
        });
    }
}

#[test]
fn gguf_files_to_import() {
    let sketch = crate::gguf::tests::Sketch::of(&crate::tests::tiny_policy());
    let dir = tempfile::tempdir().unwrap();
    let (file, to) = (dir.path().join("m.gguf"), dir.path().join("to"));
    let mut imported = 0;
    survives("m.gguf", &[sketch.bytes()], 600, 64 << 20, |bytes| {
        std::fs::write(&file, bytes).unwrap();
        if crate::gguf::import(&file, &to, crate::Dtype::F32, &mut |_, _| ()).is_ok() {
            imported += 1;
            std::fs::remove_dir_all(&to).unwrap();
        }
    });
    assert!(imported > 10, "{imported}");
}

#[test]
fn adapter_configs() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = [std::fs::read(fixtures().join("lora-tiny/adapter_config.json")).unwrap()];
    survives("adapter_config.json", &corpus, 2000, 8 << 20, |bytes| {
        std::fs::write(dir.path().join("adapter_config.json"), bytes).unwrap();
        if let Ok(options) = LoraOptions::load(dir.path()) {
            assert!(options.rank() > 0 && options.scale().is_finite());
        }
    });
}

#[test]
fn tensor_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let mut corpus = corpus("model.safetensors");
    // A small file, whose header is damaged more often.
    let header = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]}}"#;
    let mut small = (header.len() as u64).to_le_bytes().to_vec();
    small.extend(header);
    small.extend([0; 24]);
    corpus.resize(8, small);
    survives("model.safetensors", &corpus, 4000, 16 << 20, |bytes| {
        std::fs::write(&path, bytes).unwrap();
        if let Ok(file) = TensorFile::open(&path) {
            for name in file.names() {
                // No more is read than the file has.
                let read = file.read(&name).map_or(0, |tensor| tensor.len());
                assert!(read <= bytes.len());
                file.info(&name);
            }
        }
    });
}

/// Tokenizers and templates: the libraries' readers and our code around them.
#[test]
fn tokenizers_and_templates() {
    let at = Path::new("damaged");
    let files = |name: &str, bytes: &[u8]| BTreeMap::from([(name.to_owned(), bytes.to_vec())]);
    survives(
        "tokenizer.json",
        &corpus("tokenizer.json"),
        1500,
        256 << 20,
        |bytes| {
            if let Ok(tokenizer) = Tokenizer::from_files(&files("tokenizer.json", bytes), at) {
                let _ = tokenizer.encode_ordinary("Craft 3 planks.\n<|im_end|> é");
            }
            let mut both = files("tokenizer.json", bytes);
            both.insert("chat_template.jinja".to_owned(), b"{{ messages }}".to_vec());
            let _ = Chat::from_files(&both, at);
        },
    );
    let tokenizer = &corpus("tokenizer.json")[0];
    let encoder = Tokenizer::from_files(&files("tokenizer.json", tokenizer), at).unwrap();
    let messages = [
        (Role::User, "Craft 3 planks.\n<|im_end|> é"),
        (Role::Assistant, "ok"),
    ]
    .map(|(role, content)| Message::new(role, content));
    let templates = corpus("chat_template.jinja");
    let mut configs = corpus("tokenizer_config.json");
    for (config, template) in configs.iter_mut().zip(&templates) {
        let mut read: Json = serde_json::from_slice(config).unwrap();
        read["chat_template"] = String::from_utf8(template.clone()).unwrap().into();
        *config = serde_json::to_vec(&read).unwrap();
    }
    for (name, corpus) in [
        ("chat_template.jinja", templates),
        ("tokenizer_config.json", configs),
    ] {
        let mut rendered = 0;
        survives(name, &corpus, 2000, 64 << 20, |bytes| {
            let mut files = files(name, bytes);
            files.insert("tokenizer.json".to_owned(), tokenizer.clone());
            let Ok(Some(chat)) = Chat::from_files(&files, at) else {
                return;
            };
            rendered += usize::from(chat.prompt_ids(&encoder, &messages).is_ok());
            if chat.bridge().is_ok() {
                let _ = chat.observation_ids(&encoder, true, "You see <|im_start|>.");
            }
        });
        assert!(rendered > 100, "{rendered} of {name}");
    }
}
