//! The command line over a run whose commits were put together by hand: every
//! look at a run works without a worker, and each kind of bad input ends with
//! its own exit code and a message that says what to do.

use agentgym_jobs::codec::{Payload, encode};
use agentgym_jobs::config::RunConfig;
use agentgym_jobs::episode::{Episode, Episodes, Finish, Outcome, Parse, Sequence, Task, Turn};
use agentgym_jobs::pipeline::{PartId, Stage, parts};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{Batch, BatchEpisode, BatchSequence, EpisodeLogProbs, LogProbs};
use agentgym_storage::{
    AttemptEnd, AttemptOutcome, AttemptStart, InputRef, Manifest, Outputs, Slot, Store,
};
use agentgym_submit::cli::{Cli, with_run};
use agentgym_submit::records::{Filter, content};
use agentgym_submit::runs::RunView;
use agentgym_submit::{Error, Exit, execute};
use clap::Parser as _;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const CONFIG: &str = "
run: {id: handmade}
actor_rollout_ref:
  model: {path: tiny}
  actor: {ppo_mini_batch_size: 1}
  rollout: {n: 2}
data:
  train_batch_size: 1
  tasks: [{env: textcraft, ids: 0..4}]
evaluation: {sets: [{name: easy, env: textcraft, ids: 4..6}]}
trainer: {total_training_steps: 1}
";

struct Scene {
    dir: tempfile::TempDir,
    store: Store,
    plan: Plan,
}

