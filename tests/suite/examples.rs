//! The programs of `examples/` do what they claim.

use crate::old_runs::OldRuns;
use agentgym_tests::program::{finish, program};

fn said(name: &str, words: &[&str]) -> String {
    let mut command = program(&format!("examples/{name}"));
    command.args(words);
    let output = finish(command);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_algorithm_of_ones_own_learns() {
    let last = "iteration 30: the right answer has probability 0.8";
    let said = said("own_algorithm", &[]);
    assert!(said.contains(last), "{said}");
}

#[test]
fn an_environment_is_driven() {
    let said = said("drive_environment", &[]);
    assert!(said.contains("Goal: craft"), "{said}");
    assert!(said.contains("You are not carrying anything"), "{said}");
    assert!(said.contains("opened: 1, closed: 1, leaked: 0"), "{said}");
}

#[test]
fn the_artifacts_of_a_run_are_read() {
    let runs = OldRuns::of("93d9dea");
    let store = runs.path("store").display().to_string();
    let said = said("read_run", &[&store, "finished", "1"]);
    let episodes = said.lines().filter(|line| line.contains("reward"));
    assert!(episodes.clone().count() > 1, "{said}");
    assert!(
        episodes.clone().any(|line| !line.contains("reward 0,")),
        "{said}"
    );
}
