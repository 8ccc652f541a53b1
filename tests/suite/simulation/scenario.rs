//! One seed, played to its end: some workers, a queue, a store, a fault injector that kills, stops,
//! drains, wipes and sets clocks, an operator who resumes a stopped run, and the final
//! verification.

use super::queue::{Server, SimulatedDriver};
use super::stages::CheapStages;
use super::store::SimulatedStore;
use super::world::{Counts, Faults, Link, Log, Rng, Sickness, World};
use agentgym_jobs::config::ResolvedConfig;
use agentgym_jobs::pipeline::{Stage, parts};
use agentgym_jobs::plan::Plan;
use agentgym_queue::{CancellationToken, Queue, QueueOptions};
use agentgym_storage::{Error, Inputs, Store};
use agentgym_worker::{Cause, Event, Folders, WorkerOptions, load_plan, run_worker};
use object_store::memory::InMemory;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep, sleep_until};

const RUN: &str = "world";
/// Once faults have stopped, a run ends within this time.
const LIVENESS: Duration = Duration::from_secs(3 * 3600);
/// How long a finished run is watched for repeated work.
const WATCHED: Duration = Duration::from_secs(20);

const CONFIG: &str = "
run: {id: world}
data: {tasks: [{env: textcraft, ids: 0..100}], train_batch_size: 4}
actor_rollout_ref: {rollout: {n: 2}}
evaluation: {sets: [{name: a, env: textcraft, ids: 100..103}], samples: 1}
sft: {sources: [{env: textcraft, ids: 100000..100100}], steps: 4, batch_size: 2}
trainer: {total_training_steps: 3, test_freq: 1, save_freq: 2}
jobs: {rollout_part_tasks: 2, sft_part_steps: 2, backoff_s: 1, vanished_max: 100000}
";

/// Shapes of a run; the seed selects one.
pub(super) const SHAPES: [&[&str]; 7] = [
    &[],
    &[
        "algorithm.lag=1",
        "algorithm.rollout_correction.rollout_is=token",
        "trainer.total_training_steps=5",
    ],
    &[
        "algorithm.adv_estimator=gae",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl={type: adaptive, kl_coef: 0.001, target_kl: 0.05, horizon: 200}",
    ],
    &[
        "algorithm.filter_groups.enable=true",
        "data.tasks=[{env: textcraft, ids: 0..50}, {env: textcraft, ids: 50..100}]",
        "data.curriculum={solved: 0.5, iterations: 1}",
    ],
    &[
        "sft.sources=[]",
        "sft.steps=0",
        "evaluation.sets=[]",
        "trainer.total_training_steps=6",
    ],
    &["trainer.state_freq=3", "trainer.total_training_steps=7"],
    &["trainer.total_training_steps=60"],
];

/// The shapes that seeds select; the last one is long.
pub(super) const PLAYED: u64 = SHAPES.len() as u64 - 1;

/// The end state of a world.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) shape: usize,
    pub(super) digest: String,
    pub(super) violations: Vec<String>,
    pub(super) hash: u64,
    pub(super) lines: Vec<String>,
    pub(super) counts: Counts,
}

/// Plays a seed in simulated time.
pub(super) fn play(seed: u64, keep_log: bool) -> Ending {
    let mut rng = Rng::new(seed);
    let shape = rng.below(PLAYED) as usize;
    let faults = Faults::of(&mut rng);
    in_own_time(rng, shape, faults, keep_log)
}

/// Plays a seed in which nobody dies, and code below requests panics often, whichever task asks.
pub(super) fn play_with_panics(seed: u64) -> Ending {
    let mut rng = Rng::new(seed);
    let shape = rng.below(PLAYED) as usize;
    let faults = Faults {
        refused: 0.05,
        store_panics: 0.02,
        queue_panics: 0.01,
        answer_ms: 5,
        ..Faults::default()
    };
    in_own_time(rng, shape, faults, false)
}

/// Plays a shape without faults except for one death at a given point of its history; 0 for none.
pub(super) fn play_with_a_death(shape: usize, crash_at: u64) -> Ending {
    let faults = Faults {
        answer_ms: 5,
        crash_at,
        ..Faults::default()
    };
    in_own_time(Rng::new(0), shape, faults, false)
}

