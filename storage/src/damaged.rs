//! Manifests and keys that are damaged or meant to do harm: whoever can write to a store can
//! write these. Readers refuse them or read them, and do nothing else.

use crate::mutations::survives;
use crate::{Key, Manifest};

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
