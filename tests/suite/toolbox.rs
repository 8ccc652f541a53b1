//! Tools that are called, as a user sees it: a run that learns by calls survives kills, shows ids,
//! masks and calls, exports conversations that train another run, and is refused where the model's
//! template or another key has no place for tools.

use crate::bad_input::Scene;
use crate::durability::{
    RUN, end, no_part_started_after_its_commit, said, submit_config, undisturbed_of,
};
use crate::strikes::strikes;
use agentgym_tests::program::{program, workspace};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

const CONFIG: &str = "configs/toolbox.yaml";

/// Part of the tasks with one number, from a policy that some of the warm start was given to.
const SHORT: [&str; 8] = [
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=4",
    "data.tasks=[{env: one, ids: 0..1000}]",
    "sft.steps=0",
    "evaluation.sets=[]",
    "trainer.total_training_steps=2",
    "jobs.rollout_part_tasks=2",
    "run.seed=3",
];

fn ask(store: &Path, words: &[&str]) -> String {
    let mut command = program("agentgym-submit");
    command.args(words).arg("--store").arg(store);
    said(command)
}

/// A policy that solves some of those tasks, as a folder whose template has tools; made once.
pub(crate) fn warmed() -> &'static str {
    static WARMED: OnceLock<(TempDir, String)> = OnceLock::new();
    let make = || {
        let folder = TempDir::new().unwrap();
        let learns = [
            "run.pipeline=sft",
            "evaluation.sets=[]",
            // Solutions without detours are learnt soonest.
            "sft.sources=[{env: one, ids: '1000000..1010000'}]",
            "sft.steps=185",
        ];
        said(submit_config(CONFIG, folder.path(), &learns));
        let to = folder.path().join("export").display().to_string();
        ask(
            folder.path(),
            &["export", RUN, "--iteration", "0", "--to", &to],
        );
        (folder, format!("{to}/policy_after"))
    };
    &WARMED.get_or_init(make).1
}

fn options<'a>(more: &[&'a str]) -> Vec<&'a str> {
    static PATH: OnceLock<String> = OnceLock::new();
    let path = PATH.get_or_init(|| format!("actor_rollout_ref.model.path={}", warmed()));
    [&SHORT, &[&**path][..], more].concat()
}

fn run(store: &Path, more: &[&str]) -> Command {
    submit_config(CONFIG, store, &options(more))
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_learnt_from_shown_exported_and_survive_kills() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let one = || run(store, &["jobs.threads=1", "jobs.journal_interval_s=0.1"]);
    let struck = strikes((store, RUN), 71, 4, one).await;
    assert_eq!(
        end(run(store, &[]), store),
        undisturbed_of(CONFIG, &options(&[])),
        "{struck:?}"
    );
    no_part_started_after_its_commit(store).await;

    // The tools stand in the prompt, only what the policy said counts, and answers are a tool's.
    let shown = ask(store, &["inspect", RUN, "1", "rollout", "0", "--tokens"]);
    let head = shown.lines().next().unwrap();
    assert!(head.contains(" by "), "who made it: {head}");
    for words in [
        "prompt: tools: get, put, calculate, finish",
        "tool (reward 0)",
        "turn 1 policy",
    ] {
        assert!(shown.contains(words), "{words} in {shown:.3000}");
    }
    let records = ask(
        store,
        &["inspect", RUN, "1", "rollout", "0", "--jsonl", "--json"],
    );
    let mut calls = 0;
    for line in records.lines() {
        let episode: Value = serde_json::from_str(line).unwrap();
        let sequence = &episode["sequences"][0];
        let mask: Vec<u8> = serde_json::from_value(sequence["loss_mask"].clone()).unwrap();
        let mask: Vec<bool> = mask.into_iter().map(|bit| bit == 1).collect();
        let mut expected = vec![false; mask.len()];
        for turn in episode["turns"].as_array().unwrap() {
            let at = |end: usize| turn["policy"][end].as_u64().unwrap() as usize;
            expected[at(0)..at(1)].fill(true);
            if let Some(action) = turn["action"].as_str() {
                let call: Value = serde_json::from_str(action).unwrap();
                assert!(
                    call["name"].is_string() && call["arguments"].is_object(),
                    "{action}"
                );
                calls += 1;
            }
        }
        assert_eq!(mask, expected);
    }
    assert!(calls > 4, "{calls}");

    // What was played trains another model, with the same tools in its prompts.
    let file = store.join("played.json").display().to_string();
    ask(store, &["export", RUN, "--trajectories", &file]);
    let rows: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let lines = rows[0]["conversations"].as_array().unwrap();
    let from: Vec<&str> = lines
        .iter()
        .take(3)
        .map(|line| line["from"].as_str().unwrap())
        .collect();
    assert_eq!(from, ["human", "gpt", "tool"]);
    assert_eq!(rows[0]["tools"][0]["function"]["name"], "get");
    let again = TempDir::new().unwrap();
    let sources = format!("sft.sources=[{{file: '{file}'}}]");
    let imitates = [
        "run.pipeline=sft",
        "sft.steps=2",
        "sft.warmup_steps=0",
        &sources,
    ];
    end(run(again.path(), &imitates), again.path());
}

#[test]
fn a_model_or_a_key_without_a_place_for_tools_is_refused_by_name() {
    let scene = Scene::new();
    let base = workspace().join("models/base").display().to_string();
    let tools = "actor_rollout_ref.agentgym.task_name=toolbox actor_rollout_ref.agentgym.env_addr=builtin:toolbox \
                 data.tasks=[{\"env\":\"toolbox\",\"ids\":\"0..8\"}] evaluation.sets=[]";
    let with = |more: &str| format!("run.yaml {tools} {more}");
    for (given, words) in [
        (
            with(&format!("actor_rollout_ref.model.path={base}")),
            &[
                "actor_rollout_ref.model.path",
                "`toolbox`",
                "models/base/chat_template.jinja",
                "of no tools",
            ][..],
        ),
        (
            with(""),
            &[
                "actor_rollout_ref.model.path",
                "`toolbox`",
                "of no tools",
                "template=tools",
            ],
        ),
        (
            with(
                "actor_rollout_ref.agentgym.summary=summary actor_rollout_ref.agentgym.context_turns=2",
            ),
            &[
                "actor_rollout_ref.agentgym.summary",
                "`toolbox`",
                "leave this out",
            ],
        ),
        (
            with(
                "run.pipeline=eval evaluation.sets=[{\"name\":\"t\",\"env\":\"toolbox\",\"ids\":\"0..8\"}] actor_rollout_ref.rollout.engine=chat actor_rollout_ref.rollout.server.url=http://h:1 \
                 actor_rollout_ref.rollout.server.model=m run.numerics=any",
            ),
            &["actor_rollout_ref.rollout.engine", "`toolbox`", "no tools"],
        ),
    ] {
        scene.refuses(&given, 2, words);
    }
    assert!(
        !scene.path("agentgym-data/runs").exists(),
        "a run was begun"
    );
}
