//! The table of remedies: every command that a message of this program names, and the test that
//! types it on the run that the message is about. A new message needs a row here.

use super::{Scene, commands, commands_in, finish, messages, taken, typed, until, workspace};
use agentgym_tests::files::files_below;
use agentgym_tests::program::Running;
use std::collections::BTreeSet;

/// Source file, command that its message names, test that takes it.
#[rustfmt::skip]
const REMEDIES: [(&str, &str, &str); 36] = [
    ("jobs/src/config/engine.rs", "eval", "a_program_that_evaluates_alone_names_eval"),
    ("jobs/src/config/keys/table.rs", "eval", "a_program_that_evaluates_alone_names_eval"),
    ("jobs/src/config/keys/table.rs", "fork", "what_a_finished_run_names_is_done"),
    ("jobs/src/config/upstream.rs", "export", "what_is_exported_instead_is_exported"),
    ("jobs/src/error.rs", "keys", "unknown_keys_name_the_list_of_keys"),
    ("jobs/src/plan.rs", "eval", "other_words_for_a_command_are_that_command"),
    ("submit/src/api/rescore.rs", "export", "what_is_exported_instead_is_exported"),
    ("submit/src/check_model.rs", "eval", "what_candle_does_not_evaluate_is_named_before_anything_runs"),
    ("submit/src/control.rs", "resume", "what_a_run_without_workers_names_is_done"),
    ("submit/src/fork.rs", "export", "what_is_exported_instead_is_exported"),
    ("submit/src/fork.rs", "fork", "what_a_finished_run_names_is_done"),
    ("submit/src/import.rs", "check-model", "an_imported_model_is_checked_by_the_line_that_is_named"),
    ("submit/src/questions.rs", "inspect", "episodes_are_inspected_by_the_line_that_is_named"),
    ("submit/src/run.rs", "fork", "what_a_finished_run_names_is_done"),
    ("submit/src/run.rs", "resume", "what_a_run_without_workers_names_is_done"),
    ("submit/src/run.rs", "watch", "who_follows_a_fleet_and_leaves_is_told_how_to_look_on"),
    ("submit/src/run/next.rs", "serve", "what_a_finished_run_offers_is_opened"),
    ("submit/src/run/next.rs", "view", "what_a_finished_run_offers_is_opened"),
    ("submit/src/runs.rs", "resume", "what_a_run_without_workers_names_is_done"),
    ("submit/src/runs.rs", "status", "what_a_run_without_workers_names_is_done"),
    ("submit/src/serve.rs", "export", "what_is_exported_instead_is_exported"),
    ("submit/src/status.rs", "resume", "what_a_run_without_workers_names_is_done"),
    ("submit/src/status.rs", "view", "what_a_finished_run_offers_is_opened"),
    ("submit/src/trajectories.rs", "inspect", "episodes_are_inspected_by_the_line_that_is_named"),
    ("submit/src/watch.rs", "resume", "a_warning_can_pause_and_its_remedies_go_on"),
    ("submit/src/why.rs", "retry", "what_a_run_without_workers_names_is_done"),
    ("worker/src/error.rs", "fork", "what_a_finished_run_names_is_done"),
    ("worker/src/error.rs", "inspect", "episodes_are_inspected_by_the_line_that_is_named"),
    ("worker/src/guard.rs", "fork", "a_warning_can_pause_and_its_remedies_go_on"),
    ("worker/src/guard.rs", "resume", "a_warning_can_pause_and_its_remedies_go_on"),
    ("worker/src/guard.rs", "view", "what_a_finished_run_offers_is_opened"),
    ("worker/src/guard/alarms.rs", "episodes", "episodes_are_inspected_by_the_line_that_is_named"),
    ("worker/src/guard/alarms.rs", "fork", "a_warning_can_pause_and_its_remedies_go_on"),
    ("worker/src/model_folder.rs", "pull", "a_plan_ends_as_its_run_would"),
    ("worker/src/stages/reward.rs", "resume", "a_functions_rewards_are_learnt_from_and_asked_for_once"),
    ("worker/src/stages/spoiled.rs", "fork", "a_first_prompt_without_room_is_left_out_and_its_remedies_work"),
];

/// Named, and typed by no test: it takes an inference server that goes away for good and another one.
const NOT_TYPED: [(&str, &str); 1] = [("worker/src/inference/patience.rs", "resume")];

#[test]
fn every_command_of_a_message_is_in_the_table_and_typed_by_a_test() {
    let root = format!("{}/", workspace().display());
    let mut found = BTreeSet::new();
    for (file, message) in messages() {
        for word in commands_in(&message) {
            found.insert((file.trim_start_matches(&root).to_owned(), word));
        }
    }
    let table = REMEDIES.map(|(file, word, _)| (file, word));
    let table = table.into_iter().chain(NOT_TYPED);
    let table = table.map(|(file, word)| (file.to_owned(), word.to_owned()));
    assert_eq!(found, table.collect());
    let tests = files_below(&workspace().join("tests/suite"));
    let tests = tests
        .iter()
        .map(|path| std::fs::read_to_string(path).unwrap());
    let tests: Vec<String> = tests.collect();
    for (file, word, test) in REMEDIES {
        let head = format!("fn {test}()");
        assert!(
            tests.iter().any(|text| text.contains(&head)),
            "{file}: {word}: no {test}"
        );
    }
}

