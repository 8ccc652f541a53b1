//! Files that a config names. Only regular files are opened, because a pipe may never answer and a
//! device may never end; each kind of file has a size limit.

use crate::{Error, Result};
use std::fs::Metadata;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Limit of files of item ids: two million rows.
pub(crate) const ITEMS_BYTES_MAX: u64 = 64 << 20;
/// Limit of trajectory files, which are read at once. AgentTraj-L has a few hundred megabytes.
pub const TRAJECTORIES_BYTES_MAX: u64 = 4 << 30;

/// What the programs ship (configs, models, prompts) by its name there, where the current folder has nothing of that
/// name: `share/agentgym-rl` beside the `bin` of installed programs.
pub fn shipped(path: &Path) -> PathBuf {
    let beside = || {
        let program = std::env::current_exe().ok()?;
        let prefix = program.parent()?.parent()?;
        Some(prefix.join("share/agentgym-rl").join(path))
    };
    let found = match path.is_absolute() || path.exists() {
        true => None,
        false => beside().filter(|path| path.exists()),
    };
    found.unwrap_or_else(|| path.to_owned())
}

/// Checks a file without opening it.
///
/// # Errors
/// Names the key if the file does not exist, is not a regular file, or is too large.
pub fn check(key: &str, path: &Path, bytes_max: u64) -> Result<()> {
    let found = std::fs::metadata(path).map_err(|e| unread(key, path, &e))?;
    regular(&found, bytes_max).map_err(|why| value(key, path, &why))
}

/// Reads a whole file.
///
/// # Errors
/// As [`check`].
pub fn read(key: &str, path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    check(key, path, bytes_max)?;
    let file = std::fs::File::open(path).map_err(|e| unread(key, path, &e))?;
    let mut bytes = Vec::new();
    // The file may have grown since the check.
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| unread(key, path, &e))?;
    match bytes.len() as u64 > bytes_max {
        true => Err(value(
            key,
            path,
            &format!(
                "has more than {bytes_max} bytes, which such a file may have; give a shorter one"
            ),
        )),
        false => Ok(bytes),
    }
}

/// Reads a whole text file.
///
/// # Errors
/// As [`check`], or bytes that are not UTF-8.
pub fn read_text(key: &str, path: &Path, bytes_max: u64) -> Result<String> {
    String::from_utf8(read(key, path, bytes_max)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        value(
            key,
            path,
            &format!("is not UTF-8 (byte {at}); save the file as UTF-8"),
        )
    })
}

fn regular(found: &Metadata, bytes_max: u64) -> Result<(), String> {
    if found.is_dir() {
        return Err("is a folder; give a file".to_owned());
    }
    if !found.is_file() {
        return Err("is a device, a pipe or a socket; give a regular file".to_owned());
    }
    match found.len() > bytes_max {
        true => Err(format!(
            "has {} bytes; such a file may have at most {bytes_max}, give a shorter one",
            found.len()
        )),
        false => Ok(()),
    }
}

fn value(key: &str, path: &Path, why: &str) -> Error {
    Error::value(key, format!("{} {why}", path.display()))
}

fn unread(key: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::value(
        key,
        format!(
            "cannot read {}: {error}. Check the path; relative paths start at the current folder",
            path.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_their_length() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, b"12345").unwrap();
        assert_eq!(read("k", &file, 5).unwrap(), b"12345");
        let fifo = dir.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        for (path, bytes_max, why) in [
            (file.as_path(), 4, "has 5 bytes"),
            (dir.path(), 9, "is a folder"),
            (&fifo, 9, "a pipe"),
            (Path::new("/dev/zero"), 9, "is a device"),
            (Path::new("/nowhere/at/all"), 9, "cannot read"),
        ] {
            for result in [
                check("k", path, bytes_max),
                read("k", path, bytes_max).map(drop),
            ] {
                let said = result.unwrap_err().to_string();
                let named = said.contains(&path.display().to_string());
                assert!(
                    said.contains(why) && said.contains("`k`") && named,
                    "{said}"
                );
            }
        }
    }
}
