//! `verify` as a user runs it: an intact run is reported as intact, and every object that is
//! changed, lost or added is named by its key. A changed object that affects planning is refused by
//! every other command too.

use crate::durability::{RUN, end, said, submit_config};
use crate::evidence::learnt_now;
use crate::forks::fork;
use agentgym_storage::{Artifact, Manifest, RunId, Store};
use agentgym_tests::files::files_below;
use agentgym_tests::program::{finish, program};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn command(store: &Path, words: &[&str]) -> Command {
    let mut command = program("agentgym-submit");
    command.args(words).arg("--store").arg(store);
    command
}

fn verify(store: &Path, run: &str) -> (Option<i32>, Value) {
    let output = finish(command(store, &["verify", run, "--json"]));
    let said = serde_json::from_slice(&output.stdout);
    (
        output.status.code(),
        said.unwrap_or_else(|e| panic!("{e}: {output:?}")),
    )
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The first object of a run whose key contains this text, or these texts in order.
fn object(store: &Path, run: &str, part_of_key: &str) -> PathBuf {
    let mut all = files_below(&store.join("runs").join(run));
    all.sort_unstable();
    let found = all.into_iter().find(|path| {
        let path = path.display().to_string();
        let mut rest = Some(path.as_str());
        for part in part_of_key.split('*') {
            rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
        }
        rest.is_some()
    });
    found.unwrap_or_else(|| panic!("no object of {run} has {part_of_key} in its key"))
}

fn replace(path: &Path, what: &str, with: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    let changed = text.replacen(what, with, 1);
    assert_ne!(text, changed, "{what} is not in {}", path.display());
    std::fs::write(path, changed).unwrap();
}

/// Verifies with one object changed: a finding about `named` must begin with `fault`. Then restores
/// the object.
fn with(
    store: &Path,
    path: &Path,
    change: impl FnOnce(&Path),
    run: &str,
    fault: &str,
    named: &str,
) {
    let before = std::fs::read(path).ok();
    change(path);
    let (code, said) = verify(store, run);
    assert_eq!(code, Some(3), "{fault} {named}: {said:#}");
    assert_eq!(said["whole"], false);
    let findings = said["findings"].as_array().unwrap();
    assert!(
        findings
            .iter()
            .any(|finding| finding["fault"] == fault
                && finding["key"].as_str().unwrap().contains(named)),
        "{fault} {named}: {findings:#?}"
    );
    match before {
        Some(before) => std::fs::write(path, before).unwrap(),
        None => std::fs::remove_file(path).unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_changed_lost_or_foreign_is_named() {
    let folder = TempDir::new().unwrap();
    let store = folder.path();
    let digest = end(
        submit_config("configs/smoke.yaml", store, &["jobs.threads=2"]),
        store,
    );
    said(fork(store, &["--iteration", "3", "run.id=child"]));

    let (code, whole) = verify(store, RUN);
    assert_eq!(
        (code, &whole["whole"]),
        (Some(0), &true.into()),
        "{whole:#}"
    );
    assert!(
        whole["removed"].as_u64() > Some(0),
        "retention was at work: {whole:#}"
    );
    assert_eq!(whole["pins"], 1);
    let commits = files_below(&store.join("runs").join(RUN).join("commits")).len();
    assert_eq!(whole["commits"], commits);
    let (code, child) = verify(store, "child");
    assert_eq!(
        (code, &child["whole"]),
        (Some(0), &true.into()),
        "{child:#}"
    );
    assert!(child["taken_over"].as_u64() > Some(0), "{child:#}");
    assert_eq!(verify_code(store, "nobody"), Some(4));

    let flip = |path: &Path| {
        let mut content = std::fs::read(path).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        std::fs::write(path, content).unwrap();
    };
    let remove = |path: &Path| std::fs::remove_file(path).unwrap();
    let cut = |path: &Path| {
        let content = std::fs::read(path).unwrap();
        std::fs::write(path, &content[..content.len() / 2]).unwrap();
    };
    // An artifact of this run, and one of the parent.
    let name = "/files/00000001/rollout/000000/";
    let file = object(store, RUN, name);
    with(store, &file, flip, RUN, "damaged", name);
    with(store, &file, cut, RUN, "damaged", name);
    with(store, &file, remove, RUN, "missing", name);
    let name = "/smoke/files/00000003/update/000000/";
    let file = object(store, RUN, "/files/00000003/update/000000/*/policy/");
    with(store, &file, flip, "child", "damaged", name);
    with(store, &file, remove, "child", "missing", name);
    // A manifest: its inputs, its author, its place, its existence.
    let name = "/commits/00000003/advantage/000000.json";
    let commit = object(store, RUN, name);
    let changed = |what: &str, by: &str| {
        with(
            store,
            &commit,
            |p| replace(p, what, by),
            RUN,
            "damaged",
            name,
        );
    };
    changed("\"stage\": \"log_probs\"", "\"stage\": \"rollout\"");
    changed("\"numeric_class\": \"", "\"numeric_class\": \"x");
    changed("\"code_version\": \"", "\"code_version\": \"9");
    let other = object(store, RUN, "/commits/00000002/advantage/000000.json");
    let copied = |path: &Path| _ = std::fs::copy(&other, path).unwrap();
    with(store, &commit, copied, RUN, "damaged", name);
    with(store, &commit, remove, RUN, "missing", name);
    with(store, &commit, cut, RUN, "damaged", name);
    // Plans, records of attempts, tombstones and pins.
    let start = object(
        store,
        RUN,
        "/attempts/00000001/rollout/000000/0001/start.json",
    );
    with(
        store,
        &start,
        cut,
        RUN,
        "damaged",
        "/attempts/00000001/rollout/000000/0001/",
    );
    with(
        store,
        &start,
        remove,
        RUN,
        "missing",
        "/attempts/00000001/rollout/000000/0001/",
    );
    // A later tombstone repeats the names of an earlier one and adds new ones.
    let tombstone = object(store, RUN, "/expired/00000004.json");
    with(store, &tombstone, cut, RUN, "damaged", "/expired/");
    // What it adds is an optimizer state, which can be made again.
    let content = std::fs::read(&tombstone).unwrap();
    remove(&tombstone);
    let (code, said) = verify(store, RUN);
    assert_eq!(
        (code, &said["not_stored"]),
        (Some(0), &1.into()),
        "{said:#}"
    );
    std::fs::write(&tombstone, content).unwrap();
    let earlier = object(store, RUN, "/expired/00000003.json");
    let content = std::fs::read(&earlier).unwrap();
    remove(&earlier);
    with(store, &tombstone, remove, RUN, "missing", "/policy/");
    with(store, &tombstone, cut, RUN, "missing", "/policy/");
    std::fs::write(&earlier, content).unwrap();
    let pin = object(store, RUN, "/pins/child.json");
    with(store, &pin, cut, RUN, "damaged", "/pins/child.json");
    with(
        store,
        &pin,
        remove,
        "child",
        "damaged",
        "/child/commits/00000003/update/",
    );
    let plan = object(store, RUN, "/plan/0000.json");
    with(
        store,
        &plan,
        |p| replace(p, "\"seed\": 1", "\"seed\": 2"),
        RUN,
        "damaged",
        "/plan/0000.json",
    );
    with(store, &plan, remove, RUN, "missing", "/plan/0000.json");
    // A commit outside the plan would change the digest; objects that are never read do not.
    let foreign = store.join("runs/smoke/commits/00000003/update/000001.json");
    let copied = |path: &Path| _ = std::fs::copy(&commit, path).unwrap();
    with(
        store,
        &foreign,
        copied,
        RUN,
        "foreign",
        "/update/000001.json",
    );
    std::fs::write(file.with_file_name("note.txt"), "mine").unwrap();
    std::fs::write(store.join("runs/smoke/commits/readme"), "mine").unwrap();
    let (code, said) = verify(store, RUN);
    assert_eq!(code, Some(0), "{said:#}");
    assert_eq!(said["findings"][0]["fault"], "stray");
    assert_eq!(said["findings"][1]["fault"], "stray");

    // Other commands refuse the changed object too; after it is restored, all of them work.
    let before = std::fs::read(&commit).unwrap();
    replace(
        &commit,
        "\"stage\": \"log_probs\"",
        "\"stage\": \"rollout\"",
    );
    for words in [
        &["digest", RUN][..],
        &["inspect", RUN, "3", "advantage", "0"],
        &["metrics", RUN],
    ] {
        let output = finish(command(store, words));
        assert_eq!(output.status.code(), Some(3), "{words:?}: {output:?}");
        let complaint = complaint(&output);
        assert!(
            complaint.contains(name) && complaint.contains("digest"),
            "{words:?}: {complaint}"
        );
    }
    std::fs::write(&commit, before).unwrap();
    assert_eq!(end(command(store, &["status", RUN]), store), digest);
}

fn verify_code(store: &Path, run: &str) -> Option<i32> {
    finish(command(store, &["verify", run])).status.code()
}

/// Rewrites a commit in the format of programs before version 2.
async fn as_version_1(store: &Store, path: &Path) {
    let manifest = Manifest::from_bytes(&std::fs::read(path).unwrap()).unwrap();
    std::fs::remove_file(path).unwrap();
    let stored = |artifact| Artifact {
        after_commit: false,
        ..artifact
    };
    let manifest = Manifest {
        version: 1,
        outputs: manifest.outputs.into_iter().map(stored).collect(),
        ..manifest
    };
    store.commit(&manifest).await.unwrap();
}

/// A run begun by an older program ends with the same digest; its commits have both versions.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_run_goes_on_to_the_same_digest() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let digest = end(
        submit_config("configs/smoke.yaml", path, &["jobs.threads=2"]),
        path,
    );
    println!("{}", learnt_now(path, RUN));
    let store = Store::open(&path.display().to_string()).await.unwrap();
    let run: RunId = RUN.parse().unwrap();
    let commits = path.join("runs").join(RUN).join("commits");
    for commit in files_below(&commits) {
        let is_last = commit.display().to_string().contains("/00000004/");
        match is_last && !commit.display().to_string().contains("/rollout/") {
            true => std::fs::remove_file(commit).unwrap(),
            false => as_version_1(&store, &commit).await,
        }
    }
    assert_eq!(verify(path, RUN).0, Some(0));
    said(command(path, &["resume", RUN]));
    let versions = files_below(&commits).into_iter().map(|path| {
        let manifest = Manifest::from_bytes(&std::fs::read(path).unwrap()).unwrap();
        manifest.version
    });
    let versions: std::collections::BTreeSet<u32> = versions.collect();
    assert_eq!(versions, [1, 2, 5].into());
    let now = store.run_digest(&run).await.unwrap().0;
    assert_eq!(now.to_string(), digest);
    let (code, said) = verify(path, RUN);
    assert_eq!(code, Some(0), "{said:#}");
}
