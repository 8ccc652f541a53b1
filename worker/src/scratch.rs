//! This process's folder for downloads and scratch files. It is removed with the process. The next
//! process to start removes what killed processes left behind, so `kill -9` does not leak disk
//! space permanently.

use crate::{Error, Result};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// Locked as long as the process lives: a lock that is free marks an orphan.
const LOCK: &str = "in-use";
const PREFIX: &str = "agentgym-run-";

/// See the module documentation.
pub struct ScratchFolder {
    path: PathBuf,
    _lock: File,
}

impl ScratchFolder {
    /// Creates a folder below `parent`, and removes orphans there.
    ///
    /// # Errors
    /// The folder or its lock file cannot be created.
    pub fn new(parent: &Path) -> Result<Self> {
        let failed = |path: &Path| {
            let what = format!("cannot write in {}", path.display());
            move |source| Error::Io { what, source }
        };
        std::fs::create_dir_all(parent).map_err(failed(parent))?;
        remove_orphans(parent);
        let path = parent.join(format!("{PREFIX}{}", agentgym_storage::nonce()));
        std::fs::create_dir(&path).map_err(failed(&path))?;
        let lock = File::create(path.join(LOCK)).map_err(failed(&path))?;
        // Some network file systems have no locks; orphans then remain.
        if let Err(e) = lock.try_lock() {
            tracing::debug!("{} cannot be locked: {e}", path.display());
        }
        Ok(Self { path, _lock: lock })
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.path) {
            tracing::debug!("{} stays behind: {e}", self.path.display());
        }
    }
}

fn remove_orphans(parent: &Path) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|e| e.file_name().to_string_lossy().starts_with(PREFIX)) {
        // A folder without the lock file is being created, or belongs to another program.
        let Ok(lock) = File::open(entry.path().join(LOCK)) else {
            continue;
        };
        match lock.try_lock() {
            Ok(()) => {
                let _ = std::fs::remove_dir_all(entry.path());
            }
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_dead_are_removed_and_those_of_the_living_stay() {
        let parent = tempfile::tempdir().unwrap();
        let living = ScratchFolder::new(parent.path()).unwrap();
        let dead = parent.path().join("agentgym-run-dead");
        let foreign = parent.path().join("agentgym-run-without-a-lock");
        std::fs::create_dir_all(dead.join("below")).unwrap();
        std::fs::write(dead.join(LOCK), "").unwrap();
        std::fs::create_dir(&foreign).unwrap();
        let next = ScratchFolder::new(parent.path()).unwrap();
        assert!(!dead.exists(), "an orphan stays");
        assert!(living.path().is_dir() && next.path().is_dir() && foreign.is_dir());
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
