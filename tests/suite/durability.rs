//! The main guarantee of the project, tested as a user runs it: whatever is killed, wiped, added or
//! replaced, the run ends with the same bytes, and finished work is not repeated.

use crate::evidence::learnt_now;
use crate::strikes::{made_good, strike, strikes};
use agentgym_model::{Adapter, Device, Policy};
use agentgym_storage::{RunId, Store};
use agentgym_tests::files::files_below;
use agentgym_tests::program::{Running, finish, program};
use agentgym_tests::redis::RedisServer;
use agentgym_tests::s3::{S3Server, SECRET_KEY};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

pub(super) const RUN: &str = "smoke";

/// A tiny Qwen3 that looks for BabyAI's red ball, with a warm start on a player who wanders: it finds
/// the ball in some samples of a group.
const QWEN3: [&str; 9] = [
    "actor_rollout_ref.model.path=tiny?arch=qwen3&hidden=64&layers=2&vocab=512",
    "actor_rollout_ref.agentgym.envs.worlds={task_name: babyai, env_addr: 'builtin:babyai'}",
    "actor_rollout_ref.rollout.max_tokens=16",
    "actor_rollout_ref.rollout.temperature=0.7",
    "data.tasks=[{env: worlds, ids: '2..40002:40'}]",
    "sft.sources=[{env: worlds, ids: '2000002..2040002:40', style: 'wander=50'}]",
    "sft.steps=60",
    "sft.lr=3e-3",
    "jobs.sft_part_steps=20",
];
const SMOKE: &str = "configs/smoke.yaml";

/// A shorter smoke run: two iterations with half the tasks are enough for its special properties.
/// The optimizer's state, the horizon and the state of an algorithm are carried over.
pub(crate) const SHORT: [&str; 5] = [
    "trainer.total_training_steps=2",
    "data.train_batch_size=4",
    "data.tasks=[{env: worlds, ids: 0..1000}]",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "evaluation.sets=[]",
];

fn submit(store: &Path, bindings: &[&str]) -> Command {
    submit_config(SMOKE, store, bindings)
}

pub(super) fn submit_config(config: &str, store: &Path, bindings: &[&str]) -> Command {
    submit_to(config, &store.display().to_string(), bindings)
}

pub(crate) fn submit_to(config: &str, store: &str, bindings: &[&str]) -> Command {
    let mut command = program("agentgym-submit");
    command
        .arg(config)
        .arg(format!("storage.url={store}"))
        .arg(format!("run.id={RUN}"))
        .args(bindings);
    command
}

fn run_to_end(store: &Path, bindings: &[&str]) -> String {
    end(submit(store, bindings), store)
}

/// Runs a command to its end; returns the run's digest.
pub(crate) fn end(command: Command, store: &Path) -> String {
    said(command);
    digest(digest_of(&store.display().to_string()))
}

