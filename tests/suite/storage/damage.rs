//! Damaged bytes never reach a stage: every kind of damage to an object ends in an error that names
//! the object, the damage, and the remedy.

use super::{Bench, manifest, run, slot};
use agentgym_storage::{
    AttemptEnd, AttemptId, AttemptOutcome, AttemptStart, CHUNK_BYTES, Digest, Error, Inputs,
    Journal, Key, Manifest, Outputs, Store, Verdict,
};
use bytes::Bytes;
use std::io::{Seek, SeekFrom, Write};

async fn commit(store: &Store, files: &[(&str, &str)]) -> Manifest {
    let (slot, attempt) = (slot("run", 1, "update", 0), AttemptId::new(1));
    let mut outputs = Outputs::new(store.clone(), slot.clone(), attempt.clone());
    for (name, content) in files {
        outputs
            .bytes(name, "test", content.to_string().into())
            .await
            .unwrap();
    }
    manifest(&slot, &attempt, outputs.into_artifacts())
}

async fn objects(bench: Bench) {
    let manifest = commit(&bench.store, &[("p/a", "content"), ("p/empty", "")]).await;
    let inputs = Inputs::new(
        bench.store.clone(),
        vec![("in".into(), manifest.clone())],
        bench.cache().join("cache"),
    );
    let artifact = manifest.output("p/a").unwrap();
    let file = bench.file_of(&artifact.key.path());
    let refused = async |found: &str| {
        for error in [
            inputs.bytes("in", "p/a").await.unwrap_err(),
            inputs.folder("in", "p").await.unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(matches!(error, Error::Damaged { .. }), "{text}");
            assert_eq!(error.verdict(), Verdict::GiveUp);
            let commit = Key::Commit(manifest.slot()).path();
            for part in [
                &artifact.key.path(),
                found,
                "restore",
                &format!("delete {commit}"),
            ] {
                assert!(text.contains(part), "{part} is missing in: {text}");
            }
        }
    };
    std::fs::write(&file, "c0ntent").unwrap();
    let (expected, found) = (
        Digest::of(b"content").to_string(),
        Digest::of(b"c0ntent").to_string(),
    );
    refused(&format!("expected {expected}, found {found}")).await;
    std::fs::write(&file, "conten").unwrap();
    refused("6 bytes").await;
    std::fs::write(&file, "content!").unwrap();
    refused("8 bytes").await;
    std::fs::write(&file, "").unwrap();
    refused("0 bytes").await;
    std::fs::remove_file(&file).unwrap();
    refused("nothing").await;
    std::fs::write(&file, "content").unwrap();
    assert_eq!(inputs.bytes("in", "p/a").await.unwrap(), "content");
    let empty = bench.file_of(&manifest.output("p/empty").unwrap().key.path());
    std::fs::write(&empty, "not empty").unwrap();
    assert!(matches!(
        inputs.bytes("in", "p/empty").await,
        Err(Error::Damaged { .. })
    ));
    assert!(matches!(
        inputs.folder("in", "p").await,
        Err(Error::Damaged { .. })
    ));

    // A truncated manifest, or one under another part's key.
    bench.store.commit(&manifest).await.unwrap();
    let key = Key::Commit(manifest.slot()).path();
    let whole = std::fs::read(bench.file_of(&key)).unwrap();
    let elsewhere = slot("run", 2, "update", 0);
    let copy = bench.file_of(&Key::Commit(elsewhere.clone()).path());
    std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
    std::fs::write(copy, &whole).unwrap();
    let error = bench
        .store
        .manifest(&elsewhere)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("00000002") && error.contains("run/1/update/0"),
        "{error}"
    );
    // A later attempt reads the existing manifest and reports its damage.
    let late = Manifest {
        attempt: 2,
        outputs: vec![],
        ..manifest.clone()
    };
    let changed = String::from_utf8(whole.clone()).unwrap();
    let changed = changed.replace("\"numeric_class\": \"test\"", "\"numeric_class\": \"cuda\"");
    std::fs::write(bench.file_of(&key), changed).unwrap();
    let error = bench.store.commit(&late).await.unwrap_err().to_string();
    assert!(error.contains(&key) && error.contains("digest"), "{error}");
    std::fs::write(bench.file_of(&key), &whole[..whole.len() / 2]).unwrap();
    let error = bench
        .store
        .manifest(&manifest.slot())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains(&key) && error.contains("restore"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_objects_of_a_folder_are_refused() {
    objects(Bench::folder().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_objects_of_s3_are_refused() {
    objects(Bench::s3().await).await;
}

/// 512 MiB are processed with bounded memory, and a flipped bit is found in its own chunk.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_artifact_streams() {
    const CHUNKS: u64 = 8;
    const WRITE_BYTES_MAX: u64 = 160 << 20;
    const READ_BYTES_MAX: u64 = 320 << 20;
    let bench = Bench::folder().await;
    let (slot, attempt) = (slot("run", 1, "init", 0), AttemptId::new(1));
    let mut outputs = Outputs::new(bench.store.clone(), slot.clone(), attempt.clone());
    let piece: Bytes = (0..1usize << 20)
        .map(|i| (i % 255) as u8)
        .collect::<Vec<_>>()
        .into();
    let before = peak_bytes();
    let mut writer = outputs
        .create("policy/model.safetensors", "tensors")
        .await
        .unwrap();
    for _ in 0..CHUNKS * (CHUNK_BYTES >> 20) {
        writer.write(piece.clone()).await.unwrap();
    }
    writer.write("rest".into()).await.unwrap();
    let artifact = writer.finish().await.unwrap().clone();
    let grown = peak_bytes().saturating_sub(before);
    assert!(
        grown < WRITE_BYTES_MAX,
        "writing took {} MiB of memory",
        grown >> 20
    );
    assert_eq!(artifact.size, CHUNKS * CHUNK_BYTES + 4);
    let chunk = Digest::of(&piece.repeat(64));
    assert_eq!(artifact.chunk_digests[..8], [chunk; 8]);
    assert_eq!(artifact.chunk_digests[8..], [Digest::of(b"rest")]);

    let before = peak_bytes();
    let commits = vec![(
        "init".into(),
        manifest(&slot, &attempt, outputs.into_artifacts()),
    )];
    let inputs = Inputs::new(bench.store.clone(), commits, bench.cache());
    let folder = inputs.folder("init", "policy").await.unwrap();
    let grown = peak_bytes().saturating_sub(before);
    assert!(
        grown < READ_BYTES_MAX,
        "reading took {} MiB of memory",
        grown >> 20
    );

    let mut file = std::fs::File::options()
        .write(true)
        .open(folder.path().join("model.safetensors"))
        .unwrap();
    file.seek(SeekFrom::Start(5 * CHUNK_BYTES + 17)).unwrap();
    file.write_all(&[255]).unwrap();
    let error = inputs
        .folder("init", "policy")
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&format!(
            "in bytes {} to {}",
            5 * CHUNK_BYTES,
            6 * CHUNK_BYTES
        )),
        "{error}"
    );
}

