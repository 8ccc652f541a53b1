//! The requirements for every kind of store. Each kind runs all of these tests.

use super::{Bench, manifest, run, slot};
use agentgym_storage::{
    Artifact, AttemptEnd, AttemptId, AttemptOutcome, AttemptStart, Committed, Created, Digest,
    Error, Inputs, Journal, Key, Manifest, Outputs, PartKey, SeenCommits, Store, Verdict,
};
use bytes::Bytes;
use std::collections::BTreeSet;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    conformance(&Bench::memory().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn folder() {
    conformance(&Bench::folder().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3() {
    conformance(&Bench::s3().await).await;
}

async fn conformance(bench: &Bench) {
    let store = &bench.store;
    store.probe().await.unwrap();
    objects(store).await;
    commits_race(store).await;
    attempts_race(store).await;
    artifacts(bench).await;
    journals(store).await;
    retention(bench).await;
    digests(store).await;
}

async fn objects(store: &Store) {
    let plan = |run_id: &str, revision| Key::Plan {
        run: run(run_id),
        revision,
    };
    assert_eq!(store.runs().await.unwrap(), []);
    assert_eq!(store.plans(&run("a")).await.unwrap(), []);
    assert_eq!(store.try_get(&plan("a", 0)).await.unwrap(), None);
    let missing = store.get(&plan("a", 0)).await.unwrap_err();
    assert!(
        matches!(&missing, Error::NotFound { key, .. } if key == "runs/a/plan/0000.json"),
        "{missing}"
    );
    assert_eq!(missing.verdict(), Verdict::GiveUp);

    for (run_id, revision, content) in [
        ("a", 1, "one"),
        ("ab", 0, "other"),
        ("a", 10, ""),
        ("a", 0, "zero"),
    ] {
        assert_eq!(
            store
                .put_plan(&run(run_id), revision, content.into())
                .await
                .unwrap(),
            Created::Won
        );
    }
    assert_eq!(
        store.create(&plan("a", 0), "zero".into()).await.unwrap(),
        Created::Won,
        "the same bytes have won"
    );
    assert_eq!(
        store.create(&plan("a", 0), "else".into()).await.unwrap(),
        Created::Exists
    );
    assert_eq!(store.get(&plan("a", 0)).await.unwrap(), "zero");

    let plans: Vec<(u32, Bytes)> = vec![(0, "zero".into()), (1, "one".into()), (10, "".into())];
    assert_eq!(store.plans(&run("a")).await.unwrap(), plans);
    let listed = vec![(plan("a", 0), 4), (plan("a", 1), 3), (plan("a", 10), 0)];
    assert_eq!(
        store.list("runs/a").await.unwrap(),
        listed,
        "runs/ab is another folder"
    );
    assert_eq!(store.list("runs/a/").await.unwrap(), listed);
    assert_eq!(store.list("runs/none").await.unwrap(), []);
    assert_eq!(store.runs().await.unwrap(), [run("a"), run("ab")]);
    // Fields of keys are arbitrary; a key that could not be listed again is refused.
    let odd = Key::Commit(slot("a", 1, "../../up", 0));
    assert!(matches!(
        store.create(&odd, "x".into()).await,
        Err(Error::BadKey { .. })
    ));
}

/// Eight attempts commit the same part concurrently: one wins, and all others get the winner's
/// manifest.
async fn commits_race(store: &Store) {
    const RACERS: u32 = 8;
    for part in 0..10 {
        let slot = slot("race", 1, "rollout", part);
        assert_eq!(store.manifest(&slot).await.unwrap(), None);
        let mut racers = JoinSet::new();
        for number in 1..=RACERS {
            let (store, manifest) = (
                store.clone(),
                manifest(&slot, &AttemptId::new(number), vec![]),
            );
            racers.spawn(async move { (number, store.commit(&manifest).await.unwrap()) });
        }
        let ended = racers.join_all().await;
        let standing = store.manifest(&slot).await.unwrap().unwrap();
        for (number, committed) in ended {
            match committed {
                Committed::Won => assert_eq!(number, standing.attempt),
                Committed::Superseded(by) => assert!(*by == standing && number != standing.attempt),
            }
        }
        assert_eq!(
            store.commit(&standing).await.unwrap(),
            Committed::Won,
            "a lost answer is found again"
        );
    }
    let slots: Vec<PartKey> = (0..10)
        .map(|part| slot("race", 1, "rollout", part))
        .collect();
    assert_eq!(store.commits(&run("race"), 1).await.unwrap(), slots);
    assert_eq!(store.commits(&run("race"), 2).await.unwrap(), []);
}

async fn attempts_race(store: &Store) {
    let slot = slot("tries", 3, "update", 0);
    let start = AttemptStart {
        worker: "w".into(),
        started_unix_s: 1,
        code_version: "0".into(),
        plan_revision: 2,
        ..AttemptStart::default()
    };
    let mut racers = JoinSet::new();
    for _ in 0..8 {
        let (store, slot, start) = (store.clone(), slot.clone(), start.clone());
        racers.spawn(async move { store.start_attempt(&slot, &start).await.unwrap() });
    }
    let mut given = racers.join_all().await;
    given.sort();
    assert_eq!(
        given.iter().map(|a| a.number).collect::<Vec<_>>(),
        (1..=8).collect::<Vec<_>>()
    );
    let stats = serde_json::from_str(r#"{"tokens_per_s": 12.5}"#).unwrap();
    let end = AttemptEnd {
        outcome: AttemptOutcome::Drained,
        message: "é".repeat(20_000),
        wall_s: 0.25,
        stats,
        excused: false,
        for_good: false,
    };
    store.end_attempt(&slot, 2, &end).await.unwrap();
    let again = AttemptEnd {
        outcome: AttemptOutcome::Failed,
        ..end.clone()
    };
    assert!(matches!(
        store.end_attempt(&slot, 2, &again).await,
        Err(Error::Conflict { .. })
    ));

    let attempts = store.attempts(&slot).await.unwrap();
    assert_eq!(attempts.len(), 8);
    for (id, record) in given.iter().zip(&attempts) {
        assert_eq!(
            (id.number, &id.nonce, &start),
            (record.number, &record.nonce, &record.start)
        );
        assert_eq!(record.end.is_some(), id.number == 2);
    }
    let read = attempts[1].end.as_ref().unwrap();
    assert_eq!(
        (read.outcome, read.wall_s, &read.stats),
        (end.outcome, end.wall_s, &end.stats)
    );
    assert!(end.message.starts_with(&read.message) && read.message.len() > 10_000);
    assert_eq!(
        store
            .attempts(&super::slot("tries", 3, "update", 1))
            .await
            .unwrap(),
        []
    );
    assert_eq!(
        store.all_attempts(&run("tries")).await.unwrap(),
        [(slot, attempts)].into()
    );
}

/// Writes two files and an empty one, and commits them.
async fn write(store: &Store, slot: &PartKey, text: &str) -> Manifest {
    let attempt = AttemptId::new(1);
    let mut outputs = Outputs::new(store.clone(), slot.clone(), attempt.clone());
    outputs
        .bytes(
            "policy/weights/one.safetensors",
            "tensors",
            text.to_owned().into(),
        )
        .await
        .unwrap();
    outputs
        .bytes("policy/config.json", "json", "{}".into())
        .await
        .unwrap();
    outputs.bytes("empty", "none", Bytes::new()).await.unwrap();
    let manifest = manifest(slot, &attempt, outputs.into_artifacts());
    assert_eq!(store.commit(&manifest).await.unwrap(), Committed::Won);
    manifest
}

fn inputs(bench: &Bench, manifest: &Manifest) -> Inputs {
    Inputs::new(
        bench.store.clone(),
        vec![("in".into(), manifest.clone())],
        bench.cache().join("cache"),
    )
}

async fn artifacts(bench: &Bench) {
    let store = &bench.store;
    let slot = slot("files", 1, "update", 0);
    let attempt = AttemptId::new(1);
    let mut outputs = Outputs::new(store.clone(), slot.clone(), attempt.clone());
    // 37 MiB: two full parts and a remainder, in pieces that match no boundary.
    let large: Bytes = (0..37usize << 20)
        .map(|i| (i % 253) as u8)
        .collect::<Vec<_>>()
        .into();
    let mut writer = outputs.create("large.bin", "test").await.unwrap();
    for at in (0..large.len()).step_by(3 << 20) {
        writer
            .write(large.slice(at..large.len().min(at + (3 << 20))))
            .await
            .unwrap();
    }
    let artifact = writer.finish().await.unwrap();
    assert_eq!(
        (artifact.size, artifact.digest),
        (large.len() as u64, Digest::of(&large))
    );

    let local = tempfile::tempdir().unwrap();
    std::fs::create_dir(local.path().join("sub")).unwrap();
    std::fs::write(local.path().join("a.txt"), "a").unwrap();
    std::fs::write(local.path().join("sub/b.bin"), &large[..2 << 20]).unwrap();
    outputs.folder("copy", "file", local.path()).await.unwrap();
    outputs.bytes("empty", "none", Bytes::new()).await.unwrap();
    // Abandoned half-way: creates no artifact, and its name stays free.
    let mut given_up = outputs.create("half", "test").await.unwrap();
    given_up.write(large.clone()).await.unwrap();
    drop(given_up);
    outputs.bytes("half", "test", "whole".into()).await.unwrap();
    let twice = outputs.bytes("half", "test", "x".into()).await.unwrap_err();
    assert!(matches!(twice, Error::DuplicateOutput { .. }), "{twice}");
    for name in ["../up", "/etc/x", "a//b", ""] {
        assert!(
            matches!(
                outputs.bytes(name, "test", "x".into()).await,
                Err(Error::BadName { .. })
            ),
            "{name}"
        );
    }
    let artifacts = outputs.into_artifacts();
    let names: Vec<_> = artifacts.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(
        names,
        ["copy/a.txt", "copy/sub/b.bin", "empty", "half", "large.bin"]
    );

    let inputs = inputs(bench, &manifest(&slot, &attempt, artifacts));
    assert_eq!(inputs.names().collect::<Vec<_>>(), ["in"]);
    assert_eq!(inputs.bytes("in", "large.bin").await.unwrap(), large);
    assert_eq!(inputs.bytes("in", "empty").await.unwrap(), Bytes::new());
    assert!(matches!(
        inputs.bytes_max("in", "large.bin", 1 << 20).await,
        Err(Error::TooLarge { .. })
    ));
    let unknown = inputs.bytes("out", "x").await.unwrap_err().to_string();
    assert!(
        unknown.contains("`out`") && unknown.contains("there are: in"),
        "{unknown}"
    );
    let unknown = inputs.folder("in", "policy").await.unwrap_err().to_string();
    assert!(unknown.contains("copy/a.txt"), "{unknown}");
    for _ in 0..2 {
        let folder = inputs.folder("in", "copy").await.unwrap();
        assert_eq!(std::fs::read(folder.path().join("a.txt")).unwrap(), b"a");
        assert_eq!(
            std::fs::read(folder.path().join("sub/b.bin")).unwrap(),
            large[..2 << 20]
        );
        let in_place = store
            .local_root()
            .is_some_and(|root| folder.path().starts_with(root));
        assert_eq!(
            in_place,
            store.local_root().is_some(),
            "{}",
            folder.path().display()
        );
    }
}

async fn journals(store: &Store) {
    let slot = slot("journal", 2, "rollout", 1);
    assert_eq!(
        Journal::replay(store, &slot).await.unwrap(),
        Vec::<Bytes>::new()
    );
    let attempts = [AttemptId::new(1), AttemptId::new(2), AttemptId::new(10)];
    for (n, attempt) in attempts.iter().enumerate().rev() {
        let mut journal = Journal::open(store.clone(), slot.clone(), attempt.clone());
        for segment in 0..3 {
            journal
                .append(format!("{n}.{segment}").into())
                .await
                .unwrap();
        }
    }
    // Torn by a crash, on a store whose writes are not atomic.
    let torn = Key::JournalSegment {
        slot: slot.clone(),
        attempt: attempts[1].clone(),
        segment: 3,
    };
    store.create(&torn, "AGJRNL1\nhalf".into()).await.unwrap();
    let replayed: Vec<_> = Journal::replay(store, &slot).await.unwrap();
    assert_eq!(
        replayed,
        [
            "0.0", "0.1", "0.2", "1.0", "1.1", "1.2", "2.0", "2.1", "2.2"
        ]
    );
    // A journal whose segment number is taken by its own write that was reported as failed.
    let mut journal = Journal::open(store.clone(), slot.clone(), attempts[1].clone());
    journal.append("again".into()).await.unwrap();
    let replayed = Journal::replay(store, &slot).await.unwrap();
    assert_eq!(replayed.iter().filter(|s| **s == "again").count(), 1);
    assert_eq!(replayed.len(), 10);
    assert_eq!(
        Journal::replay(store, &super::slot("journal", 2, "rollout", 2))
            .await
            .unwrap(),
        Vec::<Bytes>::new()
    );
}

async fn retention(bench: &Bench) {
    let store = &bench.store;
    let (parent, child) = (run("old"), run("fork"));
    let mut commits = Vec::new();
    for iteration in 1..=3 {
        commits.push(
            write(
                store,
                &slot("old", iteration, "update", 0),
                &format!("weights {iteration}"),
            )
            .await,
        );
    }
    for (stage, part) in [("update", 0), ("rollout", 5)] {
        let mut journal = Journal::open(
            store.clone(),
            slot("old", 3, stage, part),
            AttemptId::new(1),
        );
        journal.append("x".into()).await.unwrap();
    }
    // A fork's commit may refer to files of its parent, which it does not own.
    let borrowed = manifest(
        &slot("fork", 2, "update", 0),
        &AttemptId::new(1),
        commits[0].outputs.clone(),
    );
    assert_eq!(
        store
            .expire(&child, 2, |_, _| false, &[borrowed])
            .await
            .unwrap()
            .named,
        0
    );

    let key =
        |iteration: usize, name: &str| commits[iteration - 1].output(name).unwrap().key.clone();
    let pinned: BTreeSet<Key> = [key(1, "policy/config.json")].into();
    store.pin(&parent, &child, pinned.clone()).await.unwrap();
    store.pin(&parent, &child, pinned.clone()).await.unwrap();
    let other = store
        .pin(&parent, &child, [key(2, "empty")].into())
        .await
        .unwrap_err();
    assert!(matches!(other, Error::Conflict { .. }), "{other}");

    // An attempt that lost against the commit, one that was killed, and one that may take that one up.
    for (stage, part, number) in [("update", 0, 2), ("rollout", 5, 1), ("rollout", 5, 2)] {
        let (slot, attempt) = (slot("old", 3, stage, part), AttemptId::new(number));
        let mut outputs = Outputs::new(store.clone(), slot, attempt);
        let written = outputs.bytes("late", "test", "late".into()).await;
        written.unwrap();
    }
    let files = async || -> Vec<Key> {
        let listed = store.list("runs/old/files").await.unwrap();
        let keys = listed.into_iter().map(|(key, _)| key);
        keys.filter(|key| !key.path().contains("/rollout/"))
            .collect()
    };

    let keep = |m: &Manifest, a: &Artifact| {
        m.iteration == 3 || (m.iteration == 2 && a.name.starts_with("policy/"))
    };
    let expired = store.expire(&parent, 3, keep, &commits).await.unwrap();
    // Of iteration 1 all but the pinned file, of iteration 2 the empty file, one journal, and what lost.
    assert_eq!((expired.named, expired.pinned), (5, 0));
    let left = files().await;
    let mut wanted = vec![key(1, "policy/config.json")];
    wanted
        .extend(["policy/config.json", "policy/weights/one.safetensors"].map(|name| key(2, name)));
    wanted.extend(
        [
            "empty",
            "policy/config.json",
            "policy/weights/one.safetensors",
        ]
        .map(|name| key(3, name)),
    );
    assert_eq!(left, wanted);
    assert_eq!(
        store.list("runs/old/journal").await.unwrap().len(),
        1,
        "an uncommitted part keeps its journal"
    );
    assert_eq!(
        store.all_commits(&parent).await.unwrap().len(),
        3,
        "commits are never deleted"
    );

    // Again, with another retention rule: the first tombstone stands.
    let again = store
        .expire(&parent, 3, |_, _| false, &commits)
        .await
        .unwrap();
    assert_eq!((again.named, again.pinned), (5, 0));
    assert_eq!(files().await.len(), 6);
    // In a later iteration the new rule applies, except to the pinned file.
    let later = store
        .expire(&parent, 4, |_, _| false, &commits)
        .await
        .unwrap();
    assert_eq!(files().await, [key(1, "policy/config.json")]);
    let open = store.list("runs/old/files/00000003/rollout").await.unwrap();
    assert_eq!(open.len(), 2, "an uncommitted part keeps its files");
    assert!(later.named >= 5, "{later:?}");

    let removed = inputs(bench, &commits[0])
        .bytes("in", "policy/weights/one.safetensors")
        .await
        .unwrap_err();
    let text = removed.to_string();
    assert!(
        matches!(removed, Error::Removed { .. }) && text.contains("runs/old/expired/00000003.json"),
        "{text}"
    );
    let late = store
        .pin(&parent, &run("late"), [key(2, "empty")].into())
        .await
        .unwrap_err();
    assert!(matches!(late, Error::Removed { .. }), "{late}");
    let foreign = store
        .expire(&child, 4, |_, _| false, &commits)
        .await
        .unwrap_err();
    assert!(
        foreign.to_string().contains("not a commit of run fork"),
        "{foreign}"
    );
}

/// Equal work has an equal digest, regardless of worker and attempt number.
async fn digests(store: &Store) {
    let mut digests = Vec::new();
    for (run_id, second) in [
        ("digest-1", "two"),
        ("digest-2", "two"),
        ("digest-3", "other"),
    ] {
        write(store, &slot(run_id, 1, "update", 0), "one").await;
        let attempt = AttemptId::new(if run_id == "digest-2" { 7 } else { 1 });
        let slot = slot(run_id, 2, "update", 0);
        let mut outputs = Outputs::new(store.clone(), slot.clone(), attempt.clone());
        outputs.bytes("x", "test", second.into()).await.unwrap();
        // The manifest version that a program writes does not matter either.
        let version = if run_id == "digest-2" {
            1
        } else {
            Manifest::VERSION
        };
        let manifest = Manifest {
            version,
            ..manifest(&slot, &attempt, outputs.into_artifacts())
        };
        store.commit(&manifest).await.unwrap();
        digests.push(store.run_digest(&run(run_id)).await.unwrap());
    }
    assert_eq!(digests[0].1, 2);
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
    let lines = [
        ("empty", ""),
        ("policy/config.json", "{}"),
        ("policy/weights/one.safetensors", "one"),
    ];
    let text: String = lines
        .iter()
        .map(|(name, content)| format!("1 update 0 {name} {}\n", Digest::of(content.as_bytes())))
        .collect();
    let text = format!("{text}2 update 0 x {}\n", Digest::of(b"two"));
    assert_eq!(
        digests[0].0,
        Digest::of(text.as_bytes()),
        "the digest is the documented one"
    );
    a_digest_reads_what_was_not_seen(store, digests[0]).await;
}

/// Seen commits are not read again; commits that are not in the store do not count, even if seen.
async fn a_digest_reads_what_was_not_seen(store: &Store, expected: (Digest, usize)) {
    let mut seen = SeenCommits::default();
    let first = store.manifest(&slot("digest-1", 1, "update", 0)).await;
    let first = first.unwrap().unwrap();
    seen.add(&first);
    let mut never_won = first.clone();
    never_won.part = 7;
    seen.add(&never_won);
    let elsewhere = store.manifest(&slot("digest-3", 2, "update", 0)).await;
    seen.add(&elsewhere.unwrap().unwrap());
    let before = store.requests().gets;
    let found = store.run_digest_of(&run("digest-1"), seen).await.unwrap();
    assert_eq!(found, expected);
    assert_eq!(store.requests().gets - before, 1, "one of two was seen");
}
