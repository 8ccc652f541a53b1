//! Evaluations by candle: families that no network of ours computes play a built-in environment, to
//! the same bytes however often and by however many threads, killed in the middle too.

use super::{attempts, said};
use agentgym_tests::files::files_below;
use agentgym_tests::program::{Running, finish, program, workspace};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const CONFIG: &str = "
run: {id: judged}
actor_rollout_ref:
  rollout: {engine: candle, max_tokens: 40, max_model_len: 2000}
  agentgym: {task_name: textcraft, env_addr: 'builtin?distractors=4'}
data: {max_prompt_length: 1500, max_response_length: 500}
evaluation:
  samples: 2
  max_rounds: 4
  sets: [{name: near, env: textcraft, ids: [1, 7, 13, 19]}]
";

const PATIENCE: Duration = Duration::from_secs(120);

fn model(name: &str) -> String {
    let folder = workspace().join("tests/fixtures/candle").join(name);
    folder.display().to_string()
}

/// models/base, which solves tasks, as a mixture whose layers all are the ordinary kind: the one policy
/// that candle and our own networks both compute.
fn base_as_mixture() -> TempDir {
    let folder = TempDir::new().unwrap();
    for file in std::fs::read_dir(workspace().join("models/base")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value) in [
        ("model_type", json!("qwen2_moe")),
        ("architectures", json!(["Qwen2MoeForCausalLM"])),
        ("decoder_sparse_step", json!(1000)),
        ("max_window_layers", json!(28)),
        ("moe_intermediate_size", json!(12)),
        ("shared_expert_intermediate_size", json!(20)),
        ("num_experts", json!(4)),
        ("num_experts_per_tok", json!(2)),
        ("norm_topk_prob", json!(false)),
        ("sliding_window", json!(0)),
    ] {
        config[key] = value;
    }
    std::fs::write(&path, config.to_string()).unwrap();
    folder
}

