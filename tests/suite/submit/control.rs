//! Run control: a run on hold, and the reason why a part does not progress. The effect on workers
//! is tested in `durability`.

use super::*;
use agentgym_queue::{Job, Queue, QueueOptions};
use agentgym_submit::why::because;
use std::time::Duration;

async fn lines(scene: &Scene, part: Option<&str>, queue: Option<&Queue>) -> Vec<String> {
    let part = part.map(|p| p.parse().unwrap());
    let view = scene.view().await;
    because(&view, part, queue.cloned()).await.unwrap()
}

fn says(lines: &[String], what: &str) {
    assert!(
        lines.iter().any(|line| line.contains(what)),
        "{what}: {lines:#?}"
    );
}

#[tokio::test]
async fn a_part_is_followed_to_what_it_waits_for() {
    let scene = Scene::new().await;
    let queue = Queue::open("memory:", QueueOptions::default())
        .await
        .unwrap();
    let told = lines(&scene, None, Some(&queue)).await;
    says(&told, "the policy of iteration 0 is made by 0/init/0");
    says(&told, "nobody has begun it: no init job is in the queue");
    let told = lines(&scene, Some("1/update/0"), Some(&queue)).await;
    says(
        &told,
        "1/update/0 waits for 1/advantage/0 (its input `batch`)",
    );
    says(&told, "0/init/0 has all it needs");

    let job = |offer| Job {
        run: "handmade".into(),
        iteration: 0,
        stage: "init".into(),
        part: 0,
        offer,
    };
    queue
        .enqueue("init", &job(0), Duration::ZERO)
        .await
        .unwrap();
    says(
        &lines(&scene, None, Some(&queue)).await,
        "1 init job in the queue; every worker that takes init",
    );

    let init = id(0, Stage::Init);
    scene.start(init).await;
    let claim = queue.claim(&job(0), "host:1:ab").await.unwrap();
    says(
        &lines(&scene, None, Some(&queue)).await,
        "is at work: attempt 1 by host:1:ab",
    );
    let shown = async |queue| {
        let status = agentgym_submit::status::status(&scene.view().await, queue).await;
        status.unwrap().render(1_000_060)
    };
    let text = shown(Some(&queue)).await;
    assert!(text.contains("0/init/0  running  attempt 1"), "{text}");
    let agentgym_queue::Claim::Held(claim) = claim else {
        panic!("nobody else has it");
    };
    claim.release().await.unwrap();
    says(
        &lines(&scene, None, Some(&queue)).await,
        "has lost its worker",
    );
    let text = shown(Some(&queue)).await;
    assert!(text.contains("0/init/0  lost  attempt 1"), "{text}");
    assert!(text.contains("a worker to take 0/init/0"), "{text}");
    let text = shown(None).await;
    assert!(text.contains("0/init/0  running  attempt 1"), "{text}");
    says(&lines(&scene, None, None).await, "no queue answers");

    scene
        .end(init, 1, AttemptOutcome::Failed, "no such folder")
        .await;
    says(
        &lines(&scene, None, Some(&queue)).await,
        "failed 1 of 3 times and is tried again; the last time: no such folder",
    );
    for attempt in 2..=3 {
        scene.start(init).await;
        scene
            .end(init, attempt, AttemptOutcome::Failed, "no such folder")
            .await;
    }
    let told = lines(&scene, None, Some(&queue)).await;
    says(
        &told,
        "failed 3 times, the most that jobs.failures_max allows",
    );
    says(&told, "agentgym-submit retry handmade");

    scene.finish().await;
    says(
        &lines(&scene, Some("0/init/0"), None).await,
        "0/init/0 is committed: attempt 4 of 4 by host:1:ab in 2.0 s",
    );
    says(&lines(&scene, None, None).await, "run handmade is finished");
}

#[tokio::test]
async fn hold_and_retry_are_plan_revisions() {
    let scene = Scene::new().await;
    let revision = async || scene.view().await.plan.revision;
    let on_hold = async || scene.view().await.plan.config.jobs.hold;
    scene.command("retry handmade").await.unwrap();
    assert_eq!(revision().await, 0, "nothing to do");
    scene.command("cancel handmade").await.unwrap();
    assert!(on_hold().await);
    scene.command("cancel handmade --json").await.unwrap();
    assert_eq!(revision().await, 1, "it is on hold already");
    says(&lines(&scene, None, None).await, "the run is on hold");
    let error = scene.command("watch handmade").await.unwrap_err();
    assert_eq!(error.exit(), Exit::Stopped);
    assert!(error.to_string().contains("resume handmade"), "{error}");
    scene
        .command("retry handmade jobs.threads=1")
        .await
        .unwrap();
    assert!(!on_hold().await);
    assert_eq!(revision().await, 2);
    scene.finish().await;
    scene.command("cancel handmade").await.unwrap();
    scene
        .command("retry handmade jobs.threads=2")
        .await
        .unwrap();
    assert_eq!(revision().await, 2, "nothing to cancel or to try again");
    scene.command("watch handmade").await.unwrap();
}

/// The limit on attempts without an end record; it is the same for workers and views.
#[tokio::test]
async fn a_part_that_takes_its_workers_down_gets_its_chances_back() {
    let scene = Scene::new().await;
    let revision = async || scene.view().await.plan.revision;
    scene
        .command("retry handmade jobs.vanished_max=2")
        .await
        .unwrap();
    assert_eq!(revision().await, 1);
    for _ in 0..2 {
        scene.start_under(id(0, Stage::Init), 1).await;
    }
    let told = lines(&scene, None, None).await;
    says(
        &told,
        "0/init/0 took its worker down 2 times without a word",
    );
    says(&told, "agentgym-submit retry handmade");
    scene.command("retry handmade").await.unwrap();
    assert_eq!(revision().await, 2);
    says(&lines(&scene, None, None).await, "is at work");
}

#[tokio::test]
async fn what_does_not_exist_is_named() {
    let scene = Scene::new().await;
    for (line, what) in [
        ("why handmade 7/update/0", "has iterations 0 to 1, not 7"),
        ("why handmade 1/sft/0", "iteration 1 has no stage sft"),
        (
            "why handmade 1/update/4",
            "1/update has parts 0 to 0, not 4",
        ),
        ("cancel nobody", "nobody"),
        ("retry handmade run.seed=2", "run.seed"),
    ] {
        let error = scene.command(line).await.unwrap_err();
        assert_eq!(error.exit(), Exit::Run, "{line}");
        assert!(error.to_string().contains(what), "{line}: {error}");
    }
}
