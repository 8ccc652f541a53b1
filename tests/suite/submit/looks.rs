//! Views of a run: each works without a worker, records contain every stream, and dependencies are
//! described in one line.

use super::*;

#[tokio::test]
async fn every_look_at_a_finished_run_succeeds() {
    let scene = Scene::new().await;
    scene.finish().await;
    for line in [
        "status",
        "status --json",
        "status handmade",
        "status hand",
        "workers",
        "workers handmade",
        "ledger handmade",
        "episodes handmade --best",
        "inspect handmade",
        "inspect handmade --json",
        "inspect handmade 0",
        "inspect handmade 1 --json",
        "inspect handmade 1 rollout",
        "inspect handmade 1 rollout 0 --tokens --sample 1",
        "inspect handmade 1 log_probs 0 --json",
        "inspect handmade 1 advantage --jsonl",
        "inspect handmade 1 update 0",
        "inspect handmade 1 evaluate",
        "metrics handmade",
        "metrics handmade --json",
        "digest handmade",
        "keys rollout",
    ] {
        scene
            .command(line)
            .await
            .unwrap_or_else(|e| panic!("{line}: {e}"));
    }
    let exports = scene.store_path().join("exports/handmade");
    let metrics = std::fs::read_to_string(exports.join("metrics.jsonl")).unwrap();
    let rows: Vec<Value> = metrics
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let easy: Vec<f64> = rows
        .iter()
        .filter(|r| r["set"] == "easy")
        .map(|r| r["metrics"]["success"].as_f64().unwrap())
        .collect();
    assert_eq!(easy, [0.25, 0.75]);
    assert!(
        exports
            .join("tensorboard")
            .read_dir()
            .unwrap()
            .next()
            .is_some()
    );
}

#[tokio::test]
async fn records_carry_every_stream() {
    let scene = Scene::new().await;
    scene.finish().await;
    let view = scene.view().await;
    let records = async |stage, filter| {
        let manifest = view.committed(id(1, stage)).await.unwrap();
        let content = content(&view, &manifest, filter).await.unwrap();
        let records: Vec<Value> = content.documents().iter().map(|r| json!(r)).collect();
        records
    };
    let episodes = records(Stage::Rollout, Filter::default()).await;
    assert_eq!(episodes.len(), 2);
    assert_eq!(episodes[1]["outcome"], "horizon");
    assert_eq!(episodes[1]["turns"][0]["text"], "Action: get 1 log");
    let scored = records(
        Stage::LogProbs,
        Filter {
            group: None,
            sample: Some(1),
        },
    )
    .await;
    assert_eq!(scored.len(), 1);
    assert_eq!(
        scored[0]["sequences"][0]["entropies"],
        json!([0.0, 0.0, 1.5, 1.25])
    );
    let slots = records(Stage::Advantage, Filter::default()).await;
    assert_eq!(slots.len(), 1, "the empty slot is no record");
    assert_eq!(slots[0]["slot"], 1);
    assert_eq!(
        slots[0]["sequences"][0]["advantages"],
        json!([0.0, 0.0, 0.5, 0.5])
    );
    let steps = records(Stage::Update, Filter::default()).await;
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0]["slots"], json!([0, 1]));
    assert_eq!(steps[0]["grad_norm"], 0.5);
    assert_eq!(steps[0]["metrics"]["kl_loss"].to_string(), "0.0");
}

#[tokio::test]
async fn an_export_holds_what_an_update_reads_and_writes() {
    let scene = Scene::new().await;
    scene.finish().await;
    let to = scene.dir.path().join("out");
    scene
        .command(&format!(
            "export handmade --iteration 1 --to {}",
            to.display()
        ))
        .await
        .unwrap();
    let read = |name: &str| {
        std::fs::read_to_string(to.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    assert!(read("policy_before/config.json").contains("init"));
    assert!(read("policy_after/config.json").contains("update"));
    let made: serde_json::Value = serde_json::from_str(&read("policy_after/made.json")).unwrap();
    assert_eq!(
        (&made["iteration"], &made["stage"]),
        (&1.into(), &"update".into())
    );
    assert!(made["numeric_class"].is_string(), "{made}");
    assert!(
        !to.join("optimizer_before").exists(),
        "the first update starts fresh"
    );
    let origin: Value = serde_json::from_str(&read("export.json")).unwrap();
    assert_eq!(origin["optimizer_before"], "fresh");
    assert_eq!(origin["slots"], 2);
    let lines: Vec<Value> = read("trajectories.jsonl")
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines.len(), 1);
    for name in [
        "token_ids",
        "loss_mask",
        "sampled_log_probs",
        "old_log_probs",
        "advantages",
    ] {
        assert_eq!(lines[0][name].as_array().map(Vec::len), Some(4), "{name}");
    }
    assert_eq!(lines[0]["slot"], 1);
    let update: Value = serde_json::from_str(&read("update.json")).unwrap();
    assert_eq!(update["minibatches"][0]["slots"], json!([0, 1]));
    assert_eq!(
        update["minibatches"][0]["metrics"]["kl_loss"].to_string(),
        "0.0"
    );
    assert!(lines[0]["turns"][0]["text"] == "Action: get 1 log");
    let episodes: Vec<Value> = read("episodes.jsonl")
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let slots: Vec<&Value> = episodes.iter().map(|e| &e["slot"]).collect();
    assert_eq!(slots, [&Value::Null, &json!(1)]);

    let again = scene
        .command(&format!(
            "export handmade --iteration 1 --to {}",
            to.display()
        ))
        .await;
    assert_eq!(
        again.unwrap_err().exit(),
        Exit::Config,
        "a folder with files in it is left alone"
    );
}

#[tokio::test]
async fn status_tells_a_failure_from_a_wait() {
    let scene = Scene::new().await;
    let init = id(0, Stage::Init);
    let status = async || {
        agentgym_submit::status::status(&scene.view().await, None)
            .await
            .unwrap()
    };
    assert!(
        status()
            .await
            .waiting_line()
            .contains("a worker to take 0/init/0")
    );
    let attempt = scene.start(init).await;
    assert!(status().await.waiting_line().contains("0/init/0 to finish"));
    scene
        .end(
            init,
            attempt.number,
            AttemptOutcome::Failed,
            "no room for the policy",
        )
        .await;
    let text = status().await.render(1_000_060);
    assert!(text.contains("no room for the policy"), "{text}");
    assert!(text.contains("a worker to take 0/init/0"), "{text}");
    for _ in 0..2 {
        let attempt = scene.start(init).await;
        scene
            .end(
                init,
                attempt.number,
                AttemptOutcome::Failed,
                "no room for the policy",
            )
            .await;
    }
    assert!(
        status()
            .await
            .waiting_line()
            .contains("agentgym-submit resume handmade")
    );
}
