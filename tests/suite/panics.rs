//! Stages that panic, in the real worker: a panic ends an attempt, with a record, but never the
//! worker or the run.

use crate::durability::undisturbed_of;
use crate::evidence::learnt;
use agentgym_jobs::config::ResolvedConfig;
use agentgym_jobs::pipeline::{PartId, Stage, parts};
use agentgym_jobs::plan::Plan;
use agentgym_queue::{CancellationToken, Job, Queue, QueueOptions};
use agentgym_storage::{AttemptOutcome, Outputs, Store};
use agentgym_tests::fleet::{Fleet, RUN};
use agentgym_tests::program::{Running, workspace};
use agentgym_worker::stages::{StageFunctions, Stages};
use agentgym_worker::{Cause, Event, Folders, Report, StageContext, WorkerOptions, run_worker};
use futures::future::{BoxFuture, FutureExt};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::broadcast;

/// The message of every panic here.
pub(crate) const WORDS: &str = "this stage is at fault";

const CONFIG: &str = "
run: {id: panics}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 2, entropy_coeff: 0.01, optim: {lr: 1e-4}}
  rollout: {n: 4, temperature: 1.3, max_tokens: 48, max_model_len: 1536}
  agentgym: {env_addr: 'builtin:worlds?depths=1-2'}
data:
  train_batch_size: 4
  max_prompt_length: 768
  max_response_length: 768
  tasks: [{env: textcraft, ids: 0..8}]
algorithm: {rounds_ctrl: {rounds: 4}}
evaluation: {samples: 1, max_rounds: 1, sets: [{name: easy, env: textcraft, ids: 200..202}]}
trainer: {total_training_steps: 2, test_freq: 1}
jobs: {backoff_s: 0.05, rollout_part_tasks: 1}
";

/// The real stages, where some attempts panic: before any work, in a task or a thread whose panic
/// is propagated, or after all work except the commit.
pub(crate) struct Faulty {
    /// Panic probability of a part's first attempt in this process, and of later ones.
    shares: [f64; 2],
    seed: u64,
    tried: Mutex<BTreeMap<PartId, u64>>,
}

impl Faulty {
    pub(crate) fn new(shares: [f64; 2], seed: u64) -> Self {
        agentgym_games::provide();
        Self {
            shares,
            seed,
            tried: Mutex::default(),
        }
    }

    /// How this attempt panics, if at all.
    fn draw(&self, id: PartId) -> Option<u64> {
        let mut tried = self.tried.lock().unwrap();
        let before = tried.entry(id).or_default();
        let text = format!("{} {id} {before}", self.seed);
        let share = self.shares[usize::from(*before > 0)];
        *before += 1;
        // FNV-1a, with a finalizer that mixes its high bits.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let hash = (hash ^ (hash >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let panics = ((hash >> 11) as f64) < share * (1u64 << 53) as f64;
        panics.then_some(hash % 4)
    }
}

impl StageFunctions for Faulty {
    fn run<'a>(
        &'a self,
        stage: Stage,
        context: &'a mut StageContext,
        outputs: &'a mut Outputs,
    ) -> BoxFuture<'a, agentgym_worker::Result<Report>> {
        let how = self.draw(context.part.id);
        async move {
            let passed_on = match how {
                Some(0) => panic!("{WORDS}"),
                Some(1) => tokio::spawn(async { panic!("{WORDS}") }).await,
                Some(2) => tokio::task::spawn_blocking(|| panic!("{WORDS}")).await,
                _ => Ok(()),
            };
            if let Err(error) = passed_on {
                std::panic::resume_unwind(error.into_panic());
            }
            let made = Stages.run(stage, context, outputs).await;
            assert!(how.is_none(), "{WORDS}");
            made
        }
        .boxed()
    }
}

