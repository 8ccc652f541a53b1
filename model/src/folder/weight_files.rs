//! The weight files of a model's folder, `model.safetensors` or the shards that
//! `model.safetensors.index.json` names: opened, and checked against the index and each other, so
//! that a folder of which a part is missing is refused with the file named.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::folder::files;
use crate::folder::names::{HEAD, INDEX, MODEL};
use crate::folder::parameter::check_type;
use crate::folder::tensor_file::TensorFile;
use crate::{Error, Result};

/// The open weight files of a folder, sorted by name.
pub(crate) struct WeightFiles {
    files: Vec<TensorFile>,
    /// The file of each tensor.
    places: BTreeMap<String, usize>,
}

/// What the headers of a folder's weight files say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsOnDisk {
    /// Names of the weight files.
    pub files: Vec<String>,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Numbers of all tensors, by their type as `safetensors` names it.
    pub numbers: BTreeMap<String, u64>,
}

impl WeightsOnDisk {
    /// Reads the headers in a model's folder.
    ///
    /// # Errors
    /// A file that is missing or damaged, or files that contradict their index.
    pub fn of(dir: &Path) -> Result<Self> {
        let all = WeightFiles::open(dir)?;
        let (mut bytes, mut numbers) = (0, BTreeMap::new());
        for (name, &at) in &all.places {
            let file = &all.files[at];
            if let Some((dtype, shape)) = file.info(name) {
                *numbers.entry(format!("{dtype:?}")).or_default() +=
                    shape.iter().product::<usize>() as u64;
                bytes += file.bytes_of(name) as u64;
            }
        }
        Ok(Self {
            files: all.files.iter().map(|f| name_of(f.path())).collect(),
            bytes,
            numbers,
        })
    }
}

impl WeightFiles {
    /// Opens all of them and reads their headers.
    pub(crate) fn open(dir: &Path) -> Result<Self> {
        let index = dir.join(INDEX);
        let map = match index.exists() {
            true => weight_map(&index)?,
            false => BTreeMap::new(),
        };
        let mut names: Vec<&str> = map.values().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let mut files = Vec::new();
        if names.is_empty() {
            let path = dir.join(MODEL);
            if !path.exists()
                && let Some(message) = files::other_format(dir)
            {
                let path = dir.to_owned();
                return Err(Error::Unsupported { path, message });
            }
            files.push(TensorFile::open(&path)?);
        }
        for name in names {
            let path = dir.join(name);
            if !path.exists() {
                return Err(Error::Unsupported {
                    path,
                    message: format!("is missing; {INDEX} names it: copy it into the folder"),
                });
            }
            files.push(TensorFile::open(&path)?);
        }
        let mut places = BTreeMap::new();
        for (at, file) in files.iter().enumerate() {
            for name in file.names() {
                let bad = |message: String| Error::Tensor {
                    path: file.path().to_owned(),
                    tensor: name.clone(),
                    message,
                };
                if let Some(&other) = places.get(&name) {
                    let other: &TensorFile = &files[other];
                    return Err(bad(format!(
                        "is in {} too; a tensor stands in one file: copy the folder again",
                        name_of(other.path())
                    )));
                }
                places.insert(name, at);
            }
        }
        let all = Self { files, places };
        all.check_index(&index, &map)?;
        Ok(all)
    }

    /// Refuses tensors of types that are not read.
    pub(crate) fn check_types(&self) -> Result<()> {
        for (tensor, &at) in &self.places {
            let file = &self.files[at];
            let Some((dtype, _)) = file.info(tensor) else {
                continue;
            };
            check_type(dtype).map_err(|message| Error::Tensor {
                path: file.path().to_owned(),
                tensor: tensor.clone(),
                message,
            })?;
        }
        Ok(())
    }

    /// Refuses an index that names a tensor which is not where it says.
    fn check_index(&self, index: &Path, map: &BTreeMap<String, String>) -> Result<()> {
        for (tensor, named) in map {
            let found = self.places.get(tensor).map(|&at| self.files[at].path());
            let found = found.map(name_of);
            // Other programs list the head of a tied model, which no file needs to hold.
            if found.as_deref() == Some(named) || (found.is_none() && tensor == HEAD) {
                continue;
            }
            let found = found.map_or("no file".to_owned(), |name| name);
            return Err(Error::Tensor {
                path: index.to_owned(),
                tensor: tensor.clone(),
                message: format!("is to be in {named}, and is in {found}: copy the folder again"),
            });
        }
        Ok(())
    }

    /// Numbers of all tensors.
    #[cfg(feature = "candle")]
    pub(crate) fn parameters(&self) -> u64 {
        let infos = self
            .places
            .iter()
            .filter_map(|(name, &at)| self.files[at].info(name));
        infos
            .map(|(_, shape)| shape.iter().product::<usize>() as u64)
            .sum()
    }

    /// Where the files are.
    #[cfg(feature = "candle")]
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(TensorFile::path)
    }

    /// The files.
    pub(crate) fn into_files(self) -> Vec<TensorFile> {
        self.files
    }

    /// The tensors' names, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// The file of a tensor.
    pub(crate) fn file_of(&mut self, tensor: &str) -> Option<&mut TensorFile> {
        let at = *self.places.get(tensor)?;
        self.files.get_mut(at)
    }
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The file of each tensor, as an index says.
fn weight_map(index: &Path) -> Result<BTreeMap<String, String>> {
    let bad = |message: String| Error::Json {
        path: PathBuf::from(index),
        message,
    };
    let text = files::read(index)?;
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
    let map = value
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| bad("has no weight_map".to_owned()))?;
    let mut found = BTreeMap::new();
    for (tensor, file) in map {
        let Some(file) = file.as_str() else {
            return Err(bad(format!("names {file} as the file of {tensor}")));
        };
        if file.is_empty() || file == ".." || file.contains(['/', '\\']) {
            return Err(bad(format!(
                "names {file:?}, a file outside the folder, for {tensor}"
            )));
        }
        found.insert(tensor.clone(), file.to_owned());
    }
    match found.is_empty() {
        true => Err(bad("has an empty weight_map".to_owned())),
        false => Ok(found),
    }
}
