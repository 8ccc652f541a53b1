//! The published training scripts with a tiny model and short numbers, in five environments:
//! `scripts/five.sh` prints what is seen as a table. Each run is made twice: undisturbed, in one
//! process with a folder for a store; and by two workers with Redis and S3, one of which is killed
//! in the middle of a rollout. Rewards are those of the environments' servers.

mod recorded;

use crate::strikes::{Strike, is_under_way, made_good};
use agentgym_jobs::codec::decode;
use agentgym_jobs::journal::{Event, Segment};
use agentgym_storage::{Journal, PartKey, Store};
use agentgym_submit::runs::RunView;
use agentgym_tests::fleet::{Fleet, RUN};
use agentgym_tests::ports::free_port;
use agentgym_tests::program::{Running, finish, program};
use agentgym_tests::slow::slow_way;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LEASE_S: u64 = 5;
/// Delay of every answer while a worker is to be killed: rollouts then last long enough to be hit.
const DELAY: Duration = Duration::from_millis(150);
/// How long a request of a stopped worker may still take effect.
const ON_ITS_WAY: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_secs(300);

/// In place of the published numbers, in every run: two iterations, the horizon grows after the
/// first.
const SHORT: [&str; 9] = [
    "algorithm.rounds_ctrl.steps_scaling_inter=1",
    "trainer.total_training_steps=2",
    "trainer.total_epochs=1",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    "actor_rollout_ref.agentgym.timeout=60",
    "jobs.threads=1",
    "jobs.journal_interval_s=0.2",
    "jobs.backoff_s=0.2",
];

/// The server that plays.
enum Server {
    /// `agentgym-env` with these arguments.
    Ours(&'static [&'static str]),
    /// The same with ScienceWorld's JAR.
    Jar,
    /// Recorded exchanges of the original.
    Recorded,
}

/// What a warm start shows.
enum Shown {
    Nothing,
    /// Solved tasks of this built-in environment.
    Solved(&'static str, &'static str),
    /// Recorded episodes: file, section and turns of each.
    Recorded(&'static [(&'static str, &'static str, usize)]),
}

struct World {
    env: &'static str,
    estimator: &'static str,
    server: Server,
    model: &'static str,
    shown: Shown,
    short: &'static [&'static str],
}

const TEXTCRAFT: [&str; 8] = [
    "data.tasks=[{env: textcraft, ids: 0..1000}]",
    "data.train_batch_size=8",
    "data.max_prompt_length=768",
    "data.max_response_length=768",
    "actor_rollout_ref.rollout={n: 4, temperature: 1.3, max_tokens: 48, max_model_len: 1536}",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "algorithm.rounds_ctrl.rounds=[4, 6]",
    "jobs.rollout_part_tasks=2",
];

const fn textcraft(estimator: &'static str) -> World {
    World {
        env: "textcraft",
        estimator,
        server: Server::Ours(&["textcraft", "--worlds", "1-2"]),
        model: "models/base",
        shown: Shown::Nothing,
        short: &TEXTCRAFT,
    }
}