/// Plays a shape with healthy workers alone, and returns how long it took and what came of it; with
/// one more worker that falls sick, if there is one. It reports the sick one's attempts that began
/// more than half a minute after.
pub(super) fn play_with_a_sick_one(
    shape: usize,
    sick: Option<Sickness>,
) -> (Duration, Ending, usize) {
    let faults = Faults {
        answer_ms: 5,
        ..Faults::default()
    };
    let mut late = 0;
    let mut took = Duration::ZERO;
    let ending = in_time(async {
        let world = World::new(Rng::new(7), faults, true);
        let scene = Scene::set(world, shape).await;
        let scene = Arc::new(Scene {
            serves_all_runs: true,
            sick,
            ..scene
        });
        let born = Instant::now();
        let workers = 3 + usize::from(sick.is_some());
        let digest = scene.play_with(workers).await;
        let log = scene.world.log();
        took = log.commits.values().max().map_or(took, |last| *last - born);
        let begins = |line: &&String| {
            let ms: u64 = line
                .trim()
                .split(' ')
                .next()
                .and_then(|ms| ms.parse().ok())
                .unwrap_or(0);
            line.contains(" w3.") && line.contains("start.json done") && ms > 34_000
        };
        late = log.lines.iter().filter(begins).count();
        Ending::of(&scene, digest, &log)
    });
    (took, ending, late)
}

fn in_own_time(rng: Rng, shape: usize, faults: Faults, keep_log: bool) -> Ending {
    in_time(async {
        let world = World::new(rng, faults, keep_log);
        let scene = Arc::new(Scene::set(world, shape).await);
        let digest = scene.play().await;
        let log = scene.world.log();
        Ending::of(&scene, digest, &log)
    })
}

fn in_time(playing: impl Future<Output = Ending>) -> Ending {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(playing)
}

impl Ending {
    fn of(scene: &Scene, digest: String, log: &Log) -> Self {
        Self {
            shape: scene.shape,
            digest,
            violations: log.violations.clone(),
            hash: log.hash,
            lines: log.lines.clone(),
            counts: log.counts,
        }
    }
}

fn config(shape: usize) -> ResolvedConfig {
    let overrides: Vec<String> = SHAPES[shape].iter().map(|o| (*o).to_owned()).collect();
    ResolvedConfig::parse("world", Path::new("world.yaml"), CONFIG, &overrides).unwrap()
}

/// A process as seen by its supervisor.
struct Process {
    link: Arc<Link>,
    drain: CancellationToken,
}

struct Scene {
    world: Arc<World>,
    shape: usize,
    plan: Plan,
    /// The objects, accessed directly without a faulty link.
    truth: Store,
    objects: Arc<InMemory>,
    server: Arc<Server>,
    options: QueueOptions,
    events: broadcast::Sender<Event>,
    processes: Mutex<Vec<Option<Process>>>,
    /// Each process has a folder of its own in it, which dies with it.
    cache_dir: TempDir,
    serves_all_runs: bool,
    /// What the fourth worker suffers.
    sick: Option<Sickness>,
}

impl Scene {
    async fn set(world: Arc<World>, shape: usize) -> Self {
        let plan = Plan::new(config(shape), Path::new(".")).unwrap();
        let objects = Arc::new(InMemory::new());
        let truth = Store::over(Arc::clone(&objects) as _, "the truth");
        truth
            .put_plan(&plan.run, 0, plan.to_bytes().into())
            .await
            .unwrap();
        let options = QueueOptions {
            poll_ms: 5_000,
            ..QueueOptions::default()
        };
        let serves_all_runs = world.rng().chance(0.5);
        Self {
            shape,
            plan,
            truth,
            objects,
            server: Server::new(options.clone()),
            options,
            events: broadcast::Sender::new(1024),
            processes: Mutex::default(),
            cache_dir: TempDir::new().unwrap(),
            serves_all_runs,
            sick: None,
            world,
        }
    }

    async fn play(self: &Arc<Self>) -> String {
        let workers = 1 + self.world.rng().below(4) as usize;
        self.play_with(workers).await
    }

