use super::*;
use crate::stages::testing::{fixture, plan, plan_of};

#[test]
fn preset_options_are_checked() {
    let plan = plan(&[]);
    for (path, part) in [
        ("tiny?width=3", "`width`"),
        ("tiny?hidden=zero", "hidden=zero"),
        ("tiny?layers=0", "layers=0"),
    ] {
        let message = preset(&plan, KEY, path, &Device::cpu())
            .err()
            .unwrap()
            .to_string();
        assert!(message.contains(part) && message.contains(KEY), "{message}");
    }
}

#[test]
fn a_preset_is_a_function_of_the_seed() {
    let bytes = |seed: u64| {
        let plan = plan(&[&format!("run.seed={seed}")]);
        let policy = preset(
            &plan,
            KEY,
            "tiny?hidden=32&layers=1&vocab=400",
            &Device::cpu(),
        )
        .unwrap()
        .unwrap();
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

/// The tokenizer of a seed trains on the same text whether or not the run plays the real table, and
/// on none of the table's own words.
#[test]
fn a_preset_never_sees_the_real_table() {
    const WORLDS: &str = "worlds: {task_name: textcraft, env_addr: \"builtin:worlds?depths=1-2\"}";
    let text = |address: &str| {
        let text = format!(
            "
data: {{tasks: [{{env: worlds, ids: 0..100}}], train_batch_size: 4}}
actor_rollout_ref:
  rollout: {{n: 2}}
  agentgym: {{task_name: textcraft, env_addr: \"{address}\", envs: {{{WORLDS}}}}}
"
        );
        corpus(&plan_of(&text, &[]), &tiny_text::chat(Default::default())).unwrap()
    };
    let alone = text("http://localhost:1");
    assert!(!alone.is_empty());
    assert!(alone == text("builtin"), "the table is part of the corpus");
    let seen: std::collections::BTreeSet<&str> = alone
        .iter()
        .flat_map(|line| line.split(|c: char| !c.is_alphabetic()))
        .collect();
    for word in ["planks", "pickaxe", "cobblestone", "trapdoor"] {
        assert!(!seen.contains(word), "the corpus shows `{word}`");
    }
    assert_ne!(alone, text("builtin:worlds?depths=3-3"));
}

/// Weights are always saved as float32, and `transformers` loads them with the dtype that
/// `config.json` states. Runs started before that keep their bytes.
#[test]
fn models_say_the_dtype_they_are_saved_with() {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture("qwen2-tiny")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let config = folder.path().join("config.json");
    let given = std::fs::read_to_string(&config).unwrap();
    assert!(given.contains("\"dtype\": \"float32\""));
    let given = given.replace("\"dtype\": \"float32\"", "\"dtype\": \"bfloat16\"");
    std::fs::write(&config, &given).unwrap();
    let path = folder.path().display().to_string();
    let saved = |format: u32| {
        let plan = plan(&[]).of_format(format);
        let policy = load(&plan, KEY, &path, &Device::cpu()).unwrap();
        let out = tempfile::tempdir().unwrap();
        policy.save(&out.path().join("policy")).unwrap();
        let critic = Critic::new(&policy).unwrap();
        critic.save(&out.path().join("critic")).unwrap();
        let critic = out.path().join("critic").display().to_string();
        let critic = named_critic(&plan, &critic, &policy, &Device::cpu()).unwrap();
        critic.save(&out.path().join("again")).unwrap();
        ["policy", "critic", "again"]
            .map(|name| std::fs::read_to_string(out.path().join(name).join("config.json")).unwrap())
    };
    let (old, new) = (saved(1), saved(2));
    assert!(
        old.iter()
            .all(|text| text.contains("\"dtype\": \"bfloat16\""))
    );
    for (old, new) in old.iter().zip(&new) {
        assert_eq!(old.replace("bfloat16", "float32"), *new);
    }
    // A critic's own folder is read in the same way.
    let of_older = tempfile::tempdir().unwrap();
    let plan = plan(&[]);
    let policy = Policy::load(folder.path(), &Device::cpu()).unwrap();
    Critic::new(&policy).unwrap().save(of_older.path()).unwrap();
    let path = of_older.path().display().to_string();
    let critic = named_critic(&plan, &path, &policy, &Device::cpu()).unwrap();
    critic.save(of_older.path()).unwrap();
    let text = std::fs::read_to_string(of_older.path().join("config.json")).unwrap();
    assert!(text.contains("\"dtype\": \"float32\""));
}