const WORLDS: [World; 8] = [
    textcraft("grpo"),
    textcraft("gae"),
    textcraft("rloo"),
    textcraft("reinforce_plus_plus"),
    World {
        env: "babyai",
        estimator: "grpo",
        server: Server::Ours(&["babyai"]),
        model: "tiny?layers=2&vocab=640",
        shown: Shown::Solved("builtin:babyai", "2..202:40"),
        short: &[
            "data.tasks=[{env: babyai, ids: '2..202:40'}]",
            "data.train_batch_size=8",
            "data.max_prompt_length=1024",
            "data.max_response_length=1024",
            "actor_rollout_ref.rollout={n: 4, max_tokens: 24, max_model_len: 2048}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "algorithm.rounds_ctrl.rounds=[1, 2]",
            "jobs.rollout_part_tasks=2",
            "sft={steps: 60, batch_size: 4, lr: 3e-3, warmup_steps: 5}",
        ],
    },
    World {
        env: "searchqa",
        estimator: "grpo",
        server: Server::Ours(&["searchqa", "--uncased", "--top-k", "1"]),
        model: "models/base",
        shown: Shown::Solved("builtin:searchqa?uncased=true&top_k=1", "0..4"),
        short: &[
            "data.tasks=[{env: searchqa, ids: 0..4}]",
            "data.train_batch_size=8",
            "data.max_prompt_length=1024",
            "data.max_response_length=1024",
            "actor_rollout_ref.rollout={n: 4, max_tokens: 48, max_model_len: 2048}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "algorithm.rounds_ctrl.rounds=[2, 3]",
            "jobs.rollout_part_tasks=2",
            "sft={steps: 60, batch_size: 4, lr: 8e-4, warmup_steps: 5}",
        ],
    },
    World {
        env: "sciworld",
        estimator: "grpo",
        server: Server::Jar,
        model: "tiny?layers=2&vocab=640",
        shown: Shown::Recorded(&[("sciworld.json", "one_full_gold_episode", 5)]),
        short: &[
            "data.tasks=[{env: sciworld, ids: 3236..3237}]",
            "data.train_batch_size=2",
            "data.max_prompt_length=1024",
            "data.max_response_length=2048",
            "actor_rollout_ref.rollout={n: 4, max_tokens: 48, max_model_len: 4096}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "algorithm.rounds_ctrl.rounds=[5, 6]",
            "jobs.rollout_part_tasks=1",
            "sft={steps: 40, batch_size: 1, lr: 3e-3, warmup_steps: 5}",
        ],
    },
    World {
        env: "webarena",
        estimator: "grpo",
        server: Server::Recorded,
        model: "tiny?layers=2&vocab=640",
        shown: Shown::Recorded(&[
            ("webarena-more.json", "episode_right", 3),
            ("webarena-more.json", "episode_wrong", 3),
        ]),
        short: &[
            "data.tasks=[{env: webarena, ids: 0..1}]",
            "data.train_batch_size=4",
            "data.max_prompt_length=1024",
            "data.max_response_length=4096",
            "actor_rollout_ref.rollout={n: 4, temperature: 0.5, max_tokens: 96, max_model_len: 6144, fault_retries: 0}",
            "actor_rollout_ref.agentgym.max_retries=1",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4",
            "algorithm.rounds_ctrl.rounds=[2, 3]",
            "jobs.rollout_part_tasks=1",
            "sft={steps: 110, batch_size: 2, lr: 3e-3, warmup_steps: 5}",
        ],
    },
];

/// The overrides of a run, with the demonstrations written to `folder`.
fn overrides(world: &World, folder: &Path) -> Vec<String> {
    let mut words: Vec<String> = SHORT
        .iter()
        .chain(world.short)
        .map(|word| (*word).to_owned())
        .collect();
    words.push(format!("actor_rollout_ref.model.path={}", world.model));
    words.push(format!("algorithm.adv_estimator={}", world.estimator));
    words.push(format!("run.id={RUN}"));
    match &world.shown {
        Shown::Nothing => {}
        Shown::Solved(address, ids) => {
            words.push(format!(
                "actor_rollout_ref.agentgym.envs.shown={{task_name: {}, env_addr: '{address}'}}",
                world.env
            ));
            words.push(format!("sft.sources=[{{env: shown, ids: '{ids}'}}]"));
        }
        Shown::Recorded(sections) => {
            let rows = sections
                .iter()
                .map(|(file, section, turns)| {
                    recorded::demonstration(world.env, file, section, *turns)
                })
                .collect();
            let file = folder.join("shown.json");
            std::fs::write(&file, Value::Array(rows).to_string()).unwrap();
            words.push(format!("sft.sources=[{{file: '{}'}}]", file.display()));
        }
    }
    words
}

fn config(world: &World) -> String {
    format!("configs/agentgym-rl/{}-scaling-inter.yaml", world.env)
}

