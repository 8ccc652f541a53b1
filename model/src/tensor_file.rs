//! Safetensors files in Hugging Face's layout, written so that equal numbers give
//! equal bytes: names sorted, fixed metadata, no times; readable by everyone.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;

use crate::weights::{Parameter, is_dense, transpose};
use crate::{Error, Result};

/// One tensor as the file holds it.
pub(crate) struct Entry {
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

/// Numbers of the in-memory layout with that layout's shape, turned into the file's.
pub(crate) fn entry(name: &str, mut shape: Vec<usize>, numbers: &[f32]) -> Entry {
    if is_dense(name) {
        let turned = transpose(numbers, shape[0], shape[1]);
        shape.reverse();
        Entry {
            shape,
            bytes: little_endian(&turned),
        }
    } else {
        Entry {
            shape,
            bytes: little_endian(numbers),
        }
    }
}

/// Numbers as they are, without a shape of their own.
pub(crate) fn flat(numbers: &[f32]) -> Entry {
    Entry {
        shape: vec![numbers.len()],
        bytes: little_endian(numbers),
    }
}

fn little_endian(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Writes one file.
pub(crate) fn save(
    path: &Path,
    entries: &BTreeMap<String, Entry>,
    metadata: &[(&str, String)],
) -> Result<()> {
    let bad = |source| Error::SafeTensors {
        path: path.to_owned(),
        source,
    };
    let mut views = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let view = TensorView::new(safetensors::Dtype::F32, entry.shape.clone(), &entry.bytes)
            .map_err(bad)?;
        views.push((name.as_str(), view));
    }
    let metadata = metadata
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone()))
        .collect();
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(bad)?;
    std::fs::write(path, bytes).map_err(Error::io(path))
}

/// Writes `<stem>.safetensors`, or numbered shards and their index where the
/// tensors exceed `shard_bytes_max`.
pub(crate) fn save_sharded<'a>(
    dir: &Path,
    stem: &str,
    shard_bytes_max: usize,
    tensors: impl Iterator<Item = (&'a str, &'a Parameter)>,
) -> Result<()> {
    let mut shards: Vec<Vec<(&str, &Parameter)>> = vec![Vec::new()];
    let (mut shard_bytes, mut total) = (0, 0);
    for (name, tensor) in tensors {
        let bytes = tensor.numbers().len() * 4;
        if shard_bytes > 0 && shard_bytes + bytes > shard_bytes_max {
            shards.push(Vec::new());
            shard_bytes = 0;
        }
        shard_bytes += bytes;
        total += bytes;
        shards
            .last_mut()
            .expect("there is a first shard")
            .push((name, tensor));
    }
    let format = [("format", "pt".to_owned())];
    let write = |file: &str, shard: &[(&str, &Parameter)]| {
        let mut entries = BTreeMap::new();
        for (name, tensor) in shard {
            entries.insert(
                (*name).to_owned(),
                entry(name, tensor.shape().to_vec(), tensor.numbers()),
            );
        }
        save(&dir.join(file), &entries, &format)
    };
    if let [shard] = shards.as_slice() {
        return write(&format!("{stem}.safetensors"), shard);
    }
    let mut map = BTreeMap::new();
    for (number, shard) in shards.iter().enumerate() {
        let file = format!(
            "{stem}-{:05}-of-{:05}.safetensors",
            number + 1,
            shards.len()
        );
        write(&file, shard)?;
        map.extend(
            shard
                .iter()
                .map(|(name, _)| ((*name).to_owned(), file.clone())),
        );
    }
    let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
    let path = dir.join(format!("{stem}.safetensors.index.json"));
    let text = serde_json::to_string_pretty(&index).expect("a JSON value serialises");
    std::fs::write(&path, text + "\n").map_err(Error::io(&path))
}
