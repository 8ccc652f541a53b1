//! Builds can be distinguished: the programs print their version, and the script that determines it
//! works with and without git.

use agentgym_tests::program::{finish, program, workspace};
use std::path::Path;
use std::process::Command;

#[test]
fn the_programs_say_which_build_they_are() {
    for name in ["agentgym-submit", "agentgym-worker"] {
        let mut command = program(name);
        command.arg("--version");
        let said = String::from_utf8(finish(command).stdout).unwrap();
        let build = said.strip_prefix(&format!("{name} {}", env!("CARGO_PKG_VERSION")));
        let build = build.unwrap_or_else(|| panic!("{said}")).trim();
        let features = match cfg!(feature = "candle") {
            true => "(features: candle)",
            false => "(features: none)",
        };
        let build = build.strip_suffix(features).expect(&said).trim();
        let commit = build.trim_end_matches("+dirty");
        let is_commit = commit.len() >= 12 && commit.chars().all(|c| c.is_ascii_hexdigit());
        assert!(commit.is_empty() || is_commit, "{said}");
    }
}

fn git(folder: &Path, words: &[&str]) {
    let mut command = Command::new("git");
    command.current_dir(folder).args(words);
    for (name, value) in [("NAME", "t"), ("EMAIL", "t@t")] {
        command.env(format!("GIT_AUTHOR_{name}"), value);
        command.env(format!("GIT_COMMITTER_{name}"), value);
    }
    assert!(command.output().unwrap().status.success(), "git {words:?}");
}

#[test]
fn the_commit_is_known_in_a_checkout_and_not_in_a_tarball() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    let compiled = Command::new("rustc")
        .args(["--edition", "2024", "-o"])
        .arg(&script)
        .arg(workspace().join("worker/build.rs"))
        .status();
    assert!(compiled.unwrap().success());
    let root = folder.path().join("checkout");
    for name in ["worker/src", "submit/src", "docs"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
        std::fs::write(root.join(name).join("a"), "a").unwrap();
    }
    let said = |of: &str| {
        let output = Command::new(&script)
            .env("CARGO_PKG_NAME", format!("agentgym-{of}"))
            .env("CARGO_PKG_VERSION", "1.2.3")
            .env("CARGO_MANIFEST_DIR", root.join(of))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let build = said
            .lines()
            .find_map(|l| l.strip_prefix("cargo::rustc-env=AGENTGYM_BUILD="));
        build.unwrap().to_owned()
    };
    assert_eq!(said("worker"), "1.2.3", "a tarball");
    git(folder.path(), &["init", "-q"]);
    git(
        folder.path(),
        &["commit", "-q", "--allow-empty", "-m", "outer"],
    );
    assert_eq!(
        said("worker"),
        "1.2.3",
        "a tarball in somebody's repository"
    );
    git(&root, &["init", "-q"]);
    git(&root, &["add", "."]);
    git(&root, &["commit", "-q", "-m", "inner"]);
    let clean = said("worker");
    let commit = clean.strip_prefix("1.2.3 ").unwrap();
    assert_eq!(commit.len(), 12, "{clean}");
    std::fs::write(root.join("docs/a"), "b").unwrap();
    assert_eq!(said("worker"), clean, "documents are not built");
    std::fs::write(root.join("submit/src/a"), "b").unwrap();
    assert_eq!(said("worker"), clean, "the worker has nothing of it");
    assert_eq!(said("submit"), format!("{clean}+dirty"));
    std::fs::write(root.join("worker/src/a"), "b").unwrap();
    assert_eq!(said("worker"), format!("{clean}+dirty"));
}
