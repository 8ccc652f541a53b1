//! Every family against transformers (tools/candle_fixtures.py), and what is refused.

use super::*;
use crate::{CANDLE_FAMILIES, Dtype, Sampling};
use serde_json::{Value, json};

const FILES: [&str; 3] = ["llama-gguf", "phi3-gguf", "llama-q8-gguf"];

fn fixture(name: &str) -> PathBuf {
    let default = || concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures").to_owned();
    let fixtures = std::env::var("AGENTGYM_FIXTURES").unwrap_or_else(|_| default());
    Path::new(&fixtures).join("candle").join(name)
}

/// The processor. If `AGENTGYM_TEST_GPU` is a number, that GPU instead (`scripts/gpu-check.sh candle`).
fn device() -> Device {
    let number = std::env::var("AGENTGYM_TEST_GPU");
    let name = number.map_or("cpu".to_owned(), |number| format!("cuda:{number}"));
    Device::parse(&name, Dtype::F32).unwrap()
}

fn expected(name: &str) -> Value {
    let text = std::fs::read(fixture(name).join("expected.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

fn request(known: &[u32], tokens_max: usize, greedy: bool) -> GenerationRequest {
    GenerationRequest {
        sequence: 0,
        append: known.to_vec(),
        stream: [3; 32],
        turn: 1,
        sampling: Sampling {
            greedy,
            ..Sampling::default()
        },
        tokens_max,
        stop_ids: Vec::new(),
    }
}

fn said(
    conversation: &mut Conversation,
    request: &GenerationRequest,
    sampled: &[bool],
) -> Generation {
    let said = conversation.turn(request, sampled, || true).unwrap();
    said.unwrap()
}

#[test]
fn greedy_ids_and_logits_are_those_of_transformers() {
    for name in CANDLE_FAMILIES.into_iter().chain(FILES) {
        let expected = expected(name);
        let policy = Arc::new(ForeignPolicy::load(&fixture(name), 512, &device()).unwrap());
        let first = ids(&expected["turns"][0]["known"]);
        let logits = policy.begin().append(&first).unwrap();
        let wanted: Vec<f32> = serde_json::from_value(expected["logits"].clone()).unwrap();
        let far = logits
            .iter()
            .zip(&wanted)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        // Products of quantised weights round what they are multiplied with, too.
        let quantised = name.contains("q8");
        assert!(far < if quantised { 0.3 } else { 1e-3 }, "{name}: {far}");
        if quantised {
            continue;
        }
        let mut conversation = policy.begin();
        let (mut known, mut sampled) = (Vec::new(), Vec::new());
        for (at, turn) in expected["turns"].as_array().unwrap().iter().enumerate() {
            let (new, greedy) = (ids(&turn["known"]), ids(&turn["greedy"]));
            known.extend_from_slice(&new);
            sampled.resize(known.len(), false);
            let said = said(
                &mut conversation,
                &request(&known, greedy.len(), true),
                &sampled,
            );
            assert_eq!(said.token_ids, greedy, "{name}, turn {at}");
            known.extend(greedy);
            sampled.resize(known.len(), true);
        }
    }
}

/// A killed part's next attempt gives recorded ids at once; the bits must not tell.
#[test]
fn a_conversation_that_is_taken_up_has_the_bits_that_it_had() {
    for name in CANDLE_FAMILIES.into_iter().chain(FILES) {
        let policy = Arc::new(ForeignPolicy::load(&fixture(name), 512, &device()).unwrap());
        let (mut known, mut sampled) = (Vec::new(), Vec::new());
        let mut going_on = policy.begin();
        for turn in 0..4 {
            known.extend((0..30).map(|n| 3 + (n * 7 + turn * 11) % 377));
            sampled.resize(known.len(), false);
            let request = request(&known, 9, false);
            let here = said(&mut going_on, &request, &sampled);
            assert_eq!(
                said(&mut policy.begin(), &request, &sampled),
                here,
                "{name}, turn {turn}"
            );
            // Another conversation meanwhile is another cache.
            said(
                &mut policy.begin(),
                &super::tests::request(&known[..9], 3, false),
                &sampled[..9],
            );
            known.extend(here.token_ids);
            sampled.resize(known.len(), true);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_on_which_candle_does_not_compute_is_named() {
    use crate::gpu::emulator::{Order, emulated};
    let folder = fixture("phi3");
    let refused = |device: &Device| ForeignPolicy::load(&folder, 64, device).unwrap_err();
    let vectors = Device::cpu_bf16();
    let bf16 = refused(&vectors).to_string();
    assert!(
        bf16.contains("--dtype f32") && bf16.contains("phi3"),
        "{bf16}"
    );
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let gpu = Device::of(emulated(Order::Ascending, dtype));
        let said = match ForeignPolicy::load(&folder, 64, &gpu) {
            Ok(_) => continue, // This machine has a GPU, and candle was built for it.
            Err(error) => error.to_string(),
        };
        let wanted = match dtype {
            Dtype::F32 => "--device cpu",
            Dtype::Bf16 => "--dtype f32",
        };
        assert!(said.contains(wanted), "{said}");
        let built = cfg!(feature = "candle-cuda") || dtype == Dtype::Bf16;
        assert_ne!(said.contains("the feature candle-cuda"), built, "{said}");
    }
}

#[test]
fn a_message_ends_with_a_stop_id_or_its_limit_and_may_be_given_up() {
    let policy = Arc::new(ForeignPolicy::load(&fixture("phi3"), 40, &device()).unwrap());
    assert_eq!(policy.text().eos_ids(), [2]);
    let known = [5; 30];
    let mut request = request(&known, 64, true);
    let whole = said(&mut policy.begin(), &request, &[false; 30]);
    assert_eq!(
        (whole.token_ids.len(), whole.finish),
        (10, FinishReason::Length),
        "the room is used up"
    );
    assert!(whole.log_probs.iter().all(|log_prob| *log_prob < 0.0));
    request.stop_ids = vec![whole.token_ids[2]];
    let ended = said(&mut policy.begin(), &request, &[false; 30]);
    assert_eq!(ended.finish, FinishReason::Eos);
    assert!(ended.token_ids.len() <= 3 && ended.token_ids.ends_with(&request.stop_ids));
    request.stop_ids.clear();
    let mut left = 5;
    let given_up = policy.begin().turn(&request, &[false; 30], || {
        left -= 1;
        left > 0
    });
    assert_eq!(given_up.unwrap(), None);
    request.append = vec![384; 30];
    let outside = policy
        .begin()
        .turn(&request, &[false; 30], || true)
        .unwrap_err();
    assert!(outside.to_string().contains("384 is outside"), "{outside}");
}

/// A copy of a fixture with a changed `config.json`; what loading it says.
fn refused(name: &str, change: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap().flatten() {
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    change(dir.path());
    ForeignPolicy::load(dir.path(), 64, &device())
        .unwrap_err()
        .to_string()
}

fn with(key: &str, value: Value) -> impl FnOnce(&Path) {
    move |dir| {
        let path = dir.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config[key] = value;
        std::fs::write(path, config.to_string()).unwrap();
    }
}

#[test]
fn what_candle_would_compute_otherwise_is_refused_by_name() {
    for (family, key, value, words) in [
        (
            "phi3",
            "model_type",
            json!("rwkv"),
            &["rwkv", "gemma2", "phi3", "qwen3", "mistral"][..],
        ),
        (
            "phi3",
            "rope_scaling",
            json!({"type": "longrope", "short_factor": []}),
            &["longrope"],
        ),
        (
            "gemma3_text",
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 8.0}),
            &["linear"],
        ),
        (
            "gemma2",
            "query_pre_attn_scalar",
            json!(144),
            &["query_pre_attn_scalar is 144", "8"],
        ),
        (
            "gemma",
            "tie_word_embeddings",
            json!(false),
            &["tie_word_embeddings"],
        ),
        (
            "gemma3_text",
            "use_bidirectional_attention",
            json!(true),
            &["use_bidirectional_attention"],
        ),
        (
            "gemma3_text",
            "layer_types",
            json!(["full_attention", "sliding_attention", "full_attention"]),
            &["layer_types"],
        ),
        (
            "qwen2_moe",
            "use_sliding_window",
            json!(true),
            &["use_sliding_window"],
        ),
        ("qwen2_moe", "qkv_bias", json!(false), &["qkv_bias"]),
        (
            "qwen3_moe",
            "mlp_only_layers",
            json!([1]),
            &["mlp_only_layers"],
        ),
        (
            "phi3",
            "quantization_config",
            json!({"bits": 4}),
            &["quantization_config"],
        ),
        (
            "phi3",
            "num_attention_heads",
            json!(0),
            &["num_attention_heads", "config.json"],
        ),
        (
            "phi3",
            "vocab_size",
            json!(1u64 << 30),
            &["vocab_size", "beyond"],
        ),
        (
            "phi3",
            "hidden_act",
            json!("nonsense"),
            &["nonsense", "config.json"],
        ),
        ("phi3", "vocab_size", json!(100), &["360 ids", "only 100"]),
        // Candle's own message, with the file.
        (
            "phi3",
            "num_hidden_layers",
            json!(3),
            &["model.safetensors", "layers.2", "copy the folder"],
        ),
        (
            "gemma",
            "intermediate_size",
            json!(34),
            &["model.safetensors", "shape", "34"],
        ),
        (
            "phi3",
            "max_position_embeddings",
            json!(63),
            &["63", "max_model_len=63", "max_position_embeddings of"],
        ),
        (
            "phi3",
            "sliding_window",
            json!(40),
            &["sliding_window of", "max_model_len=40"],
        ),
        ("gemma2", "sliding_window", json!(50), &["max_model_len=50"]),
    ] {
        let said = refused(family, with(key, value));
        for word in words {
            assert!(said.contains(word), "{family} {key}: {said}");
        }
    }
}

#[test]
fn a_gguf_file_of_another_vocabulary_or_kind_is_refused() {
    let retokenized = |dir: &Path| {
        let path = dir.join("tokenizer.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
        let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let turned = vocabulary.clone();
        let (mut names, mut numbers): (Vec<_>, Vec<_>) = turned.into_iter().unzip();
        names.sort_by_key(String::len);
        numbers.sort_by_key(|id| std::cmp::Reverse(id.as_u64()));
        *vocabulary = names.into_iter().zip(numbers).collect();
        tokenizer["model"]["merges"] = json!([]);
        std::fs::write(path, tokenizer.to_string()).unwrap();
    };
    let said = refused("phi3-gguf", retokenized);
    for word in [
        "model.gguf",
        "tokenizer.json",
        "360 ids",
        "spelled otherwise",
        "the first is",
    ] {
        assert!(said.contains(word), "{said}");
    }
    let renamed = |from: &'static [u8], to: &'static [u8]| {
        move |dir: &Path| {
            let path = dir.join("model.gguf");
            let mut bytes = std::fs::read(&path).unwrap();
            let at = bytes
                .windows(from.len())
                .position(|piece| piece == from)
                .unwrap();
            bytes[at..at + to.len()].copy_from_slice(to);
            std::fs::write(path, bytes).unwrap();
        }
    };
    let said = refused("phi3-gguf", renamed(b"phi3", b"rwkv"));
    assert!(
        said.contains("\"rwkv\"") && said.contains("llama, phi3, qwen3"),
        "{said}"
    );
    let said = refused("llama-gguf", renamed(b"blk.1.ffn_up", b"blk.9.ffn_up"));
    assert!(
        said.contains("blk.1.ffn_up") && said.contains("model.gguf"),
        "{said}"
    );
    let cut = |dir: &Path| {
        let path = dir.join("model.gguf");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    };
    let said = refused("llama-gguf", cut);
    assert!(
        said.contains("model.gguf") && said.contains("copy"),
        "{said}"
    );
    let two = |dir: &Path| {
        std::fs::copy(dir.join("model.gguf"), dir.join("other.gguf")).unwrap();
    };
    assert!(refused("llama-gguf", two).contains("several GGUF files"));
}

#[test]
fn headers_say_what_a_folder_holds() {
    for name in CANDLE_FAMILIES {
        let (found, _) = ForeignPolicy::check(&fixture(name), 3000).unwrap();
        assert_eq!((found.family, found.gguf), (name, false));
        assert!(found.parameters > 10_000, "{found:?}");
        let positions = if name == "gemma2" { 3000 } else { 4096 };
        assert_eq!(found.positions, positions);
        let files = [
            "config.json",
            "generation_config.json",
            "chat_template.jinja",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors",
        ];
        assert_eq!(found.files, files);
    }
    let (found, text) = ForeignPolicy::check(&fixture("llama-q8-gguf"), 1).unwrap();
    assert_eq!(
        (found.family, found.gguf, found.positions),
        ("llama", true, 2048)
    );
    assert_eq!(found.files.last().map(String::as_str), Some("model.gguf"));
    assert_eq!(text.eos_ids(), [2], "as the file says");
}
