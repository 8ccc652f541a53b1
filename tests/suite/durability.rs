//! The promise of the whole project, typed as a user types it: whatever is
//! killed, wiped, added or exchanged, the run ends with the same bytes, and
//! nothing that was finished is done again.

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
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

pub(super) const RUN: &str = "smoke";

fn submit(store: &Path, bindings: &[&str]) -> Command {
    submit_config("configs/smoke.yaml", store, bindings)
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

/// Follows a command to its end; the run's digest.
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

/// The digest of a run that nothing happened to; made once.
fn undisturbed() -> &'static str {
    static DIGEST: OnceLock<String> = OnceLock::new();
    DIGEST.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        run_to_end(folder.path(), &["jobs.threads=2"])
    })
}

/// Every attempt of a part that has a commit is older than the commit: the
/// committing attempt is the last one. Returns the commits by worker.
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

/// Waits that differ from each other, the same in every test run.
pub(crate) fn waits(seed: u64) -> impl Iterator<Item = Duration> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis(300 + (state >> 33) % 2_200)
    })
}

/// Starts a command again and again, and kills each of them after its wait.
pub(super) fn kills(waits: impl Iterator<Item = Duration>, command: impl Fn() -> Command) {
    for wait in waits {
        let running = Running::start(command());
        std::thread::sleep(wait);
        running.kill();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_kills_and_a_lost_queue_change_nothing() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let mut waits = waits(7);
    kills(waits.by_ref().take(5), || submit(store, &[]));
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(store.join(format!("queue.sqlite{suffix}")));
    }
    kills(waits.take(5), || submit(store, &[]));
    assert_eq!(run_to_end(store, &[]), undisturbed());
    no_part_started_after_its_commit(store).await;
}

/// The same with a critic: its own folder and optimizer state, values, and the
/// state of the KL controller come through as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_critic_survives_kills() {
    let whole = TempDir::new().unwrap();
    let ppo = |store: &Path, bindings: &[&str]| submit_config("configs/ppo.yaml", store, bindings);
    let undisturbed = end(ppo(whole.path(), &["jobs.threads=2"]), whole.path());
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    kills(waits(11).take(8), || ppo(store, &["jobs.threads=1"]));
    assert_eq!(end(ppo(store, &[]), store), undisturbed);
    no_part_started_after_its_commit(store).await;
}

/// A Qwen3: no biases, norms of its own; sampled is scored there too.
#[tokio::test(flavor = "multi_thread")]
async fn a_qwen3_survives_kills() {
    const MODEL: &str = "actor_rollout_ref.model.path=tiny?arch=qwen3&hidden=64&layers=2&vocab=512";
    let whole = TempDir::new().unwrap();
    let undisturbed = run_to_end(whole.path(), &[MODEL, "jobs.threads=2"]);
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    kills(waits(31).take(4), || {
        submit(store, &[MODEL, "jobs.threads=1"])
    });
    assert_eq!(run_to_end(store, &[MODEL]), undisturbed);
    no_part_started_after_its_commit(store).await;
    let mut looked = program("agentgym-submit");
    looked.args(["inspect", RUN, "4", "advantage", "--json"]);
    looked.args(["--store", &store.display().to_string()]);
    let text = said(looked).replace(char::is_whitespace, "");
    assert!(text.contains("\"log_prob_mismatch_max\":0.0"), "{text}");
}

/// An adapter: its factors, its optimizer's state and its base come through, and
/// it can be taken out alone or merged.
#[tokio::test(flavor = "multi_thread")]
async fn an_adapter_survives_kills_and_is_exported() {
    let lora =
        |store: &Path, bindings: &[&str]| submit_config("configs/lora.yaml", store, bindings);
    let whole = TempDir::new().unwrap();
    let undisturbed = end(lora(whole.path(), &["jobs.threads=2"]), whole.path());
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    kills(waits(41).take(5), || lora(store, &["jobs.threads=1"]));
    assert_eq!(end(lora(store, &[]), store), undisturbed);
    no_part_started_after_its_commit(store).await;

    let export = |to: &Path, more: &[&str]| {
        let mut command = program("agentgym-submit");
        let store = store.display().to_string();
        command.args(["export", RUN, "--iteration", "3", "--store", &store]);
        command.arg("--to").arg(to).args(more);
        said(command)
    };
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
}

