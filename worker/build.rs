//! Sets `AGENTGYM_BUILD`: the version, and in a git checkout of this project also the commit, with
//! `+dirty` if tracked sources of the program differ from it. In a tarball it is the version alone.
//!
//! The script runs again when one of these sources changes, and after `+dirty` at the next commit;
//! only this crate and those above it are then compiled again. A commit that changes no source does
//! not change the program, so the earlier name stays. `agentgym-submit` uses the same file and has
//! three more crates.

use std::path::Path;
use std::process::Command;

/// The crates whose sources are compared, from the bottom up.
const CRATES: [&str; 13] = [
    "algorithms",
    "text",
    "envs",
    "games",
    "model",
    "storage",
    "queue",
    "jobs",
    "record",
    "worker",
    "view",
    "serve",
    "submit",
];

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let own = variable("CARGO_PKG_NAME").replace("agentgym-", "");
    let count = CRATES.iter().position(|name| *name == own);
    let mut sources = CRATES[..count.map_or(CRATES.len(), |at| at + 1)].to_vec();
    sources.extend(["Cargo.toml", "Cargo.lock"]);
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")).join("..");
    for source in &sources {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let version = variable("CARGO_PKG_VERSION");
    let commit = commit(&root, &sources).map_or(String::new(), |commit| format!(" {commit}"));
    println!("cargo::rustc-env=AGENTGYM_BUILD={version}{commit}");
}

/// The commit that is checked out, if these sources are a git checkout and git is installed.
fn commit(root: &Path, sources: &[&str]) -> Option<String> {
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(root).arg("--no-optional-locks");
        let output = command.args(words).output().ok()?;
        let said = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| said.trim().to_owned())
    };
    // A tarball may be unpacked inside another git repository.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    if git(&[&status, sources].concat())?.is_empty() {
        return Some(commit);
    }
    // The log of HEAD grows with every commit. A missing file would make cargo run this script at
    // every build.
    let log = root.join(git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    Some(format!("{commit}+dirty"))
}
