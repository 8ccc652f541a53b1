//! A run whose rollouts a server generates, stage by stage.

use super::{Bench, RUN};
use crate::Error;
use crate::inference::double::Double;
use crate::stages::testing::plan_of;
use agentgym_jobs::codec::decode;
use agentgym_jobs::config::ServerDialect;
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_jobs::pipeline::{Part, PartId, Stage, parts, policy_of};
use agentgym_model::{Adapter, Device, Policy};
use agentgym_storage::Inputs;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

struct Served {
    bench: Bench,
    double: Double,
}

impl Served {
    async fn new(overrides: &[&str]) -> Self {
        // Until there is a policy of the run it serves another model.
        let stranger = Policy::clone(&crate::stages::testing::policy());
        let double = Double::start(ServerDialect::LlamaCpp, stranger).await;
        let url = format!("actor_rollout_ref.rollout.server.url={}", double.url);
        let server = [
            "actor_rollout_ref.rollout.engine=server",
            &url,
            "actor_rollout_ref.rollout.server.dialect=llama_cpp",
            "actor_rollout_ref.rollout.server.patience_s=1",
            "run.numerics=any",
            "algorithm.rollout_correction.rollout_is=token",
            "guard.mismatch_max=0.5",
        ];
        let mut bench = Bench::new(2, &[]).await;
        bench.plan = Arc::new(plan_of(RUN, &[&server, overrides].concat()));
        Self { bench, double }
    }

    /// The policy after an iteration, as a server would load it.
    async fn policy(&self, iteration: u32) -> Policy {
        let bench = &self.bench;
        let cache = bench.cache.path().join("served");
        let made = bench.manifest(policy_of(&bench.plan, iteration)).await;
        let init = PartId {
            iteration: 0,
            stage: Stage::Init,
            part: 0,
        };
        let commits = vec![
            ("made".to_owned(), made),
            ("base".to_owned(), bench.manifest(init).await),
        ];
        let inputs = Inputs::new(bench.store.clone(), commits, cache);
        let whole = match bench.plan.has_adapter() {
            true => "base",
            false => "made",
        };
        let folder = inputs.folder(whole, "policy").await.unwrap();
        let policy = Policy::load(folder.path(), &Device::cpu()).unwrap();
        if !bench.plan.has_adapter() {
            return policy;
        }
        let folder = inputs.folder("made", "adapter").await.unwrap();
        let adapter = Adapter::load(folder.path(), policy.config()).unwrap();
        policy.with_adapter(adapter).unwrap()
    }

    /// The first rollout part; the server serves the policy that it wants.
    async fn first_rollout(&self) -> Part {
        for part in parts(&self.bench.plan, 0) {
            self.bench.make(&part).await;
        }
        self.double.serve(self.policy(0).await);
        let mut planned = parts(&self.bench.plan, 1).into_iter();
        planned
            .find(|part| part.id.stage == Stage::Rollout)
            .unwrap()
    }

    async fn attempt(&self, part: &Part) -> crate::Result<()> {
        let events = broadcast::channel(64).0;
        let attempt = self.bench.attempt(part, CancellationToken::new(), events);
        attempt.await.map(|_| ())
    }

    async fn episodes(&self, part: &Part) -> Vec<Episode> {
        let manifest = self.bench.manifest(part.id).await;
        let commits = vec![("x".to_owned(), manifest)];
        let inputs = Inputs::new(self.bench.store.clone(), commits, self.bench.cache.path());
        let bytes = inputs.bytes("x", "episodes.bin").await.unwrap();
        decode::<Episodes>(&bytes).unwrap().into_vec()
    }
}