fn eval(folder: &Path, path: &str, more: &[&str]) -> Command {
    let config = folder.join("eval.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let mut command = program("agentgym-submit");
    command
        .arg("eval")
        .arg(config)
        .args(["--quiet", "--json", "--store"])
        .arg(folder.join("store"))
        .arg(format!("actor_rollout_ref.model.path={path}"))
        .args(more);
    command
}

fn report(folder: &Path, path: &str, more: &[&str]) -> Value {
    serde_json::from_str(&said(eval(folder, path, more))).unwrap()
}

/// What the evaluation's commit says it took.
fn stats(folder: &Path) -> Value {
    let commit = folder.join("store/runs/judged/commits/00000000/evaluate/000000.json");
    let commit: Value = serde_json::from_slice(&std::fs::read(commit).unwrap()).unwrap();
    commit["work"]["stats"].clone()
}

#[test]
fn other_families_play_to_the_same_bytes_twice() {
    let base = base_as_mixture();
    let base = base.path().to_str().unwrap();
    let others = ["gemma", "phi3", "qwen2_moe", "llama-gguf"].map(model);
    let mut scores = Vec::new();
    for name in others.iter().map(String::as_str).chain([base]) {
        let [one, two] = ["1", "2"].map(|threads| {
            let folder = TempDir::new().unwrap();
            let threads = format!("jobs.threads={threads}");
            let told = report(folder.path(), name, &[&threads]);
            let sampled = stats(folder.path())["sampled_tokens"].as_u64().unwrap();
            assert!(sampled > 100, "{name}: {sampled}");
            (told, sampled)
        });
        let digest = |told: &Value| told["digest"].clone();
        assert_eq!((digest(&one.0), one.1), (digest(&two.0), two.1), "{name}");
        assert_eq!(one.0["sets"]["near"]["score"]["items"], 4, "{name}");
        assert!(
            one.0["model"].as_str().unwrap().ends_with("by candle,"),
            "{name}"
        );
        scores.push(one.0["sets"].clone());
    }
    // Random weights solve nothing; the policy that does has the outcomes of our own engine, draw by draw.
    let folder = TempDir::new().unwrap();
    let own = ["actor_rollout_ref.rollout.engine=own"];
    let own = report(folder.path(), "models/base", &own)["sets"].clone();
    assert_eq!(scores.last(), Some(&own));
    let solved = own["near"]["score"]["avg"]["mean"].as_f64().unwrap();
    assert!(solved > 0.2 && solved < 1.0, "{own}");
}

#[test]
fn a_killed_evaluation_by_candle_samples_no_journalled_turn_again() {
    const MORE: [&str; 2] = ["evaluation.samples=12", "jobs.threads=1"];
    let (whole, broken) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let base = base_as_mixture();
    let base = base.path().to_str().unwrap();
    let undisturbed = report(whole.path(), base, &MORE);
    let solved = &undisturbed["sets"]["near"]["score"]["avg"]["mean"];
    assert!(solved.as_f64().unwrap() > 0.2, "{undisturbed}");
    let all = stats(whole.path())["sampled_tokens"].as_u64().unwrap();
    let interval = [&MORE[..], &["jobs.journal_interval_s=0.1"]].concat();
    let segments = || {
        let runs = broken.path().join("store/runs");
        let files = runs.is_dir().then(|| files_below(&runs));
        let files = files.into_iter().flatten();
        files
            .filter(|file| file.iter().any(|piece| piece == "journal"))
            .count()
    };
    for _ in 0..2 {
        let (before, begun) = (segments(), Instant::now());
        let mut running = Running::start(eval(broken.path(), base, &interval));
        while segments() < before + 2 && !running.has_ended() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        running.kill();
    }
    assert!(attempts(broken.path(), "start.json") > attempts(broken.path(), "end.json"));
    let taken_up = report(broken.path(), base, &MORE);
    assert_eq!(taken_up["digest"], undisturbed["digest"]);
    let stats = stats(broken.path());
    let of = |name: &str| stats[name].as_u64().unwrap();
    assert!(of("taken_up_tokens") > 0, "{stats}");
    assert_eq!(of("sampled_tokens") + of("taken_up_tokens"), all, "{stats}");
}

/// What a model that only candle computes said in the episodes that it solved teaches one that we
/// train: one of random weights, which solves nothing before.
#[test]
fn what_a_policy_played_by_candle_teaches_another() {
    let (base, folder) = (base_as_mixture(), TempDir::new().unwrap());
    let more = ["evaluation.samples=12", "evaluation.greedy=false"];
    let teacher = report(folder.path(), base.path().to_str().unwrap(), &more);
    let rate = &teacher["sets"]["near"]["score"]["avg"]["mean"];
    let solved = (rate.as_f64().unwrap() * 48.0).round() as usize;
    assert!((12..48).contains(&solved), "{teacher}");

    let (store, file) = (
        folder.path().join("store"),
        folder.path().join("shown.json"),
    );
    let mut export = program("agentgym-submit");
    export.args(["export", "judged", "--success", "--store"]);
    export.arg(&store).arg("--trajectories").arg(&file);
    said(export);
    let shown: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(shown.len(), solved);

    let mut student = program("agentgym-submit");
    student.arg("run").arg(folder.path().join("eval.yaml"));
    student.args(["--quiet", "--json", "--store"]).arg(&store);
    student.arg(format!("sft.sources=[{{file: {:?}}}]", file.display()));
    student.args([
        "run.id=taught",
        "run.pipeline=sft",
        "actor_rollout_ref.rollout.engine=own",
        "actor_rollout_ref.model.path=tiny?hidden=128&layers=2&intermediate=256&vocab=1024",
        "sft.steps=100",
        "sft.batch_size=8",
        "sft.lr=3e-3",
    ]);
    let taught: Value = serde_json::from_str(&said(student)).unwrap();
    let [before, after] = [0, 1].map(|policy| {
        let success = &taught["evaluations"][policy]["all"]["success_greedy"];
        success.as_f64().unwrap()
    });
    assert!(before == 0.0 && after >= 0.75, "{taught}");
}

#[test]
fn what_candle_does_not_evaluate_is_named_before_anything_runs() {
    let folder = TempDir::new().unwrap();
    let copy = TempDir::new().unwrap();
    for file in std::fs::read_dir(model("phi3")).unwrap().flatten() {
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }
    let config = std::fs::read_to_string(copy.path().join("config.json")).unwrap();
    std::fs::write(
        copy.path().join("config.json"),
        config.replace("\"phi3\"", "\"rwkv\""),
    )
    .unwrap();
    let unknown = format!("actor_rollout_ref.model.path={}", copy.path().display());
    for (change, words) in [
        (
            unknown.as_str(),
            &[
                "rwkv",
                "gemma3_text",
                "engine own computes qwen2",
                "model.path",
            ][..],
        ),
        (
            "actor_rollout_ref.model.path=models/base",
            &["model_type", "engine own computes qwen2"],
        ),
        (
            "actor_rollout_ref.rollout.engine=own",
            &["phi3", "engine=candle"],
        ),
        (
            "run.pipeline=rl",
            &["agentgym-submit eval", "qwen2, qwen3, llama and mistral"],
        ),
    ] {
        let mut command = eval(folder.path(), &model("phi3"), &[change]);
        if change.starts_with("run.pipeline") {
            command = program("agentgym-submit");
            command
                .arg("plan")
                .arg(folder.path().join("eval.yaml"))
                .arg(change);
        }
        let output = finish(command);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{change}: {complaint}");
        for word in words {
            assert!(complaint.contains(word), "{change}: {word}: {complaint}");
        }
    }
    let longer = [
        "actor_rollout_ref.rollout.max_model_len=9000",
        "data.max_prompt_length=4000",
        "data.max_response_length=4000",
        "actor_rollout_ref.rollout.prompt_length=4000",
        "actor_rollout_ref.rollout.response_length=4000",
    ];
    let output = finish(eval(folder.path(), &model("phi3"), &longer));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("max_model_len=4096"), "{complaint}");
    let runs = folder.path().join("store/runs");
    assert!(!runs.exists(), "a run was begun");
}