/// Plans the run in a store below `folder`, and works on it until it has ended.
async fn play(
    folder: &Path,
    overrides: &[&str],
    functions: Arc<dyn StageFunctions>,
) -> (Store, Plan, Queue, Vec<Event>) {
    let base = workspace().join("models/base");
    let base = format!("actor_rollout_ref.model.path={}", base.display());
    let overrides = overrides.iter().map(|o| (*o).to_owned());
    let overrides: Vec<String> = overrides.chain([base]).collect();
    let config =
        ResolvedConfig::parse("panics", Path::new("panics.yaml"), CONFIG, &overrides).unwrap();
    let plan = Plan::new(config, Path::new(".")).unwrap();
    let store = folder.join("store").display().to_string();
    let store = Store::open(&store).await.unwrap();
    let bytes = plan.to_bytes().into();
    store.put_plan(&plan.run, 0, bytes).await.unwrap();
    let url = format!("sqlite:{}", folder.join("queue.sqlite").display());
    let queue = Queue::open(&url, QueueOptions::leasing(60)).await.unwrap();
    let (events, mut news) = broadcast::channel(100_000);
    let options = WorkerOptions {
        gateway: Default::default(),
        drain_grace: agentgym_worker::DRAIN_GRACE,
        meters: Default::default(),
        machine: Default::default(),
        store: store.clone(),
        queue: queue.clone(),
        name: agentgym_worker::worker_name(0),
        stages: Vec::new(),
        functions,
        threads: 2,
        device: "cpu".to_owned(),
        dtype: Default::default(),
        run: Some(plan.run.clone()),
        exit_when_finished: true,
        folders: Folders {
            scratch: folder.join("scratch"),
            models: folder.join("models"),
        },
        prefetch: true,
    };
    let worked = run_worker(options, events, CancellationToken::new());
    worked.await.unwrap();
    let mut heard = Vec::new();
    while let Ok(event) = news.try_recv() {
        heard.push(event);
    }
    (store, plan, queue, heard)
}

/// Parts of the plan that a worker holds.
async fn held(plan: &Plan, queue: &Queue) -> Vec<PartId> {
    let mut held = Vec::new();
    for part in (0..=plan.iterations).flat_map(|n| parts(plan, n)) {
        let job = Job {
            run: plan.run.to_string(),
            iteration: part.id.iteration,
            stage: part.id.stage.name().to_owned(),
            part: part.id.part,
            offer: 0,
        };
        if queue.holder(&job).await.unwrap().is_some() {
            held.push(part.id);
        }
    }
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn every_first_attempt_may_panic_and_the_run_ends_equal() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let (calm, plan, ..) = play(folders[0].path(), &[], Arc::new(Stages)).await;
    println!("{}", learnt(&calm, plan.run.as_str()).await);
    let faulty = Arc::new(Faulty::new([1.0, 0.0], 1));
    let (store, _, queue, heard) = play(folders[1].path(), &[], faulty).await;
    assert_eq!(
        store.run_digest(&plan.run).await.unwrap(),
        calm.run_digest(&plan.run).await.unwrap()
    );
    assert_eq!(held(&plan, &queue).await, []);
    let attempts = store.all_attempts(&plan.run).await.unwrap();
    assert!(attempts.len() > 15, "{} parts", attempts.len());
    for (slot, attempts) in attempts {
        assert_eq!(attempts.len(), 2, "{slot}");
        let end = attempts[0].end.as_ref().unwrap();
        assert_eq!(end.outcome, AttemptOutcome::Failed, "{slot}");
        for words in ["internal error: ", WORDS, "report"] {
            assert!(end.message.contains(words), "{slot}: {}", end.message);
        }
        assert!(!end.excused && !end.for_good, "{slot}: it counts");
    }
    let failed = |event: &&Event| matches!(event, Event::Failed { .. });
    assert!(heard.iter().any(|event| failed(&event)));
}

/// A stage that always panics stops the run like one that always fails, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_always_panics_stops_its_run() {
    let folder = TempDir::new().unwrap();
    let faulty = Arc::new(Faulty::new([1.0, 1.0], 1));
    let twice = ["jobs.failures_max=2"];
    let (store, plan, queue, heard) = play(folder.path(), &twice, faulty).await;
    let stopped = heard.iter().find_map(|event| match event {
        Event::RunStopped { message, cause, .. } => Some((message.clone(), *cause)),
        _ => None,
    });
    let (message, cause) = stopped.unwrap();
    assert_eq!(cause, Cause::Part, "not the config, though it is init");
    assert!(
        message.contains("0/init/0") && message.contains(WORDS),
        "{message}"
    );
    let attempts = store.all_attempts(&plan.run).await.unwrap();
    assert_eq!(attempts.values().flatten().count(), 2);
    assert_eq!(held(&plan, &queue).await, []);
}

/// The environment variable with the worker's settings, as one line of JSON.
const VARIABLE: &str = "AGENTGYM_TEST_FAULTY_WORKER";