/// Runs a program to its end; it must succeed.
pub(crate) fn said(command: Command) -> String {
    let output = finish(command);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {complaint}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn digest_of(store: &str) -> Command {
    let mut command = program("agentgym-submit");
    command.args(["digest", RUN, "--store", store]);
    command
}

fn digest(command: Command) -> String {
    said(command)
        .split_whitespace()
        .find(|word| word.len() == 64)
        .expect("a digest has 64 letters")
        .to_owned()
}

/// The digest of the undisturbed smoke run.
fn undisturbed() -> String {
    undisturbed_of(SMOKE, &[])
}

/// The digest of an undisturbed run, computed once for each config with its options. It must have
/// seen rewards and learnt from them; otherwise an equal digest would prove nothing.
pub(crate) fn undisturbed_of(config: &str, options: &[&str]) -> String {
    type Digests = BTreeMap<String, Arc<OnceLock<String>>>;
    static DIGESTS: Mutex<Digests> = Mutex::new(Digests::new());
    let key = format!("{config} {}", options.join(" "));
    let cell = {
        let mut digests = DIGESTS.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(digests.entry(key.clone()).or_default())
    };
    let make = || {
        let folder = TempDir::new().unwrap();
        let options = [options, &["jobs.threads=2"]].concat();
        let command = submit_config(config, folder.path(), &options);
        let digest = end(command, folder.path());
        println!("{key}: {}", learnt_now(folder.path(), RUN));
        digest
    };
    cell.get_or_init(make).clone()
}

/// A run whose process is killed `kills` times in the middle of a part ends with the bytes of an
/// undisturbed one, and no part is begun again after its commit. Returns its folder.
async fn survives(config: &str, options: &[&str], seed: u64, kills: usize) -> TempDir {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    // Journals are written often enough that a kill leaves data in one.
    let one = [options, &["jobs.threads=1", "jobs.journal_interval_s=0.1"]].concat();
    let struck = strikes((store, RUN), seed, kills, || {
        submit_config(config, store, &one)
    });
    let struck = struck.await;
    let digest = end(submit_config(config, store, options), store);
    assert_eq!(digest, undisturbed_of(config, options), "{struck:?}");
    no_part_started_after_its_commit(store).await;
    made_good(
        &Store::open(&store.display().to_string()).await.unwrap(),
        &struck,
    )
    .await;
    folder
}

/// Every attempt of a committed part is older than the commit: the committing attempt is the last
/// one. Returns the commits by worker.
pub(super) async fn no_part_started_after_its_commit(store: &Path) -> BTreeMap<String, usize> {
    let store = Store::open(&store.display().to_string()).await.unwrap();
    commits_by_worker(&store).await
}

async fn commits_by_worker(store: &Store) -> BTreeMap<String, usize> {
    let run = RunId::from_str(RUN).unwrap();
    let mut by_worker = BTreeMap::new();
    for (slot, attempts) in store.all_attempts(&run).await.unwrap() {
        let manifest = store
            .manifest(&slot)
            .await
            .unwrap()
            .expect("a finished run has every commit");
        let last = attempts.last().expect("a commit has an attempt");
        assert_eq!(
            manifest.attempt, last.number,
            "{slot:?} was started again after its commit"
        );
        *by_worker.entry(last.start.worker.clone()).or_insert(0) += 1;
    }
    by_worker
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_kills_and_a_lost_queue_change_nothing() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let mut struck = strikes((store, RUN), 7, 5, || submit(store, &[])).await;
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(store.join(format!("queue.sqlite{suffix}")));
    }
    struck.extend(strikes((store, RUN), 8, 5, || submit(store, &[])).await);
    assert_eq!(run_to_end(store, &[]), undisturbed(), "{struck:?}");
    no_part_started_after_its_commit(store).await;
    made_good(
        &Store::open(&store.display().to_string()).await.unwrap(),
        &struck,
    )
    .await;
}

/// The same with a critic: its folder and optimizer state, its values, and the state of the KL
/// controller survive as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_critic_survives_kills() {
    survives("configs/ppo.yaml", &[], 11, 6).await;
}

/// Leave-one-out baselines.
#[tokio::test(flavor = "multi_thread")]
async fn rloo_survives_kills() {
    let options = [&SHORT[..], &["algorithm.adv_estimator=rloo"]].concat();
    survives(SMOKE, &options, 13, 3).await;
}

/// Turns compared with the turns of their group that answered the same, over rewards by turn that
/// shrink with the length of an episode.
#[tokio::test(flavor = "multi_thread")]
async fn gigpo_survives_kills() {
    let own = [
        "algorithm.adv_estimator=gigpo",
        "algorithm.gamma=0.9",
        "algorithm.turn_rewards=true",
        "reward.overlong_buffer.len=64",
        "actor_rollout_ref.actor.loss_agg_mode=seq_mean_token_sum_norm",
    ];
    survives(SMOKE, &[&SHORT[..], &own].concat(), 23, 3).await;
}

