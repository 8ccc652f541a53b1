//! Shared by the tests of the stages: plans from overrides, the fixture policy, and handmade
//! episodes.

use agentgym_jobs::config::ResolvedConfig;
use agentgym_jobs::episode::{Episode, Outcome, Sequence, Task};
use agentgym_jobs::plan::Plan;
use agentgym_model::{Device, Policy};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A plan of a small run with the given overrides.
pub(crate) fn plan(overrides: &[&str]) -> Plan {
    let text = "
data: {tasks: [{env: textcraft, ids: 0..100}], train_batch_size: 4}
actor_rollout_ref: {rollout: {n: 2}}
";
    plan_of(text, overrides)
}

/// The plan of a `run.yaml` with overrides.
pub(crate) fn plan_of(text: &str, overrides: &[&str]) -> Plan {
    agentgym_games::provide();
    let overrides: Vec<String> = overrides.iter().map(|o| (*o).to_owned()).collect();
    let config = ResolvedConfig::parse("test", Path::new("test.yaml"), text, &overrides).unwrap();
    Plan::new(config, Path::new(".")).unwrap()
}

/// A file or folder of the fixtures.
pub(crate) fn fixture(name: &str) -> PathBuf {
    std::env::var_os("AGENTGYM_FIXTURES")
        .map_or_else(
            || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures")),
            PathBuf::from,
        )
        .join(name)
}

/// The fixture policy.
pub(crate) fn policy() -> Arc<Policy> {
    Arc::new(Policy::load(&fixture("qwen2-tiny"), &Device::cpu()).unwrap())
}

/// An episode of two prompt tokens, two sampled ones, one observation and one
/// sampled.
pub(crate) fn episode(group: u32, sample: u32, outcome: Outcome, reward: f64) -> Episode {
    let loss_mask = vec![false, false, true, true, false, true];
    let sampled_log_probs = loss_mask
        .iter()
        .map(|kept| if *kept { -0.5 } else { 0.0 })
        .collect();
    let faulted = outcome == Outcome::EnvFault;
    let sequence = Sequence {
        token_ids: vec![1, 2, 3, 4, 5, 6],
        loss_mask,
        sampled_log_probs,
        log_kept_mass: None,
        entropies: None,
    };
    Episode {
        task: Task {
            env: "textcraft".into(),
            item_id: i64::from(group),
        },
        group,
        sample,
        outcome,
        success: outcome == Outcome::Solved,
        reward,
        prompt: String::new(),
        sequences: if faulted { vec![] } else { vec![sequence] },
        turns: vec![],
        fault: faulted.then(|| "down".into()),
        extra: vec![],
    }
}
