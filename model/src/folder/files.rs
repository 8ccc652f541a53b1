//! Files of a model's folder, which are untrusted: only regular files are opened, since a pipe may
//! block and a device may never end, and what is read whole has a size limit.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

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

/// Weights in formats that are not read here, by how their files' names begin and end.
const OTHER_FORMATS: [(&str, &str, &str); 3] = [
    ("", ".gguf", "GGUF"),
    ("pytorch_model", ".bin", "PyTorch's pickles"),
    ("consolidated", ".pth", "PyTorch's pickles"),
];

/// What to say of a folder that has weights in another format alone.
pub(crate) fn other_format(dir: &Path) -> Option<String> {
    let entries = std::fs::read_dir(dir).ok()?.flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names.iter().find_map(|name| {
        let is = |start: &str, end: &str| name.starts_with(start) && name.ends_with(end);
        let (.., format) = (OTHER_FORMATS.iter()).find(|(start, end, _)| is(start, end))?;
        Some(format!(
            "holds {name}, weights in the format {format}, which is not read; {}",
            match *format {
                "GGUF" => import_line(&dir.join(name)),
                _ => "give a folder with config.json and model.safetensors".to_owned(),
            }
        ))
    })
}

/// The GGUF file that a path names, itself or as one in its folder.
pub fn gguf_at(path: &Path) -> Option<PathBuf> {
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|end| end == "gguf");
    if !path.is_dir() {
        return Some(path.to_owned()).filter(|path| is_gguf(path) && path.exists());
    }
    let entries = std::fs::read_dir(path).ok()?.flatten();
    entries.map(|entry| entry.path()).filter(is_gguf).min()
}

/// What to say of a GGUF file where a model's folder is wanted.
pub fn import_line(file: &Path) -> String {
    let quoted = |path: &Path| {
        let word = path.display().to_string();
        let is_plain = |c: char| c.is_alphanumeric() || "/:.-_=@%+,".contains(c);
        match word.chars().all(is_plain) {
            true => word,
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    };
    let to = Path::new(file.file_stem().unwrap_or_default());
    format!(
        "`agentgym-submit import {} --to {}` makes a model's folder of it",
        quoted(file),
        quoted(to)
    )
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
