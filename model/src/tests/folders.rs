//! Policy folders: equal policies give equal bytes, and errors name the damage.

use std::collections::BTreeMap;
use std::path::Path;

use super::{SHAPES, fixtures, random_policy, tiny_policy};
use crate::{Device, Policy};

fn bytes(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

#[test]
fn save_and_load_give_the_same_policy_and_the_same_bytes() {
    for policy in [
        tiny_policy(),
        random_policy(SHAPES[1], 1),
        random_policy(SHAPES[5], 1),
    ] {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        policy.save(first.path()).unwrap();
        let loaded = Policy::load(first.path(), &Device::cpu()).unwrap();
        assert!(loaded.weights() == policy.weights());
        assert_eq!(loaded.config(), policy.config());
        assert_eq!(loaded.eos_ids(), policy.eos_ids());
        loaded.save(second.path()).unwrap();
        assert_eq!(bytes(first.path()), bytes(second.path()));
    }
    let saved = tempfile::tempdir().unwrap();
    tiny_policy().save(saved.path()).unwrap();
    let original = bytes(&fixtures().join("qwen2-tiny"));
    for (name, bytes) in bytes(saved.path()) {
        if name != "model.safetensors" && name != "config.json" {
            assert!(original[&name] == bytes, "{name} is kept byte by byte");
        }
    }
}

#[test]
fn damage_is_named_with_its_file_and_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let policy = random_policy(SHAPES[1], 2);
    let message = || {
        Policy::load(dir.path(), &Device::cpu())
            .unwrap_err()
            .to_string()
    };
    policy.save(dir.path()).unwrap();
    let path = dir.path().join("model.safetensors");
    let good = std::fs::read(&path).unwrap();

    // The last tensor's last number becomes NaN.
    let mut bad = good.clone();
    let end = bad.len();
    bad[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, &bad).unwrap();
    assert!(message().contains("not finite") && message().contains("model.safetensors"));

    std::fs::write(&path, &good[..good.len() / 2]).unwrap();
    assert!(message().contains("model.safetensors"));

    let renamed = String::from_utf8_lossy(&good[..20_000.min(good.len())])
        .find("model.norm.weight")
        .unwrap();
    let mut bad = good.clone();
    bad[renamed..renamed + 5].copy_from_slice(b"moxel");
    std::fs::write(&path, &bad).unwrap();
    assert!(message().contains("moxel.norm.weight"), "{}", message());

    std::fs::write(&path, &good).unwrap();
    let config = dir.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(
        &config,
        text.replace("\"intermediate_size\": 50", "\"intermediate_size\": 51"),
    )
    .unwrap();
    assert!(
        message().contains("mlp.") && message().contains("shape"),
        "{}",
        message()
    );
}

/// A tied model whose file holds a head as well: the same numbers are taken, others are refused.
#[test]
fn a_head_that_differs_from_what_it_is_tied_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    random_policy(SHAPES[1], 2).save(dir.path()).unwrap();
    let config = dir.path().join("config.json");
    let mut said: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    let path = dir.path().join("model.safetensors");
    let file = std::fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let embedding = tensors.tensor("model.embed_tokens.weight").unwrap();
    let mut other = embedding.data().to_vec();
    other[..4].copy_from_slice(&0.5_f32.to_le_bytes());
    said["tie_word_embeddings"] = true.into();
    std::fs::write(&config, said.to_string()).unwrap();
    for (head, fits) in [(embedding.data(), true), (other.as_slice(), false)] {
        let head = safetensors::tensor::TensorView::new(
            embedding.dtype(),
            embedding.shape().to_vec(),
            head,
        );
        let named = tensors.tensors().into_iter();
        let mut all: Vec<_> = named.filter(|(name, _)| name != "lm_head.weight").collect();
        all.push(("lm_head.weight".to_owned(), head.unwrap()));
        std::fs::write(&path, safetensors::serialize(all, None).unwrap()).unwrap();
        match (Policy::load(dir.path(), &Device::cpu()), fits) {
            (Ok(_), true) => {}
            (Err(e), false) => {
                let message = e.to_string();
                for word in [
                    "lm_head.weight",
                    "model.embed_tokens.weight",
                    "tie_word_embeddings",
                ] {
                    assert!(message.contains(word), "{message}");
                }
            }
            (read, _) => panic!("{fits}: {:?}", read.err()),
        }
    }
}

#[test]
fn what_a_folder_says_twice_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: serde_json::Value| {
        std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    };
    let policy = tiny_policy();
    let lines = || crate::said_twice(dir.path(), policy.tokenizer());
    assert!(lines().is_empty(), "a folder without files says nothing");
    use serde_json::json;
    write(
        "config.json",
        json!({"eos_token_id": 0, "max_position_embeddings": 512, "dtype": "bfloat16"}),
    );
    write("generation_config.json", json!({"eos_token_id": [0]}));
    write(
        "tokenizer_config.json",
        json!({"model_max_length": 1e30, "eos_token": "<|endoftext|>", "bos_token": null}),
    );
    write(
        "special_tokens_map.json",
        json!({"eos_token": {"content": "<|endoftext|>"}}),
    );
    let end = policy.tokenizer().token_to_id("<|endoftext|>").unwrap();
    write(
        "config.json",
        json!({"eos_token_id": end, "max_position_embeddings": 512, "dtype": "bfloat16"}),
    );
    write("generation_config.json", json!({"eos_token_id": [end]}));
    assert!(lines().is_empty(), "{:?}", lines());
    write(
        "config.json",
        json!({"eos_token_id": 9, "max_position_embeddings": 512, "dtype": "bfloat16", "torch_dtype": "float32"}),
    );
    write("generation_config.json", json!({"eos_token_id": [9, 10]}));
    write(
        "tokenizer_config.json",
        json!({"model_max_length": 128, "eos_token": "<|endoftext|>", "pad_token": "a"}),
    );
    write("special_tokens_map.json", json!({"pad_token": "b"}));
    let said = lines();
    for (line, words) in said.iter().zip([
        [
            "config.json says {9}",
            "{9, 10}",
            "generation_config.json counts",
        ],
        ["<|endoftext|>", "{9, 10}", "the chat template's own"],
        ["bfloat16", "float32", "type of the weights"],
        ["512", "128", "config.json counts"],
        ["pad_token", "\"b\"", "special_tokens_map.json counts"],
    ]) {
        for word in words {
            assert!(line.contains(word), "{word}: {line}");
        }
    }
    assert_eq!(said.len(), 5, "{said:?}");
}
