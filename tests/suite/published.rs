//! AgentGym-RL's published scripts: their overrides, unchanged, on the configs of the same name.
//! Each is run with the program itself, in a folder that has the files they refer to.

use agentgym_tests::files::files_below;
use agentgym_tests::program::{finish, program, workspace};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

fn scripts() -> BTreeMap<String, Vec<String>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/published-overrides.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// The working folder of the scripts: ids, test files with a category, and a model, all small.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::TempDir::new().unwrap();
    let write = |name: String, rows: Vec<Value>| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, serde_json::to_vec(&rows).unwrap()).unwrap();
    };
    for task in ["babyai", "sciworld", "searchqa", "textcraft", "webarena"] {
        let items = |count: usize| {
            let item = |i| json!({"item_id": format!("{task}_{i}"), "conversations": null});
            (0..count).map(item).collect()
        };
        write(format!("AgentItemId/{task}_train.json"), items(64));
        write(format!("AgentEval/{task}/{task}_test.json"), items(2));
        write(format!("AgentEval/{task}/easy.json"), items(2));
    }
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen2-tiny");
    // One that is only planned, and one that generates.
    for (model, path) in [
        (tiny, "models/Qwen2.5-7B-Instruct"),
        (
            workspace().join("models/base"),
            "global_step_150/actor/huggingface",
        ),
    ] {
        let to = folder.path().join(path);
        std::fs::create_dir_all(&to).unwrap();
        for file in files_below(&model) {
            std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
    folder
}

fn submit(
    folder: &Path,
    command: &str,
    config: &str,
    overrides: &[String],
    more: &[&str],
) -> Output {
    let mut program = program("agentgym-submit");
    let config = workspace().join(format!("configs/agentgym-rl/{config}.yaml"));
    program.current_dir(folder).arg(command).arg(config);
    program.args(overrides).args(more).arg("--json");
    finish(program)
}

fn document(output: &Output, what: &str) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{what}: {e}"))
}

#[test]
fn every_script_is_a_plan() {
    let folder = folder();
    let scripts = scripts();
    assert_eq!(scripts.len(), 7);
    for (script, overrides) in &scripts {
        let name = script.rsplit('/').next().unwrap();
        let task = name.split('_').next().unwrap();
        let evaluates = name.contains("_eval");
        let configs = match evaluates {
            true => vec![format!("{task}-eval")],
            false => vec![task.to_owned()],
        };
        for config in configs {
            let plan = document(
                &submit(folder.path(), "plan", &config, overrides, &[]),
                script,
            );
            let said = |key: &str| {
                let found = overrides
                    .iter()
                    .find_map(|o| o.strip_prefix(key)?.strip_prefix('='));
                found
                    .unwrap_or_else(|| panic!("{script} has no {key}"))
                    .parse::<u64>()
                    .unwrap()
            };
            if evaluates {
                assert_eq!(plan["iterations"], 0, "{script}");
                assert_eq!(plan["evaluations"], json!([0]), "{script}");
                continue;
            }
            let (batch, epochs) = (said("data.train_batch_size"), said("trainer.total_epochs"));
            assert_eq!(plan["tasks"], 64, "{script}");
            assert_eq!(plan["iterations"], 64 / batch * epochs, "{script}");
            let n = said("actor_rollout_ref.rollout.n");
            assert_eq!(plan["sequences_per_iteration"], batch * n, "{script}");
            let (mini, passes) = (
                said("actor_rollout_ref.actor.ppo_mini_batch_size"),
                said("actor_rollout_ref.actor.ppo_epochs"),
            );
            assert_eq!(
                plan["optimizer_steps_per_iteration"],
                batch / mini * passes,
                "{script}"
            );
            assert_eq!(plan["kl"], "in the loss, 0.001 × low_var_kl", "{script}");
            let notes = plan["notes"].to_string();
            for words in ["rollout_log_dir", "project xxx", "micro_batch_mean"] {
                assert!(notes.contains(words), "{script}: {notes}");
            }
            assert_eq!(
                notes.contains("ppo_epochs"),
                passes > 1,
                "{script}: {notes}"
            );
        }
    }
}

/// The other five training scripts differ from these only in numbers and in the horizon.
#[test]
fn a_growing_horizon_is_a_plan_and_says_where_kl_goes() {
    let folder = folder();
    let overrides = &scripts()["train/AgentGym-RL/babyai_train.sh"];
    let more = [
        "algorithm.rounds_ctrl.type=scaling_inter_stepwise",
        "algorithm.rounds_ctrl.rounds=[6,13,20]",
        "algorithm.rounds_ctrl.steps_scaling_inter=10",
        "actor_rollout_ref.actor.use_kl_loss=False",
    ];
    let output = submit(
        folder.path(),
        "plan",
        "babyai-scaling-inter",
        overrides,
        &more,
    );
    let plan = document(&output, "scaling inter");
    assert_eq!(plan["horizon"][9], 6);
    assert_eq!(plan["horizon"][10], 13);
    let kl = plan["kl"].as_str().unwrap();
    assert!(
        kl.starts_with("nowhere; AgentGym-RL takes 0.001 × kl off the reward"),
        "{kl}"
    );
}

/// Run with the Rust servers instead of the scripts' own, and with fewer tokens.
#[test]
fn the_evaluation_scripts_evaluate() {
    let folder = folder();
    for (task, server) in [("babyai", "builtin:babyai"), ("textcraft", "builtin")] {
        let overrides = &scripts()[&format!("eval/{task}_eval.sh")];
        let address = format!("agentgym.env_addr={server}");
        let more = [
            &address,
            "agentgym.max_rounds=2",
            "rollout.max_tokens=8",
            "jobs.threads=1",
        ];
        let output = submit(
            folder.path(),
            "eval",
            &format!("{task}-eval"),
            overrides,
            &more,
        );
        let report = document(&output, task);
        assert_eq!(report["model"], "global_step_150/actor/huggingface");
        assert_eq!(report["samples"], 1);
        assert_eq!(report["max_rounds"], 2);
        let score = &report["sets"][task]["score"];
        assert_eq!(
            (&score["items"], &score["items_lost"]),
            (&json!(2), &json!(0)),
            "{report}"
        );
        assert_eq!(report["sets"][task]["categories"]["easy"]["items"], 2);
    }
}