impl Scene {
    fn store_path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = RunConfig::parse("x", Path::new("x.yaml"), CONFIG, &[]).unwrap();
        let plan = Plan::new(config, Path::new("")).unwrap();
        let url = dir.path().join("store").display().to_string();
        let store = Store::open(&url).await.unwrap();
        let bytes = plan.to_bytes().into();
        store.put_plan(&plan.run, 0, bytes).await.unwrap();
        Self { dir, store, plan }
    }

    fn slot(&self, id: PartId) -> Slot {
        Slot {
            run: self.plan.run.clone(),
            iteration: id.iteration,
            stage: id.stage.name().to_owned(),
            part: id.part,
        }
    }

    async fn start(&self, id: PartId) -> agentgym_storage::AttemptId {
        let start = AttemptStart {
            worker: "host:1:ab".into(),
            started_unix_s: 1_000_000,
            code_version: "test".into(),
            plan_revision: 0,
        };
        self.store
            .start_attempt(&self.slot(id), &start)
            .await
            .unwrap()
    }

    async fn end(&self, id: PartId, attempt: u32, outcome: AttemptOutcome, message: &str) {
        let Value::Object(stats) = json!({"sampled_tokens": 6}) else {
            unreachable!()
        };
        let end = AttemptEnd {
            outcome,
            message: message.into(),
            wall_s: 2.0,
            stats,
        };
        self.store
            .end_attempt(&self.slot(id), attempt, &end)
            .await
            .unwrap();
    }

    /// Commits a part with these files.
    async fn commit(&self, id: PartId, files: Vec<(&str, Vec<u8>)>) {
        let attempt = self.start(id).await;
        let mut outputs = Outputs::new(self.store.clone(), self.slot(id), attempt.clone());
        for (name, bytes) in files {
            outputs.bytes(name, "test", bytes.into()).await.unwrap();
        }
        let part = parts(&self.plan, id.iteration)
            .into_iter()
            .find(|p| p.id == id)
            .unwrap();
        let inputs = part.inputs.iter().map(|i| InputRef {
            name: i.name.clone(),
            iteration: i.from.iteration,
            stage: i.from.stage.name().into(),
            part: i.from.part,
        });
        let manifest = Manifest {
            version: Manifest::VERSION,
            run: self.plan.run.clone(),
            iteration: id.iteration,
            stage: id.stage.name().into(),
            part: id.part,
            attempt: attempt.number,
            nonce: attempt.nonce.clone(),
            inputs: inputs.collect(),
            outputs: outputs.into_artifacts(),
            seed: 1,
            numeric_class: "test".into(),
            code_version: "test".into(),
            plan_revision: 0,
            decision: None,
        };
        self.store.commit(&manifest).await.unwrap();
        self.end(id, attempt.number, AttemptOutcome::Committed, "")
            .await;
    }

    /// Commits every part of the run.
    async fn finish(&self) {
        let policy = |mark: &str| {
            (
                "policy/config.json",
                format!("{{\"mark\":\"{mark}\"}}").into_bytes(),
            )
        };
        self.commit(id(0, Stage::Init), vec![policy("init")]).await;
        let figures = |v: Value| ("metrics.json", v.to_string().into_bytes());
        let score = |s: f64| figures(json!({"success": s, "success_greedy": 1.0 - s, "tasks": 2}));
        self.commit(
            id(0, Stage::Evaluate),
            vec![score(0.25), payload("episodes.bin", &Episodes::V1(vec![]))],
        )
        .await;
        let episodes: Vec<Episode> = (0..2).map(episode).collect();
        self.commit(
            id(1, Stage::Rollout),
            vec![payload("episodes.bin", &Episodes::V1(episodes))],
        )
        .await;
        self.commit(
            id(1, Stage::LogProbs),
            vec![payload("log_probs.bin", &log_probs())],
        )
        .await;
        let train = json!({"success": 0.5, "reward": 0.5, "rounds_mean": 1.0});
        self.commit(
            id(1, Stage::Advantage),
            vec![payload("batch.bin", &batch()), figures(train)],
        )
        .await;
        let update =
            json!({"settings": {"lr": 1e-6}, "minibatches": [{"slots": [0, 1], "grad_norm": 0.5}]});
        let optimizer = ("optimizer/state.safetensors", b"moments".to_vec());
        self.commit(
            id(1, Stage::Update),
            vec![
                policy("update"),
                optimizer,
                ("update.json", update.to_string().into_bytes()),
            ],
        )
        .await;
        self.commit(
            id(1, Stage::Evaluate),
            vec![score(0.75), payload("episodes.bin", &Episodes::V1(vec![]))],
        )
        .await;
        self.commit(id(1, Stage::Expire), vec![]).await;
    }

    async fn view(&self) -> RunView {
        RunView::open(&self.store, "handmade").await.unwrap()
    }

    async fn command(&self, line: &str) -> Result<(), Error> {
        command(&format!("{line} --store {}", self.store_path().display())).await
    }
}

async fn command(line: &str) -> Result<(), Error> {
    let words = std::iter::once("agentgym-submit").chain(line.split_whitespace());
    execute(Cli::try_parse_from(with_run(words.map(Into::into))).unwrap()).await
}

fn id(iteration: u32, stage: Stage) -> PartId {
    PartId {
        iteration,
        stage,
        part: 0,
    }
}

fn payload<T: Payload>(name: &'static str, value: &T) -> (&'static str, Vec<u8>) {
    (name, encode(value).unwrap())
}

fn sequence() -> Sequence {
    Sequence {
        token_ids: vec![1, 5, 9, 2],
        loss_mask: vec![false, false, true, true],
        sampled_log_probs: vec![0.0, 0.0, -0.5, -0.25],
    }
}

fn task() -> Task {
    Task {
        env: "textcraft".into(),
        item_id: 3,
    }
}

fn episode(sample: u32) -> Episode {
    Episode {
        task: task(),
        group: 0,
        sample,
        outcome: if sample == 0 {
            Outcome::Solved
        } else {
            Outcome::Horizon
        },
        success: sample == 0,
        reward: 1.0 - f64::from(sample),
        prompt: "Craft the goal.".into(),
        sequences: vec![sequence()],
        turns: vec![Turn {
            sequence: 0,
            context: (0, 2),
            policy: (2, 4),
            text: "Action: get 1 log".into(),
            action: Some("get 1 log".into()),
            parse: Parse::Clean,
            observation: "Got 1 log".into(),
            reward: Some(0.0),
            done: sample == 0,
            finish: Finish::Eos,
            policy_iteration: 0,
        }],
        fault: None,
        extra: vec![],
    }
}

