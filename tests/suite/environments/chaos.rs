//! All faults at once, on a run that learns: worker processes are killed, stopped for longer than
//! their lease and panic; the queue is wiped and restarted; two submitters are killed too; and the
//! environment dies and answers wrongly. `scripts/chaos.sh N SEED` plays N runs starting at a seed;
//! each has to end with the digest of an undisturbed run.

use super::proxy::Proxy;
use super::*;
use crate::panics::{WORDS, faulty_worker};
use crate::strikes::Chance;
use agentgym_jobs::episode::{Episodes, Outcome};
use agentgym_storage::AttemptOutcome;
use agentgym_tests::fleet::{Fleet, RUN};
use agentgym_tests::program::finish;
use tempfile::TempDir;

/// A short run whose base solves some of its tasks.
const LEARNS: &str = "
run: {id: smoke}
actor_rollout_ref:
  model: {path: models/base}
  actor: {ppo_mini_batch_size: 4, loss_agg_mode: seq_mean_token_mean, entropy_coeff: 0.001, optim: {lr: 1.0e-4}}
  rollout: {n: 4, temperature: 1.3, max_tokens: 48, max_model_len: 1536, fault_retries: 1000}
  agentgym: {task_name: textcraft, timeout: 3, max_retries: 1000}
data: {train_batch_size: 8, max_prompt_length: 768, max_response_length: 768, tasks: [{env: textcraft, ids: 0..1000}]}
algorithm: {rounds_ctrl: {rounds: 6}}
evaluation: {samples: 2, max_rounds: 6, sets: [{name: held out, env: textcraft, ids: 1000000..1000004}]}
trainer: {total_training_steps: 3, test_freq: 3, save_freq: 1}
jobs: {rollout_part_tasks: 2, backoff_s: 0.2, failures_max: 1000, vanished_max: 1000, journal_interval_s: 0.3}
";
const WORKERS: usize = 3;
/// The worker whose stages panic; the others are the real program.
const FAULTY: usize = 2;
/// Panic probability of a part's first attempt in its process, and of later ones.
const PANICS: [f64; 2] = [0.4, 0.1];
const LEASE_S: u64 = 2;
/// Fault probability per call to the environment.
const WRONG: f64 = 0.04;
const BLOWS: u64 = 30;
const LONG: Duration = Duration::from_secs(900);

/// The faults of one run.
#[derive(Default, Clone, Copy)]
struct Suffered {
    kills: u64,
    /// The kills that hit an attempt in flight.
    struck: u64,
    stops: u64,
    wipes: u64,
    restarts: u64,
    submitters: u64,
    servers: u64,
    panics: u64,
    wrong: u64,
    attempts: u64,
    parts: u64,
}

impl Suffered {
    fn row(&self, name: &str, wall_s: f64) -> String {
        format!(
            "{name:>10} {wall_s:>6.0} s {:>6} {:>7} {:>6} {:>6} {:>9} {:>11} {:>8} {:>7} {:>6} {:>9} {:>6}",
            self.kills,
            self.struck,
            self.stops,
            self.wipes,
            self.restarts,
            self.submitters,
            self.servers,
            self.panics,
            self.wrong,
            self.attempts,
            self.parts
        )
    }

    fn add(&mut self, other: &Self) {
        self.kills += other.kills;
        self.struck += other.struck;
        self.stops += other.stops;
        self.wipes += other.wipes;
        self.restarts += other.restarts;
        self.submitters += other.submitters;
        self.servers += other.servers;
        self.panics += other.panics;
        self.wrong += other.wrong;
        self.attempts += other.attempts;
        self.parts += other.parts;
    }
}

const HEAD: &str = "      seed     wall  kills  struck  stops  wipes  restarts  submitters  servers  panics  wrong  attempts  parts";

fn config(folder: &Path) -> String {
    let config = folder.join("learns.yaml");
    std::fs::write(&config, LEARNS).unwrap();
    config.display().to_string()
}

