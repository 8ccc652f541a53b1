//! Exports in bf16 and in shards: another library reads from them the rounded numbers of an exact
//! export, a run starts from them, and what an update is recomputed from stays exact.

use super::{Exported, json_of, lines_of};
use candle_core::{DType, Device, Tensor};
use std::collections::HashMap;
use std::path::Path;

type Tensors = HashMap<String, Tensor>;

/// All tensors of a folder, by the other library.
fn tensors(folder: &Path) -> Tensors {
    let mut all = Tensors::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "safetensors") {
            let some = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
            for (name, tensor) in some {
                assert!(all.insert(name, tensor).is_none());
            }
        }
    }
    all
}

fn numbers(tensor: &Tensor, dtype: DType) -> Vec<u32> {
    let tensor = tensor.to_dtype(dtype).unwrap();
    let tensor = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
    let numbers = tensor.to_vec1::<f32>().unwrap();
    numbers.into_iter().map(f32::to_bits).collect()
}

/// `saved` holds the tensors of `exact`, rounded to bf16 and kept as `kept`.
fn assert_rounded(exact: &Path, saved: &Path, kept: DType) {
    let (exact, saved) = (tensors(exact), tensors(saved));
    assert!(!exact.is_empty());
    assert_eq!(exact.len(), saved.len());
    for (name, tensor) in &exact {
        let found = &saved[name];
        assert_eq!(
            (found.dtype(), found.dims()),
            (kept, tensor.dims()),
            "{name}"
        );
        assert!(
            numbers(found, DType::F32) == numbers(tensor, DType::BF16),
            "{name}"
        );
    }
}

fn same_file(exact: &Path, saved: &Path, name: &str) {
    let bytes = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
    assert!(bytes(exact) == bytes(saved), "{name}");
}

#[test]
fn an_export_in_bf16_and_shards_is_the_same_policy_and_can_be_trained() {
    let exact = Exported::make("algorithm.adv_estimator=gae");
    let saved = Exported::of(
        2,
        &["algorithm.adv_estimator=gae", "trainer.save_dtype=bf16"],
        &["--shard-size", "300KB", "--optimizer"],
    );
    for name in [
        "policy_before",
        "policy_after",
        "critic_before",
        "critic_after",
    ] {
        let (exact, saved) = (exact.folder.join(name), saved.folder.join(name));
        assert_rounded(&exact, &saved, DType::BF16);
        let index = json_of(&saved.join("model.safetensors.index.json"));
        for (tensor, file) in index["weight_map"].as_object().unwrap() {
            let path = saved.join(file.as_str().unwrap());
            let size = std::fs::metadata(&path).unwrap().len();
            let own = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
            assert!(own.contains_key(tensor), "{tensor} in {file}");
            // The header comes in addition, and a larger tensor is alone.
            assert!(size < 310_000 || own.len() == 1, "{file}: {size}");
        }
        assert_eq!(
            json_of(&saved.join("config.json"))["torch_dtype"],
            "bfloat16"
        );
        assert!(!saved.join("model.safetensors").exists());
    }
    for name in ["tokenizer.json", "chat_template.jinja"] {
        let place = Path::new("policy_after").join(name);
        same_file(&exact.folder, &saved.folder, &place.to_string_lossy());
    }
    // What was recorded is that of the exact policies; optimizer states are exact.
    same_file(&exact.folder, &saved.folder, "trajectories.jsonl");
    same_file(&exact.folder, &saved.folder, "update.json");
    for model in ["", "critic_"] {
        let state = |when: &str| format!("{model}optimizer_{when}/state.safetensors");
        same_file(&exact.folder, &saved.folder, &state("before"));
        assert!(!exact.folder.join(state("after")).exists());
        let tensors = tensors(&saved.folder.join(format!("{model}optimizer_after")));
        assert!(tensors.keys().any(|name| name.starts_with("exp_avg.")));
        assert!(tensors.values().all(|tensor| tensor.dtype() == DType::F32));
    }
    let said = |e: &Exported| json_of(&e.folder.join("export.json"))["save_dtype"].clone();
    assert_eq!((said(&exact), said(&saved)), ("f32".into(), "bf16".into()));

    // A run that starts from it begins with the rounded numbers, in f32.
    let path = saved.folder.join("policy_after");
    let path = format!("actor_rollout_ref.model.path={}", path.display());
    let again = Exported::of(0, &[&path, "trainer.total_training_steps=1"], &[]);
    let (exact, again) = (
        exact.folder.join("policy_after"),
        again.folder.join("policy_after"),
    );
    assert_rounded(&exact, &again, DType::F32);
    assert_eq!(
        json_of(&again.join("config.json"))["torch_dtype"],
        "float32"
    );
}

#[test]
fn an_adapter_is_merged_exactly_and_then_rounded() {
    let lora = "actor_rollout_ref.model.lora_rank=2";
    let exact = Exported::make(lora);
    let saved = Exported::of(2, &[lora], &["--dtype", "bf16", "--optimizer"]);
    let (before, after) = (
        exact.folder.join("policy_after"),
        saved.folder.join("policy_after"),
    );
    assert_rounded(&before, &after, DType::BF16);
    same_file(
        &exact.folder,
        &saved.folder,
        "adapter_after/adapter_model.safetensors",
    );
    assert!(
        saved
            .folder
            .join("optimizer_after/state.safetensors")
            .exists()
    );
    assert_eq!(lines_of(&saved.folder.join("trajectories.jsonl")).len(), 12);
    let names = std::fs::read_dir(&saved.folder).unwrap();
    let left = names.filter(|e| {
        e.as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains("exact")
    });
    assert_eq!(left.count(), 0);
}