fn log_probs() -> LogProbs {
    let one = EpisodeLogProbs {
        old: vec![vec![0.0, 0.0, -0.5, -0.25]],
        entropies: vec![vec![0.0, 0.0, 1.5, 1.25]],
        reference: None,
    };
    LogProbs::V1(vec![one.clone(), one])
}

fn batch() -> Batch {
    let member = |sample: u32| BatchEpisode {
        task: task(),
        group: 0,
        sample,
        outcome: Outcome::Solved,
        success: true,
        reward: 1.0,
        advantage: 0.5,
        sequences: vec![BatchSequence {
            sequence: sequence(),
            old_log_probs: vec![0.0, 0.0, -0.5, -0.25],
            ref_log_probs: None,
            advantages: vec![0.0, 0.0, 0.5, 0.5],
        }],
    };
    Batch::V1(vec![None, Some(member(1))])
}

#[tokio::test]
async fn every_look_at_a_finished_run_succeeds() {
    let scene = Scene::new().await;
    scene.finish().await;
    for line in [
        "status",
        "status --json",
        "status handmade",
        "inspect handmade",
        "inspect handmade --json",
        "inspect handmade 0",
        "inspect handmade 1 --json",
        "inspect handmade 1 rollout",
        "inspect handmade 1 rollout 0 --tokens --sample 1",
        "inspect handmade 1 log_probs 0 --json",
        "inspect handmade 1 advantage --jsonl",
        "inspect handmade 1 update 0",
        "inspect handmade 1 evaluate",
        "metrics handmade",
        "metrics handmade --json",
        "digest handmade",
        "keys rollout",
    ] {
        scene
            .command(line)
            .await
            .unwrap_or_else(|e| panic!("{line}: {e}"));
    }
    let exports = scene.store_path().join("exports/handmade");
    let metrics = std::fs::read_to_string(exports.join("metrics.jsonl")).unwrap();
    let rows: Vec<Value> = metrics
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let easy: Vec<f64> = rows
        .iter()
        .filter(|r| r["set"] == "easy")
        .map(|r| r["metrics"]["success"].as_f64().unwrap())
        .collect();
    assert_eq!(easy, [0.25, 0.75]);
    assert!(
        exports
            .join("tensorboard")
            .read_dir()
            .unwrap()
            .next()
            .is_some()
    );
}

#[tokio::test]
async fn records_carry_every_stream() {
    let scene = Scene::new().await;
    scene.finish().await;
    let view = scene.view().await;
    let records = async |stage, filter| {
        let manifest = view.committed(id(1, stage)).await.unwrap();
        content(&view, &manifest, filter).await.unwrap().to_json()
    };
    let episodes = records(Stage::Rollout, Filter::default()).await;
    assert_eq!(episodes.len(), 2);
    assert_eq!(episodes[1]["outcome"], "horizon");
    assert_eq!(episodes[1]["turns"][0]["text"], "Action: get 1 log");
    let scored = records(
        Stage::LogProbs,
        Filter {
            group: None,
            sample: Some(1),
        },
    )
    .await;
    assert_eq!(scored.len(), 1);
    assert_eq!(
        scored[0]["sequences"][0]["entropies"],
        json!([0.0, 0.0, 1.5, 1.25])
    );
    let slots = records(Stage::Advantage, Filter::default()).await;
    assert_eq!(slots.len(), 1, "the empty slot is no record");
    assert_eq!(slots[0]["slot"], 1);
    assert_eq!(
        slots[0]["sequences"][0]["advantages"],
        json!([0.0, 0.0, 0.5, 0.5])
    );
    let steps = records(Stage::Update, Filter::default()).await;
    assert_eq!(steps, [json!({"slots": [0, 1], "grad_norm": 0.5})]);
}

