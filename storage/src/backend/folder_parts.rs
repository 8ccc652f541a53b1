//! A large object in a folder, written part by part. Each part has its place, so one that met a full
//! disk is written again; the upload of `object_store` would begin the whole object again.

use async_trait::async_trait;
use object_store::local::LocalFileSystem;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path as ObjectPath;
use object_store::{Error, MultipartId, PutPayload, PutResult, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct FolderParts {
    pub(super) files: Arc<LocalFileSystem>,
    pub(super) root: PathBuf,
    /// Bytes of every part but the last.
    pub(super) part_bytes: usize,
}

impl FolderParts {
    /// Runs `work` on the draft of an object and on its final file.
    async fn on<T: Send + 'static>(
        &self,
        path: &ObjectPath,
        work: impl FnOnce(&Path, &Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let whole = self.files.path_to_filesystem(path)?;
        let path = path.to_string();
        // A listing leaves out names that end in `#` and a number.
        let mut draft = whole.clone().into_os_string();
        draft.push("#1");
        let done = tokio::task::spawn_blocking(move || work(draft.as_ref(), &whole)).await?;
        done.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::NotFound {
                path,
                source: error.into(),
            },
            _ => Error::Generic {
                store: "folder",
                source: error.into(),
            },
        })
    }
}

#[async_trait]
impl MultipartStore for FolderParts {
    async fn create_multipart(&self, path: &ObjectPath) -> Result<MultipartId> {
        self.on(path, |draft, whole| {
            fs::create_dir_all(whole.parent().unwrap_or(whole))?;
            File::create(draft)?;
            Ok(MultipartId::default())
        })
        .await
    }

    async fn put_part(
        &self,
        path: &ObjectPath,
        _id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let begin = (part_idx * self.part_bytes) as u64;
        self.on(path, move |draft, _| {
            let mut file = OpenOptions::new().write(true).open(draft)?;
            file.seek(SeekFrom::Start(begin))?;
            data.iter().try_for_each(|piece| file.write_all(piece))?;
            Ok(PartId {
                content_id: String::new(),
            })
        })
        .await
    }

    async fn complete_multipart(
        &self,
        path: &ObjectPath,
        _id: &MultipartId,
        _parts: Vec<PartId>,
    ) -> Result<PutResult> {
        let root = self.root.clone();
        self.on(path, move |draft, whole| {
            File::open(draft)?.sync_all()?;
            fs::rename(draft, whole)?;
            // The name, and the folders that are new, must survive a power failure too.
            let folders = whole.ancestors().skip(1);
            for folder in folders.take_while(|folder| folder.starts_with(&root)) {
                File::open(folder)?.sync_all()?;
            }
            Ok(PutResult {
                e_tag: None,
                version: None,
                extensions: Default::default(),
            })
        })
        .await
    }

    async fn abort_multipart(&self, path: &ObjectPath, _id: &MultipartId) -> Result<()> {
        self.on(path, |draft, _| fs::remove_file(draft)).await
    }
}
