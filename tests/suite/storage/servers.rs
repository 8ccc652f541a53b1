//! Unusable or untrustworthy stores are refused before a run begins, with an error that says what
//! to do; lost answers have no effect.

use super::{Bench, manifest, slot};
use agentgym_storage::{AttemptId, Committed, Created, Error, Key, Store, Verdict};
use agentgym_tests::s3::{Manners, S3Server, SECRET_KEY};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ignores_conditions_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = S3Server::start_with(dir.path(), Manners::IgnoresConditions).await;
    let store = Store::open_with(&server.url, &server.env()).await.unwrap();
    let error = store.probe().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NoConditionalPut { .. }), "{text}");
    assert!(
        text.contains("If-None-Match") && text.contains("second create"),
        "{text}"
    );
    assert_eq!(error.verdict(), Verdict::GiveUp);
}

/// Alone, each of its writes keeps the condition; of two at the same moment both win.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_checks_and_then_writes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = S3Server::start_with(dir.path(), Manners::ChecksThenWrites).await;
    let store = Store::open_with(&server.url, &server.env()).await.unwrap();
    let error = store.probe().await.unwrap_err();
    assert!(matches!(error, Error::NoConditionalPut { .. }), "{error}");
    assert!(error.to_string().contains("at the same moment"), "{error}");
    assert!(!server.file_of("probe").exists(), "the probe cleans up");
}

/// After a lost answer a new object seems to exist already, and a race has no winner; a connection
/// that is cut before the bytes are read says nothing at all: no fault of the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loses_answers_or_requests_may_be_used() {
    for manners in [Manners::LosesFirstAnswers, Manners::CutsFirstWrites] {
        let dir = tempfile::tempdir().unwrap();
        let server = S3Server::start_with(dir.path(), manners).await;
        let store = Store::open_with(&server.url, &server.env()).await.unwrap();
        store.probe().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_leaves_nothing_behind() {
    for bench in [Bench::folder().await, Bench::s3().await] {
        bench.store.probe().await.unwrap();
        let root = bench.file_of("");
        let left: Vec<_> = std::fs::read_dir(&root)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .collect();
        assert!(left.is_empty(), "{left:?}");
        assert_eq!(bench.store.requests().deletes, 4, "one, and three races");
    }
}

/// The write succeeds, but the answer is an error; on the retry the object exists, and the client
/// must recognise it as its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_no_lost_commit() {
    let dir = tempfile::tempdir().unwrap();
    let server = S3Server::start_with(dir.path(), Manners::LosesFirstAnswers).await;
    let store = Store::open_with(&server.url, &server.env()).await.unwrap();
    let slot = slot("run", 1, "update", 0);
    let first = manifest(&slot, &AttemptId::new(1), vec![]);
    assert_eq!(store.commit(&first).await.unwrap(), Committed::Won);
    let second = manifest(&slot, &AttemptId::new(2), vec![]);
    assert_eq!(
        store.commit(&second).await.unwrap(),
        Committed::Superseded(Box::new(first))
    );
    let plan = Key::Plan {
        run: slot.run,
        revision: 0,
    };
    assert_eq!(store.create(&plan, "p".into()).await.unwrap(), Created::Won);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_and_missing_buckets_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let server = S3Server::start(dir.path()).await;
    let mut options = server.env();
    options[4].1 = "topsecret";
    let store = Store::open_with(&server.url, &options).await.unwrap();
    let refused = [
        store.probe().await.err(),
        store.list("runs").await.err(),
        store.runs().await.err(),
    ];
    for error in refused.map(Option::unwrap) {
        let text = error.to_string();
        assert!(matches!(error, Error::Denied { .. }), "{text}");
        assert!(
            text.contains("AWS_SECRET_ACCESS_KEY") && !text.contains("topsecret"),
            "{text}"
        );
        // It may pass: a token is renewed, a clock is set.
        assert_eq!(error.verdict(), Verdict::Retry);
    }

    let url = server.url.replace("s3://bucket", "s3://nowhere");
    let store = Store::open_with(&url, &server.env()).await.unwrap();
    let error = store.probe().await.unwrap_err();
    assert!(matches!(error, Error::NoBucket { .. }), "{error}");
    let error = store.list("runs").await.unwrap_err();
    assert!(matches!(error, Error::NoBucket { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_without_permission_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o555)).unwrap();
    // Root can write to every folder, except in file systems of the kernel.
    let is_root = std::fs::write(dir.path().join("try"), "").is_ok();
    let folder = if is_root {
        "/sys/kernel".to_owned()
    } else {
        dir.path().display().to_string()
    };
    let error = Store::open(&folder)
        .await
        .unwrap()
        .probe()
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NoPermission { .. }), "{error}");
    assert!(
        error.to_string().contains(&folder) && error.to_string().contains("storage.url"),
        "{error}"
    );
    let below = Store::open(&format!("{folder}/below")).await.unwrap_err();
    assert!(matches!(below, Error::NoPermission { .. }), "{below}");
}

