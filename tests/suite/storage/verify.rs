//! Verification on the kinds of store that keep files: every chunk and the whole of a large
//! artifact are checked, removal by retention is no fault, and memory does not grow with sizes.

use super::{Bench, manifest, slot};
use agentgym_storage::{
    Artifact, AttemptStart, BytesRead, CHUNK_BYTES, Digest, Fault, Finding, Manifest, Outputs,
    PartKey, Planned, Store, Verified,
};
use bytes::Bytes;

async fn verify(store: &Store) -> (Verified, Vec<Finding>) {
    let mut findings = Vec::new();
    let verified = store
        .verify(
            &super::run("run"),
            &mut |_: &PartKey| Planned::Made,
            &BytesRead::default(),
            &mut |finding| findings.push(finding),
        )
        .await
        .unwrap();
    (verified, findings)
}

async fn commit(store: &Store, slot: &PartKey, pieces: &[Bytes]) -> Manifest {
    let start = AttemptStart {
        worker: "test".into(),
        started_unix_s: 0,
        code_version: "test".into(),
        plan_revision: 0,
        ..AttemptStart::default()
    };
    let attempt = store.start_attempt(slot, &start).await.unwrap();
    let mut outputs = Outputs::new(store.clone(), slot.clone(), attempt.clone());
    let mut writer = outputs
        .create("policy/model.safetensors", "t")
        .await
        .unwrap();
    for piece in pieces {
        writer.write(piece.clone()).await.unwrap();
    }
    writer.finish().await.unwrap();
    outputs.bytes("empty", "t", Bytes::new()).await.unwrap();
    let manifest = manifest(slot, &attempt, outputs.into_artifacts());
    store.commit(&manifest).await.unwrap();
    manifest
}

async fn all_of(bench: Bench) {
    let store = &bench.store;
    let large = Bytes::from(vec![7; CHUNK_BYTES as usize]);
    let first = commit(store, &slot("run", 1, "update", 0), &["small".into()]).await;
    let second = commit(store, &slot("run", 2, "update", 0), &[large, "rest".into()]).await;
    let (verified, findings) = verify(store).await;
    assert_eq!(findings, []);
    assert_eq!((verified.commits, verified.artifacts), (2, 4));
    assert_eq!(verified.bytes, CHUNK_BYTES + 4 + 5);
    assert_eq!(verified.attempt_records, 2);

    // The digest of the whole artifact, which readers of chunks do not check: a changed manifest of
    // version 1 shows no trace of the change in itself.
    let key = agentgym_storage::Key::Commit(second.slot()).path();
    let path = bench.file_of(&key);
    let stored = std::fs::read(&path).unwrap();
    let swapped = |artifact: Artifact| Artifact {
        digest: match artifact.size > 0 {
            true => Digest::of(b"another"),
            false => artifact.digest,
        },
        ..artifact
    };
    let changed = Manifest {
        version: 1,
        outputs: second.outputs.iter().cloned().map(swapped).collect(),
        ..second.clone()
    };
    std::fs::write(&path, changed.to_bytes().unwrap()).unwrap();
    let (_, findings) = verify(store).await;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].fault, Fault::Damaged);
    assert!(
        findings[0].key.ends_with("policy/model.safetensors"),
        "{findings:?}"
    );
    std::fs::write(&path, stored).unwrap();

    // One byte of the second chunk is flipped; then retention removes the damaged file.
    let file = bench.file_of(
        &second
            .output("policy/model.safetensors")
            .unwrap()
            .key
            .path(),
    );
    let mut content = std::fs::read(&file).unwrap();
    content[CHUNK_BYTES as usize + 1] ^= 1;
    std::fs::write(&file, content).unwrap();
    let (_, findings) = verify(store).await;
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].remedy.contains(&key), "{findings:?}");
    let run = super::run("run");
    let keep = |manifest: &Manifest, _: &Artifact| manifest.iteration == 1;
    store.expire(&run, 3, keep, &[first, second]).await.unwrap();
    let (verified, findings) = verify(store).await;
    assert_eq!(findings, []);
    assert_eq!((verified.removed, verified.tombstones), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_verified_to_the_byte() {
    all_of(Bench::folder().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_is_verified_to_the_byte() {
    all_of(Bench::s3().await).await;
}
