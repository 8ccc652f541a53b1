//! Old runs stay usable: runs made by an older program and left finished, half-way or before their
//! first part, are listed, inspected, exported, forked and resumed by this one, and end with the
//! digests that the older program computes for them.
//!
//! `tests/fixtures/runs/<commit>/` contains the runs as that commit's program left them, its output
//! and exports, and the script that made both. Such a folder is never regenerated: when a format
//! changes, a folder made by the program before the change is added.

use agentgym_tests::files::files_below;
use agentgym_tests::program::{finish, program, workspace};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Runs of an older program, unpacked into a temporary folder.
pub(crate) struct OldRuns(TempDir);

impl OldRuns {
    pub(crate) fn of(commit: &str) -> Self {
        let kept = workspace().join("tests/fixtures/runs").join(commit);
        let folder = TempDir::new().unwrap();
        let unpacked = Command::new("tar")
            .arg("-xJf")
            .arg(kept.join("runs.tar.xz"))
            .current_dir(&folder)
            .status();
        assert!(unpacked.unwrap().success(), "tar and xz are needed");
        // Files that the plans name by a path relative to the current folder.
        let given = Some(kept.join("files")).filter(|files| files.exists());
        for file in given.iter().flat_map(|files| files_below(files)) {
            let to = folder.path().join(file.strip_prefix(&kept).unwrap());
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(&file, to).unwrap();
        }
        std::fs::copy(
            kept.join("expected.txt"),
            folder.path().join("expected.txt"),
        )
        .unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command on these runs, which must succeed; returns its output.
    fn said(&self, words: &[&str]) -> String {
        let output = self.output(words);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {complaint}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn output(&self, words: &[&str]) -> Output {
        let mut command = program("agentgym-submit");
        command
            .args(words)
            .args(["--store", "store"])
            .current_dir(&self.0)
            .env("AGENTGYM_CACHE", self.path("cache"));
        finish(command)
    }

    fn digest(&self, run: &str) -> String {
        let said = self.said(&["digest", run]);
        let digest = said.split_whitespace().find(|word| word.len() == 64);
        digest.expect("a digest has 64 letters").to_owned()
    }

    /// For every run: its name, its number of commits when it was left, and its final digest.
    fn expected(&self) -> Vec<(String, usize, String)> {
        let text = std::fs::read_to_string(self.path("expected.txt")).unwrap();
        let line = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let [run, commits, digest] = words[..] else {
                panic!("{line}")
            };
            (run.to_owned(), commits.parse().unwrap(), digest.to_owned())
        };
        text.lines().map(line).collect()
    }

    fn commits(&self, run: &str) -> usize {
        let folder = self.path(&format!("store/runs/{run}/commits"));
        match folder.exists() {
            true => files_below(&folder).len(),
            false => 0,
        }
    }
}

/// Everything in `old` must be in `new`, with the same value; `new` may contain more.
fn says_all(place: &str, old: &Value, new: &Value) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                let place = format!("{place}.{key}");
                says_all(&place, value, new.get(key).unwrap_or(&Value::Null));
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            assert_eq!(old.len(), new.len(), "{place}");
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                says_all(&format!("{place}[{index}]"), old, new);
            }
        }
        _ => assert_eq!(old, new, "{place}"),
    }
}

