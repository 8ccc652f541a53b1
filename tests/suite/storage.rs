//! One conformance suite for every kind of store, and tests of stores that violate the guarantees.

mod conformance;
mod damage;
mod large;
mod servers;
mod verify;

use agentgym_storage::{AttemptId, Manifest, PartKey, RunId, Store};
use agentgym_tests::s3::S3Server;
use std::path::{Path, PathBuf};

/// A store, and the server or folder that holds the bytes of a key, if they are files.
pub(crate) struct Bench {
    pub(crate) store: Store,
    pub(crate) server: Option<S3Server>,
    _dir: tempfile::TempDir,
}

impl Bench {
    pub(crate) async fn memory() -> Self {
        Self::with("memory:", None, tempfile::tempdir().unwrap()).await
    }

    pub(crate) async fn folder() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("not/there/yet").display().to_string();
        Self::with(&url, None, dir).await
    }

    pub(crate) async fn s3() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = S3Server::start(dir.path()).await;
        Self::with(&server.url.clone(), Some(server), dir).await
    }

    async fn with(url: &str, server: Option<S3Server>, dir: tempfile::TempDir) -> Self {
        let options = server.as_ref().map(S3Server::env);
        let store = Store::open_with(url, options.as_ref().map_or(&[], |o| &o[..]))
            .await
            .unwrap();
        Self {
            store,
            server,
            _dir: dir,
        }
    }

    pub(crate) fn file_of(&self, key: &str) -> PathBuf {
        match (&self.server, self.store.local_root()) {
            (Some(server), _) => server.file_of(key),
            (None, Some(root)) => root.join(key),
            (None, None) => panic!("memory has no files"),
        }
    }

    pub(crate) fn cache(&self) -> &Path {
        self._dir.path()
    }
}

pub(crate) fn run(id: &str) -> RunId {
    id.parse().unwrap()
}

pub(crate) fn slot(run_id: &str, iteration: u32, stage: &str, part: u32) -> PartKey {
    PartKey {
        run: run(run_id),
        iteration,
        stage: stage.to_owned(),
        part,
    }
}

/// A manifest without inputs.
pub(crate) fn manifest(
    slot: &PartKey,
    attempt: &AttemptId,
    outputs: Vec<agentgym_storage::Artifact>,
) -> Manifest {
    Manifest {
        seed: 1,
        numeric_class: "test".to_owned(),
        code_version: "0".to_owned(),
        ..Manifest::new(slot.clone(), attempt.clone(), outputs)
    }
}
