//! `agentgym-submit eval` as a user runs it: test files with categories, a run that is killed
//! half-way, and a table whose figures follow from the items.

#[cfg(feature = "candle")]
mod candle;

use agentgym_tests::files::files_below;
use agentgym_tests::program::{Running, finish, program};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const CONFIG: &str = "
run: {id: judged}
actor_rollout_ref:
  model: {path: models/base}
  rollout: {max_tokens: 48, max_model_len: 1024}
  agentgym: {task_name: textcraft, env_addr: 'builtin?distractors=4'}
data: {max_prompt_length: 512, max_response_length: 512}
sft: {steps: 10, sources: [{file: nowhere.json}]}
evaluation:
  samples: 4
  k: [1, 2, 4]
  max_rounds: 6
";

/// Goals of depth one below 58, of depth two from there.
const NEAR: [i64; 5] = [1, 7, 13, 19, 25];
const FAR: [i64; 3] = [59, 65, 71];

fn items(ids: &[i64]) -> String {
    let rows: Vec<Value> = ids
        .iter()
        .map(|id| serde_json::json!({"item_id": format!("textcraft_{id}"), "conversations": null}))
        .collect();
    Value::from(rows).to_string()
}

fn eval(folder: &Path, more: &[&str]) -> Command {
    std::fs::write(folder.join("eval.yaml"), CONFIG).unwrap();
    let all: Vec<i64> = NEAR.into_iter().chain(FAR).collect();
    for (name, ids) in [
        ("textcraft_test.json", &all[..]),
        ("depth 1.json", &NEAR),
        ("depth 2.json", &FAR),
    ] {
        std::fs::create_dir_all(folder.join("AgentEval")).unwrap();
        std::fs::write(folder.join("AgentEval").join(name), items(ids)).unwrap();
    }
    let mut command = program("agentgym-submit");
    let set = format!(
        "evaluation.sets=[{{name: real, env: textcraft, file: {}}}]",
        folder.join("AgentEval/textcraft_test.json").display()
    );
    command
        .arg("eval")
        .arg(folder.join("eval.yaml"))
        .args(["--quiet", "--store"])
        .arg(folder.join("store"))
        .arg(set)
        .args(more);
    command
}

