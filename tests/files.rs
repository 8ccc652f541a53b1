//! Lists the files of a store, a crate or the configs, for tests that inspect or damage them.

use std::path::{Path, PathBuf};

/// All files below a folder, sorted.
///
/// # Panics
/// If a folder cannot be read.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("a readable folder").path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path),
            }
        }
    }
    found.sort();
    found
}
