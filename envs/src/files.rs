//! Opening files that an address names. Only regular files are opened: a read from a pipe may block
//! for ever, and a device may have no end.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Limit for lists and question files, which are read into memory.
const BYTES_MAX: u64 = 1 << 30;

/// Opens a regular file; the error text says what is wrong.
pub fn regular(path: &Path) -> Result<File, String> {
    let found = std::fs::metadata(path).map_err(|error| error.to_string())?;
    match found.is_file() {
        true => File::open(path).map_err(|error| error.to_string()),
        false => Err("is no regular file; give one".to_owned()),
    }
}

/// Reads a whole text file.
pub fn read_text(path: &Path) -> Result<String, String> {
    read_text_within(path, BYTES_MAX)
}

/// [`read_text`] of at most `bytes_max` bytes.
pub fn read_text_within(path: &Path, bytes_max: u64) -> Result<String, String> {
    let mut text = String::new();
    let mut file = regular(path)?.take(bytes_max + 1);
    file.read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    match text.len() as u64 > bytes_max {
        false => Ok(text),
        true => Err(format!(
            "has more than {bytes_max} bytes; give a shorter one"
        )),
    }
}