#[tokio::test]
async fn an_export_holds_what_an_update_reads_and_writes() {
    let scene = Scene::new().await;
    scene.finish().await;
    let to = scene.dir.path().join("out");
    scene
        .command(&format!(
            "export handmade --iteration 1 --to {}",
            to.display()
        ))
        .await
        .unwrap();
    let read = |name: &str| {
        std::fs::read_to_string(to.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    assert!(read("policy_before/config.json").contains("init"));
    assert!(read("policy_after/config.json").contains("update"));
    assert!(
        !to.join("optimizer_before").exists(),
        "the first update starts fresh"
    );
    let origin: Value = serde_json::from_str(&read("export.json")).unwrap();
    assert_eq!(origin["optimizer_before"], "fresh");
    assert_eq!(origin["slots"], 2);
    let lines: Vec<Value> = read("trajectories.jsonl")
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines.len(), 1);
    for name in [
        "token_ids",
        "loss_mask",
        "sampled_log_probs",
        "old_log_probs",
        "advantages",
    ] {
        assert_eq!(lines[0][name].as_array().map(Vec::len), Some(4), "{name}");
    }
    assert_eq!(lines[0]["slot"], 1);
    let update: Value = serde_json::from_str(&read("update.json")).unwrap();
    assert_eq!(update["minibatches"][0]["slots"], json!([0, 1]));

    let again = scene
        .command(&format!(
            "export handmade --iteration 1 --to {}",
            to.display()
        ))
        .await;
    assert_eq!(
        again.unwrap_err().exit(),
        Exit::Config,
        "a folder with files in it is left alone"
    );
}

#[tokio::test]
async fn status_tells_a_failure_from_a_wait() {
    let scene = Scene::new().await;
    let init = id(0, Stage::Init);
    let status = async || {
        agentgym_submit::status::status(&scene.view().await)
            .await
            .unwrap()
    };
    assert!(
        status()
            .await
            .waiting_line()
            .contains("a worker to take 0/init/0")
    );
    let attempt = scene.start(init).await;
    assert!(status().await.waiting_line().contains("0/init/0 to finish"));
    scene
        .end(
            init,
            attempt.number,
            AttemptOutcome::Failed,
            "no room for the policy",
        )
        .await;
    let text = status().await.render(1_000_060);
    assert!(text.contains("no room for the policy"), "{text}");
    assert!(text.contains("a worker to take 0/init/0"), "{text}");
    for _ in 0..2 {
        let attempt = scene.start(init).await;
        scene
            .end(
                init,
                attempt.number,
                AttemptOutcome::Failed,
                "no room for the policy",
            )
            .await;
    }
    assert!(
        status()
            .await
            .waiting_line()
            .contains("agentgym-submit resume handmade")
    );
}

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
            Exit::Config,
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

/// Small enough for a few seconds, and every stage takes part.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_from_its_config_to_its_digest_and_again_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("tiny.yaml");
    std::fs::write(&config, TINY_RUN).unwrap();
    let store_path = dir.path().join("store");
    let line = format!(
        "{} run.id=tiny --quiet --store {}",
        config.display(),
        store_path.display()
    );
    command(&line).await.unwrap();
    let store = Store::open(&store_path.display().to_string())
        .await
        .unwrap();
    let view = RunView::open(&store, "tiny").await.unwrap();
    assert!(
        agentgym_submit::status::status(&view)
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

    // A binding changes nothing but the plan's revision.
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

    // What was sampled is what was scored: equal to the bit on this machine.
    let manifest = view.committed(id(2, Stage::Advantage)).await.unwrap();
    let records = content(&view, &manifest, Filter::default())
        .await
        .unwrap()
        .to_json();
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