#[test]
fn unknown_keys_name_the_list_of_keys() {
    let scene = Scene::new();
    taken(
        &scene,
        "plan run.yaml xyzzy=3",
        2,
        &["agentgym-submit keys"],
    );
}

#[test]
fn a_program_that_evaluates_alone_names_eval() {
    let scene = Scene::new();
    for engine in ["candle", "chat"] {
        let key = format!("actor_rollout_ref.rollout.engine={engine}");
        let said = scene.refuses(
            &format!("run.yaml --store s {key}"),
            2,
            &["`agentgym-submit eval`"],
        );
        // As it is named there, the engine is no longer what is refused.
        let eval = scene.submit(&format!("eval run.yaml --store s {key}"));
        let eval = String::from_utf8_lossy(&eval.stderr).into_owned();
        assert!(!eval.contains("agentgym-submit eval"), "{said}: {eval}");
    }
}

#[test]
fn an_imported_model_is_checked_by_the_line_that_is_named() {
    let scene = Scene::new();
    let file = workspace().join("tests/fixtures/qwen2-tiny.gguf");
    let line = format!("import {} --to m", file.display());
    taken(&scene, &line, 0, &["agentgym-submit check-model m"]);
}

#[test]
fn episodes_are_inspected_by_the_line_that_is_named() {
    let scene = Scene::new();
    scene.succeeds("run.yaml --store s");
    taken(
        &scene,
        "episodes r --store s",
        0,
        &["agentgym-submit inspect r "],
    );
    let absent = "export r --store s --trajectories t.jsonl --iteration 0 --stage rollout";
    taken(&scene, absent, 4, &["agentgym-submit inspect r "]);
}

/// `DIR`, `FILE` and `N` of a message are the reader's to fill in.
#[test]
fn what_is_exported_instead_is_exported() {
    let scene = Scene::new();
    let filled = |said: &str| {
        let named = commands(said);
        let export = named
            .iter()
            .find(|c| c.starts_with("agentgym-submit export"));
        let words = export
            .unwrap_or_else(|| panic!("{said}"))
            .split(' ')
            .map(|word| match word {
                "DIR" => "d",
                "FILE" => "t.jsonl",
                "RUN" => "r --store s",
                "N" => "1",
                word => word,
            });
        words.collect::<Vec<_>>().join(" ")
    };
    let noted = scene.succeeds("run.yaml --store s actor_rollout_ref.rollout.rollout_log_dir=logs");
    let line = filled(&noted);
    assert!(finish(typed(&scene, &line)).status.success(), "{line}");
    std::fs::create_dir(scene.path("empty")).unwrap();
    let line = filled(&scene.refuses("serve ./empty", 2, &["no config.json"]));
    assert!(finish(typed(&scene, &line)).status.success(), "{line}");
    assert!(scene.path("d/policy_after/config.json").exists());
    std::fs::remove_dir_all(scene.path("d")).unwrap();
    let lessons =
        "run.pipeline=sft sft.steps=1 sft.sources=[{\"env\":\"textcraft\",\"ids\":\"0..4\"}]";
    scene.succeeds(&format!("run.yaml --store s run.id=sft {lessons}"));
    let line = filled(&scene.refuses(
        "fork sft --store s --iteration 0 run.seed=7",
        2,
        &["no iterations"],
    ));
    assert!(finish(typed(&scene, &line)).status.success(), "{line}");
    let next = "run.yaml --store s run.id=next actor_rollout_ref.model.path=d/policy_after";
    scene.succeeds(next);
}

/// Servers are asked for any port, and end when they are killed.
#[test]
fn what_a_finished_run_offers_is_opened() {
    let scene = Scene::new();
    let said = taken(&scene, "run.yaml --store s", 0, &[]);
    let named = commands(&said);
    let bundle = named.iter().find(|c| c.contains(" --bundle ")).unwrap();
    assert!(finish(typed(&scene, bundle)).status.success(), "{bundle}");
    assert!(scene.path("pages").exists());
    for (head, port) in [
        ("agentgym-submit view r ", "--port 0"),
        ("agentgym-submit serve r ", "--addr 127.0.0.1:0"),
    ] {
        let line = named
            .iter()
            .find(|c| c.starts_with(head) && !c.contains("--bundle"))
            .unwrap();
        let log = scene.path("log");
        let _ = std::fs::remove_file(&log);
        let server = Running::start_logged(typed(&scene, &format!("exec {line} {port}")), &log);
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        until("a server", || said().contains("http://127.0.0.1:"));
        server.kill();
    }
}

#[test]
fn who_follows_a_fleet_and_leaves_is_told_how_to_look_on() {
    let scene = Scene::new();
    let log = scene.path("log");
    let line = "exec agentgym-submit run.yaml --store s jobs.workers=0";
    let follower = Running::start_logged(typed(&scene, line), &log);
    // It listens for signals before it says its first line.
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    until("a first line", || said().contains("run r  revision 0"));
    follower.signal("INT");
    follower.wait();
    let said = said();
    let named = commands(&said);
    let watch = named
        .iter()
        .find(|c| c.starts_with("agentgym-submit watch r "));
    let watch = watch.unwrap_or_else(|| panic!("{said}"));
    let worker = "exec agentgym-worker --store s --run r --exit-when-finished";
    let worker = Running::start(typed(&scene, worker));
    assert!(finish(typed(&scene, watch)).status.success(), "{watch}");
    assert_eq!(worker.wait(), Some(0));
}
