//! What is written after the commit that names it.

use crate::local_files::link;
use crate::{Artifact, Error, Key, Outputs, Result, Store};
use std::io::ErrorKind;
use std::path::Path;

impl Store {
    /// Whether all of these artifacts are there, judged by their sizes.
    ///
    /// # Errors
    /// The store fails.
    pub async fn holds(&self, artifacts: &[&Artifact]) -> Result<bool> {
        for artifact in artifacts {
            match self.size(&artifact.key).await {
                Ok(size) if size == artifact.stored_size() => {}
                Ok(_) | Err(Error::NotFound { .. }) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Writes an artifact of [`Outputs::folder_after_commit`] from a local file of these bytes, which
    /// stays. Written already, nothing happens.
    ///
    /// # Errors
    /// The file cannot be read, or the store fails.
    pub async fn deliver(&self, artifact: &Artifact, path: &Path) -> Result<()> {
        let Key::File { slot, attempt, .. } = &artifact.key else {
            return Ok(());
        };
        if let Some(root) = self.local_root() {
            match link(root, path, &artifact.key).await {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => {
                    tracing::debug!("{} is copied: {e}", artifact.key);
                }
                linked => {
                    if linked.is_ok() {
                        self.count_put(artifact.size as usize);
                    }
                    return Ok(());
                }
            }
        }
        let mut outputs = Outputs::after_commit(self.clone(), slot.clone(), attempt.clone());
        match outputs.file(&artifact.name, &artifact.kind, path).await {
            Err(Error::Conflict { .. }) => Ok(()),
            written => written.map(|_| ()),
        }
    }
}