    async fn play_with(self: &Arc<Self>, workers: usize) -> String {
        self.processes().resize_with(workers, || None);
        for index in 0..workers {
            tokio::spawn(Arc::clone(self).keep_running(index));
        }
        tokio::spawn(Arc::clone(self).operate(self.events.subscribe()));
        let finished = self.suffer().await;
        self.world.heal();
        if finished {
            // Stopped processes wake up and find all work done.
            let wake = |p: &Option<Process>| p.as_ref().and_then(|p| p.link.stopped_until());
            let last = self.processes().iter().filter_map(wake).max();
            sleep_until(last.unwrap_or_else(Instant::now)).await;
            sleep(WATCHED).await;
            let attempts = self.world.log().counts.attempts;
            sleep(WATCHED).await;
            let again = self.world.log().counts.attempts - attempts;
            if again > 0 {
                self.world
                    .violated(format!("{again} attempts began after the run was finished"));
            }
        }
        self.verify().await
    }

    fn processes(&self) -> std::sync::MutexGuard<'_, Vec<Option<Process>>> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Injects faults for some minutes, then waits for the end of the run.
    async fn suffer(&self) -> bool {
        let (begun, expected) = (Instant::now(), self.expected());
        let suffering = Duration::from_secs(120 + self.world.rng().below(480));
        let mut next = begun;
        loop {
            sleep(Duration::from_secs(1)).await;
            if self.world.log().commits.len() >= expected {
                return true;
            }
            let now = Instant::now();
            if now > begun + suffering {
                self.world.heal();
            }
            if now > begun + suffering + LIVENESS {
                self.world
                    .violated("the run does not end although nothing goes wrong".to_owned());
                return false;
            }
            let stroke_s = self.world.faults().stroke_s;
            if stroke_s > 0 && now >= next {
                self.strike();
                next = now + Duration::from_secs(1 + self.world.rng().below(2 * stroke_s));
            }
        }
    }

    fn expected(&self) -> usize {
        (0..=self.plan.iterations)
            .map(|n| parts(&self.plan, n).len())
            .sum()
    }

    fn strike(&self) {
        let (kind, whom, ms) = {
            let mut rng = self.world.rng();
            (
                rng.below(6),
                rng.below(self.processes().len() as u64) as usize,
                1_000 + rng.below(150_000),
            )
        };
        let processes = self.processes();
        let process = processes[whom].as_ref();
        match kind {
            0 | 1 => _ = process.map(|p| p.link.kill()),
            2 => _ = process.map(|p| p.link.stop_for(Duration::from_millis(ms))),
            3 => {
                if let Some(process) = process {
                    self.world.log().counts.drains += 1;
                    process.link.note("DRAINS", "", "");
                    process.drain.cancel();
                }
            }
            4 => {
                self.server.wipe();
                self.world.log().counts.wipes += 1;
                self.world.note("queue", "WIPED", "", "");
            }
            _ => {
                let sign = if ms % 2 == 0 { 1 } else { -1 };
                self.server.jump(sign * ms as i64 * 4);
                self.world.log().counts.jumps += 1;
                self.world
                    .note("queue", "JUMPED", "", &(sign * ms as i64 * 4).to_string());
            }
        }
    }

    /// Restarts a process like systemd or Kubernetes.
    async fn keep_running(self: Arc<Self>, index: usize) {
        for incarnation in 0_u32.. {
            let link = Link::new(format!("w{index}.{incarnation}"), Arc::clone(&self.world));
            if let (3, Some(sickness)) = (index, self.sick) {
                // A plan that was read once is not read again.
                let well_s = 4 * u64::from(sickness != Sickness::OldProgram);
                link.falls_sick(Instant::now() + Duration::from_secs(well_s), sickness);
            }
            let drain = CancellationToken::new();
            self.processes()[index] = Some(Process {
                link: Arc::clone(&link),
                drain: drain.clone(),
            });
            let options = self.worker(index, &link);
            let how = tokio::select! {
                biased;
                () = link.died() => "died".to_owned(),
                ended = run_worker(options, self.events.clone(), drain) => match ended {
                    Ok(()) => "ended".to_owned(),
                    Err(e) => {
                        let is_lost = e.cause() == Cause::Device;
                        self.world.log().counts.losses += u64::from(is_lost);
                        format!("ended: {e}")
                    }
                },
            };
            self.processes()[index] = None;
            let _ = std::fs::remove_dir_all(self.cache_dir.path().join(&link.name));
            link.turn("ends", "").await;
            link.note("process", "", &how);
            let span = self.world.rng().span(30_000);
            sleep(Duration::from_millis(500) + span).await;
        }
    }