/// A worker process with one thread and panicking stages: this test program, running only that.
pub(crate) fn faulty_worker(fleet: &Fleet, lease_s: u64, shares: [f64; 2], seed: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let told = serde_json::json!({
        "store": fleet.s3.url, "queue": fleet.redis.url(), "lease_s": lease_s, "shares": shares,
        "seed": seed,
    });
    command
        .args([
            "--exact",
            "panics::a_worker_with_panicking_stages",
            "--ignored",
        ])
        .current_dir(workspace())
        .env(VARIABLE, told.to_string())
        .envs(fleet.s3.env());
    command
}

#[test]
#[ignore = "a program that other tests start"]
fn a_worker_with_panicking_stages() {
    let Ok(told) = std::env::var(VARIABLE) else {
        return;
    };
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let text = |name: &str| told[name].as_str().unwrap().to_owned();
    let share = |at: usize| told["shares"][at].as_f64().unwrap();
    // Each process has its own seed, or a part might never get an attempt that does not panic.
    let seed = told["seed"].as_u64().unwrap() ^ u64::from(std::process::id()) << 32;
    let cache = TempDir::new().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let lease = QueueOptions::leasing(told["lease_s"].as_u64().unwrap());
        let options = WorkerOptions {
            gateway: Default::default(),
            drain_grace: agentgym_worker::DRAIN_GRACE,
            meters: Default::default(),
            machine: Default::default(),
            store: Store::open(&text("store")).await.unwrap(),
            queue: Queue::open(&text("queue"), lease).await.unwrap(),
            name: agentgym_worker::worker_name(0),
            stages: Vec::new(),
            functions: Arc::new(Faulty::new([share(0), share(1)], seed)),
            threads: 1,
            device: "cpu".to_owned(),
            dtype: Default::default(),
            run: None,
            exit_when_finished: false,
            folders: Folders {
                scratch: cache.path().join("scratch"),
                models: cache.path().join("models"),
            },
            prefetch: true,
        };
        let events = broadcast::channel(1024).0;
        run_worker(options, events, CancellationToken::new())
            .await
            .unwrap();
    });
}

/// Two processes whose stages panic at every first try, on a real queue and store: they survive,
/// make the parts at which the other one panicked, and the run ends with the same digest.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_whose_stages_panic_ends_equal() {
    const LEASE_S: u64 = 2;
    const LONG: Duration = Duration::from_secs(240);
    let small = [
        "trainer.total_training_steps=2",
        "sft.steps=6",
        "evaluation.samples=1",
        "jobs.failures_max=50",
    ];
    let undisturbed = undisturbed_of("configs/smoke.yaml", &small);
    let folder = TempDir::new().unwrap();
    let mut fleet = Fleet::of(folder.path(), 0, LEASE_S).await;
    let worker = |seed| Running::start(faulty_worker(&fleet, LEASE_S, [1.0, 0.0], seed));
    let workers = vec![worker(1), worker(2)];
    let pids: BTreeSet<u32> = workers.iter().map(Running::id).collect();
    fleet.workers = workers;
    let mut follower = Running::start(fleet.submit(&small));
    let begun = Instant::now();
    while !follower.has_ended() {
        assert!(begun.elapsed() < LONG, "the run does not end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(fleet.digest(), undisturbed);
    assert!(fleet.workers.iter_mut().all(|worker| !worker.has_ended()));
    let store = Store::open_with(&fleet.s3.url, &fleet.s3.env())
        .await
        .unwrap();
    let (mut panics, mut lived_on) = (0, BTreeSet::new());
    for (slot, attempts) in store.all_attempts(&RUN.parse().unwrap()).await.unwrap() {
        let commit = store.manifest(&slot).await.unwrap().unwrap();
        for attempt in attempts {
            let worker = &attempt.start.worker;
            let message = attempt.end.map_or_else(String::new, |end| end.message);
            panics += u32::from(message.contains("internal error") && message.contains(WORDS));
            if attempt.number == commit.attempt {
                let is_of = |pid: &&u32| worker.contains(&format!(":{pid}:"));
                lived_on.extend(pids.iter().filter(is_of));
            }
        }
    }
    assert!(panics > 20, "{panics} panics");
    assert_eq!(lived_on, pids, "both go on after their panics");
}