/// Per-token returns, whitened over the batch, with the KL penalty in the reward.
#[tokio::test(flavor = "multi_thread")]
async fn reinforce_plus_plus_survives_kills() {
    let own = [
        "algorithm.adv_estimator=reinforce_plus_plus",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.kl_coef=0.01",
    ];
    survives(SMOKE, &[&SHORT[..], &own].concat(), 17, 3).await;
}

/// Greedy baselines, which are separate episodes. With this seed the baselines of neighbouring
/// groups differ, so that a mix-up would show.
#[tokio::test(flavor = "multi_thread")]
async fn remax_survives_kills() {
    let own = ["algorithm.adv_estimator=remax", "data.seed=2"];
    let options = [&SHORT[..], &own].concat();
    survives(SMOKE, &options, 19, 3).await;
}

/// Groups without a learning signal are replaced, in rounds.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_of_groups_survives_kills() {
    let own = [
        "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.max_num_gen_batches=2",
    ];
    survives(SMOKE, &[&SHORT[..], &own].concat(), 29, 4).await;
}

/// Supervised steps only: the order of demonstrations, the optimizer's state, the schedule.
#[tokio::test(flavor = "multi_thread")]
async fn a_supervised_run_survives_kills() {
    let options = [
        "run.pipeline=sft",
        "sft.steps=24",
        "jobs.sft_part_steps=4",
        "sft.warmup_steps=6",
        "evaluation.samples=1",
    ];
    survives(SMOKE, &options, 37, 4).await;
}

/// A Qwen3: no biases, additional norms; sampled and scored log-probs are equal here too. No Qwen3
/// is shipped, so a tiny one learns to name the things in a room.
#[tokio::test(flavor = "multi_thread")]
async fn a_qwen3_survives_kills() {
    let options = [&SHORT[..], &QWEN3, &["algorithm.verify_log_probs=1"]].concat();
    let folder = survives(SMOKE, &options, 31, 4).await;
    let mut looked = program("agentgym-submit");
    looked.args(["inspect", RUN, "2", "log_probs", "--json"]);
    looked.args(["--store", &folder.path().display().to_string()]);
    let text = said(looked).replace(char::is_whitespace, "");
    let checked = text.matches("\"log_prob_mismatch_max\":0.0").count();
    assert!(
        checked > 0 && checked == text.matches("\"scored_tokens\":").count(),
        "{text}"
    );
}

/// An adapter: its factors, its optimizer's state and its base survive, and it can be exported
/// alone or merged.
#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_survives_kills_and_is_exported() {
    let folder = survives("configs/lora.yaml", &[], 41, 5).await;
    let store = folder.path();
    let exporting = |to: &Path, more: &[&str]| {
        let mut command = program("agentgym-submit");
        let store = store.display().to_string();
        command.args(["export", RUN, "--iteration", "3", "--store", &store]);
        command.arg("--to").arg(to).args(more);
        command
    };
    let export = |to: &Path, more: &[&str]| said(exporting(to, more));
    let (both, alone) = (folder.path().join("both"), folder.path().join("alone"));
    export(&both, &[]);
    export(&alone, &["--adapter"]);
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/base");
    let load = |folder: &Path| Policy::load(folder, &Device::cpu()).unwrap();
    let (base, merged) = (load(&base), load(&both.join("policy_after")));
    let adapter = Adapter::load(&alone.join("adapter_after"), base.config()).unwrap();
    assert!(base.with_adapter(adapter).unwrap().weights() == merged.weights());
    assert!(base.weights() != merged.weights());
    assert!(both.join("adapter_before").exists() && both.join("optimizer_before").exists());
    assert!(!alone.join("policy_after").exists());
    for option in ["--dtype=bf16", "--shard-size=1MB"] {
        let refused = finish(exporting(&folder.path().join("no"), &["--adapter", option]));
        assert_eq!(refused.status.code(), Some(2), "{option}");
        assert!(!folder.path().join("no").exists());
    }
}

/// Preferences: pairs, their order and the optimizer's state survive.
#[tokio::test(flavor = "multi_thread")]
async fn a_preference_run_survives_kills() {
    survives("configs/dpo.yaml", &[], 5, 3).await;
}