    fn worker(&self, index: usize, link: &Arc<Link>) -> WorkerOptions {
        let objects = SimulatedStore {
            objects: Arc::clone(&self.objects),
            link: Arc::clone(link),
        };
        let driver = SimulatedDriver::new(Arc::clone(&self.server), Arc::clone(link));
        // The first worker accepts all stages, so that no part is left without a worker.
        let stages = match index % 3 {
            1 => vec![Stage::Rollout, Stage::Evaluate],
            _ => vec![],
        };
        WorkerOptions {
            gateway: Default::default(),
            store: Store::over(Arc::new(objects), "simulated"),
            queue: Queue::over(Arc::new(driver), self.options.clone()).unwrap(),
            name: link.name.clone(),
            stages,
            functions: Arc::new(CheapStages(Arc::clone(link))),
            threads: 1,
            device: "cpu".to_owned(),
            dtype: Default::default(),
            run: (!self.serves_all_runs).then(|| self.plan.run.clone()),
            exit_when_finished: false,
            folders: Folders {
                scratch: self.cache_dir.path().join(&link.name),
                models: self.cache_dir.path().join(&link.name).join("models"),
            },
            prefetch: false,
            drain_grace: agentgym_worker::DRAIN_GRACE,
            meters: Default::default(),
            machine: Default::default(),
        }
    }

    /// Runs `agentgym-submit resume` when a run has stopped.
    async fn operate(self: Arc<Self>, mut events: broadcast::Receiver<Event>) {
        loop {
            let message = match events.recv().await {
                Ok(Event::RunStopped { message, .. }) => message,
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return,
            };
            self.world.note("operator", "hears", "", &message);
            sleep(Duration::from_secs(20)).await;
            let newest = load_plan(&self.truth, &self.plan.run).await.unwrap();
            let revised = newest.revised(config(self.shape), Path::new(".")).unwrap();
            self.truth
                .put_plan(&revised.run, revised.revision, revised.to_bytes().into())
                .await
                .unwrap();
            self.world.log().counts.resumes += 1;
            self.world
                .note("operator", "resumes", "", &revised.revision.to_string());
            // Later reports about the old revision are obsolete with the new one.
            sleep(Duration::from_secs(5)).await;
            events = events.resubscribe();
        }
    }

    /// Checks that every part has its commit and every artifact its bytes, or a tombstone.
    async fn verify(&self) -> String {
        let run = RUN.parse().unwrap();
        let (digest, commits) = self.truth.run_digest(&run).await.unwrap();
        let mut slots = self.truth.all_commits(&run).await.unwrap();
        for iteration in 0..=self.plan.iterations {
            for part in parts(&self.plan, iteration) {
                let before = slots.len();
                slots.retain(|slot| {
                    !(slot.iteration == iteration
                        && slot.stage == part.id.stage.name()
                        && slot.part == part.id.part)
                });
                if before != slots.len() + 1 {
                    self.world.violated(format!("{} has no commit", part.id));
                }
            }
        }
        if !slots.is_empty() || commits != self.expected() {
            self.world
                .violated(format!("commits that nobody planned: {slots:?}"));
        }
        for slot in self.truth.all_commits(&run).await.unwrap() {
            let manifest = self.truth.manifest(&slot).await.unwrap().unwrap();
            let names: Vec<String> = manifest.outputs.iter().map(|o| o.name.clone()).collect();
            let made = vec![("it".to_owned(), manifest)];
            let inputs = Inputs::new(self.truth.clone(), made, self.cache_dir.path());
            for name in names {
                match inputs.bytes("it", &name).await {
                    Ok(_) | Err(Error::Removed { .. } | Error::NotStored { .. }) => {}
                    Err(e) => self.world.violated(format!("{slot}: {e}")),
                }
            }
        }
        digest.to_string()
    }
}
