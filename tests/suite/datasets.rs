//! Questions of a person's file: a run that learns from one survives kills, resumes with the same file alone,
//! and says what is wrong with another.

use crate::bad_input::Scene;
use crate::durability::{RUN, end, no_part_started_after_its_commit, said, submit_config};
use crate::strikes::strikes;
use agentgym_tests::program::{finish, program};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Sums, in the manner of GSM8K.
fn questions(count: u32) -> String {
    let mut text = String::new();
    for number in 0..count {
        let (a, b) = (number % 7 + 2, number % 5 + 1);
        let answer = format!("{a} + {b} = {0}\n#### {0}", a + b);
        let question = format!("Ada has {a} pears and gets {b}. How many are there?");
        let row = json!({"id": number, "question": question, "answer": answer});
        writeln!(text, "{row}\r").unwrap();
    }
    text
}

fn run(store: &Path, file: &Path, more: &[&str]) -> Command {
    let tasks = format!(
        "data.tasks=[{{file: '{}', env: sums, grade: number, ids: 0..190}}]",
        file.display()
    );
    let short = [
        "data.train_batch_size=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.n=2",
        "sft.sources=[{env: sums, ids: 0..100}]",
        "sft.steps=40",
        "evaluation.sets=[{name: rest, env: sums, ids: 190..200}]",
        "trainer.total_training_steps=2",
        "jobs.rollout_part_tasks=2",
        "jobs.sft_part_steps=10",
    ];
    let all: Vec<&str> = short
        .into_iter()
        .chain([&*tasks])
        .chain(more.iter().copied())
        .collect();
    submit_config("configs/dataset.yaml", store, &all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_questions_is_played_graded_shown_and_survives_kills() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("questions.jsonl");
    std::fs::write(&file, format!("\u{feff}{}", questions(200))).unwrap();
    let [struck, whole] = ["struck", "whole"].map(|name| folder.path().join(name));
    let digest = end(run(&whole, &file, &[]), &whole);
    let one = || {
        run(
            &struck,
            &file,
            &["jobs.threads=1", "jobs.journal_interval_s=0.1"],
        )
    };
    let strikes = strikes((&struck, RUN), 5, 3, one).await;
    assert_eq!(
        end(run(&struck, &file, &[]), &struck),
        digest,
        "{strikes:?}"
    );
    no_part_started_after_its_commit(&struck).await;

    let mut inspect = program("agentgym-submit");
    inspect.args([
        "inspect", RUN, "1", "rollout", "0", "--jsonl", "--json", "--store",
    ]);
    inspect.arg(&whole);
    for line in said(inspect).lines() {
        let episode: Value = serde_json::from_str(line).unwrap();
        assert!(
            episode["prompt"].as_str().unwrap().starts_with("Ada has "),
            "{line}"
        );
        let turn = &episode["turns"][0];
        let right = turn["observation"] == "That is right.";
        assert_eq!(episode["reward"] == 1.0, right, "{line}");
        assert_eq!(episode["turns"].as_array().unwrap().len(), 1);
    }

    // No part is played with another content, and the same command is another run then.
    let cut = folder.path().join("cut");
    let two = ["jobs.threads=1", "trainer.total_training_steps=2"];
    super::strikes::strikes((&cut, RUN), 6, 1, || run(&cut, &file, &two)).await;
    std::fs::write(&file, questions(201)).unwrap();
    let output = finish(run(&cut, &file, &two));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        complaint.contains("exists with another identity"),
        "{complaint}"
    );
    for words in [
        &["resume", RUN][..],
        &["fork", RUN, "--iteration", "0", "run.id=f"],
    ] {
        let mut command = program("agentgym-submit");
        command.args(words).arg("--store").arg(&cut);
        let output = finish(command);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{complaint}");
        assert!(
            complaint.contains("is another file than the run was planned with"),
            "{complaint}"
        );
    }
}

#[test]
fn wrong_files_of_questions_are_refused_by_row() {
    let scene = Scene::new();
    let row = |id: u32| format!("{{\"id\": {id}, \"prompt\": \"p\", \"answer\": \"1\"}}\n");
    scene.write("good.jsonl", format!("{}{}", row(3), row(9)).as_bytes());
    scene.write("twice.jsonl", format!("{}{}", row(3), row(3)).as_bytes());
    scene.write(
        "one.jsonl",
        format!("{}{}", row(3), "{\"prompt\": \"p\", \"answer\": \"1\"}").as_bytes(),
    );
    scene.write("rows.parquet", b"PAR1 and more");
    scene.write(
        "latin.jsonl",
        b"{\"prompt\": \"caf\xe9\", \"answer\": \"1\"}",
    );
    let textcraft = r#"{"task_name":"textcraft","env_addr":"builtin"}"#;
    for (source, words) in [
        (
            r#""file":"none.jsonl""#,
            &["data.tasks[0].file", "none.jsonl"][..],
        ),
        (r#""file":"twice.jsonl""#, &["line 2", "the id of line 1"]),
        (r#""file":"one.jsonl""#, &["line 2", "has no id"]),
        (
            r#""file":"rows.parquet""#,
            &["is a parquet file", "to_json"],
        ),
        (r#""file":"latin.jsonl""#, &["UTF-8"]),
        (
            r#""file":"good.jsonl","grade":"loud""#,
            &["grade", "loud", "exact"],
        ),
        (
            r#""file":"good.jsonl","grade":"choice""#,
            &["line 1", "is no letter"],
        ),
        (
            r#""file":"good.jsonl","ids":"0..4""#,
            &["data.tasks[0].ids", "no row 0", "from 3 to 9"],
        ),
        (
            r#""file":"good.jsonl","columns":{"prompt":"text"}"#,
            &["has no `text`", "id, prompt, answer"],
        ),
        (
            r#""file":"good.jsonl","columns":{"question":"text"}"#,
            &["question"],
        ),
        (
            r#""env":"craft","ids":"0..4","grade":"exact""#,
            &["data.tasks[0].grade", "`file`"],
        ),
        (
            r#""file":"good.jsonl","env":"craft""#,
            &["`craft` is another environment"],
        ),
        (
            r#""file":"good.jsonl"},{"file":"good.jsonl","grade":"number""#,
            &["`good` is another environment"],
        ),
    ] {
        let line = format!(
            "run.yaml data.tasks=[{{{source}}}] evaluation.sets=[] actor_rollout_ref.agentgym.envs={{\"craft\":{textcraft}}}"
        );
        scene.refuses(&line, 2, words);
    }
    let good = r#"run.yaml data.tasks=[{"file":"good.jsonl"}] evaluation.sets=[]"#;
    let plan = scene.submit(&format!("plan {good}"));
    let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert!(plan.contains("builtin:dataset?file=good.jsonl"), "{plan}");
}
