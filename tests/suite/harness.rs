//! Agents that this program only answers: what they were told is what is trained on, id by id, whether they
//! ask one thing after the other, several at once or with a rewritten past; a kill of the worker or of the
//! agent changes no byte; and what they may not ask is refused in words that their clients read.

mod house;
mod shown;

use crate::durability::{RUN, end, no_part_started_after_its_commit, said, submit_config};
use crate::strikes::strikes;
use crate::toolbox::warmed;
use agentgym_jobs::codec::decode;
use agentgym_jobs::episode::{Episode, Outcome};
use agentgym_jobs::journal::{Event, Segment};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_model::{ComputeOptions, Device, Message, Policy, Role, ScoreRequest, score};
use agentgym_storage::{Journal, Store};
use agentgym_submit::records::episodes;
use agentgym_submit::runs::RunView;
use agentgym_tests::program::{Running, finish, program};
use house::{Fate, House, Told};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const CONFIG: &str = "configs/toolbox.yaml";

/// Two iterations of eight episodes.
fn run(store: &Path, house: &House, more: &[&str]) -> Command {
    let spec = house.spec().display().to_string();
    let options = [
        format!("actor_rollout_ref.model.path={}", warmed()),
        format!("actor_rollout_ref.agentgym.specs=['{spec}']"),
        format!(
            "actor_rollout_ref.agentgym.envs={{one: {{task_name: house, env_addr: '{}'}}}}",
            house.url()
        ),
        "actor_rollout_ref.rollout.n=2".to_owned(),
        "data.train_batch_size=4".to_owned(),
        "data.tasks=[{env: one, ids: 0..1000}]".to_owned(),
        "sft.steps=0".to_owned(),
        "evaluation.sets=[]".to_owned(),
        "trainer.total_training_steps=2".to_owned(),
        "jobs.rollout_part_tasks=2".to_owned(),
        "run.seed=3".to_owned(),
    ];
    let options = options.iter().map(String::as_str);
    let all: Vec<&str> = options.chain(more.iter().copied()).collect();
    submit_config(CONFIG, store, &all)
}

async fn played(store: &Path, iteration: u32) -> Vec<Episode> {
    let store = Store::open(&store.display().to_string()).await.unwrap();
    let view = RunView::open(&store, RUN).await.unwrap();
    let mut all = Vec::new();
    for part in 0..2 {
        let manifest = view.committed(rollout(iteration, part)).await.unwrap();
        all.extend(episodes(&view, &manifest).await.unwrap());
    }
    all
}

