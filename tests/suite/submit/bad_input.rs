//! Each kind of bad input ends with its own exit code and a message that says what to do.

use super::*;

#[tokio::test]
async fn a_damaged_artifact_is_named_and_ends_with_the_store_code() {
    let scene = Scene::new().await;
    scene.finish().await;
    let view = scene.view().await;
    let manifest = view.committed(id(1, Stage::Rollout)).await.unwrap();
    let key = manifest.outputs[0].key.path();
    let file = scene.store_path().join(&key);
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let error = scene
        .command("inspect handmade 1 rollout 0")
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Store);
    assert!(error.to_string().contains(&key), "{error}");
}

#[tokio::test]
async fn bad_input_ends_with_a_message_and_a_code() {
    let scene = Scene::new().await;
    let config = scene.dir.path().join("x.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let run = config.display();
    let cases: &[(&str, String, Exit, &str)] = &[
        (
            "misspelt key",
            format!("plan {run} actor_rollout_ref.rollout.temprature=1"),
            Exit::Config,
            "temperature",
        ),
        (
            "wrong type",
            format!("plan {run} data.train_batch_size=many"),
            Exit::Config,
            "data.train_batch_size",
        ),
        (
            "bad arithmetic",
            format!("plan {run} actor_rollout_ref.actor.ppo_mini_batch_size=3"),
            Exit::Config,
            "does not divide",
        ),
        (
            "missing file",
            format!("plan {run}.missing"),
            Exit::Config,
            "cannot read",
        ),
        (
            "model not here",
            format!("{run} run.id=m actor_rollout_ref.model.path=org/none"),
            Exit::Config,
            "hf download org/none",
        ),
        (
            "unknown tiny option",
            format!("{run} run.id=m actor_rollout_ref.model.path=tiny?size=3"),
            Exit::Config,
            "no option `size`",
        ),
        (
            "no such module",
            format!(
                "plan {run} actor_rollout_ref.model.lora_rank=4 actor_rollout_ref.model.target_modules=qproj"
            ),
            Exit::Config,
            "gate_proj",
        ),
        (
            "negative rank",
            format!("plan {run} actor_rollout_ref.model.lora_rank=-4"),
            Exit::Config,
            "lora_rank",
        ),
        (
            "no adapter there",
            format!("{run} run.id=m actor_rollout_ref.model.lora_adapter_path=org/none"),
            Exit::Config,
            "hf download org/none",
        ),
        (
            "no adapter to export",
            "export handmade --iteration 0 --to nowhere --adapter".into(),
            Exit::Config,
            "trains no adapter",
        ),
        (
            "identity conflict",
            format!("{run} run.seed=2"),
            Exit::Run,
            "run.seed",
        ),
        ("unknown run", "status nobody".into(), Exit::Run, "handmade"),
        ("unknown run", "resume nobody".into(), Exit::Run, "handmade"),
        (
            "identity on resume",
            "resume handmade run.seed=2".into(),
            Exit::Run,
            "run.seed",
        ),
        (
            "no such iteration",
            "inspect handmade 9".into(),
            Exit::Run,
            "0 to 1",
        ),
        (
            "no such stage",
            "inspect handmade 1 rolout".into(),
            Exit::Run,
            "rollout",
        ),
        (
            "stage elsewhere",
            "inspect handmade 0 rollout".into(),
            Exit::Run,
            "it has init",
        ),
        (
            "no such part",
            "inspect handmade 1 rollout 7".into(),
            Exit::Run,
            "parts 0 to 0",
        ),
        (
            "not committed",
            "inspect handmade 1 rollout 0".into(),
            Exit::Run,
            "not committed yet",
        ),
        (
            "not committed",
            format!("export handmade --iteration 1 --to {run}.d"),
            Exit::Run,
            "not committed yet",
        ),
        (
            "environment away",
            format!("{run} actor_rollout_ref.agentgym.env_addr=http://127.0.0.1:9"),
            Exit::Unreachable,
            "http://127.0.0.1:9",
        ),
        (
            "an address of another environment",
            format!("{run} run.id=maze actor_rollout_ref.agentgym.env_addr=builtin:maze"),
            Exit::Config,
            "serves maze, but task_name is textcraft",
        ),
    ];
    for (what, line, exit, says) in cases {
        let error = scene.command(line).await.expect_err(what);
        assert_eq!(error.exit(), *exit, "{what}: {error}");
        assert!(error.to_string().contains(says), "{what}: {error}");
        let text = error.to_string();
        assert!(
            !text.contains("Error {") && text.lines().count() <= 3,
            "{what}: {text}"
        );
    }
    let nowhere = command("status --store /no/such/store").await.unwrap_err();
    assert_eq!(nowhere.exit(), Exit::Run);
}
