//! The command line, in process: every view of a run, every kind of bad input, and a run from its
//! config to its files. [`Scene`] is a run with handmade commits, so that viewing it needs no
//! worker.

mod bad_input;
mod control;
mod event_file;
mod looks;
mod whole_run;

use agentgym_jobs::codec::{Payload, encode};
use agentgym_jobs::config::ResolvedConfig;
use agentgym_jobs::episode::{Episode, Episodes, Finish, Outcome, Parse, Sequence, Task, Turn};
use agentgym_jobs::pipeline::{PartId, Stage, parts};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{Batch, BatchEpisode, BatchSequence, EpisodeLogProbs, LogProbs};
use agentgym_storage::{
    AttemptEnd, AttemptOutcome, AttemptStart, InputRef, Manifest, Outputs, PartKey, Store, Work,
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

fn stats() -> serde_json::Map<String, Value> {
    [("sampled_tokens".to_owned(), json!(6))]
        .into_iter()
        .collect()
}

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
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), CONFIG, &[]).unwrap();
        let plan = Plan::new(config, Path::new("")).unwrap();
        let url = dir.path().join("store").display().to_string();
        let store = Store::open(&url).await.unwrap();
        let bytes = plan.to_bytes().into();
        store.put_plan(&plan.run, 0, bytes).await.unwrap();
        Self { dir, store, plan }
    }

    fn slot(&self, id: PartId) -> PartKey {
        PartKey {
            run: self.plan.run.clone(),
            iteration: id.iteration,
            stage: id.stage.name().to_owned(),
            part: id.part,
        }
    }

    async fn start(&self, id: PartId) -> agentgym_storage::AttemptId {
        self.start_under(id, 0).await
    }

    async fn start_under(&self, id: PartId, revision: u32) -> agentgym_storage::AttemptId {
        let start = AttemptStart {
            worker: "host:1:ab".into(),
            started_unix_s: 1_000_000,
            code_version: "test".into(),
            plan_revision: revision,
            ..AttemptStart::default()
        };
        self.store
            .start_attempt(&self.slot(id), &start)
            .await
            .unwrap()
    }

    async fn end(&self, id: PartId, attempt: u32, outcome: AttemptOutcome, message: &str) {
        let end = AttemptEnd {
            outcome,
            message: message.into(),
            wall_s: 2.0,
            stats: stats(),
            excused: false,
            for_good: false,
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
            inputs: inputs.collect(),
            seed: 1,
            numeric_class: "test".into(),
            code_version: "test".into(),
            work: Some(Work {
                worker: "host:1:ab".into(),
                started_unix_s: 1_000_000,
                wall_s: 2.0,
                stats: stats(),
            }),
            ..Manifest::new(self.slot(id), attempt, outputs.into_artifacts())
        };
        self.store.commit(&manifest).await.unwrap();
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
        let played = |success: f64| {
            json!({
                "episodes": 2, "success": success, "reward": success, "rounds_mean": 1.0,
                "response_length_mean": 2.0, "prompt_length_mean": 2.0, "loss_tokens": 4,
                "outcomes": {"solved": 1, "horizon": 1}, "env_faults": 0, "env_fault_rate": 0.0,
            })
        };
        let score = |s: f64| {
            figures(json!({
                "set": "easy", "env": "textcraft", "tasks": 2, "success": s, "stderr": 0.25,
                "success_greedy": 1.0 - s, "episodes": 4, "faults": 0, "reward": s,
                "rounds_mean": 1.0, "horizon": 2, "sampled": played(s),
                "score": {
                    "items": 2, "items_lost": 0, "avg": null, "pass": {}, "rounds_mean": 1.0,
                    "fault_rate": null,
                },
            }))
        };
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
        let mut train = played(0.5);
        for (name, value) in [
            ("success_by_env", json!({"textcraft": 0.5})),
            ("horizon", json!(2)),
            ("groups_all_zero", json!(0)),
            ("groups_all_one", json!(0)),
            ("groups_mixed", json!(1)),
            ("groups_excluded", json!(0)),
            ("entropy", json!(0.5)),
            ("ref_kl", Value::Null),
        ] {
            train[name] = value;
        }
        self.commit(
            id(1, Stage::Advantage),
            vec![payload("batch.bin", &batch()), figures(train)],
        )
        .await;
        let update = json!({
            "settings": {
                "iteration": 1, "lr": 1e-6, "temperature": 1.0, "betas": [0.9, 0.95], "eps": 1e-8,
                "weight_decay": 0.0, "grad_clip": 1.0, "ppo_epochs": 1, "unit_tokens": 2048,
                "loss": {
                    "clip": {"low": 0.2, "high": 0.2}, "entropy_coeff": 0.0, "kl": null,
                    "aggregation": "token_mean",
                },
            },
            "minibatches": [{
                "epoch": 0, "minibatch": 0, "slots": [0, 1], "units": [[1]], "skipped": false,
                "denominator": {"loss_tokens": 2, "sequences": 1}, "grad_norm": 0.5, "clip_scale": 1.0,
                "metrics": {
                    "loss": 0.5, "policy_loss": 0.5, "entropy": 0.0, "kl_loss": -0.0,
                    "clip_fraction": 0.0, "approx_kl": 0.0, "ratio_max": 1.0,
                },
            }],
        });
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
        log_kept_mass: None,
        entropies: None,
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