/// The same when an adapter is trained and the reference is its base.
#[tokio::test(flavor = "multi_thread")]
async fn preferences_of_an_adapter_survive_kills() {
    let adapter = ["actor_rollout_ref.model.lora_rank=4"];
    survives("configs/dpo.yaml", &adapter, 6, 3).await;
}

/// Rollouts of the next iteration run concurrently with the update, with an older policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_lag_survives_kills() {
    let options = [
        "algorithm.lag=1",
        "algorithm.rollout_correction.rollout_is=token",
        "evaluation.sets=[]",
    ];
    survives(SMOKE, &options, 23, 5).await;
}

/// The guard pauses the run, says where to continue from, and leaves no trace in the run.
#[test]
fn a_paused_run_goes_on_under_other_limits_and_ends_equal() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let limits = ["guard.entropy_min=100", "guard.patience=2"];
    let output = finish(submit(store, &limits));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("paused by the guard after iteration 2"),
        "{said}"
    );
    let command = format!(
        "agentgym-submit fork smoke --iteration 0 --store {}",
        store.display()
    );
    assert!(said.contains(&command), "{said}");
    assert_eq!(
        run_to_end(store, &["guard.entropy_min=null"]),
        undisturbed()
    );
}

#[test]
fn one_thread_gives_the_bytes_of_two() {
    let folder = TempDir::new().unwrap();
    assert_eq!(
        run_to_end(folder.path(), &["jobs.threads=1"]),
        undisturbed()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_gives_the_same_digest_and_two_workers_share_the_parts() {
    let redis = RedisServer::start();
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let queue = format!("queue.url={}", redis.url());
    let mut helper = program("agentgym-worker");
    helper
        .args(["--threads", "1", "--queue", &redis.url(), "--store"])
        .arg(store);
    std::fs::create_dir_all(store).unwrap();
    let helper = Running::start(helper);
    assert_eq!(
        run_to_end(store, &[&queue, "jobs.threads=1"]),
        undisturbed()
    );
    helper.kill();
    let by_worker = no_part_started_after_its_commit(store).await;
    let all: usize = by_worker.values().sum();
    let least = by_worker.values().min().copied().unwrap_or(0);
    assert_eq!(by_worker.len(), 2, "{by_worker:?}");
    assert!(
        5 * least >= all,
        "one worker made less than a fifth of the parts: {by_worker:?}"
    );
}

/// The first of these words that the bytes contain.
fn named<'a>(bytes: &[u8], words: &[&'a str]) -> Option<&'a str> {
    let holds = |word: &&&str| bytes.windows(word.len()).any(|at| at == word.as_bytes());
    words.iter().find(holds).copied()
}