fn said(command: Command) -> String {
    let output = finish(command);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// pass@k by enumerating all choices of k samples.
fn pass_by_enumeration(solved: &[bool], k: u32) -> f64 {
    let (mut choices, mut passed) = (0u32, 0u32);
    for mask in 0u32..1 << solved.len() {
        if mask.count_ones() == k {
            choices += 1;
            let any = (0..solved.len()).any(|i| mask >> i & 1 == 1 && solved[i]);
            passed += u32::from(any);
        }
    }
    f64::from(passed) / f64::from(choices)
}

/// Number of start or end records of evaluations.
fn attempts(folder: &Path, name: &str) -> usize {
    let runs = folder.join("store/runs");
    let files = runs.is_dir().then(|| files_below(&runs));
    let records = files.into_iter().flatten().filter(|file| {
        let evaluates = file.iter().any(|piece| piece == "evaluate");
        evaluates && file.file_name().is_some_and(|it| it == name)
    });
    records.count()
}

#[test]
fn a_killed_evaluation_ends_equal_and_its_figures_follow_from_its_items() {
    let (whole, broken) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let report: Value = serde_json::from_str(&said(eval(whole.path(), &["--json"]))).unwrap();

    for later_ms in [0, 100, 200] {
        let begun = attempts(broken.path(), "start.json");
        let mut running = Running::start(eval(
            broken.path(),
            &["jobs.threads=1", "jobs.journal_interval_s=0.1"],
        ));
        while attempts(broken.path(), "start.json") == begun && !running.has_ended() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(later_ms));
        running.kill();
    }
    let (begun, ended) = ["start.json", "end.json"]
        .map(|name| attempts(broken.path(), name))
        .into();
    assert!(begun > ended, "nothing was interrupted");
    // The files may be deleted: the plan contains their contents.
    let table = said(eval(broken.path(), &[]));
    let digest = report["digest"].as_str().unwrap();
    assert!(table.contains(digest), "{table}");
    for words in ["avg@4", "pass@2", "real", "  depth 1", "  depth 2"] {
        assert!(table.contains(words), "no {words:?} in\n{table}");
    }

    let lines = std::fs::read_to_string(whole.path().join("store/exports/judged/items.jsonl"));
    let lines: Vec<Value> = lines
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 8);
    let set = &report["sets"]["real"];
    let scores = [
        (None, &set["score"]),
        (Some("depth 1"), &set["categories"]["depth 1"]),
        (Some("depth 2"), &set["categories"]["depth 2"]),
    ];
    for (category, score) in scores {
        let chosen: Vec<&Value> = lines
            .iter()
            .filter(|line| {
                let names = line["categories"].as_array().unwrap();
                category.is_none_or(|name| names.iter().any(|n| n == name))
            })
            .collect();
        assert_eq!(score["items"], chosen.len());
        let samples = |line: &Value| line["samples"].as_array().unwrap().clone();
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        let close = |found: &Value, wanted: f64| {
            let found = found["mean"].as_f64().unwrap();
            assert!(
                (found - wanted).abs() < 1e-12,
                "{category:?}: {found} {wanted}"
            );
        };
        let rewards = |line: &&Value| {
            mean(
                samples(line)
                    .iter()
                    .map(|s| s["reward"].as_f64().unwrap())
                    .collect(),
            )
        };
        close(&score["avg"], mean(chosen.iter().map(rewards).collect()));
        for k in [1, 2, 4] {
            let pass = |line: &&Value| {
                let solved: Vec<bool> =
                    samples(line).iter().map(|s| s["success"] == true).collect();
                assert_eq!(solved.len(), 4);
                pass_by_enumeration(&solved, k)
            };
            close(
                &score["pass"][k.to_string()],
                mean(chosen.iter().map(pass).collect()),
            );
        }
        assert_eq!(score["fault_rate"]["mean"], 0.0);
    }
    let one = set["score"]["pass"]["1"]["mean"].as_f64().unwrap();
    assert!(0.0 < one && one < 1.0, "the base solves some: {one}");

    // Viewing it again recomputes nothing and prints the same table.
    let mut metrics = program("agentgym-submit");
    metrics
        .args(["metrics", "judged", "--store"])
        .arg(broken.path().join("store"));
    let again = said(metrics);
    let head: Vec<&str> = table.lines().take(5).collect();
    assert!(again.starts_with(&head.join("\n")), "{again}");
}

#[test]
fn what_cannot_be_judged_is_named_before_anything_runs() {
    let folder = TempDir::new().unwrap();
    for (change, words) in [
        (
            "evaluation.k=[5]",
            "pass@5 cannot be estimated from evaluation.samples = 4",
        ),
        ("evaluation.temperature=0", "set it to 1"),
        ("evaluation.sets=[]", "needs at least one set"),
        (
            "evaluation.sets=[{name: x, env: textcraft, file: /nowhere/x.json}]",
            "/nowhere/x.json",
        ),
        (
            "evaluation.sets=[{name: x, env: textcraft}]",
            "which items?",
        ),
    ] {
        let output = finish(eval(folder.path(), &[change]));
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{change}: {complaint}");
        assert!(complaint.contains(words), "{change}: {complaint}");
    }
    assert!(!folder.path().join("store").exists(), "a store was made");
}

#[cfg(not(feature = "candle"))]
#[test]
fn a_program_without_candle_says_how_to_build_one() {
    let folder = TempDir::new().unwrap();
    let phi3 = agentgym_tests::program::workspace().join("tests/fixtures/candle/phi3");
    let path = format!("actor_rollout_ref.model.path={}", phi3.display());
    let engine = "actor_rollout_ref.rollout.engine=candle";
    let mut check = program("agentgym-submit");
    check.arg("check-model").arg(&phi3);
    for command in [eval(folder.path(), &[engine, &path]), check] {
        let output = finish(command);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(
            complaint.contains("--features agentgym-submit/candle"),
            "{complaint}"
        );
    }
    assert!(
        !folder.path().join("store/runs").exists(),
        "a run was begun"
    );
}
