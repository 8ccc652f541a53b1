//! `check-model`: what is told of models that train, of other families, of critics and of folders in
//! which something is missing or damaged.

use agentgym_tests::program::{finish, program, workspace};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// The document, if one was printed; the exit code; the error's message.
fn check(folder: &Path) -> (Option<Value>, Option<i32>, String) {
    let mut command = program("agentgym-submit");
    command.args(["--json", "check-model"]).arg(folder);
    let output = finish(command);
    let document = match output.stdout.is_empty() {
        true => None,
        false => Some(serde_json::from_slice(&output.stdout).unwrap()),
    };
    let said = String::from_utf8(output.stderr).unwrap();
    let message = match serde_json::from_str::<Value>(said.trim()) {
        Ok(error) => error["error"]["message"].as_str().unwrap().to_owned(),
        Err(_) => said,
    };
    (document, output.status.code(), message)
}

/// A copy of the base model.
fn copy() -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(workspace().join("models/base")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

fn edit_config(folder: &Path, edit: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

fn supported(document: &Value) -> [bool; 4] {
    ["generate", "score", "train", "lora"]
        .map(|what| document["supported"][what].as_bool().unwrap())
}

#[test]
fn a_model_that_trains_is_told_with_its_memory() {
    let (document, code, message) = check(&workspace().join("models/base"));
    assert_eq!(code, Some(0), "{message}");
    let found = document.unwrap();
    assert_eq!(
        (&found["model_type"], &found["role"]),
        (&"qwen2".into(), &"policy".into())
    );
    assert_eq!(supported(&found), [true; 4]);
    assert_eq!(found["supported"]["tools"], false);
    let parameters = found["parameters"].as_u64().unwrap();
    assert_eq!(found["weights"]["numbers"]["F32"], parameters);
    assert_eq!(found["weights"]["bytes"], 4 * parameters);
    let least = found["memory"]["least_bytes"].as_array().unwrap();
    let of = |at: usize, what: &str| least[at][what].as_u64().unwrap();
    assert_eq!(of(0, "train"), 16 * parameters);
    for at in 0..3 {
        assert!(of(at, "generate") < of(at, "lora") && of(at, "lora") < of(at, "train"));
    }
    assert!(of(2, "generate") < of(1, "generate"), "bf16 takes less");
    let stages = |kind: &str, stage: &str| {
        let bytes = &found["memory"][kind][format!("{stage}_memory_bytes")];
        bytes.as_u64().unwrap()
    };
    assert!(stages("stages", "rollout") > 0);
    assert!(stages("stages", "update") > stages("lora_stages", "update"));

    let mut command = program("agentgym-submit");
    command.args(["check-model", "models/base"]);
    let screen = String::from_utf8(finish(command).stdout).unwrap();
    for word in [
        "qwen2, a policy",
        "generate, score, train, lora",
        "cuda bf16",
        "in rollout",
        "no tools",
        "tells the policy of no tools",
    ] {
        assert!(screen.contains(word), "{word}: {screen}");
    }
}

#[test]
fn other_families_are_told_with_those_that_train() {
    let folder = copy();
    edit_config(folder.path(), |config| {
        config["model_type"] = "gemma".into();
        config["architectures"] = serde_json::json!(["GemmaForCausalLM"]);
    });
    let (document, code, message) = check(folder.path());
    let found = document.unwrap();
    assert_eq!(code, Some(2));
    for word in ["gemma", "GemmaForCausalLM", "MistralForCausalLM"] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(supported(&found), [false; 4]);
    assert_eq!(found["families"].as_array().unwrap().len(), 4);
    assert_eq!(found["memory"], Value::Null);
    assert!(found["parameters"].as_u64().unwrap() > 100_000);
    assert_eq!(found["why_not"][0], message);
    assert!(found["sizes"]["num_hidden_layers"].as_u64().unwrap() > 0);
}

#[cfg(feature = "candle")]
#[test]
fn families_that_candle_evaluates_are_told_with_the_engine() {
    let fixtures = workspace().join("tests/fixtures/candle");
    for (name, family, gguf) in [
        ("phi3", "phi3", false),
        ("qwen3_moe", "qwen3_moe", false),
        ("llama-q8-gguf", "llama", true),
    ] {
        let (document, code, message) = check(&fixtures.join(name));
        assert_eq!(code, Some(0), "{message}");
        let found = document.unwrap();
        assert_eq!(supported(&found), [false; 4]);
        assert_eq!(found["supported"]["evaluate"], true);
        assert_eq!(found["candle"]["family"], family);
        assert_eq!(found["candle"]["gguf"], gguf);
        assert_eq!(found["parameters"], found["candle"]["parameters"]);
        assert!(!found["why_not"][0].as_str().unwrap().is_empty());
        let mut command = program("agentgym-submit");
        command.arg("check-model").arg(fixtures.join(name));
        let screen = String::from_utf8(finish(command).stdout).unwrap();
        assert!(
            screen.contains(family) && screen.contains("engine=candle"),
            "{screen}"
        );
    }
}

#[test]
fn what_is_missing_beside_the_weights_is_told() {
    for (file, word) in [
        ("tokenizer.json", "tokenizer.json is missing"),
        ("chat_template.jinja", "no chat template"),
    ] {
        let folder = copy();
        std::fs::remove_file(folder.path().join(file)).unwrap();
        let (document, code, message) = check(folder.path());
        assert_eq!(code, Some(2));
        assert!(message.contains(word), "{message}");
        let found = document.unwrap();
        assert_eq!(supported(&found), [false; 4], "{file}");
        assert_eq!(found["tokenizer_ids"].is_null(), file == "tokenizer.json");
        assert_eq!(found["chat_template"], false);
    }
}

type Damage = fn(&Path);

#[test]
fn a_damaged_folder_is_one_message_and_no_document() {
    let cases: [(Damage, &[&str]); 7] = [
        (
            |at| std::fs::remove_file(at.join("model.safetensors")).unwrap(),
            &["model.safetensors", "a model folder holds"],
        ),
        (
            |at| {
                let path = at.join("model.safetensors");
                let bytes = std::fs::read(&path).unwrap();
                std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            },
            &["model.safetensors", "was cut off"],
        ),
        (
            |at| {
                // A number that is not finite, which no header shows.
                let path = at.join("model.safetensors");
                let mut bytes = std::fs::read(&path).unwrap();
                let end = bytes.len();
                bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
                std::fs::write(path, bytes).unwrap();
            },
            &["model.safetensors", "not finite"],
        ),
        (
            |at| edit_config(at, |config| config["hidden_size"] = 64.into()),
            &["model.safetensors", "has shape"],
        ),
        (
            |at| std::fs::write(at.join("config.json"), "{").unwrap(),
            &["config.json"],
        ),
        (
            |at| std::fs::write(at.join("tokenizer.json"), "{}").unwrap(),
            &["tokenizer.json", "not a tokenizer"],
        ),
        (
            |at| std::fs::write(at.join("chat_template.jinja"), "{% if").unwrap(),
            &["chat_template.jinja"],
        ),
    ];
    for (at, (damage, words)) in cases.into_iter().enumerate() {
        let folder = copy();
        damage(folder.path());
        let (document, code, message) = check(folder.path());
        assert_eq!((document, code), (None, Some(2)), "{at}: {message}");
        for word in words {
            assert!(message.contains(word), "{at}: {word}: {message}");
        }
    }
}

#[test]
fn what_is_no_folder_is_told_what_to_give() {
    let scratch = TempDir::new().unwrap();
    let file = scratch.path().join("model-q4.gguf");
    std::fs::write(&file, "GGUF").unwrap();
    for (path, word) in [
        (file.as_path(), "is a GGUF file"),
        (scratch.path(), "holds model-q4.gguf"),
        (Path::new("/no/such/folder"), "there is no folder"),
        (Path::new("README.md"), "is a file"),
    ] {
        let (document, code, message) = check(path);
        assert_eq!((document, code), (None, Some(2)), "{message}");
        assert!(message.contains(word), "{message}");
    }
}