/// The prompt and the answer of each turn.
fn turns(episode: &Episode) -> impl Iterator<Item = Told> {
    episode.turns.iter().map(|turn| {
        let ids = &episode.sequences[turn.sequence as usize].token_ids;
        let (start, end) = (turn.policy.0 as usize, turn.policy.1 as usize);
        (ids[..start].to_vec(), ids[start..end].to_vec())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_agents_were_told_is_trained_on_and_survives_kills() {
    let house = House::open(Fate::Plays).await;
    let folder = TempDir::new().unwrap();
    let undisturbed = end(
        run(folder.path(), &house, &["jobs.threads=2"]),
        folder.path(),
    );
    let mut told = house.told();
    let policy = Policy::load(Path::new(warmed()), &Device::cpu()).unwrap();
    let (mut roots, mut found) = (BTreeSet::new(), Vec::new());
    for iteration in 1..=2 {
        for episode in played(folder.path(), iteration).await {
            assert!(episode.usable(), "{:?}", episode.fault);
            found.extend(turns(&episode));
            for (index, sequence) in episode.sequences.iter().enumerate() {
                let mut mask = vec![false; sequence.token_ids.len()];
                let own = episode
                    .turns
                    .iter()
                    .filter(|turn| turn.sequence as usize == index);
                for turn in own {
                    let span = &mut mask[turn.policy.0 as usize..turn.policy.1 as usize];
                    assert!(span.iter().all(|seen| !seen));
                    span.fill(true);
                }
                assert_eq!(mask, sequence.loss_mask);
                assert!(mask.iter().any(|seen| *seen), "nothing is trained on there");
                if iteration == 1 {
                    let request = ScoreRequest {
                        token_ids: &sequence.token_ids,
                        loss_mask: &sequence.loss_mask,
                    };
                    let options = ComputeOptions::default();
                    let scores = score(&policy, &[request], 1.0, &options).unwrap();
                    let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(
                        bits(&scores[0].log_probs),
                        bits(&sequence.sampled_log_probs)
                    );
                }
            }
            let agent = episode.agent().unwrap();
            let first = agent
                .continues
                .iter()
                .filter(|before| before.is_none())
                .count();
            roots.insert((episode.task.item_id % 4, first));
            let chat = policy.chat().with_tools(&json!(episode.tools())).unwrap();
            if episode.task.item_id % 4 == 0 {
                let messages = [Message::new(Role::User, &*house::prompt(&episode.prompt))];
                let prompt = chat.prompt_ids(policy.tokenizer(), &messages).unwrap();
                assert_eq!(turns(&episode).next().unwrap().0, prompt);
                assert_eq!((agent.unsampled_messages, &*agent.ended), (0, "finished"));
            }
            assert_eq!(
                agent.overridden["temperature"] as usize,
                episode.turns.len()
            );
        }
    }
    told.sort();
    found.sort();
    assert_eq!(
        told, found,
        "each answer is a turn, with the ids that were told"
    );
    // One conversation; with two beside it; one that begins anew; and each question put twice.
    assert!(
        roots.contains(&(0, 1)) && roots.contains(&(1, 3)) && roots.contains(&(2, 2)),
        "{roots:?}"
    );
    let solved = played(folder.path(), 1).await;
    assert!(
        solved
            .iter()
            .any(|episode| episode.outcome == Outcome::Solved)
    );

    // Its worker is killed after each answer, which is written before the agent gets it.
    let house = House::open(Fate::AwaitsDeaths).await;
    let again = TempDir::new().unwrap();
    let store = again.path();
    let options = [
        "jobs.threads=1",
        "jobs.journal_interval_s=0",
        "jobs.vanished_max=1000",
    ];
    let mut killed = 0;
    loop {
        let mut running = Running::start(run(store, &house, &options));
        let heard = loop {
            tokio::time::sleep(Duration::from_millis(3)).await;
            if running.has_ended() {
                break None;
            }
            if let Some((_, answer)) = house.wants_a_death() {
                break Some(answer);
            }
        };
        running.kill();
        let Some(answer) = heard else { break };
        assert!(journalled(store).await.contains(&answer), "{answer:?}");
        killed += 1;
        house.wants_a_death();
    }
    println!("killed {killed} times");
    assert!(killed >= 20, "{killed}");
    assert_eq!(end(run(store, &house, &[]), store), undisturbed);
    no_part_started_after_its_commit(store).await;
    assert_eq!(sampled(store).await, sampled(folder.path()).await);

    // It is killed at any time.
    let house = House::open(Fate::Plays).await;
    let again = TempDir::new().unwrap();
    let store = again.path();
    let options = ["jobs.threads=1", "jobs.journal_interval_s=0.1"];
    let struck = strikes((store, RUN), 5, 4, || run(store, &house, &options)).await;
    assert_eq!(
        end(run(store, &house, &[]), store),
        undisturbed,
        "{struck:?}"
    );

    // The harness loses its session after each answer.
    let house = House::open(Fate::LosesSessions).await;
    let again = TempDir::new().unwrap();
    let patient = ["actor_rollout_ref.rollout.fault_retries=100"];
    assert_eq!(
        end(run(again.path(), &house, &patient), again.path()),
        undisturbed
    );
    assert!(house.ends() >= 30, "{}", house.ends());

    // Each agent dies once and is led back.
    let house = House::open(Fate::FailsOnce).await;
    let again = TempDir::new().unwrap();
    assert_eq!(
        end(run(again.path(), &house, &[]), again.path()),
        undisturbed
    );
    assert!(house.ends() >= 8, "{}", house.ends());
    let shown = ["0", "1"].map(|part| {
        let mut command = program("agentgym-submit");
        command.args(["inspect", RUN, "1", "rollout", part, "--store"]);
        said({
            command.arg(again.path());
            command
        })
    });
    let shown = shown.concat();
    for words in [
        "agent: finished, temperature not heeded in",
        ", begins a conversation)",
        ", continues turn 1)",
        "judged: game ",
    ] {
        assert!(shown.contains(words), "{words} in {shown:.5000}");
    }
}

/// The rollouts' parts.
const ROLLOUTS: [PartId; 4] = [rollout(1, 0), rollout(1, 1), rollout(2, 0), rollout(2, 1)];

const fn rollout(iteration: u32, part: u32) -> PartId {
    PartId {
        iteration,
        stage: Stage::Rollout,
        part,
    }
}

/// Ids of the answers that the journals of a run hold.
async fn journalled(store: &Path) -> Vec<Vec<u32>> {
    let store = Store::open(&store.display().to_string()).await.unwrap();
    let view = RunView::open(&store, RUN).await.unwrap();
    let mut all = Vec::new();
    for part in ROLLOUTS {
        for segment in Journal::replay(&store, &view.slot(part)).await.unwrap() {
            let Segment::V1(segment) = decode(&segment).unwrap();
            let events = segment.records.into_iter().flat_map(|record| record.events);
            all.extend(events.filter_map(|event| match event {
                Event::Answered(answered) => Some(answered.message.token_ids),
                _ => None,
            }));
        }
    }
    all
}

/// Tokens that the attempts sampled that committed a part of a rollout, and those that they found sampled.
async fn sampled(store: &Path) -> Vec<u64> {
    let store = Store::open(&store.display().to_string()).await.unwrap();
    let view = RunView::open(&store, RUN).await.unwrap();
    let mut all = Vec::new();
    for part in ROLLOUTS {
        let work = view.committed(part).await.unwrap().work.unwrap();
        let of = |name: &str| work.stats[name].as_u64().unwrap();
        all.push(of("sampled_tokens") + of("taken_up_tokens"));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_never_does_the_same_twice_is_trained_on_as_it_went_on() {
    let house = House::open(Fate::Wavers).await;
    let folder = TempDir::new().unwrap();
    let options = ["actor_rollout_ref.rollout.fault_retries=100"];
    end(run(folder.path(), &house, &options), folder.path());
    let (told, mut left) = (house.told(), 0);
    for iteration in 1..=2 {
        for episode in played(folder.path(), iteration).await {
            assert!(episode.usable(), "{:?}", episode.fault);
            assert!(turns(&episode).all(|turn| told.contains(&turn)));
            left += episode.agent().unwrap().not_asked_again as usize;
        }
    }
    assert!(left >= house::LOST, "{left} answers nobody asked for again");
    let mut verify = program("agentgym-submit");
    verify.args(["verify", RUN, "--store"]).arg(folder.path());
    said(verify);
}

/// Agents that write their prompts themselves: an answer in a longer text stands for its ids.
#[tokio::test(flavor = "multi_thread")]
async fn completions_go_on_with_the_ids_of_their_answers() {
    let house = House::open(Fate::Completes).await;
    let folder = TempDir::new().unwrap();
    let options = ["trainer.total_training_steps=1"];
    end(run(folder.path(), &house, &options), folder.path());
    assert_eq!(house.complaints(), Vec::<String>::new());
    let policy = Policy::load(Path::new(warmed()), &Device::cpu()).unwrap();
    let (mut told, mut found) = (house.told(), Vec::new());
    for episode in played(folder.path(), 1).await {
        assert!(episode.usable(), "{:?}", episode.fault);
        // Three of text, one of ids, and one that begins another sequence.
        assert_eq!((episode.turns.len(), episode.sequences.len()), (5, 2));
        for (turn, (prompt, answer)) in episode.turns.iter().zip(turns(&episode)) {
            let (sequence, policy_says) = (turn.sequence as usize, turn.policy);
            let mask = &episode.sequences[sequence].loss_mask;
            assert!(
                mask[policy_says.0 as usize..policy_says.1 as usize]
                    .iter()
                    .all(|own| *own)
            );
            found.push((prompt, answer));
        }
        let text = policy
            .tokenizer()
            .decode(&episode.sequences[0].token_ids, false);
        assert!(text.contains("Go on."), "{text}");
    }
    told.sort();
    found.sort();
    assert_eq!(told, found);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_may_not_ask_is_refused_and_counted() {
    let house = House::open(Fate::AsksBadly).await;
    let folder = TempDir::new().unwrap();
    let options = [
        "trainer.total_training_steps=1",
        "actor_rollout_ref.rollout.n=2",
    ];
    end(run(folder.path(), &house, &options), folder.path());
    assert_eq!(house.complaints(), Vec::<String>::new());
    let episodes = played(folder.path(), 1).await;
    let turns: usize = episodes.iter().map(|episode| episode.turns.len()).sum();
    assert!(turns > 0);
    for episode in &episodes {
        let agent = episode.agent().unwrap();
        assert!(agent.refused > 0, "{agent:?}");
        assert!(agent.overridden.contains_key("tool_choice"), "{agent:?}");
    }
}

#[test]
fn keys_without_a_meaning_behind_a_harness_are_refused_by_name() {
    let scene = crate::bad_input::Scene::new();
    std::fs::write(scene.path("house.yaml"), "name: house\nharness: true\n").unwrap();
    let with = |more: &str| {
        format!(
            "run.yaml actor_rollout_ref.agentgym.specs=['house.yaml'] actor_rollout_ref.agentgym.task_name=house \
             actor_rollout_ref.agentgym.env_addr=http://h:1 data.tasks=[{{\"env\":\"house\",\"ids\":\"0..8\"}}] \
             evaluation.sets=[] {more}"
        )
    };
    for key in [
        "context_turns=2",
        "reply_prefix=\"Action:\"",
        "lenient_actions=true",
    ] {
        let (name, _) = key.split_once('=').unwrap();
        let given = with(&format!("actor_rollout_ref.agentgym.{key}"));
        scene.refuses(
            &given,
            2,
            &[name, "`house`", "behind a harness", "leave this out"],
        );
    }
    for (text, words) in [
        (
            "name: house\nfailed_reward: 0\n",
            &["failed_reward", "harness: true"][..],
        ),
        (
            "name: house\nharness: true\nactions: {in_reply: x}\n",
            &["actions", "acts by itself"],
        ),
    ] {
        std::fs::write(scene.path("house.yaml"), text).unwrap();
        scene.refuses(&with(""), 2, words);
    }
}

/// A worker that cannot listen where it is to is not there: it begins no part, which would fail.
#[test]
fn a_worker_without_its_gateway_does_not_begin() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (address, words) in [
        (&*taken, "cannot listen at"),
        ("0.0.0.0:0", "--gateway-url"),
    ] {
        let folder = TempDir::new().unwrap();
        let mut worker = program("agentgym-worker");
        worker.args(["--gateway-addr", address, "--store"]);
        let output = finish({
            worker.arg(folder.path());
            worker
        });
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{complaint}");
        assert!(complaint.contains(words), "{complaint}");
        assert!(!complaint.contains(" ready "), "{complaint}");
    }
}
