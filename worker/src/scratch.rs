//! The folders of a process on its machine. One is its own, for scratch files: it is removed with the
//! process, and the next process removes what killed ones left behind. The other holds models and
//! optimizer states by digest ([`agentgym_storage::Inputs`]), for all processes of the machine: the last
//! one that closes it removes it, and a killed one leaves it to its successor.

use crate::{Error, Result};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Locked as long as the process lives: a lock that is free marks an orphan.
const LOCK: &str = "in-use";
const PREFIX: &str = "agentgym-run-";
const MODELS: &str = "agentgym-models";
/// Beside the folder of models; every process that uses it holds a shared lock on this file.
const MODELS_LOCK: &str = "agentgym-models.lock";
/// So long after their last use nobody comes back for the models of killed processes.
const MODELS_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Where a worker keeps files.
#[derive(Debug, Clone)]
pub struct Folders {
    /// Scratch files of its process.
    pub scratch: PathBuf,
    /// Models and optimizer states, which the machine's processes share.
    pub models: PathBuf,
}

/// See the module documentation.
pub struct ScratchFolder {
    folders: Folders,
    _lock: File,
    /// `None` where the models are in this process's own folder.
    shared: Option<File>,
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
        let models = parent.join(MODELS);
        let shared = share(&models, &parent.join(MODELS_LOCK));
        let (models, shared) = match shared {
            Ok(users) => (models, Some(users)),
            Err(e) => {
                let models_here = path.join("models");
                tracing::warn!(
                    "{} cannot be shared with other processes ({e}); this one keeps its own models",
                    models.display()
                );
                (models_here, None)
            }
        };
        let folders = Folders {
            scratch: path,
            models,
        };
        Ok(Self {
            folders,
            _lock: lock,
            shared,
        })
    }

    /// Ends the process's use of both; the last one removes the models.
    pub fn close(self) {
        if let Some(users) = &self.shared
            && users.unlock().is_ok()
            && users.try_lock().is_ok()
        {
            remove(&self.folders.models);
        }
    }

    /// Both folders.
    pub fn folders(&self) -> &Folders {
        &self.folders
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        remove(&self.folders.scratch);
    }
}

/// Joins the users of the folder of models, and tries whether it can be written.
fn share(models: &Path, lock: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    let users = options.create(true).truncate(false).write(true);
    let users = users.open(lock)?;
    let is_first = users.try_lock().is_ok();
    // Whoever opens a model marks its lock file, which lies beside it.
    let entries = std::fs::read_dir(models).into_iter().flatten().flatten();
    let used = entries.filter_map(|entry| entry.metadata().ok()?.modified().ok());
    let idle = used.max().and_then(|last| last.elapsed().ok());
    if is_first && idle.is_some_and(|idle| idle > MODELS_KEPT) {
        remove(models);
    }
    users.unlock()?;
    users.lock_shared()?;
    std::fs::create_dir_all(models)?;
    let probe = models.join(format!("probe-{}", agentgym_storage::nonce()));
    std::fs::write(&probe, "")?;
    std::fs::remove_file(&probe)?;
    Ok(users)
}

fn remove(folder: &Path) {
    if let Err(e) = std::fs::remove_dir_all(folder) {
        tracing::debug!("{} stays behind: {e}", folder.display());
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

/// A folder that is removed at the end of the attempt.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
}

impl Scratch {
    pub(crate) fn new(scratch_dir: &Path, name: &str) -> Result<Self> {
        let path = scratch_dir.join("attempts").join(name);
        std::fs::create_dir_all(&path).map_err(|source| Error::Io {
            what: format!("cannot make the folder {}", path.display()),
            source,
        })?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.path) {
            tracing::debug!("{} stays behind: {e}", self.path.display());
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
        assert!(
            living.folders().scratch.is_dir()
                && next.folders().scratch.is_dir()
                && foreign.is_dir()
        );
        let path = next.folders().scratch.clone();
        drop(next);
        assert!(!path.exists());
    }

    #[test]
    fn the_last_process_removes_the_models_and_a_killed_one_leaves_them() {
        let parent = tempfile::tempdir().unwrap();
        let first = ScratchFolder::new(parent.path()).unwrap();
        let model = first.folders().models.join("a model");
        std::fs::write(&model, "").unwrap();
        let second = ScratchFolder::new(parent.path()).unwrap();
        assert_eq!(first.folders().models, second.folders().models);
        first.close();
        assert!(model.exists(), "the second one uses it");
        // As after a kill: nothing was closed.
        drop(second);
        let third = ScratchFolder::new(parent.path()).unwrap();
        assert!(model.exists());
        third.close();
        assert!(!model.exists());
    }

    #[test]
    fn models_of_a_killed_process_go_after_a_day() {
        let parent = tempfile::tempdir().unwrap();
        let models = parent.path().join(MODELS);
        std::fs::create_dir_all(&models).unwrap();
        let old = File::create(models.join("old")).unwrap();
        let long_ago = std::time::SystemTime::now() - 2 * MODELS_KEPT;
        old.set_modified(long_ago).unwrap();
        // A process that lived for longer, and used one of them just now.
        let lock = File::create(parent.path().join(MODELS_LOCK)).unwrap();
        lock.set_modified(long_ago).unwrap();
        let new = models.join("new");
        std::fs::write(&new, "").unwrap();
        drop(ScratchFolder::new(parent.path()).unwrap());
        assert!(new.exists());
        std::fs::remove_file(&new).unwrap();
        let next = ScratchFolder::new(parent.path()).unwrap();
        assert_eq!(
            std::fs::read_dir(&next.folders().models).unwrap().count(),
            0
        );
    }

    #[test]
    fn a_process_keeps_its_own_models_where_none_can_be_shared() {
        let parent = tempfile::tempdir().unwrap();
        std::fs::write(parent.path().join(MODELS), "no folder").unwrap();
        let alone = ScratchFolder::new(parent.path()).unwrap();
        let own = alone.folders();
        assert!(own.models.starts_with(&own.scratch));
    }
}
