//! Local files on their way into a store.

use crate::artifact::Digesting;
use crate::{Error, Key, Result};
use bytes::{Bytes, BytesMut};
use std::path::{Path, PathBuf};
use tokio::io::AsyncReadExt;

/// Local files are read in pieces of this size.
pub(crate) const READ_BYTES: usize = 1 << 20;

/// Files under a folder by their `/`-separated relative name, sorted.
pub(crate) fn files_under(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    let mut folders = vec![(String::new(), root.to_owned())];
    while let Some((prefix, folder)) = folders.pop() {
        let failed = |e| Error::local("list", &folder, e);
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            // Follows links: a Hugging Face cache consists of links.
            let metadata = std::fs::metadata(entry.path())
                .map_err(|e| Error::local("read", entry.path(), e))?;
            if metadata.is_dir() {
                folders.push((format!("{name}/"), entry.path()));
            } else {
                files.push((name, entry.path()));
            }
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Gives a file the name of an object below a store's root, create-only, and makes both the bytes and the
/// name outlast a power failure.
pub(crate) async fn link(root: &Path, path: &Path, key: &Key) -> std::io::Result<()> {
    let (root, from, to) = (root.to_owned(), path.to_owned(), root.join(key.path()));
    let linked = tokio::task::spawn_blocking(move || link_now(&root, &from, &to)).await;
    linked.expect("linking does not panic, and is not cancelled once it runs")
}

fn link_now(root: &Path, from: &Path, to: &Path) -> std::io::Result<()> {
    let parent = to.parent().unwrap_or(root);
    std::fs::create_dir_all(parent)?;
    if !std::fs::symlink_metadata(from)?.is_file() {
        return Err(std::io::Error::other("it is a link itself"));
    }
    std::fs::File::open(from)?.sync_all()?;
    std::fs::hard_link(from, to)?;
    let folders = parent.ancestors();
    for folder in folders.take_while(|folder| folder.starts_with(root)) {
        std::fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// A local file, piece by piece.
pub(crate) struct Pieces<'a> {
    path: &'a Path,
    file: tokio::fs::File,
}

impl<'a> Pieces<'a> {
    pub(crate) async fn of(path: &'a Path) -> Result<Self> {
        let file = tokio::fs::File::open(path).await;
        let file = file.map_err(|e| Error::local("read", path, e))?;
        Ok(Self { path, file })
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        let mut piece = BytesMut::with_capacity(READ_BYTES);
        while piece.len() < READ_BYTES {
            let read = self.file.read_buf(&mut piece).await;
            if read.map_err(|e| Error::local("read", self.path, e))? == 0 {
                break;
            }
        }
        Ok((!piece.is_empty()).then(|| piece.freeze()))
    }
}

/// The digests of a local file.
pub(crate) async fn digests_of(path: &Path) -> Result<Digesting> {
    let (mut pieces, mut digesting) = (Pieces::of(path).await?, Digesting::default());
    while let Some(piece) = pieces.next().await? {
        digesting = digesting.update(piece).await;
    }
    Ok(digesting)
}
