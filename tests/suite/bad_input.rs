//! Bad input, as a user types it: each case ends with one clear message, a stable exit code, no
//! panic or backtrace, and a run that can be continued.

use crate::evidence::learnt_now;
use agentgym_tests::files::files_below;
use agentgym_tests::program::{finish, program, workspace};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Output;
use tempfile::TempDir;

/// One iteration with every stage that reads a policy, in a second or two.
const RUN: &str = "
actor_rollout_ref:
  model: {path: 'tiny?hidden=32&heads=2&kv_heads=1&layers=1&intermediate=64&vocab=400'}
  actor: {ppo_mini_batch_size: 1}
  rollout: {n: 2, max_tokens: 4, max_model_len: 768, fault_retries: 0}
  agentgym: {env_addr: 'builtin:worlds?depths=1-1', max_retries: 2}
data:
  train_batch_size: 2
  max_prompt_length: 512
  max_response_length: 256
  tasks: [{env: textcraft, ids: 0..8}]
algorithm: {rounds_ctrl: {rounds: 1}}
evaluation: {samples: 1, max_rounds: 1, sets: [{name: easy, env: textcraft, ids: 200..202}]}
trainer: {total_training_steps: 1}
jobs: {threads: 1, backoff_s: 0.05, failures_max: 2}
run: {id: r}
";

/// Two iterations of a policy that solves some of its tasks, for tests that compare digests.
const LEARNING_RUN: &str = "
actor_rollout_ref:
  model: {path: BASE}
  actor: {ppo_mini_batch_size: 2, optim: {lr: 1e-4}}
  rollout: {n: 4, max_tokens: 48, max_model_len: 1536}
  agentgym: {env_addr: 'builtin:worlds?depths=1-2'}
data:
  train_batch_size: 4
  max_prompt_length: 768
  max_response_length: 768
  tasks: [{env: textcraft, ids: 0..24}]
algorithm: {rounds_ctrl: {rounds: 6}}
trainer: {total_training_steps: 2, test_freq: 0}
jobs: {threads: 1, backoff_s: 0.05, failures_max: 2}
run: {id: r}
";

