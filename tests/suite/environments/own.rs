//! Environments that this program does not know, by a person's spec: a run is killed and its file
//! taken away, and what is wrong with a file is named before anything runs.

use super::{PATIENT, Server, train, view};
use crate::evidence::learnt;
use agentgym_envs::spec::spec;
use agentgym_tests::program::{Running, finish, program};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// TextCraft's server as somebody would describe it who has never heard of it here.
fn described(folder: &Path, change: impl Fn(&mut Value)) -> String {
    let mut held = serde_json::to_value(spec("textcraft").unwrap()).unwrap();
    held["name"] = json!("mygame");
    change(&mut held);
    let path = folder.join("mygame.yaml");
    std::fs::write(&path, serde_json::to_string_pretty(&held).unwrap()).unwrap();
    path.display().to_string()
}

fn keys(path: &str) -> [String; 3] {
    [
        format!("actor_rollout_ref.agentgym.specs=[{path}]"),
        "actor_rollout_ref.agentgym.task_name=mygame".to_owned(),
        "data.tasks=[{env: mygame, ids: 0..24}]".to_owned(),
    ]
}

#[tokio::test]
async fn a_killed_run_of_an_environment_of_ones_own_ends_equal_without_its_file() {
    let server = Server::start(600);
    let digest = async |kill: bool| {
        let folder = TempDir::new().unwrap();
        let spec = described(folder.path(), |held| held["rounds_max"] = json!(7));
        let keys = keys(&spec);
        let more = [&keys[0], &keys[1], &keys[2], PATIENT];
        let start = || train(folder.path(), &server.url(), &more);
        if kill {
            let begun = Instant::now();
            let mut running = Running::start(start());
            let commits = folder.path().join("store/runs/tried/commits/00000001");
            while !commits.join("rollout").is_dir() && !running.has_ended() {
                assert!(begun.elapsed() < Duration::from_secs(60));
                std::thread::sleep(Duration::from_millis(5));
            }
            running.kill();
            std::fs::remove_file(&spec).unwrap();
            let mut resume = program("agentgym-submit");
            resume.args(["resume", "tried", "--quiet", "--store"]);
            resume.arg(folder.path().join("store"));
            assert!(finish(resume).status.success());
        } else {
            assert!(finish(start()).status.success());
        }
        let view = view(folder.path()).await;
        println!("{}", learnt(&view.store, "tried").await);
        let plan = &view.plan.config.actor_rollout_ref.agentgym;
        assert_eq!(plan.specs.len(), 1);
        assert_eq!(view.plan.config.spec("mygame").unwrap().name, "mygame");
        let rounds = view.plan.config.environments()["mygame"].max_rounds;
        assert_eq!(rounds, Some(7), "those of the spec");
        view.store.run_digest(&view.plan.run).await.unwrap()
    };
    assert_eq!(digest(true).await, digest(false).await);
}

#[test]
fn what_is_wrong_with_a_spec_is_named_before_anything_runs() {
    let folder = TempDir::new().unwrap();
    let good = described(folder.path(), |_| {});
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let cases: [(String, &str, &[&str]); 10] = [
        (
            good.clone(),
            "mygame2",
            &["`mygame2` is no environment", "agentgym.specs"],
        ),
        (
            format!("{good}, {good}"),
            "mygame",
            &["specs[1]", "called `mygame` too"],
        ),
        (
            "nowhere.yaml".to_owned(),
            "mygame",
            &["specs[0]", "nowhere.yaml"],
        ),
        (
            path("a.yaml", "name: textcraft\n"),
            "textcraft",
            &["a.yaml:1:7", "of this program"],
        ),
        (
            path("b.yaml", "name: mygame\nrounds: 3\n"),
            "mygame",
            &["b.yaml:2:9", "unknown field `rounds`"],
        ),
        (
            path("c.yaml", "name: mygame\nitems: {within: 3}\n"),
            "mygame",
            &["c.yaml:2:17", "items.within"],
        ),
        (
            path("d.yaml", "name: mygame\nparser: [\n"),
            "mygame",
            &["d.yaml", "line"],
        ),
        (
            path("e.yaml", "name: mygame\ninstruction: 'see ${run.id}'\n"),
            "mygame",
            &["specs[0]", "${"],
        ),
        (
            path("f.yaml", "name: mygame\npath_prefix: ../x\n"),
            "mygame",
            &["f.yaml:2:14", "no path"],
        ),
        (
            folder.path().display().to_string(),
            "mygame",
            &["specs[0]", "is a folder"],
        ),
    ];
    for (files, name, words) in cases {
        let mut command = train(folder.path(), "http://127.0.0.1:9", &[]);
        command.args([
            format!("actor_rollout_ref.agentgym.specs=[{files}]"),
            format!("actor_rollout_ref.agentgym.task_name={name}"),
            format!("data.tasks=[{{env: {name}, ids: 0..24}}]"),
        ]);
        let output = finish(command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{files}: {said}");
        for word in words {
            assert!(said.contains(word), "{files}: {word}: {said}");
        }
        assert!(
            !folder.path().join("store/runs").exists(),
            "a run was begun"
        );
    }
}

#[test]
fn a_run_goes_on_by_the_spec_that_it_began_with() {
    let server = Server::start(600);
    let folder = TempDir::new().unwrap();
    let spec = described(folder.path(), |_| {});
    let keys = keys(&spec);
    let more = [&keys[0], &keys[1], &keys[2], PATIENT];
    let short = [&more[..], &["trainer.total_training_steps=1"]].concat();
    let start = || finish(train(folder.path(), &server.url(), &short));
    assert!(start().status.success());
    assert!(start().status.success(), "the same file is the same run");
    described(folder.path(), |held| held["rounds_max"] = json!(5));
    let output = start();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("agentgym.specs"), "{said}");
}