#[tokio::test]
async fn memory_is_shared_by_name_only() {
    let plan = Key::Plan {
        run: super::run("r"),
        revision: 0,
    };
    let named = Store::open("memory:suite-shared").await.unwrap();
    named.create(&plan, "p".into()).await.unwrap();
    let again = Store::open("memory:suite-shared").await.unwrap();
    assert_eq!(again.try_get(&plan).await.unwrap().unwrap(), "p");
    for other in ["memory:", "memory:suite-other"] {
        assert_eq!(
            Store::open(other)
                .await
                .unwrap()
                .try_get(&plan)
                .await
                .unwrap(),
            None
        );
    }
}

#[tokio::test]
async fn a_small_commit_takes_two_requests() {
    let store = Store::open("memory:").await.unwrap();
    let (slot, attempt) = (slot("run", 1, "update", 0), AttemptId::new(1));
    let mut outputs = agentgym_storage::Outputs::new(store.clone(), slot.clone(), attempt.clone());
    outputs
        .bytes("metrics.json", "json", "{}".into())
        .await
        .unwrap();
    let manifest = manifest(&slot, &attempt, outputs.into_artifacts());
    store.commit(&manifest).await.unwrap();
    let requests = store.requests();
    assert_eq!(
        (
            requests.puts,
            requests.gets,
            requests.lists,
            requests.deletes
        ),
        (2, 0, 0, 0)
    );
    assert_eq!(
        requests.bytes_in,
        2 + manifest.to_bytes().unwrap().len() as u64
    );
    let commits = vec![(
        "in".to_owned(),
        store.manifest(&slot).await.unwrap().unwrap(),
    )];
    agentgym_storage::Inputs::new(store.clone(), commits, "unused")
        .bytes("in", "metrics.json")
        .await
        .unwrap();
    assert_eq!(
        (store.requests().gets, store.requests().bytes_out),
        (2, requests.bytes_in)
    );
}

/// A message that says `--store …` can be pasted into a shell, with options and odd characters.
#[tokio::test]
async fn a_store_says_how_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = S3Server::start(folder.path()).await;
    let store = Store::open_with(&server.url, &server.env()).await.unwrap();
    assert_eq!(
        store.argument(),
        format!("'{}'", server.url),
        "a shell reads `?`"
    );
    assert!(!store.argument().contains(SECRET_KEY));
    let odd = folder.path().join("it's here");
    let store = Store::open(&odd.display().to_string()).await.unwrap();
    let typed = std::process::Command::new("sh")
        .args(["-c", &format!("printf %s {}", store.argument())])
        .output()
        .unwrap();
    let typed = String::from_utf8(typed.stdout).unwrap();
    assert_eq!(Store::open(&typed).await.unwrap().url(), store.url());
}
