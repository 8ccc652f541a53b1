//! Environments that fail: what a dead server spoiled is never committed, in parts of any size, and
//! an item that is broken alone is excluded.

use super::odd_server::{Call, NO_PROBE, OddServer, play, said, store, view_of};
use super::rollouts;
use agentgym_jobs::episode::Outcome;
use agentgym_tests::program::{finish, program};
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;

const ODDLY: &str = "<html><h1>Bad Gateway</h1></html>";

async fn digest(folder: &Path) -> String {
    let view = view_of(folder, "odd").await;
    view.store
        .run_digest(&view.plan.run)
        .await
        .unwrap()
        .0
        .to_string()
}

/// Items whose episodes were excluded, and the number of episodes played.
async fn excluded(folder: &Path) -> (Vec<i64>, usize) {
    let all = rollouts(&view_of(folder, "odd").await, 2).await;
    let spoiled = all.iter().filter(|(_, e)| e.outcome == Outcome::EnvFault);
    let excluded = spoiled.map(|(_, e)| e.task.item_id);
    (excluded.collect(), all.len())
}

fn resume(folder: &Path, more: &[&str]) -> Output {
    let mut command = program("agentgym-submit");
    command.args(["resume", "odd", "--quiet", "--store"]);
    command.arg(store(folder)).args(more);
    finish(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_server_spoiled_is_never_committed() {
    for tasks in [1, 2, 4] {
        let size = format!("jobs.rollout_part_tasks={tasks}");
        let mut server = OddServer::start();
        let whole = TempDir::new().unwrap();
        let output = finish(play(whole.path(), &server.url(), "", &[&size]));
        assert!(output.status.success(), "{}", said(&output));
        let undisturbed = digest(whole.path()).await;

        for (kind, status, body) in [
            ("502", 502, ODDLY),
            ("404", 404, "{}"),
            ("html", 200, ODDLY),
            ("refused", 0, ""),
        ] {
            // At once, and after some parts have been committed.
            for healthy in [0, 60] {
                if kind == "refused" && healthy > 0 {
                    continue;
                }
                let folder = TempDir::new().unwrap();
                let mut calls = 0;
                server.twist(move |call| {
                    calls += 1;
                    if calls > healthy {
                        call.fail(status, body);
                    }
                });
                if kind == "refused" {
                    server.stop();
                }
                let stopped = finish(play(folder.path(), &server.url(), "", &[&size]));
                let text = said(&stopped);
                let what = format!("{tasks} tasks, {kind} after {healthy} calls: {text}");
                assert_eq!(stopped.status.code(), Some(5), "{what}");
                assert!(
                    text.contains("oddgame") && text.contains(&server.url()),
                    "{what}"
                );
                let answer = match kind {
                    "refused" => "refused",
                    "404" => "HTTP 404",
                    _ => "Bad Gateway",
                };
                assert!(text.contains(answer), "{what}");
                if kind == "refused" {
                    server.listen();
                }
                server.heal();
                // Where nothing answers, no run has begun.
                let resumed = match kind {
                    "refused" => finish(play(folder.path(), &server.url(), "", &[&size])),
                    _ => resume(folder.path(), &[]),
                };
                assert!(resumed.status.success(), "{what} then {}", said(&resumed));
                assert_eq!(digest(folder.path()).await, undisturbed, "{what}");
            }
        }
    }
}

fn breaks(item: impl Fn(i64) -> bool + Send + 'static) -> impl FnMut(&mut Call) + Send {
    move |call| {
        if call.path == "/step" && item(call.item) {
            call.fail(500, "{\"detail\": \"boom\"}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_broken_item_is_excluded_and_counted() {
    for tasks in [1, 2, 4] {
        let size = format!("jobs.rollout_part_tasks={tasks}");
        let (server, folder) = (OddServer::start(), TempDir::new().unwrap());
        let start = || {
            finish(play(
                folder.path(),
                &server.url(),
                "",
                &[&size, "data.shuffle=false"],
            ))
        };
        server.twist(breaks(|item| item == 3));
        let output = start();
        assert!(output.status.success(), "{tasks}: {}", said(&output));
        assert_eq!(excluded(folder.path()).await, (vec![3, 3], 16), "{tasks}");
        let first = digest(folder.path()).await;
        let again = resume(folder.path(), &[]);
        assert!(again.status.success(), "{}", said(&again));
        assert_eq!(digest(folder.path()).await, first);
    }
}

/// The item's episodes fail, and by the time that another item is tried the server is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_away_for_a_moment_breaks_no_item() {
    let server = OddServer::start();
    let run = |folder: &Path| {
        finish(play(
            folder,
            &server.url(),
            "",
            &["jobs.rollout_part_tasks=1"],
        ))
    };
    let (whole, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    assert!(run(whole.path()).status.success());
    let mut failed = 0;
    server.twist(move |call| {
        if call.path == "/step" && failed < 2 {
            failed += 1;
            call.fail(500, "{}");
        }
    });
    let output = run(folder.path());
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(digest(folder.path()).await, digest(whole.path()).await);
}

/// Each part has one task, so none of them shows that most items are broken.
#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_spoiled_episodes_above_the_limit_stops_the_run() {
    let (server, folder) = (OddServer::start(), TempDir::new().unwrap());
    server.twist(breaks(|item| item < 3));
    let keys = ["jobs.rollout_part_tasks=1", "data.shuffle=false"];
    let stopped = finish(play(folder.path(), &server.url(), "", &keys));
    let text = said(&stopped);
    assert_eq!(stopped.status.code(), Some(5), "{text}");
    for part in [
        "6 of 8 episodes",
        "fault_share_max = 0.5",
        &server.url(),
        "boom",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The remedy of the message.
    let resumed = resume(
        folder.path(),
        &["actor_rollout_ref.agentgym.fault_share_max=0.8"],
    );
    assert!(resumed.status.success(), "{}", said(&resumed));

    // In one part, it is not committed, and a server that is mended leaves no trace.
    let (whole, folder) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let run = |folder: &Path| finish(play(folder, &server.url(), "", &["data.shuffle=false"]));
    let stopped = run(folder.path());
    assert_eq!(stopped.status.code(), Some(5), "{}", said(&stopped));
    assert!(
        said(&stopped).contains("fault_share_max = 0.5"),
        "{}",
        said(&stopped)
    );
    server.heal();
    assert!(resume(folder.path(), &[]).status.success());
    assert!(run(whole.path()).status.success());
    assert_eq!(digest(folder.path()).await, digest(whole.path()).await);
}

/// Every task of the iteration is broken, and others work.
#[tokio::test(flavor = "multi_thread")]
async fn an_iteration_without_an_episode_is_not_trained_on() {
    for tasks in [1, 4] {
        let size = format!("jobs.rollout_part_tasks={tasks}");
        let keys = [
            size.as_str(),
            "data.shuffle=false",
            "actor_rollout_ref.agentgym.fault_share_max=1",
        ];
        let (server, folder) = (OddServer::start(), TempDir::new().unwrap());
        server.twist(breaks(|item| item < 4));
        let stopped = finish(play(folder.path(), &server.url(), "", &keys));
        let text = said(&stopped);
        assert_eq!(stopped.status.code(), Some(5), "{tasks}: {text}");
        assert!(text.contains("8 of 8 episodes"), "{text}");
        server.heal();
        let mut command = program("agentgym-submit");
        match tasks {
            // Its parts are committed: a fork plays them again, as the message says.
            1 => {
                assert!(text.contains("fork odd --iteration 0"), "{text}");
                command.args(["fork", "odd", "--iteration", "0", "--quiet", "--store"]);
            }
            _ => {
                command.args(["resume", "odd", "--quiet", "--store"]);
            }
        }
        command.arg(store(folder.path()));
        let played = finish(command);
        assert!(played.status.success(), "{tasks}: {}", said(&played));
    }
}

/// The only item there is, of which one sample was spoiled: the others show that it works. The spec
/// names no action that is valid in every state, and the game refuses those that it does not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_spoiled_sample_of_the_only_item_is_excluded() {
    let (server, folder) = (OddServer::start(), TempDir::new().unwrap());
    server.twist(|call| {
        if call.path == "/step" && call.session % 3 == 0 {
            call.fail(422, "{\"detail\": \"no such action\"}");
        }
    });
    let keys = [
        "data.tasks=[{env: oddgame, ids: 0..1}]",
        "data.train_batch_size=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        "actor_rollout_ref.rollout.n=8",
        "actor_rollout_ref.rollout.fault_retries=0",
    ];
    let output = finish(play(folder.path(), &server.url(), NO_PROBE, &keys));
    assert!(output.status.success(), "{}", said(&output));
}
