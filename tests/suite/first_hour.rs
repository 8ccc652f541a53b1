//! What a person meets in the first hour: a config with several mistakes, a plan that ends as its
//! run would, output that cannot be written, and runs that can be told apart in a list.

use crate::bad_input::Scene;
use agentgym_tests::program::{program, workspace};
use serde_json::{Value, json};
use std::fs::File;
use std::process::Stdio;

#[test]
fn all_that_is_wrong_with_the_keys_of_a_config_is_one_answer() {
    let scene = Scene::new();
    let line = "plan run.yaml lr=3 jobs.thredas=2 data.train_files=x.parquet data.truncation=left trainer.nnodes=2";
    let words = [
        "error: 4 keys cannot be used",
        "`lr`: did you mean `actor_rollout_ref.actor.optim.lr`?",
        "`jobs.thredas`: did you mean `jobs.threads`?",
        "data.train_file is a JSON list",
        "key `data.truncation`: \"left\"",
    ];
    scene.refuses(line, 2, &words);
    let line = "plan run.yaml jobs.threads=-1 jobs.cache_gb=-2";
    scene.refuses(line, 2, &["2 keys", "jobs.threads", "jobs.cache_gb"]);
    let plan = scene.submit("plan run.yaml dpo.lr=1e-3 trainer.total_epochs=7");
    let text = String::from_utf8_lossy(&plan.stdout).into_owned();
    let note = text.lines().find(|line| line.contains("without effect"));
    let note = note.unwrap_or_else(|| panic!("{text}"));
    assert!(
        note.contains("dpo.lr") && note.contains("trainer.total_epochs"),
        "{note}"
    );
    let said = scene.succeeds("run.yaml --store s dpo.lr=1e-3");
    assert!(said.contains("without effect: dpo.lr"), "{said}");
}

/// A model that `run` refuses is shown, and refused by `plan` too.
#[test]
fn a_plan_ends_as_its_run_would() {
    let scene = Scene::new();
    scene.write("model.gguf", b"GGUF");
    for (path, why) in [
        ("no/folder", "no folder"),
        ("model.gguf", "is a GGUF file"),
        ("run.yaml", "is a file"),
        // Two hundred billion parameters.
        (
            "tiny?hidden=8192&layers=200&heads=64&kv_heads=8&intermediate=28672&vocab=151936",
            "take a smaller model",
        ),
    ] {
        let given = format!("actor_rollout_ref.model.path={path}");
        let words = ["key `actor_rollout_ref.model.path`", why];
        let said = scene.refuses(&format!("plan run.yaml {given}"), 2, &words);
        assert_eq!(
            said,
            scene.refuses(&format!("run.yaml --store s {given}"), 2, &words)
        );
        assert!(!said.contains("agentgym-submit pull"), "{said}");
        let elsewhere = scene.submit(&format!("plan run.yaml {given} jobs.workers=0"));
        assert!(elsewhere.status.success(), "the workers may have it");
    }
    assert!(!scene.path("s/runs").exists());
}

/// Where the store has seen nothing, a small iteration is measured, and leaves nothing behind.
#[test]
fn a_plan_says_how_long_a_shipped_config_takes() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("s");
    let mut command = program("agentgym-submit");
    command
        .args(["--json", "plan", "configs/smoke.yaml", "--store"])
        .arg(&store)
        .env("TMPDIR", folder.path())
        .current_dir(workspace());
    let begun = std::time::Instant::now();
    let output = command.output().unwrap();
    let took_s = begun.elapsed().as_secs_f64();
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    let trial_s = plan["measured"]["trial_s"].as_f64();
    // A machine that is busy otherwise says why it measured nothing.
    match trial_s {
        Some(trial_s) => {
            assert!(trial_s < took_s, "{plan}");
            let all_s = plan["measured"]["worker_s"].as_f64().unwrap();
            assert!((1.0..600.0).contains(&all_s), "{plan}");
            assert_eq!(plan["measured"]["unmeasured"], json!([]));
        }
        None => {
            let why = plan["unmeasured_why"].as_str().unwrap();
            assert!(why.contains("takes more than 5 s here"), "{plan}");
        }
    }
    assert!(took_s < 10.0, "{took_s} s");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// On a terminal no word is broken, whatever prints the line; a pipe has a fact a line.
