//! The stages one after the other, as a worker would run them: a small run on
//! a memory store, with the built-in environment behind loopback HTTP.

use super::testing::plan_of;
use crate::context::{Beat, Event, Resources};
use crate::{Error, Report, StageContext, stages};
use agentgym_jobs::pipeline::{Input, Part, PartId, Stage, parts, policy_of};
use agentgym_jobs::plan::Plan;
use agentgym_model::Device;
use agentgym_storage::{
    Artifact, AttemptId, Committed, InputRef, Inputs, Journal, Manifest, Outputs, Slot, Store,
    nonce,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

const RUN: &str = "
actor_rollout_ref:
  model: {path: 'tiny?hidden=32&layers=2&intermediate=64&vocab=420'}
  actor: {ppo_mini_batch_size: 2, ppo_epochs: 2, entropy_coeff: 0.01, use_kl_loss: true, optim: {lr: 1.0e-3}}
  rollout: {n: 3, max_tokens: 10, max_model_len: 1200}
  agentgym: {task_name: textcraft, env_addr: 'builtin:worlds?depths=1-2'}
data:
  {train_batch_size: 4, max_prompt_length: 900, max_response_length: 300, tasks: [{env: textcraft, ids: 0..100}]}
algorithm: {rounds_ctrl: {rounds: 2}}
sft: {sources: [{env: textcraft, ids: 500..520, style: thought}], steps: 4, batch_size: 2}
evaluation: {samples: 2, max_rounds: 2, sets: [{name: held_out, env: textcraft, ids: 1000..1003}]}
trainer: {total_training_steps: 2, test_freq: 1}
jobs: {rollout_part_tasks: 2, sft_part_steps: 2, unit_tokens: 600, journal_interval_s: 0.1}
";

/// A store, a plan and a worker's resources.
struct Bench {
    store: Store,
    plan: Arc<Plan>,
    resources: Arc<Resources>,
    cache: TempDir,
    attempts: std::cell::Cell<u32>,
}

impl Bench {
    async fn new(threads: usize, overrides: &[&str]) -> Self {
        Self {
            store: Store::open("memory:").await.unwrap(),
            plan: Arc::new(plan_of(RUN, overrides)),
            resources: Arc::new(Resources {
                threads,
                device: Device::cpu(),
                policies: Default::default(),
                critics: Default::default(),
                environments: Default::default(),
            }),
            cache: tempfile::tempdir().unwrap(),
            attempts: Default::default(),
        }
    }

    fn slot(&self, id: PartId) -> Slot {
        let stage = id.stage.name().to_owned();
        Slot {
            run: self.plan.run.clone(),
            iteration: id.iteration,
            stage,
            part: id.part,
        }
    }

    async fn manifest(&self, id: PartId) -> Manifest {
        self.store.manifest(&self.slot(id)).await.unwrap().unwrap()
    }

    async fn attempt(
        &self,
        part: &Part,
        cancel: CancellationToken,
        events: broadcast::Sender<Event>,
    ) -> crate::Result<(Vec<Artifact>, Report)> {
        self.attempts.set(self.attempts.get() + 1);
        let attempt = AttemptId {
            number: self.attempts.get(),
            nonce: nonce(),
        };
        let slot = self.slot(part.id);
        let mut inputs = Vec::new();
        for Input { name, from } in &part.inputs {
            inputs.push((name.clone(), self.manifest(*from).await));
        }
        let scratch = self
            .cache
            .path()
            .join(format!("attempt-{}", attempt.number));
        std::fs::create_dir_all(&scratch).unwrap();
        let mut context = StageContext {
            plan: Arc::clone(&self.plan),
            part: part.clone(),
            inputs: Inputs::new(self.store.clone(), inputs, self.cache.path().join("inputs")),
            beat: Beat::new(part.id, events),
            cancel,
            resources: Arc::clone(&self.resources),
            journal: Journal::open(self.store.clone(), slot.clone(), attempt.clone()),
            replayed: Journal::replay(&self.store, &slot).await?,
            scratch,
        };
        let mut outputs = Outputs::new(self.store.clone(), slot, attempt);
        let report = stages::run(part.id.stage, &mut context, &mut outputs).await?;
        Ok((outputs.into_artifacts(), report))
    }

    async fn make(&self, part: &Part) -> Report {
        let (outputs, report) = self
            .attempt(part, CancellationToken::new(), broadcast::channel(64).0)
            .await
            .unwrap();
        let reference = |input: &Input| InputRef {
            name: input.name.clone(),
            iteration: input.from.iteration,
            stage: input.from.stage.name().into(),
            part: input.from.part,
        };
        let manifest = Manifest {
            inputs: part.inputs.iter().map(reference).collect(),
            seed: self.plan.config.run.seed,
            numeric_class: "test".into(),
            code_version: "test".into(),
            ..Manifest::new(
                self.slot(part.id),
                AttemptId::new(self.attempts.get()),
                outputs,
            )
        };
        assert!(matches!(
            self.store.commit(&manifest).await.unwrap(),
            Committed::Won
        ));
        report
    }

    async fn metrics(&self, iteration: u32, stage: Stage, part: u32) -> Value {
        let manifest = self
            .manifest(PartId {
                iteration,
                stage,
                part,
            })
            .await;
        let inputs = Inputs::new(
            self.store.clone(),
            vec![("x".into(), manifest)],
            self.cache.path(),
        );
        serde_json::from_slice(&inputs.bytes("x", "metrics.json").await.unwrap()).unwrap()
    }
}

/// Makes every part up to `stop`; digests by part and artifact.
async fn whole_run(bench: &Bench, stop: Option<PartId>) -> BTreeMap<String, String> {
    let mut digests = BTreeMap::new();
    for iteration in 0..=bench.plan.iterations {
        for part in parts(&bench.plan, iteration) {
            if stop == Some(part.id) {
                return digests;
            }
            bench.make(&part).await;
            for artifact in bench.manifest(part.id).await.outputs {
                digests.insert(
                    format!("{} {}", part.id, artifact.name),
                    artifact.digest.to_string(),
                );
            }
        }
    }
    digests
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_rows_and_packs_do_not_show_in_a_run() {
    let one = Bench::new(1, &["jobs.decode_rows=3", "jobs.pack_tokens=500"]).await;
    let two = Bench::new(2, &["jobs.decode_rows=64", "jobs.cache_tokens=700"]).await;
    let (first, second) = (whole_run(&one, None).await, whole_run(&two, None).await);
    let names: Vec<_> = first
        .iter()
        .filter(|(name, d)| second.get(*name) != Some(*d))
        .collect();
    assert!(names.is_empty() && first.len() == second.len(), "{names:?}");

    for iteration in 1..=2 {
        let metrics = one.metrics(iteration, Stage::Advantage, 0).await;
        assert_eq!(
            metrics["log_prob_mismatch_max"], 0.0,
            "on-policy, sampled = recomputed"
        );
        assert_eq!(metrics["episodes"], 12);
        let update = one.metrics(iteration, Stage::Update, 0).await;
        assert_eq!(
            update["optimizer_steps"], 4,
            "2 minibatches × 2 epochs: {update}"
        );
    }
    let last = policy_of(&one.plan, 2);
    let (before, after) = (policy_of(&one.plan, 1), one.manifest(last).await);
    let weights = |m: &Manifest| {
        m.output("policy/model.safetensors")
            .unwrap()
            .digest
            .to_string()
    };
    assert_ne!(
        weights(&one.manifest(before).await),
        weights(&after),
        "the policy was trained"
    );
    let evaluated = one.metrics(2, Stage::Evaluate, 0).await;
    assert_eq!(
        (&evaluated["tasks"], &evaluated["episodes"]),
        (&3.into(), &9.into())
    );
    for bench in [one, two] {
        bench.resources.environments.stop().await;
    }
}

/// A Qwen3 with a critic, a KL penalty whose coefficient moves, a reference of its own and a
/// warm-up; then greedy baselines with a micro-batch mean.
#[tokio::test(flavor = "multi_thread")]
async fn nor_with_a_critic_or_with_baselines() {
    const TINY: &str = "tiny?hidden=32&layers=2&intermediate=64&vocab=420";
    let reference = format!("actor_rollout_ref.ref.model.path={TINY}");
    let ppo = [
        "actor_rollout_ref.model.path=tiny?arch=qwen3&hidden=32&layers=2&intermediate=64&vocab=420",
        "algorithm.adv_estimator=gae",
        "algorithm.lam=0.9",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.horizon=100",
        "trainer.critic_warmup=1",
        "critic.optim.lr=1e-2",
        reference.as_str(),
    ];
    let remax = [
        "algorithm.adv_estimator=remax",
        "actor_rollout_ref.actor.loss_agg_mode=micro_batch_mean",
        "actor_rollout_ref.actor.ppo_micro_batch_size=3",
        "actor_rollout_ref.actor.clip_ratio_c=3",
    ];
    let filter = [
        "algorithm.filter_groups.enable=true",
        "actor_rollout_ref.rollout.n=2",
        "algorithm.adv_estimator=rloo",
    ];
    for options in [&ppo[..], &remax[..], &filter[..]] {
        let with = |more: &[&'static str]| [options, more].concat();
        let one = Bench::new(1, &with(&["jobs.decode_rows=3", "jobs.pack_tokens=500"])).await;
        let two = Bench::new(3, &with(&["jobs.decode_rows=64"])).await;
        let (first, second) = (whole_run(&one, None).await, whole_run(&two, None).await);
        assert!(first == second, "{options:?}");
        let last = one.metrics(2, Stage::Advantage, 0).await;
        if options == ppo {
            let before = one.metrics(1, Stage::Advantage, 0).await;
            assert_eq!(before["kl_coef"], 0.001);
            assert_ne!(last["kl_coef"], before["kl_coef"], "{last}");
            assert!(last["explained_variance"].is_number(), "{last}");
            let warm_up = one.metrics(1, Stage::Update, 0).await;
            assert_eq!(warm_up["optimizer_steps"], 0);
            let weights = |n| format!("{} policy/model.safetensors", policy_of(&one.plan, n));
            assert_eq!(first[&weights(0)], first[&weights(1)]);
            assert_ne!(first[&weights(1)], first[&weights(2)]);
            let critic = one.metrics(2, Stage::CriticUpdate, 0).await;
            assert_eq!(critic["optimizer_steps"], 4);
        } else if options == filter {
            // Nothing is solved by chance: both rounds were played to the end.
            assert_eq!(last["episodes"], 16, "{last}");
            let select = one.metrics(2, Stage::Select, 1).await;
            assert_eq!(
                (&select["round"], &select["groups"]),
                (&2.into(), &4.into())
            );
        } else {
            assert!(last["baseline_reward"].is_number(), "{last}");
            assert_eq!(last["episodes"], 12, "baselines are not trained on");
        }
        for bench in [one, two] {
            bench.resources.environments.stop().await;
        }
    }
}

/// An adapter alone is written after `init`, it moves, what is sampled is scored
/// with the same bits, and the reference is the base: with a warm start by the
/// time of the first update, the divergence from it is not zero.
#[tokio::test(flavor = "multi_thread")]
async fn nor_with_an_adapter() {
    let options = [
        "actor_rollout_ref.model.lora_rank=3",
        "actor_rollout_ref.model.target_modules=[q_proj,v_proj,down_proj]",
        "algorithm.adv_estimator=gae",
        "sft.lr=1e-2",
    ];
    let with = |more: &'static str| [&options[..], &[more]].concat();
    let one = Bench::new(1, &with("jobs.decode_rows=3")).await;
    let two = Bench::new(3, &with("jobs.decode_rows=64")).await;
    let (first, second) = (whole_run(&one, None).await, whole_run(&two, None).await);
    assert!(first == second);
    let dense = |name: &str| name.contains(" policy/");
    let policies = first.keys().filter(|name| dense(name));
    assert!(policies.clone().count() > 0);
    for name in policies {
        assert!(
            name.starts_with("0/init/0 "),
            "{name} is a copy of the base"
        );
    }
    let adapter = |n| {
        &first[&format!(
            "{} adapter/adapter_model.safetensors",
            policy_of(&one.plan, n)
        )]
    };
    assert!(adapter(0) != adapter(1) && adapter(1) != adapter(2));
    let weights = one.manifest(policy_of(&one.plan, 2)).await;
    let size = |name: &str| weights.output(name).unwrap().size;
    let optimizer = size("optimizer/state.safetensors");
    assert!(
        optimizer < 3 * size("adapter/adapter_model.safetensors"),
        "{optimizer}"
    );
    for iteration in 1..=2 {
        let metrics = one.metrics(iteration, Stage::Advantage, 0).await;
        assert_eq!(metrics["log_prob_mismatch_max"], 0.0);
        let update = one.metrics(iteration, Stage::Update, 0).await;
        assert!(update["kl_loss"].as_f64().unwrap() > 0.0, "{update}");
    }
    for bench in [one, two] {
        bench.resources.environments.stop().await;
    }
}

/// Training goes on with an adapter of a folder, if it fits.
#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_of_a_folder_is_gone_on_with() {
    let rank = "actor_rollout_ref.model.lora_rank=3";
    let one = Bench::new(1, &[rank, "sft.steps=2"]).await;
    let init = &parts(&one.plan, 0)[0];
    one.make(init).await;
    let inputs = Inputs::new(
        one.store.clone(),
        vec![("x".into(), one.manifest(init.id).await)],
        one.cache.path(),
    );
    let folder = inputs.folder("x", "adapter").await.unwrap();
    let path = format!(
        "actor_rollout_ref.model.lora_adapter_path={}",
        folder.path().display()
    );
    let digest = |manifest: &Manifest| {
        let adapter = manifest.output("adapter/adapter_model.safetensors");
        adapter.unwrap().digest.to_string()
    };
    for rank in [None, Some(rank)] {
        let two = Bench::new(1, &[&[path.as_str()][..], rank.as_slice()].concat()).await;
        two.make(init).await;
        let (mine, theirs) = (one.manifest(init.id).await, two.manifest(init.id).await);
        assert_eq!(digest(&mine), digest(&theirs));
    }
    let attempt = async |overrides: &[&str]| {
        let bench = Bench::new(1, overrides).await;
        let (cancel, events) = (CancellationToken::new(), broadcast::channel(64).0);
        bench
            .attempt(init, cancel, events)
            .await
            .unwrap_err()
            .to_string()
    };
    let other = "actor_rollout_ref.model.lora_rank=5";
    let message = attempt(&[path.as_str(), other]).await;
    assert!(
        message.contains("lora_rank is 5") && message.contains("rank 3"),
        "{message}"
    );
    let wider = "actor_rollout_ref.model.path=tiny?hidden=48&layers=2&vocab=420";
    let message = attempt(&[path.as_str(), wider]).await;
    assert!(
        message.contains("lora_A") && message.contains("adapter_model"),
        "{message}"
    );
}

#[test]
fn both_crates_know_the_same_modules() {
    assert_eq!(
        agentgym_jobs::config::LORA_MODULES,
        agentgym_model::LORA_MODULES
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_part_ends_equal_and_plays_nothing_twice() {
    let rollout = PartId {
        iteration: 1,
        stage: Stage::Rollout,
        part: 0,
    };
    let many = "actor_rollout_ref.rollout.n=400";
    let bench = Bench::new(1, &["jobs.decode_rows=2", many]).await;
    whole_run(&bench, Some(rollout)).await;
    let part = parts(&bench.plan, 1)
        .into_iter()
        .find(|p| p.id == rollout)
        .unwrap();

    // Stopped at the first sign of progress.
    let (events, mut heard) = broadcast::channel(64);
    let cancel = CancellationToken::new();
    let stop = tokio::spawn({
        let cancel = cancel.clone();
        async move {
            while let Ok(event) = heard.recv().await {
                if matches!(event, Event::Progress { done: 1.., .. }) {
                    cancel.cancel();
                }
            }
        }
    });
    let stopped = bench.attempt(&part, cancel, events).await;
    assert!(
        matches!(stopped, Err(Error::Cancelled)),
        "{:?}",
        stopped.map(|(_, r)| r)
    );
    stop.abort();

    let none = || (CancellationToken::new(), broadcast::channel(64).0);
    let (cancel, events) = none();
    let (resumed, report) = bench.attempt(&part, cancel, events).await.unwrap();
    let replayed = report.stats["episodes_replayed"].as_u64().unwrap();
    assert!(
        (1..800).contains(&replayed),
        "{replayed} of 800 were journalled"
    );

    let fresh = Bench::new(2, &[many]).await;
    whole_run(&fresh, Some(rollout)).await;
    let (cancel, events) = none();
    let (whole, _) = fresh.attempt(&part, cancel, events).await.unwrap();
    assert_eq!(resumed[0].digest.to_string(), whole[0].digest.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_environment_fails_the_part_and_names_the_url() {
    let address = "actor_rollout_ref.agentgym.env_addr=http://127.0.0.1:9";
    let bench = Bench::new(
        1,
        &[
            address,
            "actor_rollout_ref.agentgym.max_retries=1",
            "sft.steps=0",
        ],
    )
    .await;
    let rollout = PartId {
        iteration: 1,
        stage: Stage::Rollout,
        part: 0,
    };
    for part in parts(&bench.plan, 0) {
        if part.id.stage == Stage::Init {
            bench.make(&part).await;
        }
    }
    let part = parts(&bench.plan, 1)
        .into_iter()
        .find(|p| p.id == rollout)
        .unwrap();
    let failed = bench
        .attempt(&part, CancellationToken::new(), broadcast::channel(64).0)
        .await;
    let error = failed.map(|(_, r)| r).unwrap_err();
    assert!(matches!(error, Error::Environment(_)), "{error}");
    assert!(error.to_string().contains("http://127.0.0.1:9"), "{error}");
}
