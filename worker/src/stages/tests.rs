//! The stages in order, as a worker would run them: a small run on a memory store, with the
//! built-in environment behind loopback HTTP.

mod server;

use super::testing::plan_of;
use crate::context::{Beat, Event, Resources};
use crate::{Error, Report, StageContext, stages, states};
use agentgym_jobs::codec::{decode, encode};
use agentgym_jobs::episode::Episodes;
use agentgym_jobs::journal::{Event as TurnEvent, Segment};
use agentgym_jobs::pipeline::{Input, Part, PartId, Stage, parts, policy_of};
use agentgym_jobs::plan::Plan;
use agentgym_model::Device;
use agentgym_storage::{
    Artifact, AttemptId, Committed, InputRef, Inputs, Journal, Manifest, Outputs, PartKey, Store,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, broadcast};
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
    /// Parts of `log_probs` whose recorded numbers were scored again.
    checked: std::cell::Cell<u32>,
    /// Limits how many messages its environment still gets, if the test needs that.
    gate: Option<Arc<Semaphore>>,
}

impl Bench {
    async fn new(threads: usize, overrides: &[&str]) -> Self {
        Self {
            store: Store::open("memory:").await.unwrap(),
            plan: Arc::new(plan_of(RUN, overrides)),
            resources: Arc::new(Resources::new(threads, Device::cpu())),
            cache: tempfile::tempdir().unwrap(),
            attempts: Default::default(),
            checked: Default::default(),
            gate: None,
        }
    }

    fn slot(&self, id: PartId) -> PartKey {
        let stage = id.stage.name().to_owned();
        PartKey {
            run: self.plan.run.clone(),
            iteration: id.iteration,
            stage,
            part: id.part,
        }
    }

