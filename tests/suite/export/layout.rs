//! Exported policies are Hugging Face folders: files, config fields, tensor names and shapes are
//! those of `transformers`' Qwen2, and another library's Qwen2 computes the log-probs that the run
//! recorded.

use super::Exported;
use agentgym_model::{ComputeOptions, Device, Policy, ScoreRequest, score};
use candle_core::{D, DType, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::qwen2::{Config, ModelForCausalLM};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FILES: [&str; 6] = [
    "chat_template.jinja",
    "config.json",
    "made.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Tolerance between two f32 implementations, in nats.
const LOG_PROB_ERROR_MAX: f32 = 1e-4;

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Names and shapes of `transformers.Qwen2ForCausalLM.state_dict()`.
fn state_dict(config: &Value) -> BTreeMap<String, Vec<usize>> {
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let (hidden, inner) = (size("hidden_size"), size("intermediate_size"));
    let kv = hidden / size("num_attention_heads") * size("num_key_value_heads");
    let embedding = vec![size("vocab_size"), hidden];
    let mut shapes = BTreeMap::from([
        ("model.embed_tokens.weight".to_owned(), embedding.clone()),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ]);
    // A tied head is the embedding and is not stored.
    if config["tie_word_embeddings"] != true {
        shapes.insert("lm_head.weight".to_owned(), embedding);
    }
    for layer in 0..size("num_hidden_layers") {
        for (name, shape) in [
            ("self_attn.q_proj.weight", vec![hidden, hidden]),
            ("self_attn.q_proj.bias", vec![hidden]),
            ("self_attn.k_proj.weight", vec![kv, hidden]),
            ("self_attn.k_proj.bias", vec![kv]),
            ("self_attn.v_proj.weight", vec![kv, hidden]),
            ("self_attn.v_proj.bias", vec![kv]),
            ("self_attn.o_proj.weight", vec![hidden, hidden]),
            ("mlp.gate_proj.weight", vec![inner, hidden]),
            ("mlp.up_proj.weight", vec![inner, hidden]),
            ("mlp.down_proj.weight", vec![hidden, inner]),
            ("input_layernorm.weight", vec![hidden]),
            ("post_attention_layernorm.weight", vec![hidden]),
        ] {
            shapes.insert(format!("model.layers.{layer}.{name}"), shape);
        }
    }
    shapes
}

/// Opens a folder with the other library's own reader of `config.json`.
fn other_library(folder: &Path) -> ModelForCausalLM {
    let mut config = json_of(&folder.join("config.json"));
    // Without a sliding window the other library still requires a number.
    config["sliding_window"] = config["max_position_embeddings"].clone();
    config["max_window_layers"] = config["num_hidden_layers"].clone();
    let config: Config = serde_json::from_value(config).unwrap();
    let device = candle_core::Device::Cpu;
    let weights = candle_core::safetensors::load(folder.join("model.safetensors"), &device);
    let weights = VarBuilder::from_tensors(weights.unwrap(), DType::F32, &device);
    ModelForCausalLM::new(&config, weights).unwrap()
}

/// Log-probs of tokens 1.., decoded one token at a time: the other library only returns the logits
/// of the last position.
fn log_probs(model: &mut ModelForCausalLM, ids: &[u32], temperature: f64) -> Vec<f32> {
    model.clear_kv_cache();
    let pairs = ids.windows(2).enumerate();
    pairs
        .map(|(position, pair)| {
            let input = Tensor::from_slice(&pair[..1], (1, 1), &candle_core::Device::Cpu).unwrap();
            let logits = model.forward(&input, position).unwrap();
            let logits = (logits.flatten_all().unwrap() / temperature).unwrap();
            let all = candle_nn::ops::log_softmax(&logits, D::Minus1).unwrap();
            let all: Vec<f32> = all.to_vec1().unwrap();
            all[pair[1] as usize]
        })
        .collect()
}

#[test]
fn exported_policies_are_hugging_face_folders_that_another_library_runs() {
    let exported = Exported::make("");
    let text = std::fs::read_to_string(exported.folder.join("trajectories.jsonl")).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let temperature = json_of(&exported.folder.join("export.json"))["temperature"]
        .as_f64()
        .unwrap();
    for name in ["policy_before", "policy_after"] {
        let folder = exported.folder.join(name);
        let files: BTreeSet<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(files.iter().eq(FILES.iter()), "{name} holds {files:?}");
        let config = json_of(&folder.join("config.json"));
        for (key, value) in [
            ("architectures", json!(["Qwen2ForCausalLM"])),
            ("model_type", json!("qwen2")),
            ("hidden_act", json!("silu")),
            ("torch_dtype", json!("float32")),
        ] {
            assert_eq!(config[key], value, "{name}: {key}");
        }
        let tensors = candle_core::safetensors::load(
            folder.join("model.safetensors"),
            &candle_core::Device::Cpu,
        );
        let shapes: BTreeMap<String, Vec<usize>> = tensors
            .unwrap()
            .into_iter()
            .map(|(name, tensor)| {
                assert_eq!(tensor.dtype(), DType::F32, "{name}");
                (name, tensor.dims().to_vec())
            })
            .collect();
        assert_eq!(shapes, state_dict(&config), "{name}");

        let mut other = other_library(&folder);
        let own = Policy::load(&folder, &Device::cpu()).unwrap();
        let mut largest = 0f32;
        for line in lines.iter().take(3) {
            let ids: Vec<u32> = serde_json::from_value(line["token_ids"].clone()).unwrap();
            let sampled: Vec<u8> = serde_json::from_value(line["loss_mask"].clone()).unwrap();
            let expected: Vec<f32> = if name == "policy_before" {
                serde_json::from_value(line["sampled_log_probs"].clone()).unwrap()
            } else {
                let mask: Vec<bool> = sampled.iter().map(|&bit| bit == 1).collect();
                let request = ScoreRequest {
                    token_ids: &ids,
                    loss_mask: &mask,
                };
                let options = ComputeOptions::default();
                let scores = score(&own, &[request], temperature, &options).unwrap();
                scores[0].log_probs.clone()
            };
            let found = log_probs(&mut other, &ids, temperature);
            let mut compared = 0;
            for token in (1..ids.len()).filter(|&token| sampled[token] == 1) {
                largest = largest.max((found[token - 1] - expected[token]).abs());
                compared += 1;
            }
            assert!(compared > 5, "{compared} sampled tokens");
        }
        println!("{name}: log-probs of another library differ by at most {largest:.1e}");
        assert!(largest < LOG_PROB_ERROR_MAX, "{name}: off by {largest}");
    }
}