/// Adapters too: the probe is of the merged policy. Yesterday's policy is refused at every turn of the
/// run, and what a refused attempt sampled is in no journal.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_learns_from_a_server_that_must_serve_its_policy() {
    for overrides in [
        &["sft.steps=0"][..],
        &["actor_rollout_ref.model.lora_rank=2"],
    ] {
        let run = Served::new(overrides).await;
        let mut asked = 0;
        for iteration in 0..=2 {
            for part in parts(&run.bench.plan, iteration) {
                if part.id.stage != Stage::Rollout {
                    run.bench.make(&part).await;
                    continue;
                }
                if part.id.part == 0 {
                    // What it serves is the policy before, or at first a stranger.
                    asked += run.double.take_asked().len();
                    let refused = run.attempt(&part).await.unwrap_err();
                    assert!(matches!(refused, Error::Server(_)), "{refused}");
                    assert_eq!(run.double.take_asked().len(), 0);
                    run.double.serve(run.policy(iteration - 1).await);
                }
                let report = run.bench.make(&part).await;
                let distance = report.stats.probe_distance.unwrap();
                assert!(distance < 1e-4, "{distance}");
                let expected = match (iteration, overrides[0]) {
                    (1, "sft.steps=0") => None,
                    _ => Some(true),
                };
                let apart = report.stats.probe_tells_apart;
                assert_eq!(apart, expected, "{iteration} {overrides:?}");
                for episode in run.episodes(&part).await {
                    let sampled = episode.turns.iter().map(|turn| turn.policy_iteration);
                    assert!(sampled.into_iter().all(|from| from == iteration - 1));
                }
            }
            if iteration > 0 {
                let metrics = run.bench.metrics(iteration, Stage::Advantage, 0).await;
                let mismatch = metrics["log_prob_mismatch_max"].as_f64().unwrap();
                assert!(mismatch < 1e-3, "{metrics}");
                let weight = metrics["importance_weight_mean"].as_f64().unwrap();
                assert!((weight - 1.0).abs() < 1e-3, "{metrics}");
            }
        }
        // Evaluations were our own engine's: the server was asked for the turns of rollouts alone.
        let mut turns = 0;
        for iteration in 1..=2 {
            for part in parts(&run.bench.plan, iteration) {
                if part.id.stage == Stage::Rollout {
                    let all = run.episodes(&part).await;
                    turns += all.iter().map(|episode| episode.turns.len()).sum::<usize>();
                }
            }
        }
        assert_eq!(asked + run.double.take_asked().len(), turns);
        run.bench.resources.environments.stop().await;
    }
}

/// What a killed attempt got is sent as prompt: over both attempts the server has said each turn once,
/// those left out that it said to nobody, since they were asked for when the attempt was killed.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_no_turn_is_asked_for_again() {
    let run = Served::new(&["sft.steps=0", "jobs.rollout_part_tasks=4"]).await;
    let part = &run.first_rollout().await;
    run.double.allow(9);
    // Killed once all nine are confirmed by a probe and journalled.
    let journalled = async {
        while run.bench.journalled_turns(part).await < 9 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        ended = run.attempt(part) => panic!("it waits for the tenth message: {ended:?}"),
        killed = tokio::time::timeout(Duration::from_secs(120), journalled) => killed.unwrap(),
    }
    let first = run.double.take_asked();
    assert_eq!(first.len(), 9);
    run.double.allow(1000);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let unheard = run.double.take_asked().len();
    let report = run.bench.make(part).await;
    let second = run.double.take_asked();
    let episodes = run.episodes(part).await;
    let turns: usize = episodes.iter().map(|episode| episode.turns.len()).sum();
    assert!(turns > 12, "{turns}");
    assert_eq!(first.len() + second.len(), turns);
    let open = episodes.len();
    assert!(
        unheard <= open,
        "{unheard} open requests of {open} episodes"
    );
    assert_eq!(report.stats.sampled_twice_tokens, Some(0));
    assert!(report.stats.taken_up_tokens.unwrap() > 0);
    // Each turn's prompt is what the episode records before it.
    let asked: Vec<Vec<u32>> = [first, second].concat();
    for episode in &episodes {
        for turn in &episode.turns {
            let ids = &episode.sequences[turn.sequence as usize].token_ids;
            let prompt = ids[..turn.policy.0 as usize].to_vec();
            assert!(asked.contains(&prompt));
        }
    }
    run.bench.resources.environments.stop().await;
}

/// A server that changes its policy in mid-part: nothing of what it said since is kept.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_sampled_around_a_change_of_policies_is_left_out() {
    let run = Served::new(&[
        "sft.steps=0",
        "jobs.rollout_part_tasks=4",
        "jobs.journal_interval_s=600",
    ])
    .await;
    let part = &run.first_rollout().await;
    run.double.allow(9);
    let swap = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        run.double
            .serve(Policy::clone(&crate::stages::testing::policy()));
        run.double.allow(1000);
    };
    let (attempt, ()) = tokio::join!(run.attempt(part), swap);
    let error = attempt.unwrap_err();
    assert!(matches!(error, Error::Server(_)), "{error}");
    run.double.serve(run.policy(0).await);
    run.double.take_asked();
    let report = run.bench.make(part).await;
    assert_eq!(report.stats.taken_up_tokens, Some(0));
    let episodes = run.episodes(part).await;
    let turns: usize = episodes.iter().map(|episode| episode.turns.len()).sum();
    assert_eq!(run.double.take_asked().len(), turns);
    run.bench.resources.environments.stop().await;
}