/// Preferences: pairs, their order and the optimizer's state come through.
#[tokio::test(flavor = "multi_thread")]
async fn a_preference_run_survives_kills() {
    preferences_survive(&[]).await;
}

/// The same where an adapter learns them and the reference is its base.
#[tokio::test(flavor = "multi_thread")]
async fn preferences_of_an_adapter_survive_kills() {
    preferences_survive(&["actor_rollout_ref.model.lora_rank=4"]).await;
}

async fn preferences_survive(options: &[&str]) {
    let whole = TempDir::new().unwrap();
    let dpo = |store: &Path, bindings: &[&str]| {
        submit_config("configs/dpo.yaml", store, &[options, bindings].concat())
    };
    let undisturbed = end(dpo(whole.path(), &["jobs.threads=2"]), whole.path());
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    kills(waits(5).take(4).map(|wait| wait / 2), || {
        dpo(store, &["jobs.threads=1"])
    });
    assert_eq!(end(dpo(store, &[]), store), undisturbed);
    no_part_started_after_its_commit(store).await;
}

/// Rollouts of the next iteration run beside the update, with an older policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_lag_survives_kills() {
    const LAG: [&str; 2] = [
        "algorithm.lag=1",
        "algorithm.rollout_correction.rollout_is=token",
    ];
    let with = |threads: &'static str| [&LAG[..], &[threads]].concat();
    let whole = TempDir::new().unwrap();
    let lagging = run_to_end(whole.path(), &with("jobs.threads=2"));
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    kills(waits(23).take(6), || submit(store, &with("jobs.threads=1")));
    assert_eq!(run_to_end(store, &LAG), lagging);
    no_part_started_after_its_commit(store).await;
}

/// The guard pauses, says where to go on from, and leaves no trace in the run.
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

/// The first of these words that the bytes hold.
fn named<'a>(bytes: &[u8], words: &[&'a str]) -> Option<&'a str> {
    let holds = |word: &&&str| bytes.windows(word.len()).any(|at| at == word.as_bytes());
    words.iter().find(holds).copied()
}

/// The fleet's store and queue, both behind a secret that is found nowhere after a run that
/// said all it could: in no object, plan or log. The server counts what it is asked, from
/// outside: what a commit costs in requests is printed.
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
    // This process answers, so it must not wait.
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
    // Each commit is a conditional put of its own, beside its files.
    assert!(
        requests["PUT"] > commits as u64 && requests["GET"] > 0,
        "{requests:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_worker_on_the_same_files_may_die() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let running = Running::start(submit(store, &["jobs.threads=1", "jobs.lease_ttl_s=6"]));
    std::thread::sleep(Duration::from_secs(2));
    let mut helper = program("agentgym-worker");
    helper.args(["--threads", "1", "--lease-ttl-s", "6", "--store"]);
    helper.arg(store);
    let helper = Running::start(helper);
    std::thread::sleep(Duration::from_secs(5));
    helper.kill();
    std::thread::sleep(Duration::from_secs(1));
    running.kill();
    assert_eq!(run_to_end(store, &[]), undisturbed());
    no_part_started_after_its_commit(store).await;
}

/// A run that is cancelled while it works stops within a few parts, whoever works
/// on it, and goes on elsewhere to the same bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_goes_on_elsewhere() {
    // Long enough to be met in the middle.
    const LONG: &str = "trainer.total_training_steps=16";
    let whole = TempDir::new().unwrap();
    let undisturbed = run_to_end(whole.path(), &[LONG]);
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
    let first = Running::start(submit(folder.path(), &[LONG]));
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
    assert_eq!(digest(digest_of(&path)), undisturbed);
    worker.kill();
}
