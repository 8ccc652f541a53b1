//! Servers that people bring: what they answer is played where it has a meaning, left out and counted
//! where there is nothing to train on, and named by value and type where it is wrong.

use super::odd_server::{Call, OddServer, Twist, play, said, store, view_of};
use super::rollouts;
use agentgym_jobs::episode::{Episode, Outcome};
use agentgym_tests::program::{finish, program};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;

async fn episodes(folder: &Path, run: &str) -> Vec<Episode> {
    let all = rollouts(&view_of(folder, run).await, 2).await;
    all.into_iter().map(|(_, episode)| episode).collect()
}

/// A twist of the game's replies, as JSON.
fn replies(change: impl Fn(&mut Call, &mut Value) + Send + 'static) -> Twist {
    Box::new(move |call| {
        let mut reply: Value = serde_json::from_slice(&call.body).unwrap();
        change(call, &mut reply);
        call.body = reply.to_string().into_bytes();
    })
}

fn command(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = program("agentgym-submit");
    command
        .args(arguments)
        .args(["--quiet", "--store"])
        .arg(store(folder));
    finish(command)
}

/// The games that answer the same in other words train the same policy.
#[tokio::test(flavor = "multi_thread")]
async fn replies_in_other_words_mean_the_same() {
    let (server, whole) = (OddServer::start(), TempDir::new().unwrap());
    let plain = "reward_rule: when_done\n";
    assert!(
        finish(play(whole.path(), &server.url(), plain, &[]))
            .status
            .success()
    );
    let expected = episodes(whole.path(), "odd").await;
    let nested = "reward_rule: when_done\nobservation_key: o.text\nreward_key: outcome.reward\n\
                  done_key: outcome.done\nfirst_observation: {keys: [o.text]}\n";
    let cut = "reward_rule: when_done\ntruncated_key: info.truncated\n";
    let kinds: [(&str, &str, Twist); 4] = [
        (
            "any status of success",
            plain,
            Box::new(|call| call.status = 201),
        ),
        (
            "no reward before the last one",
            plain,
            replies(|call, reply| {
                if reply["done"] == false {
                    match call.item % 2 {
                        0 => reply["reward"] = Value::Null,
                        _ => drop(reply.as_object_mut().unwrap().remove("reward")),
                    }
                }
            }),
        ),
        (
            "nested keys",
            nested,
            replies(|call, reply| {
                if call.path == "/step" || call.path == "/reset" {
                    let outcome = json!({"reward": reply["reward"], "done": reply["done"]});
                    *reply = json!({"o": {"text": reply["observation"]}, "outcome": outcome});
                }
            }),
        ),
        (
            "a second flag",
            cut,
            replies(|_, reply| {
                if reply["done"] == true {
                    reply["done"] = json!(false);
                    reply["info"] = json!({"truncated": true});
                }
            }),
        ),
    ];
    for (kind, spec, twist) in kinds {
        let folder = TempDir::new().unwrap();
        server.twist(twist);
        let output = finish(play(folder.path(), &server.url(), spec, &[]));
        assert!(output.status.success(), "{kind}: {}", said(&output));
        assert_eq!(episodes(folder.path(), "odd").await, expected, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_character_is_replaced_and_counted() {
    let (server, folder) = (OddServer::start(), TempDir::new().unwrap());
    server.twist(|call| {
        if call.path == "/step" && call.item % 8 == 3 {
            let text = String::from_utf8(call.body.clone()).unwrap();
            call.body = text.replace("over.", r"over \ud83d").into_bytes();
        }
    });
    let shuffle = ["data.shuffle=false"];
    let output = finish(play(folder.path(), &server.url(), "", &shuffle));
    assert!(output.status.success(), "{}", said(&output));
    let all = episodes(folder.path(), "odd").await;
    assert!(all.iter().all(Episode::usable));
    let turns = all.iter().flat_map(|e| &e.turns);
    let odd = turns.filter(|turn| turn.observation.ends_with("over \u{fffd}"));
    let odd = odd.count();
    assert!(odd >= 2, "{odd}");
    let shown = command(
        folder.path(),
        &["--json", "inspect", "odd", "1", "rollout", "0"],
    );
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("env_characters_replaced"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_that_is_over_at_reset_leaves_its_slot_empty() {
    let (server, folder) = (OddServer::start(), TempDir::new().unwrap());
    let over = |some: fn(i64) -> bool| {
        replies(move |call, reply| match call.path.as_str() {
            "/reset" if some(call.item) => {
                (reply["done"], reply["reward"]) = (json!(true), json!(1));
            }
            "/step" if some(call.item) => call.status = 400,
            _ => {}
        })
    };
    server.twist(over(|item| item == 1 || item == 6));
    let keys = ["data.shuffle=false"];
    let output = finish(play(folder.path(), &server.url(), "", &keys));
    assert!(output.status.success(), "{}", said(&output));
    let all = episodes(folder.path(), "odd").await;
    let empty: Vec<i64> = all
        .iter()
        .filter(|e| e.outcome == Outcome::NoTurn)
        .map(|e| e.task.item_id)
        .collect();
    assert_eq!((empty, all.len()), (vec![1, 1, 6, 6], 16));
    assert!(
        all.iter()
            .all(|e| e.usable() || e.outcome == Outcome::NoTurn)
    );

    let folder = TempDir::new().unwrap();
    server.twist(over(|item| item < 4));
    let stopped = finish(play(folder.path(), &server.url(), "", &keys));
    assert_eq!(stopped.status.code(), Some(1), "{}", said(&stopped));
    assert!(
        said(&stopped).contains("8 of 8 episodes of iteration 1 have nothing to train on"),
        "{}",
        said(&stopped)
    );
}

/// The first observations of some items are longer than any context.
fn long(some: fn(i64) -> bool) -> Twist {
    replies(move |call, reply| {
        if call.path == "/reset" && some(call.item) {
            reply["observation"] = json!("word ".repeat(60));
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_prompt_without_room_is_left_out_and_its_remedies_work() {
    for tasks in [1, 4] {
        let parts = format!("jobs.rollout_part_tasks={tasks}");
        let small = [
            parts.as_str(),
            "data.shuffle=false",
            "data.max_prompt_length=96",
            "data.max_response_length=96",
        ];
        let (server, folder) = (OddServer::start(), TempDir::new().unwrap());
        server.twist(long(|item| item == 3));
        let output = finish(play(folder.path(), &server.url(), "", &small));
        assert!(output.status.success(), "{tasks}: {}", said(&output));
        let all = episodes(folder.path(), "odd").await;
        let (empty, usable): (Vec<_>, Vec<_>) =
            all.iter().partition(|e| e.outcome == Outcome::NoRoom);
        assert!(empty.iter().all(|e| e.task.item_id == 3));
        assert_eq!((empty.len(), usable.len()), (2, 14), "{tasks}");

        // None is left out: the first one ends the run, and the key of its message works.
        let folder = TempDir::new().unwrap();
        let none = [&small[..], &["actor_rollout_ref.rollout.empty_share_max=0"]].concat();
        let stopped = finish(play(folder.path(), &server.url(), "", &none));
        let text = said(&stopped);
        let key = "actor_rollout_ref.rollout.empty_share_max=0.5";
        assert_eq!(stopped.status.code(), Some(1), "{text}");
        assert!(text.contains("oddgame_3") && text.contains(key), "{text}");
        let resumed = command(folder.path(), &["resume", "odd", key]);
        assert!(resumed.status.success(), "{tasks}: {}", said(&resumed));

        // Above the limit, both remedies of the message work.
        let folder = TempDir::new().unwrap();
        server.twist(long(|item| item < 3));
        let stopped = finish(play(folder.path(), &server.url(), "", &small));
        let text = said(&stopped);
        assert_eq!(stopped.status.code(), Some(1), "{text}");
        assert!(
            text.contains("6 of 8 episodes of iteration 1 have nothing to train on"),
            "{text}"
        );
        assert!(
            text.contains("agentgym-submit fork odd --iteration 0"),
            "{text}"
        );
        let raised = "actor_rollout_ref.rollout.empty_share_max=0.8";
        let resumed = command(folder.path(), &["resume", "odd", raised]);
        assert!(resumed.status.success(), "{tasks}: {}", said(&resumed));
        let forked = [
            "fork",
            "odd",
            "--iteration",
            "0",
            "data.max_prompt_length=512",
            "actor_rollout_ref.rollout.max_model_len=600",
            "run.id=larger",
        ];
        let forked = command(folder.path(), &forked);
        assert!(forked.status.success(), "{tasks}: {}", said(&forked));
        let all = episodes(folder.path(), "larger").await;
        let outcomes: Vec<_> = all.iter().map(|e| (e.task.item_id, e.outcome)).collect();
        assert!(
            all.iter().all(Episode::usable) && all.len() == 16,
            "{outcomes:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_answer_is_named_by_value_and_type() {
    let wrong = |change: fn(&mut Value)| -> Twist {
        replies(move |call, reply| {
            if call.path == "/step" {
                change(reply);
            }
        })
    };
    let kinds: [(Twist, &str); 6] = [
        (
            wrong(|r| r["reward"] = json!("0.5")),
            "`reward` is no number but the text \"0.5\"",
        ),
        (
            wrong(|r| r["reward"] = json!(true)),
            "`reward` is no number but true",
        ),
        (
            wrong(|r| r["done"] = json!(1)),
            "`done` is no true or false but the number 1",
        ),
        (
            wrong(|r| r["observation"] = json!(["a", "b"])),
            "`observation` is no text but a list of 2",
        ),
        (
            wrong(|r| r["observation"] = json!({"text": "a"})),
            "a spec can name a field of it: observation.text",
        ),
        (
            Box::new(|call| {
                let text = String::from_utf8_lossy(&call.body).replace("0.0", "NaN");
                call.body = text.into_bytes();
            }),
            "not JSON, which has no NaN",
        ),
    ];
    for (twist, found) in kinds {
        let (server, folder) = (OddServer::start(), TempDir::new().unwrap());
        server.twist(twist);
        let stopped = finish(play(folder.path(), &server.url(), "", &[]));
        assert_eq!(stopped.status.code(), Some(5), "{}", said(&stopped));
        assert!(
            said(&stopped).contains(found),
            "{found}: {}",
            said(&stopped)
        );
    }
}

/// One of two servers is down: the other plays all of it, and the one is named.
#[tokio::test(flavor = "multi_thread")]
async fn half_of_the_servers_down_is_said() {
    let (one, mut other) = (OddServer::start(), OddServer::start());
    let both = format!("{},{}", one.url(), other.url());
    let (whole, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let keys = ["actor_rollout_ref.rollout.fault_retries=2"];
    assert!(
        finish(play(whole.path(), &both, "", &keys))
            .status
            .success()
    );
    // It answers while the run begins, and never again.
    let mut calls = 0;
    other.twist(move |call| {
        calls += 1;
        if calls > 2 {
            call.fail(503, "{}");
        }
    });
    let output = finish(play(folder.path(), &both, "", &keys));
    assert!(output.status.success(), "{}", said(&output));
    let line = "is played at its other addresses";
    let named = said(&output)
        .lines()
        .any(|l| l.contains(line) && l.contains(&other.url()));
    assert!(named, "{}", said(&output));
    let expected = episodes(whole.path(), "odd").await;
    assert_eq!(episodes(folder.path(), "odd").await, expected);
    other.stop();
}
