//! Damaged or malicious manifests, records and keys: anyone who can write to a store can write
//! these. Readers either refuse them or read them; they neither panic nor allocate without bound.

use crate::mutations::survives;
use crate::{AttemptEnd, AttemptOutcome, AttemptStart, Key, Manifest, PartKey, Store};
use bytes::Bytes;

fn testdata() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().contains("manifest"));
    paths.sort();
    assert!(!paths.is_empty());
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

#[test]
fn manifests() {
    survives("manifest", &testdata(), 6000, 4 << 20, |bytes| {
        let Ok(manifest) = Manifest::from_bytes(bytes) else {
            return;
        };
        let slot = manifest.slot();
        for output in &manifest.outputs {
            assert!(manifest.output(&output.name).is_ok());
            assert!(!output.key.path().contains("/../"), "{}", output.key);
        }
        assert!(manifest.output("nothing of this name").is_err());
        let commit = Key::Commit(slot).path();
        let written = manifest.to_bytes().expect("what was read is short enough");
        assert!(written.len() < (16 << 20) && commit.starts_with("runs/"));
    });
}

#[test]
fn keys() {
    let corpus = [
        "runs/r/plan/0000.json",
        "runs/r/commits/00000001/update/000000.json",
        "runs/r/attempts/00000001/rollout/000003/0002/start.json",
        "runs/r/attempts/00000001/rollout/000003/0002/end.json",
        "runs/r/files/00000001/update/000000/a0001-0000abcd/policy/config.json",
        "runs/r/journal/00000001/rollout/000000/a0001-0000abcd/000004.bin",
        "runs/r/pins/other.json",
        "runs/r/expired/00000007.json",
    ]
    .map(|path| path.as_bytes().to_vec());
    for path in &corpus {
        let text = std::str::from_utf8(path).unwrap();
        assert_eq!(Key::parse(text).unwrap().path(), text);
    }
    survives("key", &corpus, 6000, 1 << 20, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return;
        };
        if let Ok(key) = Key::parse(text) {
            assert_eq!(key.path(), text);
            assert!(
                !text
                    .split('/')
                    .any(|piece| piece == ".." || piece.is_empty())
            );
        }
    });
}

/// Whatever an attempt's records contain, the attempt counts as started and reading it is no error.
#[test]
fn attempt_records() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let store = runtime.block_on(Store::open("memory:")).unwrap();
    let slot = |part| PartKey {
        run: "r".parse().unwrap(),
        iteration: 1,
        stage: "rollout".to_owned(),
        part,
    };
    let keys = |part| {
        let (slot, attempt) = (slot(part), 1);
        let start = Key::AttemptStart {
            slot: slot.clone(),
            attempt,
        };
        [start, Key::AttemptEnd { slot, attempt }]
    };
    let corpus: Vec<Vec<u8>> = runtime.block_on(async {
        let start = AttemptStart {
            worker: "one".to_owned(),
            started_unix_s: 1_700_000_000,
            code_version: "0.1.0".to_owned(),
            plan_revision: 2,
            ..AttemptStart::default()
        };
        store.start_attempt(&slot(0), &start).await.unwrap();
        let end = AttemptEnd {
            outcome: AttemptOutcome::Failed,
            message: "the disk is full".to_owned(),
            wall_s: 1.5,
            stats: serde_json::from_str(r#"{"tokens": 12, "rate": 0.5}"#).unwrap(),
            excused: true,
            for_good: false,
        };
        store.end_attempt(&slot(0), 1, &end).await.unwrap();
        let [start, end] = keys(0);
        vec![
            store.get(&start).await.unwrap().to_vec(),
            store.get(&end).await.unwrap().to_vec(),
        ]
    });
    let (mut part, mut whole) = (0, 0);
    survives("attempt record", &corpus, 6000, 4 << 20, |bytes| {
        part += 1;
        // The start or the end is damaged, or one is stored in the other's place.
        let contents = match part % 2 == 0 {
            true => [bytes, &corpus[1]],
            false => [&corpus[0], bytes],
        };
        for (key, content) in keys(part).iter().zip(contents) {
            let content = Bytes::copy_from_slice(content);
            runtime.block_on(store.create(key, content)).unwrap();
        }
        let read = runtime.block_on(store.attempts(&slot(part))).unwrap();
        let [record] = &read[..] else {
            panic!("{read:?}");
        };
        assert_eq!(record.number, 1);
        whole += usize::from(record.damage.is_none());
    });
    assert!(whole > 0 && whole < part as usize / 2, "{whole} of {part}");
}
