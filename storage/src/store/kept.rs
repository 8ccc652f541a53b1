//! Commits of a remote store in a local folder, for commands that read every commit of a run. A
//! commit never changes; it is found again by the entity tag with which a listing names it, which an
//! object of the same name from a run made anew does not have.

use bytes::Bytes;
use object_store::ObjectMeta;
use object_store::path::Path as ObjectPath;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Bytes of a digest in front of a kept object.
const DIGEST_BYTES: usize = blake3::OUT_LEN;

pub(super) struct KeptCommits {
    folder: PathBuf,
    store: String,
    /// Tags of the commits that were listed.
    tags: Mutex<HashMap<ObjectPath, String>>,
}

impl KeptCommits {
    pub(super) fn new(folder: PathBuf, store: &str) -> Self {
        Self {
            folder,
            store: store.to_owned(),
            tags: Mutex::default(),
        }
    }

    /// Remembers the tag of an object, if it is a commit.
    pub(super) fn listed(&self, meta: &ObjectMeta) {
        let Some(tag) = &meta.e_tag else { return };
        let is_commit = meta.location.parts().nth(2);
        if is_commit.is_some_and(|part| part.as_ref() == "commits") {
            let tag = format!("{tag} {}", meta.size);
            self.tags().insert(meta.location.clone(), tag);
        }
    }

    /// The object as it was listed, if it is here and whole.
    pub(super) fn get(&self, path: &ObjectPath) -> Option<Bytes> {
        let kept = Bytes::from(std::fs::read(self.file(path)?).ok()?);
        let (digest, content) = kept.split_at_checked(DIGEST_BYTES)?;
        let is_whole = blake3::hash(content).as_bytes().as_slice() == digest;
        is_whole.then(|| kept.slice(DIGEST_BYTES..))
    }

    /// Keeps an object, if it was listed. A folder that cannot be written only costs time.
    pub(super) fn keep(&self, path: &ObjectPath, content: &Bytes) {
        let Some(file) = self.file(path) else { return };
        let mut whole = blake3::hash(content).as_bytes().to_vec();
        whole.extend_from_slice(content);
        // A reader sees a whole file or none; two writers write the same.
        let draft = file.with_extension(format!("{}", std::process::id()));
        let kept = std::fs::create_dir_all(&self.folder)
            .and_then(|()| std::fs::write(&draft, whole))
            .and_then(|()| std::fs::rename(&draft, &file));
        if kept.is_err() {
            let _ = std::fs::remove_file(&draft);
        }
    }

    /// Drops an object that was damaged when it was kept.
    pub(super) fn forget(&self, path: &ObjectPath) {
        if let Some(file) = self.file(path) {
            let _ = std::fs::remove_file(file);
        }
    }

    fn file(&self, path: &ObjectPath) -> Option<PathBuf> {
        let tag = self.tags().get(path)?.clone();
        let name = blake3::hash(format!("{}\n{path}\n{tag}", self.store).as_bytes());
        Some(self.folder.join(name.to_hex().as_str()))
    }

    fn tags(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectPath, String>> {
        // Each use is one call, so the map is whole even after a panic elsewhere.
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::slot;
    use crate::{AttemptId, Manifest, Store};
    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt};
    use std::sync::Arc;

    #[tokio::test]
    async fn a_commit_is_read_once_and_never_taken_for_another() {
        let objects: Arc<InMemory> = Arc::default();
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let store = Store::over(Arc::clone(&objects) as Arc<dyn ObjectStore>, "far away");
            store.keeping_commits(folder.path())
        };
        // The manifest, and how many objects were read.
        let look = async || {
            let store = open();
            assert_eq!(store.all_commits(&slot().run).await.unwrap(), [slot()]);
            let manifest = store.manifest(&slot()).await.unwrap().unwrap();
            (manifest.seed, store.requests().gets)
        };
        let commit = async |seed| {
            let manifest = Manifest {
                seed,
                ..Manifest::new(slot(), AttemptId::new(1), vec![])
            };
            open().commit(&manifest).await.unwrap();
        };
        commit(7).await;
        assert_eq!(look().await, (7, 1), "it is not here yet");
        assert_eq!(look().await, (7, 0));
        // Without a listing nothing says which object it is.
        assert_eq!(open().manifest(&slot()).await.unwrap().unwrap().seed, 7);

        let file = folder.path().read_dir().unwrap().next().unwrap();
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(look().await, (7, 1), "what is here is damaged");
        assert_eq!(look().await, (7, 0), "and was mended");

        // The run is deleted and made anew under the same name.
        let path = object_store::path::Path::from(crate::Key::Commit(slot()).path());
        objects.delete(&path).await.unwrap();
        commit(8).await;
        assert_eq!(look().await, (8, 1));
    }
}
