//! Files of a model's folder, which are untrusted: only regular files are opened, since a pipe may
//! block and a device may never end, and what is read whole has a size limit.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::{Error, Result};

/// Size limit of JSON files and chat templates; the largest tokenizers have about 35 MB.
const BYTES_MAX: u64 = 256 << 20;

/// Opens a regular file.
pub(crate) fn open(path: &Path) -> Result<File> {
    let found = std::fs::metadata(path).map_err(Error::io(path))?;
    match found.is_file() {
        true => File::open(path).map_err(Error::io(path)),
        false => Err(Error::Unsupported {
            path: path.to_owned(),
            message: "is no regular file, as those of a model's folder are".to_owned(),
        }),
    }
}

/// Reads a file whole.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = open(path)?.take(BYTES_MAX + 1);
    file.read_to_end(&mut bytes).map_err(Error::io(path))?;
    match bytes.len() as u64 > BYTES_MAX {
        false => Ok(bytes),
        true => Err(Error::Unsupported {
            path: path.to_owned(),
            message: format!("has more than {BYTES_MAX} bytes, which no such file has"),
        }),
    }
}

/// The same; `None` where the file does not exist.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