pub(crate) struct Scene {
    dir: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("run.yaml"), RUN).unwrap();
        Self { dir }
    }

    /// A scene whose run has rewards to learn from, so that its digest is meaningful.
    fn that_learns() -> Self {
        let scene = Self::new();
        let base = workspace().join("models/base").display().to_string();
        scene.write("run.yaml", LEARNING_RUN.replace("BASE", &base).as_bytes());
        scene
    }

    /// The digest of the run, after checking that it has learnt something.
    fn learnt(&self) -> String {
        println!("{}", learnt_now(&self.path("s"), "r"));
        self.digest()
    }

    fn digest(&self) -> String {
        String::from_utf8(self.submit("digest r --store s").stdout).unwrap()
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// Runs a command line of `agentgym-submit` in the scene's folder.
    pub(crate) fn submit(&self, line: &str) -> Output {
        self.program("agentgym-submit", line)
    }

    fn program(&self, name: &str, line: &str) -> Output {
        let mut command = program(name);
        command
            .args(line.split_whitespace())
            .current_dir(self.dir.path())
            .env("RUST_BACKTRACE", "1")
            .env("AGENTGYM_CACHE", self.path("cache"));
        finish(command)
    }

    /// The command line ends with `code` and one message that contains all `words`.
    pub(crate) fn refuses(&self, line: &str, code: i32, words: &[&str]) -> String {
        refused(line, &self.submit(line), code, words)
    }

    pub(crate) fn succeeds(&self, line: &str) -> String {
        let output = self.submit(line);
        let said = said(&output);
        assert!(output.status.success(), "{line}: {said}");
        said
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn refused(line: &str, output: &Output, code: i32, words: &[&str]) -> String {
    let said = said(output);
    assert_eq!(output.status.code(), Some(code), "{line}: {said}");
    for word in words {
        assert!(said.contains(word), "{line}: `{word}` is not in: {said}");
    }
    for noise in ["panicked", "backtrace", "RUST_BACKTRACE", "Error {"] {
        assert!(!said.contains(noise), "{line}: {said}");
    }
    let messages = said.lines().filter(|l| l.starts_with("error: ")).count();
    assert_eq!(messages, 1, "{line}: {said}");
    said
}

#[test]
fn files_that_are_no_config() {
    let scene = Scene::new();
    scene.write("latin.yaml", b"run:\n  seed: 1 # gr\xfc\xdfe\n");
    scene.write("empty.yaml", b"");
    scene.write("list.yaml", b"- a\n- b\n");
    scene.write("twice.yaml", b"run: {seed: 1}\nrun: {seed: 2}\n");
    scene.write("broken.yaml", b"run:\n  seed: 1\n bad: [\n");
    scene.write("large.yaml", &vec![b'#'; 3 << 20]);
    let mut bomb = String::from("a: &a [x,x,x,x,x,x,x,x,x]\n");
    for (before, name) in ('a'..='g').zip('b'..='h') {
        let nine = vec![format!("*{before}"); 9].join(",");
        bomb += &format!("{name}: &{name} [{nine}]\n");
    }
    scene.write("bomb.yaml", bomb.as_bytes());
    for (file, words) in [
        ("latin.yaml", &["line 2", "UTF-8"][..]),
        ("empty.yaml", &["no keys", "configs/smoke.yaml"]),
        ("list.yaml", &["a map of keys", "[\"a\",\"b\"]"]),
        ("twice.yaml", &["line 2", "duplicate mapping key: run"]),
        ("broken.yaml", &["line 3"]),
        ("large.yaml", &["longer than", "run config"]),
        ("bomb.yaml", &["anchors"]),
        (
            "no/such.yaml",
            &["cannot read no/such.yaml", "current folder"],
        ),
        ("no/such", &["cannot read no/such"]),
        (".", &["it is a folder"]),
    ] {
        let said = scene.refuses(file, 2, words);
        assert!(!said.contains("DuplicateKeyPolicy"), "{said}");
    }
    assert!(!scene.path("agentgym-data").exists(), "something was made");
}

#[test]
fn keys_and_values_that_cannot_be() {
    let scene = Scene::new();
    for (given, words) in [
        (
            "trainer.total_training_stepz=3",
            &["did you mean `trainer.total_training_steps`? `"][..],
        ),
        ("xyzzy=3", &["unknown key `xyzzy`. `agentgym-submit keys`"]),
        (
            "run.seed=-1",
            &[
                "key `run.seed`",
                "a whole number that is not negative",
                "found -1",
            ],
        ),
        ("run.seed=abc", &["found \"abc\""]),
        (
            "evaluation.greedy=maybe",
            &["true or false", "found \"maybe\""],
        ),
        ("run.seed", &["key=value"]),
        (
            "jobs.backoff_s=-1",
            &["jobs.backoff_s", "seconds", "found -1"],
        ),
        ("jobs.beat_timeout_s=0", &["jobs.beat_timeout_s"]),
        (
            "jobs.cache_gb=-1",
            &["jobs.cache_gb", "gigabytes", "found -1"],
        ),
        ("jobs.journal_interval_s=.inf", &["jobs.journal_interval_s"]),
        (
            "actor_rollout_ref.agentgym.timeout=-5",
            &["agentgym.timeout"],
        ),
    ] {
        scene.refuses(&format!("plan run.yaml {given}"), 2, words);
    }
    let said = scene.refuses(
        "plan run.yaml data.train_batch_size=12 actor_rollout_ref.actor.ppo_mini_batch_size=5",
        2,
        &["5 does not divide data.train_batch_size = 12"],
    );
    assert!(said.contains("nearest that does: 4 or 6"), "{said}");
    let said = scene.refuses(
        "plan run.yaml algorithm.adv_estimator=grop",
        2,
        &["algorithm.adv_estimator", "`grop`"],
    );
    assert_eq!(said.matches("grpo").count(), 1, "once is enough: {said}");
    scene.refuses(
        "plan run.yaml agentevol.keep=most",
        2,
        &["`most`", "one trajectory per task"],
    );
}

/// Of another format, edited by hand, or under another run's key: every reader names the object.
#[test]
fn plans_that_are_not_what_was_submitted() {
    let scene = Scene::new();
    scene.succeeds("run.yaml --store s");
    let plan = std::fs::read(scene.path("s/runs/r/plan/0000.json")).unwrap();
    let plan: serde_json::Value = serde_json::from_slice(&plan).unwrap();
    for (name, change, why) in [
        ("newer", "/version", "is of format 77"),
        ("older", "/version", ", reads formats 1 to 3"),
        ("edited", "/config/run/seed", "it was edited"),
        ("longer", "/iterations", "it was edited"),
        (
            "revised",
            "/revision",
            "revision 77 of run revised; was it copied",
        ),
        ("copied", "", "revision 0 of run r; was it copied"),
    ] {
        let mut plan = plan.clone();
        if let Some(value) = plan.pointer_mut(change).filter(|_| !change.is_empty()) {
            *value = 77.into();
            plan["run"] = name.into();
        }
        if name == "older" {
            // A format with other fields.
            plan["version"] = 0.into();
            plan["iterations"].take();
        }
        let folder = format!("s/runs/{name}/plan");
        std::fs::create_dir_all(scene.path(&folder)).unwrap();
        scene.write(&format!("{folder}/0000.json"), plan.to_string().as_bytes());
        let words = [why, &format!("runs/{name}/plan/0000.json"), "restore"];
        for word in ["status", "resume", "cancel"] {
            scene.refuses(&format!("{word} {name} --store s"), 3, &words);
        }
        let line = format!("--store s --run {name} --exit-when-finished");
        refused(&line, &scene.program("agentgym-worker", &line), 3, &words);
    }
}

/// Checked before the first part is made, for every model that the run would copy.
#[test]
fn models_that_are_not_there() {
    let scene = Scene::new();
    for (key, on) in [
        ("actor_rollout_ref.model.path", ""),
        (
            "actor_rollout_ref.ref.model.path",
            "actor_rollout_ref.actor.use_kl_loss=true",
        ),
        ("critic.model.path", "algorithm.adv_estimator=gae"),
    ] {
        let line = format!("run.yaml --store s {key}=no/folder {on}");
        let named = format!("key `{key}`");
        scene.refuses(line.trim(), 2, &[&named, "no/folder"]);
    }
}

/// A local folder is inspected: `plan` refuses what a run would refuse.
#[test]
fn models_that_cannot_be_computed() {
    let scene = Scene::new();
    let sizes = r#""model_type": "qwen2", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 300, "max_position_embeddings": 64"#;
    for (keys, words) in [
        (
            r#""rope_scaling": {"rope_type": "dynamic"}"#,
            "rope_scaling.rope_type \"dynamic\"",
        ),
        (
            r#""quantization_config": {"quant_method": "awq"}"#,
            "quantization_config (awq)",
        ),
        (r#""layer_types": []"#, "layer_types has 0 entries"),
    ] {
        std::fs::create_dir_all(scene.path("m")).unwrap();
        scene.write("m/config.json", format!("{{{sizes}, {keys}}}").as_bytes());
        for line in ["plan run.yaml", "run.yaml --store s"] {
            let line = format!("{line} actor_rollout_ref.model.path=m");
            let named = "key `actor_rollout_ref.model.path`";
            scene.refuses(&line, 2, &[named, "config.json", words]);
        }
    }
}

#[test]
fn stores_and_queues_that_cannot_be() {
    let scene = Scene::new();
    scene.write("file", b"x");
    scene.refuses(
        "run.yaml --store file",
        3,
        &["`file`", "a file is in the way"],
    );
    scene.refuses("run.yaml --store file/below", 3, &["a file is in the way"]);
    scene.refuses("status --store file", 4, &["no store at file"]);
    for line in ["resume r", "fork r --iteration 1", "retry r"] {
        let line = format!("{line} --store nowhere");
        scene.refuses(&line, 4, &["no store at nowhere"]);
        assert!(!scene.path("nowhere").exists(), "{line} made a folder");
    }
    scene.refuses("run.yaml --store gs://b", 3, &["s3://bucket/prefix"]);
    scene.refuses(
        "run.yaml --store s --queue amqp://h",
        2,
        &["amqp://h", "redis://"],
    );
    scene.refuses(
        "run.yaml --store s --queue redis://127.0.0.1:1",
        5,
        &["redis://127.0.0.1:1"],
    );
    let worker = |line: &str, code, words: &[&str]| {
        refused(line, &scene.program("agentgym-worker", line), code, words)
    };
    worker("--store file", 3, &["a file is in the way"]);
    worker("--store s --queue amqp://h", 2, &["amqp://h"]);
    worker(
        "--store s --run nobody --exit-when-finished",
        4,
        &["unknown run `nobody`"],
    );
    worker("--store s --device tpu", 2, &["tpu", "cpu", "auto", "cuda"]);
    let words = ["cuda:99", "cannot be used", "cpu"];
    worker("--store s --device cuda:99", 2, &words);
    scene.refuses("run.yaml --store untouched --device cuda:99", 2, &words);
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx512bf16") {
        let words = ["no instructions for bf16", "\"f32\""];
        worker("--store s --dtype bf16", 2, &words);
        scene.refuses("run.yaml --store untouched --dtype bf16", 2, &words);
    }
    worker("--store s --dtype f16", 2, &["f16", "f32", "bf16"]);
    assert!(!scene.path("untouched").exists());
    worker(
        "--store s --preemption oracle",
        2,
        &["oracle", "aws, gcp and azure"],
    );
}

#[test]
fn a_plan_that_cannot_be_read_hides_no_other_run() {
    let scene = Scene::new();
    scene.succeeds("run.yaml --store s");
    let plan = "runs/r/plan/0000.json";
    let broken = "s/runs/broken/plan";
    std::fs::create_dir_all(scene.path(broken)).unwrap();
    let bytes = std::fs::read(scene.path("s").join(plan)).unwrap();
    scene.write("s/runs/broken/plan/0000.json", &bytes[..300]);
    let key = "runs/broken/plan/0000.json";
    scene.refuses("status broken --store s", 3, &[key, "restore"]);
    let shown = scene.submit("status --store s");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success(), "{text}");
    assert!(text.contains(key) && text.contains("  r "), "{text}");
}

/// Damage is found when it is read and reported with the store's exit code; after a repair the same
/// command continues.
#[test]
fn a_damaged_policy_stops_the_run_until_it_is_repaired() {
    let scene = Scene::that_learns();
    let line = "run.yaml --store s trainer.total_training_steps=1";
    scene.succeeds(line);
    let whole = scene.learnt();
    let iteration = scene.path("s/runs/r/commits/00000001");
    std::fs::remove_dir_all(iteration).unwrap();
    let init = files_below(&scene.path("s/runs/r/files/00000000/init"));
    let policy = init.iter().find(|path| path.ends_with("model.safetensors"));
    let policy = policy.unwrap();
    let bytes = std::fs::read(policy).unwrap();
    let mut flipped = bytes.clone();
    flipped[bytes.len() / 2] ^= 1;
    for damage in [Some(&flipped[..]), Some(&bytes[..100]), None] {
        match damage {
            Some(bytes) => std::fs::write(policy, bytes).unwrap(),
            None => std::fs::remove_file(policy).unwrap(),
        }
        let said = scene.refuses(
            line,
            3,
            &[
                "policy/model.safetensors is damaged",
                "restore",
                "agentgym-submit resume r",
            ],
        );
        assert_eq!(said.matches("is damaged").count(), 1, "told once: {said}");
    }
    std::fs::write(policy, &bytes).unwrap();
    scene.succeeds("resume r --store s");
    assert_eq!(scene.digest(), whole);
}

/// The same for all other data that training continues from.
#[test]
fn what_training_carries_on_with_is_checked_before_it_is_read() {
    let critic = "algorithm.adv_estimator=gae critic.ppo_mini_batch_size=2";
    let adapter = "actor_rollout_ref.model.lora_rank=2 actor_rollout_ref.model.lora_alpha=4";
    for (more, artifacts) in [
        (
            critic,
            &[
                ("update", "optimizer/state.safetensors"),
                ("critic_update", "critic/model.safetensors"),
                ("critic_update", "optimizer/state.safetensors"),
            ][..],
        ),
        (
            adapter,
            &[
                ("update", "adapter/adapter_model.safetensors"),
                ("update", "optimizer/state.safetensors"),
            ],
        ),
    ] {
        let scene = Scene::that_learns();
        let line = format!("run.yaml --store s {more}");
        scene.succeeds(&line);
        let whole = scene.learnt();
        // The training of the second iteration alone is made once more.
        let forget = || {
            for stage in ["update", "critic_update"] {
                let commits = scene.path(&format!("s/runs/r/commits/00000002/{stage}"));
                let _ = std::fs::remove_dir_all(commits);
            }
        };
        for (stage, artifact) in artifacts {
            forget();
            let files = files_below(&scene.path(&format!("s/runs/r/files/00000001/{stage}")));
            let file = files.iter().find(|path| path.ends_with(artifact)).unwrap();
            let bytes = std::fs::read(file).unwrap();
            let mut flipped = bytes.clone();
            flipped[bytes.len() / 2] ^= 1;
            std::fs::write(file, flipped).unwrap();
            let named = format!("{artifact} is damaged");
            if artifact.starts_with("optimizer/") {
                // What can be made again is.
                assert!(!scene.submit("verify r --store s").status.success());
                scene.succeeds("resume r --store s");
                assert_eq!(scene.digest(), whole, "{stage} {artifact}, damaged");
                std::fs::remove_file(file).unwrap();
                forget();
            } else {
                let words = [&named[..], "restore", "agentgym-submit resume r"];
                scene.refuses(&line, 3, &words);
                std::fs::write(file, &bytes).unwrap();
            }
            scene.succeeds("resume r --store s");
            assert_eq!(scene.digest(), whole, "{stage} {artifact}");
            scene.succeeds("verify r --store s");
            std::fs::write(file, &bytes).unwrap();
        }
    }
}

/// A power cut during a write: that attempt's outcome is unknown, and the run continues.
#[test]
fn a_torn_record_of_an_attempt_stops_nobody() {
    let scene = Scene::that_learns();
    scene.succeeds("run.yaml --store s trainer.total_training_steps=1");
    let whole = scene.learnt();
    let attempts = scene.path("s/runs/r/attempts/00000001");
    std::fs::remove_dir_all(scene.path("s/runs/r/commits/00000001")).unwrap();
    let contents = [&b""[..], b"{\"version\": 1, \"no", b"\0\0\0\0"];
    for (record, content) in files_below(&attempts).iter().zip(contents.iter().cycle()) {
        std::fs::write(record, content).unwrap();
    }
    for line in [
        "status r --store s",
        "why r --store s",
        "inspect r 1 --store s",
    ] {
        let shown = scene.submit(line);
        assert!(shown.status.success(), "{line}: {}", said(&shown));
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        let is_shown = text.contains("record is damaged") || line.starts_with("inspect");
        assert!(is_shown, "{line}: {text}");
    }
    scene.succeeds("resume r --store s");
    assert_eq!(scene.digest(), whole);
}

/// No program writes this attempt number, and no number can follow it.
#[test]
fn an_attempt_of_the_last_number_is_named() {
    let scene = Scene::new();
    scene.succeeds("run.yaml --store s");
    let update = "s/runs/r/attempts/00000001/update/000000";
    let commits = scene.path("s/runs/r/commits/00000001");
    std::fs::remove_dir_all(commits).unwrap();
    let (first, last) = (format!("{update}/0001"), format!("{update}/4294967295"));
    std::fs::rename(scene.path(&first), scene.path(&last)).unwrap();
    for word in ["status r", "why r"] {
        let line = format!("{word} --store s");
        assert!(scene.submit(&line).status.success(), "{line}");
    }
    let named = "attempts/00000001/update/000000/4294967295/start.json";
    let words = [named, "delete the object"];
    scene.refuses("resume r --store s", 3, &words);
    std::fs::rename(scene.path(&last), scene.path(&first)).unwrap();
    scene.succeeds("resume r --store s");
}

#[test]
fn models_that_are_no_models() {
    let scene = Scene::new();
    let file = |name: &str| std::fs::read(workspace().join("models/base").join(name)).unwrap();
    let names = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
    ];
    let mut cases: Vec<(&str, &str, Vec<u8>, &str)> = vec![
        ("cfg", "config.json", b"{".to_vec(), "config.json"),
        (
            "tok",
            "tokenizer.json",
            file("tokenizer.json")[..5000].to_vec(),
            "tokenizer.json",
        ),
        (
            "tpl",
            "chat_template.jinja",
            b"{% for m in messages %}{{ m.content".to_vec(),
            "chat_template.jinja",
        ),
        (
            "cut",
            "model.safetensors",
            file("model.safetensors")[..10_000].to_vec(),
            "model.safetensors",
        ),
    ];
    // The header and the tensor together are longer than the largest number.
    let mut header = br#"{"x":{"dtype":"U8","shape":[18446744073709551600],"data_offsets":[0,18446744073709551600]}}"#.to_vec();
    header.resize(header.len().next_multiple_of(8), b' ');
    let longest = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
    cases.push(("longest", "model.safetensors", longest, "model.safetensors"));
    let mut nan = file("model.safetensors");
    let at = nan.len() - 4;
    nan[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    cases.push(("nan", "model.safetensors", nan, "NaN"));
    for (folder, name, bytes, word) in cases {
        std::fs::create_dir_all(scene.path(folder)).unwrap();
        for other in names {
            scene.write(&format!("{folder}/{other}"), &file(other));
        }
        scene.write(&format!("{folder}/{name}"), &bytes);
        let line =
            format!("run.yaml --store s run.id={folder} actor_rollout_ref.model.path=./{folder}");
        let said = scene.refuses(&line, 2, &[word]);
        assert!(!said.contains("-----"), "no drawings: {said}");
    }
    scene.refuses(
        "run.yaml --store s run.id=x actor_rollout_ref.model.path=org/none",
        2,
        &[
            "hf download org/none",
            "relative paths start at the current folder",
        ],
    );
    // The message points out a folder that exists relative to the config.
    std::fs::create_dir_all(scene.path("configs/deep/models/m")).unwrap();
    scene.write("configs/run.yaml", RUN.as_bytes());
    scene.refuses(
        "configs/deep/../run.yaml --store s actor_rollout_ref.model.path=deep/models/m",
        2,
        &["run the command there"],
    );
}

#[test]
fn environments_that_answer_nonsense() {
    let scene = Scene::new();
    for (name, answer, words) in [
        (
            "error",
            http("200 OK", r#"{"error":"no such game"}"#),
            "no such game",
        ),
        (
            "garbage",
            http("200 OK", "<html>\u{fffd}</html>"),
            "not JSON",
        ),
        (
            "failing",
            http("500 Internal Server Error", "oh no"),
            "HTTP 500",
        ),
        ("endless", endless(), "more than"),
    ] {
        let url = serve(answer);
        let line =
            format!("run.yaml --store s run.id={name} actor_rollout_ref.agentgym.env_addr={url}");
        let said = scene.refuses(&line, 5, &[words, &url, "resume"]);
        assert!(
            said.matches(words).count() <= 3,
            "told at length too often: {said}"
        );
        // The environment is a binding: with a working one, the run continues.
    }
    scene.succeeds(
        "resume error --store s actor_rollout_ref.agentgym.env_addr=builtin:worlds?depths=1-1",
    );
}

/// `agentgym-submit … 2>&1 | head`: output that is not read does not end a run.
#[test]
fn a_reader_that_went_away() {
    let scene = Scene::new();
    let unheard = |name: &str, line: &str| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program(name);
        command
            .args(line.split_whitespace())
            .current_dir(scene.dir.path())
            .env("AGENTGYM_LOG", "info")
            .env("AGENTGYM_CACHE", scene.path("cache"))
            .stdin(std::process::Stdio::null())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer);
        command.status().unwrap().code()
    };
    assert_eq!(unheard("agentgym-submit", "run.yaml --store s"), Some(0));
    assert_eq!(unheard("agentgym-submit", "plan none.yaml"), Some(2));
    let worker = "--store s --run r --exit-when-finished";
    assert_eq!(unheard("agentgym-worker", worker), Some(0));
}