    /// The id of the last attempt begun.
    fn attempt_id(&self) -> AttemptId {
        let number = self.attempts.get();
        let nonce = format!("{number:08x}");
        AttemptId { number, nonce }
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
        let attempt = self.attempt_id();
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
            left: None,
            measured: Report::default(),
        };
        let mut outputs = Outputs::new(self.store.clone(), slot, attempt);
        let report = stages::run(part.id.stage, &mut context, &mut outputs).await?;
        if let Some(folder) = states::adopt_left(&mut context, &mut outputs).await? {
            for artifact in outputs.artifacts().filter(|a| a.after_commit) {
                let (_, file) = artifact.name.split_once('/').unwrap();
                self.store
                    .deliver(artifact, &folder.path().join(file))
                    .await?;
            }
        }
        Ok((outputs.into_artifacts(), report))
    }

    async fn make(&self, part: &Part) -> Report {
        let (outputs, report) = self
            .attempt(part, CancellationToken::new(), broadcast::channel(64).0)
            .await
            .unwrap();
        if let Some(mismatch) = report.stats.log_prob_mismatch_max {
            assert_eq!(mismatch, 0.0);
            self.checked.set(self.checked.get() + 1);
        }
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
            ..Manifest::new(self.slot(part.id), self.attempt_id(), outputs)
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

/// Makes every part up to `stop`; returns digests by part and artifact.
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

/// For every trained model: nothing is committed, and the error names the step and the keys to
/// lower.
#[tokio::test(flavor = "multi_thread")]
async fn training_that_comes_to_no_model_names_the_step_and_gives_up() {
    let (actor, critic) = ("actor_rollout_ref.actor.optim.lr", "critic.optim.lr");
    let no_sft = "sft.steps=0";
    for (id, overrides, place, key) in [
        (
            "0/sft/0",
            &["sft.warmup_steps=0"][..],
            "optimizer step 1 of sft",
            "sft.lr",
        ),
        ("1/update/0", &[no_sft], "optimizer step 1 of 4", actor),
        (
            "1/update/0",
            &[no_sft, "jobs.update_shards=2"],
            "optimizer step 1 of 4",
            actor,
        ),
        (
            "1/critic_update/0",
            &[no_sft, "algorithm.adv_estimator=gae"],
            "optimizer step 1 of 4",
            critic,
        ),
    ] {
        let id: PartId = id.parse().unwrap();
        let mut bench = Bench::new(1, overrides).await;
        // A config may not set this value; plans of older programs may.
        let config = &mut Arc::get_mut(&mut bench.plan).unwrap().config;
        let lr = match id.stage {
            Stage::Sft => &mut config.sft.lr,
            Stage::CriticUpdate => &mut config.critic.optim.lr,
            _ => &mut config.actor_rollout_ref.actor.optim.lr,
        };
        *lr = 1e38;
        whole_run(&bench, Some(id)).await;
        let planned = parts(&bench.plan, id.iteration);
        let part = planned.iter().find(|part| part.id == id).unwrap();
        let attempt = bench.attempt(part, CancellationToken::new(), broadcast::channel(64).0);
        let error = attempt.await.err().unwrap();
        assert!(error.is_for_good(), "{error}");
        assert_eq!(error.verdict(), agentgym_storage::Verdict::GiveUp);
        let text = error.to_string();
        for word in [place, &id.to_string(), "tensor ", key, "grad_clip"] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
        bench.resources.environments.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_rows_and_packs_do_not_show_in_a_run() {
    let (all, none) = (
        "algorithm.verify_log_probs=1",
        "algorithm.verify_log_probs=0",
    );
    let one = Bench::new(1, &["jobs.decode_rows=3", "jobs.pack_tokens=500", all]).await;
    let two = Bench::new(2, &["jobs.decode_rows=64", "jobs.cache_tokens=700", none]).await;
    let (first, second) = (whole_run(&one, None).await, whole_run(&two, None).await);
    let names: Vec<_> = first
        .iter()
        .filter(|(name, d)| second.get(*name) != Some(*d))
        .collect();
    assert!(names.is_empty() && first.len() == second.len(), "{names:?}");

    for iteration in 1..=2 {
        let metrics = one.metrics(iteration, Stage::Advantage, 0).await;
        assert!(metrics["log_prob_mismatch_max"].is_null(), "{metrics}");
        assert_eq!(metrics["episodes"], 12);
        let update = one.metrics(iteration, Stage::Update, 0).await;
        assert_eq!(
            update["optimizer_steps"], 4,
            "2 minibatches × 2 epochs: {update}"
        );
    }
    // What is taken from the rollouts is what scoring gives, whatever share of it is checked.
    assert_eq!((one.checked.get(), two.checked.get()), (4, 0));
    let scored = Bench::new(2, &["actor_rollout_ref.rollout.record_entropies=false"]).await;
    let third = whole_run(&scored, None).await;
    let differ: Vec<&String> = (third.iter())
        .filter(|(name, digest)| first.get(*name) != Some(*digest))
        .map(|(name, _)| name)
        .collect();
    let expected = [
        "1/advantage/0 metrics.json",
        "1/rollout/0 episodes.bin",
        "1/rollout/1 episodes.bin",
        "2/advantage/0 metrics.json",
        "2/rollout/0 episodes.bin",
        "2/rollout/1 episodes.bin",
    ];
    assert_eq!(differ, expected);
    let metrics = scored.metrics(1, Stage::Advantage, 0).await;
    assert_eq!(metrics["log_prob_mismatch_max"], 0.0);
    scored.resources.environments.stop().await;
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

/// A Qwen3 with a critic, a KL penalty with an adaptive coefficient, its own reference and a
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
            // No task is solved by chance: both rounds are played in full.
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

/// After `init` only adapters are written, and the adapter changes. Scoring reproduces the
/// sampled log-probs bit for bit. The reference is the base: after a warm start the divergence from
/// it is not zero at the first update.
#[tokio::test(flavor = "multi_thread")]
async fn nor_with_an_adapter() {
    let options = [
        "actor_rollout_ref.model.lora_rank=3",
        "actor_rollout_ref.model.target_modules=[q_proj,v_proj,down_proj]",
        "algorithm.adv_estimator=gae",
        "sft.lr=1e-2",
    ];
    let with = |more: &[&'static str]| [&options[..], more].concat();
    let checks = "algorithm.verify_log_probs=1";
    let one = Bench::new(1, &with(&["jobs.decode_rows=3", checks])).await;
    let two = Bench::new(3, &with(&["jobs.decode_rows=64"])).await;
    let (first, second) = (whole_run(&one, None).await, whole_run(&two, None).await);
    assert!(first == second);
    assert_eq!((one.checked.get(), two.checked.get()), (4, 0));
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
        let update = one.metrics(iteration, Stage::Update, 0).await;
        assert!(update["kl_loss"].as_f64().unwrap() > 0.0, "{update}");
    }
    for bench in [one, two] {
        bench.resources.environments.stop().await;
    }
}

/// Training continues with an adapter from a folder, if it fits.
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

/// A rollout by the model that sometimes solves such tasks, so that rewards differ.
fn able_rollout() -> ([String; 7], PartId) {
    let base = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/base");
    let options = [
        format!("actor_rollout_ref.model.path={}", base.display()),
        "sft.steps=0".to_owned(),
        "data.max_response_length=800".to_owned(),
        "actor_rollout_ref.rollout.max_model_len=1800".to_owned(),
        "actor_rollout_ref.rollout.n=24".to_owned(),
        "actor_rollout_ref.rollout.max_tokens=24".to_owned(),
        "algorithm.rounds_ctrl.rounds=8".to_owned(),
    ];
    let rollout = PartId {
        iteration: 1,
        stage: Stage::Rollout,
        part: 0,
    };
    (options, rollout)
}

/// A server of the run's tasks; every message to it waits for a permit.
async fn gated_environment() -> (String, Arc<Semaphore>) {
    let server = agentgym_games::start("builtin:worlds?depths=1-2")
        .await
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
    let permits = gate.clone();
    tokio::spawn(async move {
        let to = server.url.trim_start_matches("http://").to_owned();
        while let Ok((client, _)) = listener.accept().await {
            let (to, permits) = (TcpStream::connect(&to).await.unwrap(), permits.clone());
            let ((mut asks, mut hears), (mut answers, mut told)) =
                (client.into_split(), to.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut answers, &mut hears).await });
            tokio::spawn(async move {
                let mut message = vec![0; 1 << 16];
                while let Ok(length @ 1..) = asks.read(&mut message).await {
                    permits.acquire().await.unwrap().forget();
                    if told.write_all(&message[..length]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    (url, gate)
}

/// A bench just before the rollout.
async fn before_rollout(threads: usize, more: &[&str]) -> (Bench, Part) {
    let (options, rollout) = able_rollout();
    let (url, gate) = gated_environment().await;
    let address = format!("actor_rollout_ref.agentgym.env_addr={url}");
    let options = options.iter().map(String::as_str).chain([&*address]);
    let options: Vec<&str> = options.chain(more.iter().copied()).collect();
    let mut bench = Bench::new(threads, &options).await;
    bench.gate = Some(gate);
    for part in parts(&bench.plan, 0) {
        if part.id.stage == Stage::Init {
            bench.make(&part).await;
        }
    }
    let planned = parts(&bench.plan, 1).into_iter();
    let part = planned.into_iter().find(|p| p.id == rollout).unwrap();
    (bench, part)
}

impl Bench {
    async fn segments(&self, part: &Part) -> Vec<bytes::Bytes> {
        Journal::replay(&self.store, &self.slot(part.id))
            .await
            .unwrap()
    }

    /// Tokens in the journal, and the sampled tokens that its last segment reports.
    async fn journalled(&self, part: &Part) -> (u64, u64) {
        let (mut tokens, mut sampled) = (0, 0);
        for segment in self.segments(part).await {
            let Segment::V1(segment) = decode(&segment).unwrap();
            let events = segment.records.iter().flat_map(|r| &r.events);
            tokens += events.map(TurnEvent::sampled_tokens).sum::<u64>();
            sampled = segment.sampled_tokens;
        }
        (tokens, sampled)
    }

    /// Turns of the policy in the journal.
    async fn journalled_turns(&self, part: &Part) -> usize {
        let mut turns = 0;
        for segment in self.segments(part).await {
            let Segment::V1(segment) = decode(&segment).unwrap();
            let events = segment.records.iter().flat_map(|r| &r.events);
            turns += events.filter(|event| event.sampled_tokens() > 0).count();
        }
        turns
    }

    /// Plays until `segments` segments are journalled; then the process dies or is asked to end.
    /// Until then each look at the journal lets one more message through to the environment, so
    /// that even on a busy machine the part does not end before it is interrupted.
    async fn interrupted(&self, part: &Part, segments: usize, dies: bool) {
        let (cancel, events) = (CancellationToken::new(), broadcast::channel(64).0);
        let gate = self.gate.as_ref().unwrap();
        gate.forget_permits(Semaphore::MAX_PERMITS);
        let enough = async {
            let before = self.segments(part).await.len();
            while self.segments(part).await.len() < before + segments {
                gate.add_permits(1);
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            gate.add_permits(Semaphore::MAX_PERMITS / 2);
            if !dies {
                cancel.cancel();
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = self.attempt(part, cancel.clone(), events) => {
                let ended = ended.map(|(_, report)| report);
                assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
            }
            () = enough => {}
        }
    }
}

fn count(report: &Report, name: &str) -> u64 {
    report.stats.to_map()[name].as_u64().unwrap()
}

/// Asked to end, then killed, then asked again: the journalled events are replayed each time, also
/// with limited contexts and with summaries, and the part has the bytes of an undisturbed one.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_part_ends_equal_and_plays_nothing_twice() {
    const SUMMARY: &str = concat!(
        "actor_rollout_ref.agentgym.summary=",
        env!("CARGO_MANIFEST_DIR"),
        "/../prompts/summary.md"
    );
    const CONTEXT: &str = "actor_rollout_ref.agentgym.context_turns=2";
    for more in [&[][..], &[CONTEXT], &[CONTEXT, SUMMARY]] {
        let none = || (CancellationToken::new(), broadcast::channel(64).0);
        let (whole, part) = before_rollout(2, more).await;
        let (cancel, events) = none();
        let (expected, report) = whole.attempt(&part, cancel, events).await.unwrap();
        let total = count(&report, "sampled_tokens");
        for name in [
            "taken_up_tokens",
            "sampled_twice_tokens",
            "episodes_resumed",
            "episodes_replayed",
        ] {
            assert_eq!(count(&report, name), 0, "{name}");
        }

        let few = [more, &["jobs.decode_rows=2"]].concat();
        let (bench, part) = before_rollout(1, &few).await;
        bench.interrupted(&part, 2, false).await;
        let (drained, sampled) = bench.journalled(&part).await;
        assert_eq!(drained, sampled, "a drain loses nothing");
        bench.interrupted(&part, 2, true).await;
        let (killed, _) = bench.journalled(&part).await;
        bench.interrupted(&part, 1, false).await;
        let (journalled, _) = bench.journalled(&part).await;
        assert!(drained < killed && killed < journalled && journalled < total);
        let (cancel, events) = none();
        let (resumed, report) = bench.attempt(&part, cancel, events).await.unwrap();
        assert_eq!(
            resumed[0].digest.to_string(),
            expected[0].digest.to_string()
        );
        assert_eq!(count(&report, "taken_up_tokens"), journalled);
        assert_eq!(count(&report, "sampled_tokens"), total - journalled);
        assert_eq!(count(&report, "episodes_begun_anew"), 0);
        assert!(count(&report, "episodes_resumed") > 0);
        for bench in [whole, bench] {
            bench.resources.environments.stop().await;
        }
    }
}

/// For any content of the journal: what fits is used, the rest is played again.
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_does_not_fit_costs_work_and_nothing_else() {
    // Plans whose journals older programs wrote.
    const BEFORE: &str = "actor_rollout_ref.rollout.record_entropies=false";
    let none = || (CancellationToken::new(), broadcast::channel(64).0);
    let (whole, part) = before_rollout(2, &[BEFORE]).await;
    let (cancel, events) = none();
    let (expected, report) = whole.attempt(&part, cancel, events).await.unwrap();
    let total = count(&report, "sampled_tokens");
    let made = Manifest::new(whole.slot(part.id), AttemptId::new(1), expected.clone());
    let inputs = vec![("x".into(), made)];
    let inputs = Inputs::new(whole.store.clone(), inputs, whole.cache.path());
    let played = inputs.bytes("x", "episodes.bin").await.unwrap();
    let episodes = decode::<Episodes>(&played).unwrap().into_vec();
    let rewards: Vec<f64> = episodes.iter().map(|e| e.reward).collect();
    assert!(
        rewards.contains(&0.0) && rewards.contains(&1.0),
        "{rewards:?}"
    );

    let (source, _) = before_rollout(1, &["jobs.decode_rows=2", BEFORE]).await;
    source.interrupted(&part, 4, false).await;
    let segments = source.segments(&part).await;
    let (foreign, _) = before_rollout(1, &["jobs.decode_rows=2", "run.seed=9", BEFORE]).await;
    foreign.interrupted(&part, 2, false).await;
    let foreign = foreign.segments(&part).await;
    let cut = bytes::Bytes::copy_from_slice(&segments[0][..segments[0].len() - 3]);
    let mut newer = segments[0].to_vec();
    newer[8] = 9;
    let reversed: Vec<_> = segments.iter().rev().cloned().collect();
    // Segments of older programs: finished episodes, here one that fits, and one of another task.
    let mut stranger = episodes[0].clone();
    stranger.task.item_id += 1;
    (stranger.group, stranger.sample) = (episodes[1].group, episodes[1].sample);
    let old = encode(&Episodes::V1(vec![episodes[0].clone(), stranger])).unwrap();
    let torn = [
        &[cut, newer.into(), bytes::Bytes::new()][..],
        &segments[1..],
    ]
    .concat();
    let mixed = [&[old.clone().into()][..], &segments[..]].concat();
    for (what, journal, fits) in [
        ("all of it", segments.clone(), Some(true)),
        ("twice", [&segments[..], &segments[..]].concat(), Some(true)),
        ("no first segment", segments[1..].to_vec(), None),
        ("backwards", reversed, Some(true)),
        ("foreign", foreign, Some(false)),
        ("torn", torn, None),
        ("old", vec![old.into()], Some(true)),
        ("old and new", mixed, Some(true)),
    ] {
        let (bench, part) = before_rollout(2, &[BEFORE]).await;
        let before = AttemptId {
            number: 1,
            nonce: "00c0ffee".to_owned(),
        };
        bench.attempts.set(1);
        let mut writer = Journal::open(bench.store.clone(), bench.slot(part.id), before);
        for segment in journal {
            writer.append(segment).await.unwrap();
        }
        let (cancel, events) = none();
        let (made, report) = bench.attempt(&part, cancel, events).await.unwrap();
        assert_eq!(
            made[0].digest.to_string(),
            expected[0].digest.to_string(),
            "{what}"
        );
        let taken_up = count(&report, "taken_up_tokens");
        assert!(
            fits.is_none_or(|fits| fits == (taken_up > 0)),
            "{what}: {taken_up}"
        );
        assert_eq!(taken_up + count(&report, "sampled_tokens"), total, "{what}");
        bench.resources.environments.stop().await;
    }
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
