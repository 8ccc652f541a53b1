//! The memory predictions of `plan`, compared with what the stages of the run then use. Each run is
//! a separate process, so it does not include other tests' memory.
//! `cargo bench --workspace --bench memory` measures more runs.

use agentgym_storage::{RunId, Store};
use agentgym_submit::runs::RunView;
use agentgym_tests::program::{finish, program};
use anyhow::{Context as _, ensure};
use std::collections::BTreeMap;
use std::process::Command;
use std::str::FromStr as _;

const RUN: &str = "memory";

/// Stage names and the keys of `plan --json`.
const STAGES: [(&str, &str); 5] = [
    ("rollout", "rollout_memory_bytes"),
    ("log_probs", "log_probs_memory_bytes"),
    ("update", "update_memory_bytes"),
    ("critic_update", "critic_update_memory_bytes"),
    ("evaluate", "evaluate_memory_bytes"),
];

/// Episodes that fill their context of 1024 tokens, with a critic; for a random model, which
/// generates until it is stopped. Two iterations: there is no critic yet in the first rollout.
pub(crate) const FULL: [&str; 13] = [
    "configs/ppo.yaml",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.max_tokens=48",
    "actor_rollout_ref.rollout.max_model_len=1024",
    "data.max_response_length=1024",
    "jobs.rollout_part_tasks=8",
    "algorithm.rounds_ctrl.rounds=32",
    "sft.steps=0",
    "evaluation.sets=[{name: one, env: textcraft, ids: 0..8}]",
    "evaluation.max_rounds=32",
    "evaluation.samples=2",
    "trainer.total_training_steps=2",
    "trainer.critic_warmup=0",
];

/// Predicted and measured peaks of a stage, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peak {
    pub(crate) predicted: f64,
    pub(crate) measured: f64,
}

/// The measurements of a run.
#[derive(Debug)]
pub(crate) struct Played {
    /// Mean length of its sequences, as a share of the maximum that the plan assumes.
    pub(crate) filled: f64,
    /// By stage.
    pub(crate) peaks: BTreeMap<&'static str, Peak>,
}

fn said(mut command: Command, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    command.args(arguments).arg(format!("run.id={RUN}"));
    let output = finish(command);
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {stderr}", output.status);
    Ok(output.stdout)
}

/// Runs a config with its overrides.
pub(crate) async fn play(arguments: &[&str]) -> anyhow::Result<Played> {
    let mut command = program("agentgym-submit");
    command.args(["--json", "plan"]);
    let plan: serde_json::Value = serde_json::from_slice(&said(command, arguments)?)?;
    let scratch = tempfile::tempdir()?;
    let path = scratch.path().join("store").display().to_string();
    let mut command = program("agentgym-submit");
    command.args(["--quiet", "--store", &path]);
    said(command, arguments)?;

    let store = Store::open(&path).await?;
    let view = RunView::open(&store, RUN).await?;
    let longest = plan["tokens_per_sequence_max"].as_f64();
    let longest = longest.context("plan says it")?;
    let (mut peaks, mut filled) = (BTreeMap::new(), Vec::new());
    for slot in store.all_commits(&RunId::from_str(RUN)?).await? {
        if slot.stage == "advantage" {
            let manifest = store.manifest(&slot).await?.context("it is committed")?;
            let metrics = view.json(&manifest, "metrics.json").await?;
            let mean = |key: &str| metrics[key].as_f64().context("a metric");
            filled.push((mean("prompt_length_mean")? + mean("response_length_mean")?) / longest);
        }
        let Some(&(stage, key)) = STAGES.iter().find(|(stage, _)| *stage == slot.stage) else {
            continue;
        };
        let manifest = store.manifest(&slot).await?.context("it is committed")?;
        let stats = manifest.work.context("a commit says how it went")?.stats;
        let stat = stats.get("peak_memory_bytes").and_then(|v| v.as_f64());
        let predicted = plan["sizes"][key].as_f64().context("plan says it")?;
        let measured = stat.context("a stage says it")?;
        let peak = peaks.entry(stage).or_insert(Peak {
            predicted,
            measured,
        });
        peak.measured = measured.max(peak.measured);
    }
    let filled = filled.iter().sum::<f64>() / filled.len() as f64;
    Ok(Played { filled, peaks })
}

/// Predictions are never exceeded, and at most 1.43 times the measured peak.
#[cfg(test)]
#[tokio::test(flavor = "multi_thread")]
async fn plan_predicts_the_peak_of_every_stage() {
    let shape = "actor_rollout_ref.model.path=tiny?hidden=256&layers=6&intermediate=1024&vocab=512";
    let arguments = [&FULL[..], &[shape, "jobs.threads=2"]].concat();
    let Played { filled, peaks } = play(&arguments).await.unwrap();
    assert_eq!(peaks.len(), 5);
    assert!(filled > 0.9, "sequences fill {filled} of their limit");
    for (
        stage,
        Peak {
            predicted,
            measured,
        },
    ) in peaks
    {
        let share = measured / predicted;
        assert!(
            (0.7..=1.0).contains(&share),
            "{stage}: {:.0} MB measured, {:.0} MB predicted",
            measured / 1e6,
            predicted / 1e6
        );
    }
}