/// Rows of training files are checked before anything is trained.
#[test]
fn a_bad_row_is_named_by_the_first_part() {
    let scene = Scene::new();
    let row = |id: &str, reply: &str, loss: bool, reward: f64| {
        format!(
            "{{\"item_id\": \"{id}\", \"reward\": {reward}, \"conversations\": [\
             {{\"from\": \"human\", \"value\": \"go\"}}, {{\"from\": \"gpt\", \"loss\": {loss}, \"value\": \"{reply}\"}}]}}"
        )
    };
    let long = "craft ".repeat(400);
    let file = |name: &str, rows: &[String]| {
        scene.write(name, format!("[{}]", rows.join(",")).as_bytes());
    };
    let good = [row("t_1", "yes", true, 1.0), row("t_2", "no", true, 1.0)];
    file(
        "long.json",
        &[good[0].clone(), row("t_9", &long, true, 1.0)],
    );
    file(
        "silent.json",
        &[good[0].clone(), row("t_9", "yes", false, 1.0)],
    );
    file("huge.json", &[row("t_9", &long, true, 1.0)]);
    let sft = |store: &str, name: &str| {
        format!(
            "run.yaml --store {store} run.pipeline=sft sft.steps=2 sft.max_length=300 evaluation.sets=[] \
             jobs.failures_max=1 sft.sources=[{{\"file\":\"{name}\"}}]"
        )
    };
    let said = scene.refuses(
        &sft("a", "long.json"),
        2,
        &["long.json row 1 (t_9)", "sft.max_length = 300"],
    );
    assert!(
        said.contains("0/init/0") && said.contains("sft.overlong=leave_out"),
        "{said}"
    );
    let line = format!("{} sft.overlong=leave_out", sft("b", "long.json"));
    scene.succeeds(&line);
    let shown = scene.submit("inspect r 0 init 0 --store b");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("sft_rows_left_out 1"), "{shown}");
    scene.refuses(
        &sft("c", "silent.json"),
        2,
        &[
            "silent.json row 1 (t_9)",
            "loss is false on every gpt message",
            "0/init/0",
        ],
    );
    let line = format!("{} sft.overlong=leave_out", sft("d", "huge.json"));
    scene.refuses(&line, 2, &["huge.json", "every one of its 1 rows"]);

    file("expert.json", &good);
    file(
        "worse.json",
        &[row("t_1", &long, true, 0.0), row("t_2", "never", true, 0.0)],
    );
    let dpo = |store: &str| {
        format!(
            "run.yaml --store {store} run.pipeline=dpo dpo.steps=2 dpo.max_length=300 dpo.prompt_length=1 \
             evaluation.sets=[] jobs.failures_max=1 dpo.expert_file=expert.json dpo.experience_file=worse.json"
        )
    };
    let words = [
        "worse.json row 0 (t_1)",
        "dpo.overlong=leave_out",
        "0/init/0",
    ];
    scene.refuses(&dpo("e"), 2, &words);
    scene.succeeds(&format!("{} dpo.overlong=leave_out", dpo("f")));
    let shown = scene.submit("inspect r 0 init 0 --store f");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("too_long 1"), "{shown}");
}

#[test]
fn a_port_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let scene = Scene::new();
    let line = format!("textcraft --port {port}");
    refused(&line, &scene.program("agentgym-env", &line), 1, &["in use"]);
    let line = "textcraft --port 0 --recipes nowhere";
    refused(line, &scene.program("agentgym-env", line), 1, &["nowhere"]);
}

fn http(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .into()
}

/// Far larger than any observation.
fn endless() -> Vec<u8> {
    const BYTES: usize = 100_000_000;
    let mut answer =
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {BYTES}\r\n\r\n")
            .into_bytes();
    answer.resize(BYTES, b' ');
    answer
}

/// A server that gives the same answer to every request, for as long as the test runs.
fn serve(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = std::sync::Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (mut stream, answer) = (stream, std::sync::Arc::clone(&answer));
            std::thread::spawn(move || {
                // The request fits into one read, or its rest does not matter.
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(&answer);
            });
        }
    });
    url
}
