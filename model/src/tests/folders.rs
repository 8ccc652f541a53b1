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
