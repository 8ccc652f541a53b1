//! A small run from its config to its digest, then resumed, and with other bindings.

use super::*;

/// Small enough for a few seconds, but with every stage.
const TINY_RUN: &str = "
actor_rollout_ref:
  model: {path: 'tiny?hidden=32&heads=2&kv_heads=1&layers=1&intermediate=64&vocab=400'}
  actor: {ppo_mini_batch_size: 1, optim: {lr: 1e-3}}
  rollout: {n: 2, max_tokens: 8, max_model_len: 768}
  agentgym: {env_addr: 'builtin:worlds?depths=1-1'}
data:
  train_batch_size: 2
  max_prompt_length: 512
  max_response_length: 256
  tasks: [{env: textcraft, ids: 0..8}]
algorithm: {rounds_ctrl: {rounds: 2}}
sft: {steps: 2, batch_size: 2, sources: [{env: textcraft, ids: 100..120}]}
evaluation: {samples: 1, max_rounds: 2, sets: [{name: easy, env: textcraft, ids: 200..202}]}
trainer: {total_training_steps: 2}
jobs: {rollout_part_tasks: 1, threads: 1}
";

fn line(dir: &Path) -> String {
    let config = dir.join("tiny.yaml");
    std::fs::write(&config, TINY_RUN).unwrap();
    format!(
        "{} run.id=tiny --quiet --store {}",
        config.display(),
        dir.join("store").display()
    )
}

/// Makes the run in `dir`; returns its store's folder.
pub(super) async fn made(dir: &Path) -> PathBuf {
    command(&line(dir)).await.unwrap();
    dir.join("store")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_from_its_config_to_its_digest_and_again_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let line = line(dir.path());
    let store_path = made(dir.path()).await;
    let store = Store::open(&store_path.display().to_string())
        .await
        .unwrap();
    let view = RunView::open(&store, "tiny").await.unwrap();
    assert!(
        agentgym_submit::status::status(&view, None)
            .await
            .unwrap()
            .finished
    );
    let (digest, commits) = store.run_digest(&view.plan.run).await.unwrap();

    command(&line).await.unwrap();
    assert_eq!(
        store.run_digest(&view.plan.run).await.unwrap(),
        (digest, commits)
    );
    let attempts = store.all_attempts(&view.plan.run).await.unwrap();
    assert!(
        attempts.values().all(|a| a.len() == 1),
        "a part was made twice"
    );

    // A binding only changes the plan's revision.
    command(&format!(
        "resume tiny jobs.threads=2 --quiet --store {}",
        store_path.display()
    ))
    .await
    .unwrap();
    assert_eq!(
        RunView::open(&store, "tiny").await.unwrap().plan.revision,
        1
    );
    assert_eq!(store.run_digest(&view.plan.run).await.unwrap().0, digest);

    // The sampled log-probs equal the scored ones bit for bit on this machine.
    let manifest = view.committed(id(2, Stage::Advantage)).await.unwrap();
    let records = content(&view, &manifest, Filter::default()).await.unwrap();
    let records: Vec<Value> = records.documents().iter().map(|r| json!(r)).collect();
    assert_eq!(records.len(), 4);
    for sequence in records
        .iter()
        .flat_map(|r| r["sequences"].as_array().unwrap())
    {
        assert_eq!(sequence["sampled_log_probs"], sequence["old_log_probs"]);
    }
    let to = dir.path().join("out");
    let export = format!(
        "export tiny --iteration 2 --to {} --store {}",
        to.display(),
        store_path.display()
    );
    command(&export).await.unwrap();
    for name in [
        "policy_before/model.safetensors",
        "policy_after/model.safetensors",
        "optimizer_before",
    ] {
        assert!(to.join(name).exists(), "{name}");
    }
}