/// The digest of the undisturbed run, after checking that there was something to learn.
async fn undisturbed() -> String {
    let (folder, server) = (TempDir::new().unwrap(), Server::start(600));
    let store = folder.path().join("store").display().to_string();
    let begun = Instant::now();
    let mut command = program("agentgym-submit");
    command
        .arg(config(folder.path()))
        .args(["--quiet", "--store", &store, PATIENT])
        .arg(format!(
            "actor_rollout_ref.agentgym.env_addr={}",
            server.url()
        ));
    let output = finish(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let store = Store::open(&store).await.unwrap();
    let view = RunView::open(&store, RUN).await.unwrap();
    let evidence = learnt(&store, RUN).await;
    let (digest, parts) = store.run_digest(&view.plan.run).await.unwrap();
    println!(
        "undisturbed: {:.0} s, {parts} parts, {evidence}, digest {digest}",
        begun.elapsed().as_secs_f64()
    );
    digest.to_string()
}

struct Scene {
    fleet: Fleet,
    seed: u64,
    config: String,
    address: String,
    started: u64,
}

impl Scene {
    fn submit(&self) -> Running {
        let mut command = self.fleet.type_in(&["run", &self.config]);
        command
            .arg("--quiet")
            .arg(format!(
                "actor_rollout_ref.agentgym.env_addr={}",
                self.address
            ))
            .args([&format!("jobs.lease_ttl_s={LEASE_S}"), "jobs.workers=0"]);
        Running::start(command)
    }

    /// Starts a new worker in a place; the previous one is killed.
    fn replace(&mut self, index: usize) {
        self.started += 1;
        let new = match index {
            FAULTY => {
                let seed = self.seed << 20 | self.started;
                Running::start(faulty_worker(&self.fleet, LEASE_S, PANICS, seed))
            }
            _ => self.fleet.worker(&[]),
        };
        match self.fleet.workers.get_mut(index) {
            Some(old) => std::mem::replace(old, new).kill(),
            None => self.fleet.workers.push(new),
        }
    }
}

async fn suffer(seed: u64) -> (String, Suffered) {
    let folder = TempDir::new().unwrap();
    let mut server = Server::start(20);
    let proxy = Proxy::start(server.addr, WRONG, -1, seed).await;
    let mut scene = Scene {
        fleet: Fleet::of(folder.path(), 0, LEASE_S).await,
        seed,
        config: config(folder.path()),
        address: proxy.url.clone(),
        started: 0,
    };
    let credentials = scene.fleet.s3.env();
    let store = Store::open_with(&scene.fleet.s3.url, &credentials)
        .await
        .unwrap();
    let mut submitters = [scene.submit(), scene.submit()];
    (0..WORKERS).for_each(|index| scene.replace(index));
    let (mut chance, mut suffered) = (Chance::new(seed), Suffered::default());
    let mut asleep: [Option<Instant>; WORKERS] = [None; WORKERS];
    let (begun, mut blows) = (Instant::now(), 0);
    let mut next = begun + Duration::from_secs(1);
    'run: loop {
        assert!(begun.elapsed() < LONG, "seed {seed}: the run does not end");
        tokio::time::sleep(Duration::from_millis(30)).await;
        for submitter in &mut submitters {
            if submitter.has_ended() {
                let new = scene.submit();
                if std::mem::replace(submitter, new).wait() == Some(0) {
                    break 'run;
                }
            }
        }
        for (index, until) in asleep.iter_mut().enumerate() {
            if until.is_some_and(|until| until < Instant::now()) {
                scene.fleet.workers[index].signal("CONT");
                *until = None;
            }
        }
        if blows == BLOWS || Instant::now() < next {
            continue;
        }
        blows += 1;
        next = Instant::now() + Duration::from_millis(100 + chance.up_to(1199));
        let victim = chance.up_to(WORKERS as u64 - 1) as usize;
        match chance.up_to(19) {
            0..=9 => {
                let pid = scene.fleet.workers[victim].id();
                let under_way = Fleet::in_flight(&store, pid).await.is_some();
                scene.replace(victim);
                asleep[victim] = None;
                suffered.kills += 1;
                suffered.struck += u64::from(under_way);
            }
            10..=12 if asleep[victim].is_none() => {
                scene.fleet.workers[victim].pause();
                let span = Duration::from_millis(1000 * LEASE_S + 500 + chance.up_to(1499));
                asleep[victim] = Some(Instant::now() + span);
                suffered.stops += 1;
            }
            10..=14 => {
                scene.fleet.redis.command(&[b"FLUSHALL"]).unwrap();
                suffered.wipes += 1;
            }
            15 => {
                scene.fleet.redis.restart();
                suffered.restarts += 1;
            }
            16 | 17 => {
                let at = chance.up_to(submitters.len() as u64 - 1) as usize;
                let new = scene.submit();
                std::mem::replace(&mut submitters[at], new).kill();
                suffered.submitters += 1;
            }
            _ => {
                server.kill();
                server.start_again();
                suffered.servers += 1;
            }
        }
    }
    suffered.wrong = proxy.counts().1.values().sum();
    let digest = scene.fleet.digest();
    let view = RunView::open(&store, RUN).await.unwrap();
    for (slot, attempts) in store.all_attempts(&view.plan.run).await.unwrap() {
        let commit = store.manifest(&slot).await.unwrap().unwrap();
        suffered.parts += 1;
        suffered.attempts += attempts.len() as u64;
        for attempt in attempts {
            let end = attempt.end.as_ref();
            let message = end.map_or("", |end| end.message.as_str());
            let panicked = message.contains(WORDS);
            suffered.panics += u64::from(panicked);
            // An attempt that panics while another one commits does not notice the commit.
            let redone =
                !panicked && end.is_some_and(|end| end.outcome != AttemptOutcome::Superseded);
            assert!(
                attempt.number <= commit.attempt || !redone,
                "{slot} was made again after its commit: {message}"
            );
        }
        if commit
            .outputs
            .iter()
            .any(|output| output.name == "episodes.bin")
        {
            let episodes: Episodes = view.payload(&commit, "episodes.bin").await.unwrap();
            let excluded = |e: &&_| matches!(e, Outcome::EnvFault);
            let episodes = episodes.into_vec();
            let outcomes = episodes.iter().map(|episode| &episode.outcome);
            assert_eq!(outcomes.filter(excluded).count(), 0, "{slot}");
        }
    }
    (digest, suffered)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half an hour; scripts/chaos.sh starts it"]
async fn a_run_that_learns_ends_equal_whatever_happens() {
    let number = |name: &str, default| match std::env::var(name) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => default,
    };
    let (runs, first) = (
        number("AGENTGYM_CHAOS_RUNS", 20),
        number("AGENTGYM_CHAOS_SEED", 1),
    );
    let calm = undisturbed().await;
    println!("{HEAD}");
    let (mut all, mut wall_s) = (Suffered::default(), 0.0);
    for seed in first..first + runs {
        let begun = Instant::now();
        let (digest, suffered) = suffer(seed).await;
        let took_s = begun.elapsed().as_secs_f64();
        println!("{}", suffered.row(&seed.to_string(), took_s));
        assert_eq!(digest, calm, "seed {seed}");
        all.add(&suffered);
        wall_s += took_s;
    }
    println!("{}", all.row("all", wall_s));
    println!("{runs} of {runs} digests are equal");
    assert!(all.struck > 0 && all.panics > 0 && all.wrong > 0 && all.stops + all.wipes > 0);
}