/// Starts the world's server. It ends when the process is dropped.
async fn start(world: &World) -> (Option<Running>, SocketAddr) {
    let (arguments, jar): (&[&str], _) = match world.server {
        Server::Ours(arguments) => (arguments, None),
        Server::Jar => {
            let jar = std::env::var("SCIENCEWORLD_JAR");
            let jar = jar.expect("SCIENCEWORLD_JAR names ScienceWorld's JAR");
            (&["sciworld", "--jar"], Some(jar))
        }
        Server::Recorded => {
            let sections = ["episode_right", "episode_wrong"];
            let sections = sections.map(|section| ("webarena-more.json", section));
            return (None, recorded::serve(&sections).await);
        }
    };
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = program("agentgym-env");
    let port = addr.port().to_string();
    command.args(arguments).args(jar).args(["--port", &port]);
    let (mut running, begun) = (Running::start(command), Instant::now());
    while TcpStream::connect_timeout(&addr, Duration::from_secs(1)).is_err() {
        assert!(!running.has_ended(), "the {} server ended", world.env);
        assert!(begun.elapsed() < PATIENCE, "no {} server", world.env);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (Some(running), addr)
}

fn address(url: &str) -> String {
    format!("actor_rollout_ref.agentgym.env_addr={url}")
}

/// Runs a command that has to succeed; what it printed. Servers of this process answer meanwhile.
async fn succeed(command: Command) -> String {
    let output = tokio::task::spawn_blocking(|| finish(command))
        .await
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The digest of the run to which nothing happened.
async fn undisturbed(world: &World, words: &[String], addr: SocketAddr, folder: &Path) -> String {
    let store = folder.join("store").display().to_string();
    let mut command = program("agentgym-submit");
    command
        .args(["run", &config(world), "--quiet", "--store", &store])
        .args(words)
        .arg(address(&format!("http://{addr}")));
    succeed(command).await;
    let store = Store::open(&store).await.unwrap();
    digest(&store).await
}

async fn digest(store: &Store) -> String {
    let (digest, _) = store.run_digest(&RUN.parse().unwrap()).await.unwrap();
    digest.to_string()
}

/// Tokens that were sampled for a part and written to its journals.
async fn journalled(store: &Store, slot: &PartKey) -> u64 {
    let mut tokens = 0;
    for segment in Journal::replay(store, slot).await.unwrap() {
        let Segment::V1(segment) = decode(&segment).unwrap();
        let events = segment.records.iter().flat_map(|record| &record.events);
        tokens += events.map(Event::sampled_tokens).sum::<u64>();
    }
    tokens
}

/// Kills a worker that has played some turns of a rollout and not committed it, and starts a new
/// one.
async fn strike(fleet: &mut Fleet, store: &Store, submitter: &mut Running) -> Strike {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "no rollout to interrupt");
        assert!(!submitter.has_ended(), "it ended before a kill");
        for index in 0..fleet.workers.len() {
            let pid = fleet.workers[index].id();
            let Some((slot, attempt)) = Fleet::in_flight(store, pid).await else {
                continue;
            };
            let rollout = slot.stage == "rollout" && slot.iteration > 0;
            if !rollout || journalled(store, &slot).await == 0 {
                continue;
            }
            // Stopped first, so that the attempt cannot end between the check and the kill.
            fleet.workers[index].pause();
            tokio::time::sleep(ON_ITS_WAY).await;
            let attempt = attempt.number;
            let strike = Strike { slot, attempt };
            if is_under_way(store, &strike).await {
                fleet.replace(index);
                return strike;
            }
            fleet.workers[index].signal("CONT");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What `inspect` shows of the episodes.
#[derive(Default)]
struct Seen {
    episodes: usize,
    excluded: usize,
    solved: usize,
    groups: usize,
    /// Groups with a solved episode and with one that was played and not solved.
    both: usize,
    /// Turns of the longest episode of each iteration.
    longest: BTreeMap<u32, usize>,
}

/// Opens every episode of the run with `inspect`.
async fn inspect(fleet: &Fleet, iterations: u32) -> Seen {
    let mut seen = Seen::default();
    for iteration in 1..=iterations {
        let number = iteration.to_string();
        let words = ["inspect", RUN, &number, "rollout"];
        let mut groups: BTreeMap<u64, BTreeSet<bool>> = BTreeMap::new();
        let mut solved = None;
        let mut command = fleet.type_in(&words);
        command.arg("--jsonl");
        for line in succeed(command).await.lines() {
            let episode: Value = serde_json::from_str(line).unwrap();
            let group = episode["group"].as_u64().expect("a group");
            let outcomes = groups.entry(group).or_default();
            seen.episodes += 1;
            if episode["outcome"] == "env_fault" {
                seen.excluded += 1;
                continue;
            }
            let success = episode["success"].as_bool().expect("a flag");
            outcomes.insert(success);
            if success {
                seen.solved += 1;
                solved = Some((group, episode["sample"].as_u64().expect("a number")));
            }
            let turns = episode["turns"].as_array().expect("turns").len();
            let longest = seen.longest.entry(iteration).or_default();
            *longest = turns.max(*longest);
        }
        seen.groups += groups.len();
        seen.both += groups.values().filter(|found| found.len() == 2).count();
        if let Some((group, sample)) = solved {
            let mut command = fleet.type_in(&words);
            command.args(["--group", &group.to_string()]);
            command.args(["--sample", &sample.to_string()]);
            let page = succeed(command).await;
            assert!(page.contains("solved") && page.contains("turn 1"), "{page}");
        }
    }
    seen
}

/// Both runs of a world; the rest of its row in the table.
async fn seen(world: &World) -> String {
    let begun = Instant::now();
    let folder = TempDir::new().unwrap();
    let words = overrides(world, folder.path());
    let (_server, addr) = start(world).await;
    let expected = undisturbed(world, &words, addr, folder.path()).await;

    let mut fleet = Fleet::of(folder.path(), 2, LEASE_S).await;
    let store = Store::open_with(&fleet.s3.url, &fleet.s3.env())
        .await
        .unwrap();
    let mut command = fleet.type_in(&["run", &config(world), "--quiet"]);
    command
        .args(&words)
        .arg(address(&slow_way(addr, DELAY).await.unwrap()))
        .arg(format!("jobs.lease_ttl_s={LEASE_S}"))
        .arg("jobs.workers=0");
    let mut submitter = Running::start_logged(command, &folder.path().join("submit.log"));
    let struck = strike(&mut fleet, &store, &mut submitter).await;
    while !submitter.has_ended() {
        assert!(begun.elapsed() < 2 * PATIENCE, "the run does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let code = submitter.wait();
    let said = std::fs::read_to_string(folder.path().join("submit.log")).unwrap();
    assert_eq!(code, Some(0), "{said}");
    let found = digest(&store).await;
    assert_eq!(found, expected, "the digest is not the undisturbed run's");
    made_good(&store, std::slice::from_ref(&struck)).await;

    let view = RunView::open(&store, RUN).await.unwrap();
    let made = store.manifest(&struck.slot).await.unwrap();
    let stats = made.and_then(|made| made.work).expect("it was made").stats;
    let iterations = view.plan.iterations;
    let horizons = [1, iterations].map(|iteration| view.plan.rounds_max(iteration));
    assert!(horizons[0] < horizons[1], "the horizon does not grow");
    let seen = inspect(&fleet, iterations).await;
    let longest = [1, iterations].map(|iteration| seen.longest.get(&iteration).copied());
    assert!(
        longest[1] > Some(horizons[0] as usize) && longest[0] < longest[1],
        "no episode uses the longer horizon: {longest:?} turns"
    );
    assert!(seen.both > 0, "no group has both outcomes");
    format!(
        "{} to {} | {} of {} | {} of {}, {} | {}, {} tokens taken up | {} | {:.0}",
        horizons[0],
        horizons[1],
        seen.both,
        seen.groups,
        seen.solved,
        seen.episodes,
        seen.excluded,
        struck
            .slot
            .to_string()
            .trim_start_matches(&format!("{RUN}/")),
        stats["taken_up_tokens"],
        &found[..12],
        begun.elapsed().as_secs_f64()
    )
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes and needs Java; scripts/five.sh starts it"]
async fn five_environments_survive_a_kill_and_learn_from_both_outcomes() {
    // With one test thread the test's name stands at the head of the line.
    println!();
    println!(
        "| environment | server | estimator | horizon, rounds | groups with both outcomes | solved of episodes, excluded | SIGKILL in | digest of both runs | s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut failed = 0;
    let only = std::env::var("AGENTGYM_WORLDS").unwrap_or_default();
    let only: Vec<&str> = only.split_whitespace().collect();
    for world in &WORLDS {
        if !only.is_empty() && !only.contains(&world.env) {
            continue;
        }
        let server = match world.server {
            Server::Ours(_) => "ours",
            Server::Jar => "ours, by the JAR",
            Server::Recorded => "recorded",
        };
        let row = match tokio::spawn(seen(world)).await {
            Ok(row) => row,
            Err(error) => {
                failed += 1;
                let cause = error.into_panic();
                let cause = cause.downcast_ref::<String>().cloned();
                let cause = cause.unwrap_or_else(|| "see above".to_owned());
                let line = cause.lines().next().unwrap_or_default().replace('|', "\\|");
                format!("**failed**: {line} | | | | | ")
            }
        };
        println!("| {} | {server} | {} | {row} |", world.env, world.estimator);
    }
    assert_eq!(failed, 0, "environments that failed");
}
