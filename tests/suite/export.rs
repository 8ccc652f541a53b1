//! An export is sufficient without this program: the real command exports a real run, and then only
//! the exported files are used. Advantages and update are recomputed from them, and another
//! library's Qwen2 reads the policies.

mod advantages;
mod layout;
mod lessons;
mod qwen2;
mod recompute;
mod saved;
mod supervised;
mod update;

use agentgym_tests::program::{finish, program};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Starts from the base model, sampled at a high temperature, because a group in which no or all
/// episodes succeed has no advantage. Every term of the loss and of the optimizer is active: two
/// epochs with a narrow clip, entropy, divergence from the reference, a temperature, decay, clipped
/// gradients.
const RUN: &str = "
run: {id: exported, seed: 3}
actor_rollout_ref:
  model: {path: models/base}
  actor:
    ppo_mini_batch_size: 2
    ppo_epochs: 2
    clip_ratio_low: 0.01
    clip_ratio_high: 0.02
    entropy_coeff: 0.01
    use_kl_loss: true
    kl_loss_coef: 0.1
    loss_agg_mode: seq_mean_token_mean
    grad_clip: 0.2
    optim: {lr: 3.0e-4, betas: [0.9, 0.95], weight_decay: 0.1}
  rollout: {n: 3, temperature: 1.3, max_tokens: 48, max_model_len: 1024}
  agentgym: {env_addr: 'builtin:worlds?depths=1-1&lines=4-5'}
data:
  train_batch_size: 4
  max_prompt_length: 512
  max_response_length: 512
  tasks: [{env: textcraft, ids: 0..100}]
algorithm: {rounds_ctrl: {rounds: 6}}
trainer: {total_training_steps: 2}
";

/// The second iteration of a run, exported; its update continues with an existing optimizer state.
struct Exported {
    _scratch: TempDir,
    folder: PathBuf,
}

impl Exported {
    /// Exports the run above with other settings: `key=value`, separated by spaces.
    fn make(overrides: &str) -> Self {
        let overrides: Vec<&str> = overrides.split_whitespace().collect();
        Self::of(2, &overrides, &[])
    }

    /// Exports another iteration, with arguments for the export.
    fn of(iteration: u32, overrides: &[&str], words: &[&str]) -> Self {
        let scratch = TempDir::new().unwrap();
        let (config, store) = (
            scratch.path().join("run.yaml"),
            scratch.path().join("store"),
        );
        let folder = scratch.path().join("exported");
        std::fs::write(&config, RUN).unwrap();
        let mut submit = program("agentgym-submit");
        submit
            .arg(&config)
            .arg("--quiet")
            .arg("--store")
            .arg(&store)
            .args(overrides);
        succeed(submit);
        let mut export = program("agentgym-submit");
        export.args([
            "export",
            "exported",
            "--iteration",
            &iteration.to_string(),
            "--to",
        ]);
        export.arg(&folder).args(words).arg("--store").arg(&store);
        succeed(export);
        // Ensures that later steps cannot read the store.
        std::fs::remove_dir_all(&store).unwrap();
        Self {
            _scratch: scratch,
            folder,
        }
    }
}

fn succeed(command: Command) {
    let output = finish(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

fn json_of(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn lines_of(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
