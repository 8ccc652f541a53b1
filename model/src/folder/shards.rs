//! Weights in one file, or in numbered shards with an index, named and cut as `transformers` does.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use crate::folder::parameter::Parameter;
use crate::folder::tensor_file::{self, Entries, entry};
use crate::{Dtype, Error, Result};

/// A weight file is split above this many bytes, unless another limit is asked for.
pub const SHARD_BYTES_MAX: usize = 4_000_000_000;

/// Cuts tensors of these sizes into runs of at most `most` bytes; a larger one is alone.
fn cut(sizes: &[usize], most: usize) -> Vec<Range<usize>> {
    let (mut shards, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, &size) in sizes.iter().enumerate() {
        if at > start && bytes + size > most {
            shards.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes += size;
    }
    shards.push(start..sizes.len());
    shards
}

/// Writes `<stem>.safetensors`, or numbered shards and their index, of tensors with these names and
/// sizes; `write` makes the file of some of them.
pub(crate) fn write(
    (dir, stem): (&Path, &str),
    tensors: &[(&str, usize)],
    most: usize,
    mut write: impl FnMut(&Path, Range<usize>) -> Result<()>,
) -> Result<()> {
    let sizes: Vec<usize> = tensors.iter().map(|(_, size)| *size).collect();
    let shards = cut(&sizes, most);
    if let [all] = shards.as_slice() {
        return write(&dir.join(format!("{stem}.safetensors")), all.clone());
    }
    let (of, mut map) = (shards.len(), BTreeMap::new());
    for (number, shard) in shards.into_iter().enumerate() {
        let file = format!("{stem}-{:05}-of-{of:05}.safetensors", number + 1);
        let own = tensors[shard.clone()].iter();
        map.extend(own.map(|(name, _)| ((*name).to_owned(), file.clone())));
        write(&dir.join(file), shard)?;
    }
    let total: usize = sizes.iter().sum();
    let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
    let path = dir.join(format!("{stem}.safetensors.index.json"));
    let text = serde_json::to_string_pretty(&index).expect("a JSON value serialises");
    std::fs::write(&path, text + "\n").map_err(Error::io(&path))
}

/// Writes parameters whose numbers are of a format, and so many bytes of them to a file at most.
pub(crate) fn save<'a>(
    dir: &Path,
    stem: &str,
    (dtype, most): (Dtype, usize),
    parameters: impl Iterator<Item = (&'a str, &'a Parameter)>,
) -> Result<()> {
    let parameters: Vec<_> = parameters.collect();
    let sizes = parameters
        .iter()
        .map(|(name, p)| (*name, p.numbers().len() * dtype.bytes()));
    let sizes: Vec<_> = sizes.collect();
    write((dir, stem), &sizes, most, |path, shard| {
        let entries = entries(parameters[shard].iter().copied(), dtype)?;
        tensor_file::save(path, &entries, &metadata())
    })
}

/// The tensors of a file of weights, by their names; refuses numbers that are not finite.
pub(crate) fn entries<'a>(
    parameters: impl Iterator<Item = (&'a str, &'a Parameter)>,
    dtype: Dtype,
) -> Result<Entries<'a>> {
    let mut entries = Entries::new();
    for (name, tensor) in parameters {
        let entry = entry(name, tensor.shape().to_vec(), tensor.numbers()).held_in(dtype);
        entry.check_finite(name)?;
        entries.insert(name.to_owned(), entry);
    }
    Ok(entries)
}

/// What a file of weights says of itself.
pub(crate) fn metadata() -> [(&'static str, String); 1] {
    [("format", "pt".to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_hold_as_much_as_they_may_and_no_tensor_is_cut() {
        assert_eq!(cut(&[4, 4, 2, 9, 1, 1], 8), [0..2, 2..3, 3..4, 4..6]);
        let alone = |sizes: &[usize], all| cut(sizes, 8).into_iter().eq(std::iter::once(all));
        assert!(alone(&[4, 4], 0..2));
        assert!(alone(&[], 0..0));
        assert_eq!(cut(&[4, 4], 1), [0..1, 1..2]);
        assert_eq!(cut(&[0, 0, 9, 0], 8), [0..2, 2..3, 3..4]);
    }
}
