use super::*;
use crate::stages::testing::plan;

#[test]
fn a_hub_id_without_a_copy_names_the_command() {
    let message = local_folder(KEY, "No-Such-Owner/No-Such-Model-7B")
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("hf download No-Such-Owner/No-Such-Model-7B"),
        "{message}"
    );
    for path in ["/no/such/folder", "plain", "../up", "a/b/c"] {
        let message = local_folder(KEY, path).unwrap_err().to_string();
        assert!(
            message.contains(path) && !message.contains("hf download"),
            "{message}"
        );
    }
}

#[test]
fn preset_options_are_checked() {
    let plan = plan(&[]);
    for (path, part) in [
        ("tiny?width=3", "`width`"),
        ("tiny?hidden=zero", "hidden=zero"),
        ("tiny?layers=0", "layers=0"),
    ] {
        let message = preset(&plan, KEY, path).err().unwrap().to_string();
        assert!(message.contains(part) && message.contains(KEY), "{message}");
    }
}

#[test]
fn a_preset_is_a_function_of_the_seed() {
    let bytes = |seed: u64| {
        let plan = plan(&[&format!("run.seed={seed}")]);
        let policy = preset(&plan, KEY, "tiny?hidden=32&layers=1&vocab=400").unwrap();
        policy.chat().check(policy.tokenizer()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        policy.save(folder.path()).unwrap();
        ["model.safetensors", "tokenizer.json"]
            .map(|name| std::fs::read(folder.path().join(name)).unwrap())
    };
    let (first, again, other) = (bytes(3), bytes(3), bytes(4));
    assert!(first == again);
    assert!(first[0] != other[0], "another seed, other weights");
}