#[test]
fn lines_on_a_terminal_break_between_words() {
    let scene = Scene::new();
    let program = program("agentgym-submit");
    let program = program.get_program().to_str().unwrap();
    let words = |text: &str| {
        let words = text.split_whitespace().map(str::to_owned);
        words.collect::<Vec<_>>()
    };
    for line in [
        "plan run.yaml jobs.workers=0 sft.sources=[] dpo.lr=1e-3",
        "plan run.yaml actor_rollout_ref.model.path=no/folder",
        "--help",
        "run --help",
    ] {
        let piped = scene.submit(line);
        let piped = [&piped.stdout[..], &piped.stderr].concat();
        let piped = String::from_utf8(piped).unwrap();
        let lines = |text: &str| text.lines().map(|l| l.chars().count()).max().unwrap();
        assert!(lines(&piped) > 80, "{line} proves nothing");
        for columns in [80, 120] {
            // util-linux's, which is on every Linux.
            let output = std::process::Command::new("script")
                .args(["-qec"])
                .arg(format!(
                    "stty rows 40 cols {columns} -onlcr && {program} {line}"
                ))
                .arg("/dev/null")
                .current_dir(scene.folder())
                .env("NO_COLOR", "1")
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let shown = String::from_utf8(output.stdout).unwrap();
            assert_eq!(words(&shown), words(&piped), "{line}");
            let long = shown
                .lines()
                .find(|l| l.chars().count() > columns && l.trim().contains(char::is_whitespace));
            assert_eq!(long, None, "{line} at {columns}");
        }
    }
}

#[test]
fn a_path_may_begin_at_home() {
    let scene = Scene::new();
    let mut command = program("agentgym-submit");
    command
        .args([
            "plan",
            "run.yaml",
            "actor_rollout_ref.model.path=~/no/model",
        ])
        .current_dir(scene.folder())
        .env("HOME", "/somewhere");
    let said = command.output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("/somewhere/no/model"), "{said}");
    scene.succeeds("run.yaml --store s");
    let mut command = program("agentgym-submit");
    command
        .args(["digest", "r", "--store=~/s"])
        .current_dir("/")
        .env("HOME", scene.folder());
    assert!(command.output().unwrap().status.success());
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let scene = Scene::new();
    scene.succeeds("run.yaml --store s");
    for line in [
        "digest r",
        "verify r",
        "inspect r",
        "--json inspect r",
        "inspect r 1 rollout 0 --jsonl",
        "status",
        "status r",
        "watch r",
        "why r",
        "workers r",
        "metrics r",
        "keys",
        "plan run.yaml",
        "run.yaml",
        "completions bash",
        "--help",
    ] {
        let ended = |stdout: Stdio| {
            let mut command = program("agentgym-submit");
            command
                .args(line.split(' '))
                .current_dir(scene.folder())
                .env("AGENTGYM_STORE", "s")
                .env("AGENTGYM_CACHE", scene.path("cache"))
                .stdout(stdout);
            command.output().unwrap()
        };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = ended(full.into());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{line}: {said}");
        assert!(said.contains("No space left"), "{line}: {said}");
        // A reader that has seen enough is no failure.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = ended(writer.into());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{line}: {said}");
    }
}

#[test]
fn runs_are_told_apart_in_the_list() {
    let scene = Scene::new();
    scene.succeeds("run.yaml --store s run.id=a");
    scene.succeeds("run.yaml --store s run.id=c run.seed=7 actor_rollout_ref.actor.optim.lr=1e-4");
    scene.succeeds("run.yaml --store s run.id=b run.seed=8 run.name=warm");
    // A name is a binding: it may change, and moves no digest.
    let before = scene.submit("digest a --store s").stdout;
    scene.succeeds("resume a --store s run.name=first");
    assert_eq!(before, scene.submit("digest a --store s").stdout);
    let shown = scene.submit("--json status --store s");
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let runs = shown["runs"].as_array().unwrap();
    let of = |name: &str| runs.iter().find(|run| run["run"] == name).unwrap();
    assert_eq!(
        (&of("a")["name"], &of("a")["seed"]),
        (&"first".into(), &1.into())
    );
    assert_eq!(of("a")["differs"], serde_json::json!({}));
    assert_eq!(
        of("c")["differs"],
        serde_json::json!({"actor_rollout_ref.actor.optim.lr": 1e-4})
    );
    let begun: Vec<u64> = runs
        .iter()
        .map(|run| run["begun_unix_s"].as_u64().unwrap())
        .collect();
    assert!(
        begun.is_sorted_by(|a, b| a >= b),
        "the newest is not first: {begun:?}"
    );
    let text = scene.submit("status --store s");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let head = text.lines().next().unwrap();
    let columns: Vec<&str> = head.split_whitespace().collect();
    assert_eq!(
        columns[..7],
        [
            "run",
            "name",
            "state",
            "iteration",
            "parts",
            "seed",
            "differs"
        ]
    );
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with("c "))
        .unwrap();
    assert!(line.contains("finished") && line.contains(" 7 "), "{line}");
    assert!(line.contains("lr=0.0001"), "{line}");
    scene.refuses("plan run.yaml run.name=a/b", 2, &["run.name", "printable"]);
}

/// The operating system's own words, without a library's name for them.
#[test]
fn a_store_that_cannot_be_made_says_so() {
    let scene = Scene::new();
    let said = scene.refuses(
        "run.yaml --store /proc/nothing",
        3,
        &["/proc/nothing", "cannot be made"],
    );
    assert!(!said.contains("Generic"), "{said}");
}