/// The largest resident size of the process so far; if another test runs a worker, since that
/// worker's last attempt began.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_cache_is_repaired() {
    let bench = Bench::memory().await;
    let manifest = commit(&bench.store, &[("p/a", "content"), ("p/sub/b", "more")]).await;
    let inputs = Inputs::new(
        bench.store.clone(),
        vec![("in".into(), manifest)],
        bench.cache().join("cache"),
    );
    let path = inputs.folder("in", "p").await.unwrap().path().to_owned();
    for damage in ["c0ntent", "short"] {
        std::fs::write(path.join("a"), damage).unwrap();
        let folder = inputs.folder("in", "p/").await.unwrap();
        assert_eq!(
            std::fs::read_to_string(folder.path().join("a")).unwrap(),
            "content"
        );
    }
    std::fs::remove_file(path.join("sub/b")).unwrap();
    let folder = inputs.folder("in", "p").await.unwrap();
    assert_eq!(
        std::fs::read_to_string(folder.path().join("sub/b")).unwrap(),
        "more"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_is_bounded_and_spares_what_is_in_use() {
    let bench = Bench::memory().await;
    let cache = bench.cache().join("cache");
    let folder = async |content: String| {
        let mut outputs = Outputs::new(
            bench.store.clone(),
            slot("run", 1, "update", 0),
            AttemptId::new(1),
        );
        outputs.bytes("p/a", "test", content.into()).await.unwrap();
        let manifest = manifest(
            &slot("run", 1, "update", 0),
            &AttemptId::new(1),
            outputs.into_artifacts(),
        );
        Inputs::new(bench.store.clone(), vec![("in".into(), manifest)], &cache)
            .folder("in", "p")
            .await
            .unwrap()
    };
    let held = folder("held".into()).await;
    // Many at once, each requested twice.
    let all = futures::future::join_all((0..20).map(|i| folder(format!("{}", i / 2)))).await;
    for (i, folder) in all.iter().enumerate() {
        assert_eq!(
            std::fs::read_to_string(folder.path().join("a")).unwrap(),
            format!("{}", i / 2)
        );
    }
    drop(all);
    drop(folder("last".into()).await);
    assert_eq!(
        std::fs::read_to_string(held.path().join("a")).unwrap(),
        "held"
    );
    let folders = std::fs::read_dir(&cache)
        .unwrap()
        .flatten()
        .filter(|e| e.path().is_dir())
        .count();
    assert!(folders <= 9, "{folders} folders stay behind");

    // On a full disk what nobody uses goes.
    agentgym_storage::make_room(&cache).await;
    let left = std::fs::read_dir(&cache).unwrap().flatten();
    let left = left.filter(|e| e.path().is_dir()).map(|e| e.path());
    assert_eq!(left.collect::<Vec<_>>(), [held.path()]);
}

/// Who needs what another downloads waits for it, unless that one has come to a stop.
#[tokio::test(flavor = "multi_thread")]
async fn the_processes_of_a_machine_download_once() {
    let bench = Bench::memory().await;
    let cache = bench.cache().join("cache");
    let manifest = commit(&bench.store, &[("p/a", "content"), ("p/b", "more")]).await;
    let open = async |_: u32| {
        let commits = vec![("in".into(), manifest.clone())];
        let inputs = Inputs::new(bench.store.clone(), commits, &cache);
        inputs.folder("in", "p").await.unwrap().path().to_owned()
    };
    let before = bench.store.requests().gets;
    let all = futures::future::join_all((0..16).map(open)).await;
    assert_eq!(bench.store.requests().gets - before, 2, "one per file");

    let id = all[0].file_name().unwrap().to_string_lossy().into_owned();
    std::fs::remove_dir_all(&all[0]).unwrap();
    let others = cache.join(format!("{id}.00000000.partial"));
    std::fs::create_dir(&others).unwrap();
    // Nobody holds the lock of a process that died.
    let at_once = std::time::Duration::from_secs(15);
    tokio::time::timeout(at_once, open(0)).await.unwrap();
    assert_eq!(bench.store.requests().gets - before, 4);

    // A process that is stopped holds it, and is waited for a second more.
    std::fs::remove_dir_all(&all[0]).unwrap();
    let held = std::fs::File::create(cache.join(format!("{id}.download"))).unwrap();
    held.lock().unwrap();
    let last = std::time::SystemTime::now() - std::time::Duration::from_secs(19);
    for written in [&held, &std::fs::File::open(&others).unwrap()] {
        written.set_modified(last).unwrap();
    }
    let begun = std::time::Instant::now();
    assert_eq!(open(0).await, all[0]);
    assert!(begun.elapsed().as_millis() > 900, "{:?}", begun.elapsed());
    assert_eq!(bench.store.requests().gets - before, 6);
}

/// By digest and by size: the least recently used entries are removed first.
#[tokio::test(flavor = "multi_thread")]
async fn the_cache_keeps_to_its_bytes() {
    let bench = Bench::memory().await;
    let cache = bench.cache().join("cache");
    let fetch = async |part: u32, bytes_max: u64| {
        let (slot, attempt) = (slot("run", 1, "update", part), AttemptId::new(1));
        let mut outputs = Outputs::new(bench.store.clone(), slot.clone(), attempt.clone());
        let content = vec![part as u8; 1000];
        outputs.bytes("p/a", "test", content.into()).await.unwrap();
        let manifest = manifest(&slot, &attempt, outputs.into_artifacts());
        Inputs::new(bench.store.clone(), vec![("in".into(), manifest)], &cache)
            .with_cache_max(bytes_max)
            .folder("in", "p")
            .await
            .unwrap()
    };
    let first = fetch(0, 2500).await.path().to_owned();
    let second = fetch(1, 2500).await.path().to_owned();
    assert!(first.exists() && second.exists());
    let held = fetch(2, 2500).await;
    assert!(!first.exists(), "the oldest makes room");
    assert!(second.exists() && held.path().exists());
    let last = fetch(3, 10).await;
    assert!(!second.exists(), "too small for anything");
    assert!(held.path().exists() && last.path().exists(), "both in use");
}

/// An attempt with unreadable records counts as begun, with unknown outcome; readers of the part
/// still get all the others.
async fn attempts(bench: Bench) {
    let (store, slot) = (&bench.store, slot("run", 1, "update", 0));
    let start = |plan_revision| AttemptStart {
        worker: "w".to_owned(),
        started_unix_s: 1,
        code_version: "v".to_owned(),
        plan_revision,
        ..AttemptStart::default()
    };
    let failed = AttemptEnd {
        outcome: AttemptOutcome::Failed,
        message: "no".to_owned(),
        wall_s: 0.5,
        stats: serde_json::Map::new(),
        excused: false,
        for_good: false,
    };
    for number in 1..=5 {
        let start = start(u32::from(number > 2));
        store.start_attempt(&slot, &start).await.unwrap();
        if number != 4 {
            store.end_attempt(&slot, number, &failed).await.unwrap();
        }
    }
    let whole = store.attempts(&slot).await.unwrap();
    assert!(whole.iter().all(|attempt| attempt.damage.is_none()));

    let start_of = |attempt| Key::AttemptStart {
        slot: slot.clone(),
        attempt,
    };
    let end_of = |attempt| Key::AttemptEnd {
        slot: slot.clone(),
        attempt,
    };
    let tear = |key: &Key, content: &[u8]| {
        std::fs::write(bench.file_of(&key.path()), content).unwrap();
    };
    tear(&start_of(1), b"");
    tear(&end_of(2), b"\xff\xfe garbage");
    let half = std::fs::read(bench.file_of(&start_of(4).path())).unwrap();
    tear(&start_of(4), &half[..half.len() / 2]);
    tear(&end_of(5), br#"{"version": 99}"#);
    std::fs::remove_file(bench.file_of(&start_of(3).path())).unwrap();

    let wanted = [slot.clone()].into();
    let looks = [
        store.attempts(&slot).await.unwrap(),
        store.all_attempts(&run("run")).await.unwrap()[&slot].clone(),
        store.attempts_of(&wanted, [].into()).await.unwrap()[&slot].clone(),
        // Records that were read before the damage stay known, except for later additions.
        store
            .attempts_of(&wanted, [(slot.clone(), whole[..1].to_vec())].into())
            .await
            .unwrap()[&slot]
            .clone(),
    ];
    for (look, read) in looks.iter().enumerate() {
        let numbers: Vec<u32> = read.iter().map(|attempt| attempt.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let known = |number: u32| look == 3 && number == 1;
        for attempt in read.iter().filter(|attempt| !known(attempt.number)) {
            let key = match attempt.number {
                1 | 3 | 4 => start_of(attempt.number),
                _ => end_of(attempt.number),
            };
            let damage = attempt.damage.as_deref().unwrap();
            assert!(damage.contains(&key.path()), "{damage}");
        }
        // A readable end counts, even if the start record is lost.
        let ends: Vec<bool> = read.iter().map(|attempt| attempt.end.is_some()).collect();
        assert_eq!(ends, [true, false, true, false, false]);
        // Revisions never decrease: a lost start record counts with the revision of the previous
        // attempt.
        let revisions: Vec<u32> = read.iter().map(|a| a.start.plan_revision).collect();
        assert_eq!(revisions, [0, 0, 0, 0, 1]);
    }

    // A taken number is not given out again, and a foreign record's number is named.
    let next = Store::next_attempt(&slot, looks[0].last().unwrap().number).unwrap();
    let next = store
        .start_attempt_as(&slot, &start(1), next)
        .await
        .unwrap();
    assert_eq!(next.unwrap().number, 6);
    let last = start_of(u32::MAX);
    let file = bench.file_of(&last.path());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, &half).unwrap();
    let read = store.attempts(&slot).await.unwrap();
    let taken = read.last().unwrap().number;
    assert_eq!(taken, u32::MAX);
    let error = Store::next_attempt(&slot, taken).unwrap_err();
    assert_eq!(error.verdict(), Verdict::GiveUp);
    let text = error.to_string();
    assert!(
        text.contains(&last.path()) && text.contains("delete"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_attempts_of_a_folder_are_of_unknown_fate() {
    attempts(Bench::folder().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_attempts_of_s3_are_of_unknown_fate() {
    attempts(Bench::s3().await).await;
}

/// A journal only saves work: a damaged segment is skipped, the others are replayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_segment_of_a_journal_is_left_out() {
    let bench = Bench::folder().await;
    let slot = slot("run", 1, "rollout", 0);
    let attempt = AttemptId {
        number: u32::MAX,
        nonce: "01234567".to_owned(),
    };
    let mut journal = Journal::open(bench.store.clone(), slot.clone(), attempt.clone());
    for content in ["one", "two", "three"] {
        journal.append(content.into()).await.unwrap();
    }
    let file = |segment| {
        let key = Key::JournalSegment {
            slot: slot.clone(),
            attempt: attempt.clone(),
            segment,
        };
        bench.file_of(&key.path())
    };
    // The last number of a stage's own segments.
    std::fs::copy(file(1), file(499_999)).unwrap();
    let replay = || Journal::replay(&bench.store, &slot);
    assert_eq!(replay().await.unwrap(), ["one", "two", "three", "two"]);
    let whole = std::fs::read(file(1)).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        std::fs::write(file(1), flipped).unwrap();
        assert_eq!(
            replay().await.unwrap(),
            ["one", "three", "two"],
            "byte {at}"
        );
    }
}