/// The fleet's store and queue, both with a secret that must not appear anywhere after a run with
/// full logging: not in any object, plan or log. The server counts its requests: the number per
/// commit is printed.
#[tokio::test(flavor = "multi_thread")]
async fn s3_as_the_store_and_redis_as_the_queue_give_the_digest_of_a_folder() {
    let folder = TempDir::new().unwrap();
    const PASSWORD: &str = "open-sesame-7";
    let (server, redis) = (S3Server::start(folder.path()).await, RedisServer::start());
    let set = redis.command(&[b"CONFIG", b"SET", b"requirepass", PASSWORD.as_bytes()]);
    assert_eq!(set.unwrap(), "+OK");
    let url = redis
        .url()
        .replace("redis://", &format!("redis://:{PASSWORD}@"));
    let queue = format!("queue.url={url}");
    let mut submit = submit_to(
        "configs/smoke.yaml",
        &server.url,
        &[&queue, "jobs.threads=2"],
    );
    submit.envs(server.env()).env("AGENTGYM_LOG", "debug");
    let mut digest_of = digest_of(&server.url);
    digest_of.envs(server.env());
    let requests = server.requests();
    assert_eq!(requests.values().sum::<u64>(), 0);
    // This process serves the requests, so it must not block.
    let found = tokio::task::spawn_blocking(move || {
        let submitted = finish(submit);
        assert!(submitted.status.success());
        (submitted, digest(digest_of))
    });
    let (submitted, digest) = found.await.unwrap();
    assert_eq!(digest, undisturbed());
    let secrets = [PASSWORD, SECRET_KEY];
    for said in [&submitted.stdout, &submitted.stderr] {
        assert_eq!(named(said, &secrets), None, "said aloud");
    }
    assert!(String::from_utf8_lossy(&submitted.stderr).contains("DEBUG"));
    for file in files_below(folder.path()) {
        let content = std::fs::read(&file).unwrap();
        assert_eq!(named(&content, &secrets), None, "{}", file.display());
    }
    let requests = server.requests();
    let store = Store::open_with(&server.url, &server.env()).await.unwrap();
    let commits: usize = commits_by_worker(&store).await.values().sum();
    for (kind, count) in &requests {
        let each = *count as f64 / commits as f64;
        println!("{kind:<6} {count:>6} requests, {each:.1} per commit");
    }
    // Each commit is a separate conditional put, in addition to its files.
    assert!(
        requests["PUT"] > commits as u64 && requests["GET"] > 0,
        "{requests:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_worker_on_the_same_files_may_die() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let store = Store::open(&path.display().to_string()).await.unwrap();
    let first = Running::start(submit(path, &["jobs.threads=1", "jobs.lease_ttl_s=6"]));
    let mut helper = program("agentgym-worker");
    helper.args(["--threads", "1", "--lease-ttl-s", "6", "--store"]);
    helper.arg(path);
    let helper = Running::start(helper);
    let mut struck = Vec::new();
    for running in [helper, first] {
        struck.push(strike((&store, RUN), running, Duration::from_millis(50)).await);
    }
    assert_eq!(run_to_end(path, &[]), undisturbed(), "{struck:?}");
    no_part_started_after_its_commit(path).await;
    made_good(&store, &struck).await;
}

/// A process that stands still for longer than `jobs.beat_timeout_s`, as on a laptop that was put to
/// sleep, is no silent stage: it goes on where it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stood_still_goes_on() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let store = Store::open(&path.display().to_string()).await.unwrap();
    let run = RunId::from_str(RUN).unwrap();
    let bindings = [&SHORT[..], &["jobs.beat_timeout_s=3"]].concat();
    let running = Running::start(submit(path, &bindings));
    while store.all_commits(&run).await.unwrap().len() < 4 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.pause();
    tokio::time::sleep(Duration::from_secs(6)).await;
    running.signal("CONT");
    assert_eq!(running.wait(), Some(0));
}

/// A run that is cancelled while it works stops within a few parts on every worker, and continues
/// elsewhere to the same bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_goes_on_elsewhere() {
    // Long enough to be caught in the middle.
    const LONG: [&str; 1] = ["trainer.total_training_steps=6"];
    let folder = TempDir::new().unwrap();
    let path = folder.path().display().to_string();
    let command = |word: &str| {
        let mut command = program("agentgym-submit");
        command.args([word, RUN, "--store", &path]);
        command
    };
    let commits = async || {
        let store = Store::open(&path).await.unwrap();
        let run = RunId::from_str(RUN).unwrap();
        store.all_commits(&run).await.unwrap().len()
    };
    let first = Running::start(submit(folder.path(), &LONG));
    while commits().await < 4 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    said(command("cancel"));
    assert_eq!(first.wait(), Some(1), "stopped before its end");
    let before = commits().await;

    let mut worker = program("agentgym-worker");
    worker.args(["--store", &path]);
    let worker = Running::start(worker);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(commits().await, before, "on hold for every worker");
    said(command("retry"));
    said(command("watch"));
    assert_eq!(digest(digest_of(&path)), undisturbed_of(SMOKE, &LONG));
    worker.kill();
}