fn lines_say_all(name: &str, old: &str, new: &str) {
    assert_eq!(old.lines().count(), new.lines().count(), "{name}");
    for (index, (old, new)) in old.lines().zip(new.lines()).enumerate() {
        let [old, new] = [old, new].map(|line| serde_json::from_str(line).unwrap());
        says_all(&format!("{name}:{index}"), &old, &new);
    }
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn old_runs_are_listed_inspected_exported_and_forked() {
    let runs = OldRuns::of("93d9dea");
    let listed = runs.said(&["status"]);
    for (run, commits, _) in runs.expected() {
        assert!(listed.contains(&run), "{run} in {listed}");
        assert_eq!(runs.commits(&run), commits, "{run}");
        runs.said(&["status", &run]);
        runs.said(&["inspect", &run]);
    }
    for (name, place) in [
        ("rollout", ["2", "rollout", "0"]),
        ("advantage", ["2", "advantage", "0"]),
        ("update", ["2", "update", "0"]),
    ] {
        let words = [&["inspect", "finished"], &place[..], &["--jsonl"]].concat();
        let old = text(&runs.path(&format!("expected/{name}.jsonl")));
        lines_say_all(name, &old, &runs.said(&words));
    }
    runs.said(&["export", "finished", "--iteration", "2", "--to", "export"]);
    let expected = runs.path("expected/export");
    for old in files_below(&expected) {
        let name = old.strip_prefix(&expected).unwrap().display().to_string();
        let new = runs.path("export").join(&name);
        match name.rsplit_once('.').unwrap().1 {
            "jsonl" => lines_say_all(&name, &text(&old), &text(&new)),
            "json" => {
                let [old, new] =
                    [&old, &new].map(|file| serde_json::from_str(&text(file)).unwrap());
                says_all(&name, &old, &new);
            }
            _ => assert!(
                std::fs::read(&old).unwrap() == std::fs::read(&new).unwrap(),
                "{name}"
            ),
        }
    }
    // The recorded fork, repeated from the same parent.
    let fork = ["fork", "finished", "--iteration", "1", "run.id=again"];
    runs.said(&[&fork[..], &["trainer.total_training_steps=4"]].concat());
    let expected = runs.expected();
    let kept = expected.iter().find(|(run, ..)| run == "fork").unwrap();
    assert_eq!(runs.digest("again"), kept.2);
}

#[test]
fn old_runs_are_resumed_to_the_digests_of_the_program_that_began_them() {
    let runs = OldRuns::of("93d9dea");
    let segment = |file: &PathBuf| file.display().to_string().ends_with("000000.bin");
    let journal = files_below(&runs.path("store/runs/journal/journal"));
    assert!(journal.iter().any(segment), "a journal to go on from");
    for (run, commits, digest) in runs.expected() {
        match (run.as_str(), commits) {
            ("finished", _) => {}
            (_, 0) => drop(runs.said(&["resume", &run, "jobs.hold=false"])),
            _ => drop(runs.said(&["resume", &run])),
        }
        assert_eq!(runs.digest(&run), digest, "{run}");
        assert!(run == "finished" || runs.commits(&run) > commits, "{run}");
    }
    // The episodes of the journal are not played again, and there were some.
    let shown = runs.said(&["inspect", "journal", "2", "rollout", "0", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let replayed = &shown["manifest"]["work"]["stats"]["episodes_replayed"];
    assert!(
        replayed.as_u64().is_some_and(|count| count > 0),
        "{replayed}"
    );
    for run in [
        "grpo",
        "critic",
        "lora",
        "qwen3",
        "filtered",
        "baselines",
        "fork",
    ] {
        let shown = runs.said(&["inspect", run, "2", "advantage", "0", "--jsonl"]);
        let advantage = |line: &str| -> f64 {
            let slot: Value = serde_json::from_str(line).unwrap();
            slot["advantage"]
                .as_f64()
                .unwrap_or_else(|| panic!("{run}: {line}"))
        };
        let taught = shown.lines().filter(|line| advantage(line) != 0.0).count();
        assert!(taught > 0, "{run} learnt from nothing");
    }
}

/// Runs of BabyAI by rules 1, which only 0.3 plays: one finished, one half-way.
#[test]
fn runs_by_rules_1_are_read_and_not_played() {
    let runs = OldRuns::of("c51c482");
    for (run, commits, digest) in runs.expected() {
        assert!(runs.said(&["status", &run]).contains(&run));
        runs.said(&["inspect", &run]);
        let turns = runs.said(&["inspect", &run, "1", "rollout", "0", "--jsonl"]);
        assert!(turns.contains("Your goal: "), "{turns}");
        runs.said(&["episodes", &run]);
        runs.said(&["credit", &run, "1"]);
        runs.said(&["metrics", &run]);
        runs.said(&["verify", &run]);
        let folder = format!("export-{run}");
        runs.said(&["export", &run, "--iteration", "0", "--to", &folder]);
        let refused = |words: &[&str]| {
            let output = runs.output(words);
            let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{words:?}: {complaint}");
            let complaint = complaint.split_whitespace().collect::<Vec<_>>().join(" ");
            for words in [
                "key `actor_rollout_ref.agentgym.rules`: this run plays babyai by rules 1",
                "version 0.3 plays",
                "viewed, exported and verified",
            ] {
                assert!(complaint.contains(words), "{complaint}");
            }
        };
        match run.as_str() {
            // Nothing is left to play.
            "finished" => drop(runs.said(&["resume", &run])),
            _ => {
                refused(&["resume", &run]);
                refused(&["resume", &run, "jobs.threads=2"]);
                refused(&["retry", &run]);
            }
        }
        refused(&["fork", &run, "--iteration", "0", "run.id=again"]);
        assert_eq!(runs.commits(&run), commits, "{run}");
        assert_eq!(runs.digest(&run), digest, "{run}");
    }
    let config = runs.path("rules-1.yaml");
    let kept = workspace().join("tests/fixtures/runs/c51c482/configs/rules-1.yaml");
    std::fs::copy(kept, &config).unwrap();
    let output = runs.output(&[config.to_str().unwrap(), "run.id=new"]);
    assert_eq!(output.status.code(), Some(2));
    // Of other games both rules are the same, and new runs play by ours.
    let other = [
        "actor_rollout_ref.agentgym.task_name=textcraft",
        "actor_rollout_ref.agentgym.env_addr=builtin",
        "data.tasks=[{env: textcraft, ids: 0..4}]",
        "sft.sources=[{env: textcraft, ids: 0..4}]",
    ];
    let output = runs.output(&[&["plan", config.to_str().unwrap()], &other[..]].concat());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.contains("a new run would play by rules 1"),
        "{complaint}"
    );
}
