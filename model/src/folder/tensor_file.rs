//! Safetensors files in Hugging Face's layout, written so that equal numbers give
//! equal bytes: names sorted, fixed metadata, no timestamps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use safetensors::tensor::Metadata;
use safetensors::{Dtype, SafeTensorError};
use serde_json::{Map, Value, json};

use crate::folder::parameter::{STRIP, check_finite, is_dense, transpose_strip};
use crate::{Error, Result};

/// Bytes of the header's length, which is at the start of a file.
const LENGTH_BYTES: usize = 8;
/// `safetensors` refuses larger headers too.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const F32_BYTES: usize = 4;
/// Written at once.
const PIECE_BYTES: usize = 1 << 20;
/// How the text begins that stands in the place of a file which Git LFS has not fetched.
const GIT_LFS: &[u8; LENGTH_BYTES] = b"version ";

/// One tensor as the file will hold it.
pub(crate) struct Entry<'a> {
    /// Shape in the file.
    shape: Vec<usize>,
    numbers: &'a [f32],
    /// Whether the file holds the transpose.
    turned: bool,
    /// Where it is bf16, the numbers are of bf16 already.
    dtype: crate::Dtype,
}

/// Numbers and shape in the in-memory layout, to be written in the file's layout.
pub(crate) fn entry<'a>(name: &str, mut shape: Vec<usize>, numbers: &'a [f32]) -> Entry<'a> {
    let turned = is_dense(name);
    if turned {
        shape.reverse();
    }
    Entry {
        shape,
        numbers,
        turned,
        dtype: crate::Dtype::F32,
    }
}

/// Numbers as they are, in one dimension.
pub(crate) fn flat(numbers: &[f32]) -> Entry<'_> {
    Entry {
        shape: vec![numbers.len()],
        numbers,
        turned: false,
        dtype: crate::Dtype::F32,
    }
}

impl Entry<'_> {
    /// The same numbers, which the file is to hold in this format.
    pub(crate) fn held_in(self, dtype: crate::Dtype) -> Self {
        Entry { dtype, ..self }
    }

    /// Refuses numbers that are not finite: no reader here would load the file.
    pub(crate) fn check_finite(&self, name: &str) -> Result<()> {
        check_finite(name, self.numbers)
    }

    /// Bytes in the file.
    fn size(&self) -> usize {
        self.numbers.len() * self.dtype.bytes()
    }

    /// Writes the bytes to their place in the file.
    fn write(&self, file: &File, mut place: u64) -> std::io::Result<()> {
        self.pieces(|piece| {
            file.write_all_at(piece, place)?;
            place += piece.len() as u64;
            Ok(())
        })
    }

    /// The bytes as the file holds them.
    fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.size());
        let copied = self.pieces(|piece| {
            all.extend_from_slice(piece);
            Ok(())
        });
        copied.expect("memory takes all of it");
        all
    }

    /// Gives the bytes as the file holds them to `take`.
    fn pieces(&self, mut take: impl FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
        let mut bytes = vec![0; PIECE_BYTES];
        let mut take = |numbers: &[f32]| {
            let pieces = numbers.chunks(bytes.len() / F32_BYTES);
            pieces
                .into_iter()
                .try_for_each(|some| take(self.encode(some, &mut bytes)))
        };
        if !self.turned || self.numbers.is_empty() {
            return take(self.numbers);
        }
        let (columns, rows) = (self.shape[0], self.shape[1]);
        let mut strip = vec![0.0; STRIP * rows];
        (0..columns).step_by(STRIP).try_for_each(|first| {
            let own = &mut strip[..(columns - first).min(STRIP) * rows];
            transpose_strip(self.numbers, (rows, columns), first, own);
            take(own)
        })
    }

    /// Numbers as the file holds them, in `bytes`.
    fn encode<'b>(&self, numbers: &[f32], bytes: &'b mut [u8]) -> &'b [u8] {
        match self.dtype {
            crate::Dtype::F32 => {
                let places = bytes.as_chunks_mut::<F32_BYTES>().0.iter_mut();
                places
                    .zip(numbers)
                    .for_each(|(place, x)| *place = x.to_le_bytes());
            }
            crate::Dtype::Bf16 => {
                let places = bytes.as_chunks_mut::<2>().0.iter_mut();
                let upper = |x: &f32| (x.to_bits() >> 16) as u16;
                places
                    .zip(numbers)
                    .for_each(|(place, x)| *place = upper(x).to_le_bytes());
            }
        }
        &bytes[..numbers.len() * self.dtype.bytes()]
    }
}

/// A tensor as a file's header lists it.
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: usize,
}

/// The tensors of one file.
pub(crate) type Entries<'a> = BTreeMap<String, Entry<'a>>;

fn listed(entries: &Entries<'_>) -> Vec<Listed> {
    let listed = entries.iter().map(|(name, entry)| Listed {
        name: name.clone(),
        dtype: entry.dtype.in_files(),
        shape: entry.shape.clone(),
        bytes: entry.size(),
    });
    listed.collect()
}

/// Gives the bytes of the file that [`save`] writes to `take`, in order; each thread has at most one
/// tensor's copy in memory.
pub(crate) fn each_piece(
    entries: &Entries<'_>,
    metadata: &[(&str, String)],
    mut take: impl FnMut(&[u8]),
) {
    take(&header(&listed(entries), metadata));
    let entries: Vec<_> = entries.values().collect();
    for some in entries.chunks(rayon::current_num_threads()) {
        let made: Vec<Vec<u8>> = some.par_iter().map(|entry| entry.bytes()).collect();
        made.iter().for_each(|bytes| take(bytes));
    }
}

/// Writes one file; each thread has at most one tensor's copy in memory.
pub(crate) fn save(path: &Path, entries: &Entries<'_>, metadata: &[(&str, String)]) -> Result<()> {
    let (mut file, mut place) = begin(path, &listed(entries), metadata)?;
    file.flush().map_err(Error::io(path))?;
    let mut places = Vec::with_capacity(entries.len());
    for entry in entries.values() {
        places.push((entry, place));
        place += entry.size() as u64;
    }
    let write = |(entry, place): (&Entry<'_>, u64)| entry.write(file.get_ref(), place);
    let written = places.into_par_iter().try_for_each(write);
    written.map_err(Error::io(path))
}

/// Writes one file of `tensors`, sorted by name; `data` writes the bytes of one of them.
pub(crate) fn write(
    path: &Path,
    tensors: &[Listed],
    metadata: &[(&str, String)],
    mut data: impl FnMut(&Listed, &mut BufWriter<File>) -> Result<()>,
) -> Result<()> {
    let (mut file, _) = begin(path, tensors, metadata)?;
    for tensor in tensors {
        data(tensor, &mut file)?;
    }
    file.flush().map_err(Error::io(path))
}

/// Begins a file with its header; the tensors begin at the place that is returned.
fn begin(
    path: &Path,
    tensors: &[Listed],
    metadata: &[(&str, String)],
) -> Result<(BufWriter<File>, u64)> {
    let header = header(tensors, metadata);
    let file = File::create(path).map_err(Error::io(path))?;
    let mut file = BufWriter::with_capacity(PIECE_BYTES, file);
    file.write_all(&header).map_err(Error::io(path))?;
    Ok((file, header.len() as u64))
}

/// The header of a file, its length before it.
fn header(tensors: &[Listed], metadata: &[(&str, String)]) -> Vec<u8> {
    let mut header = Map::new();
    let metadata: BTreeMap<_, _> = metadata.iter().cloned().collect();
    header.insert("__metadata__".to_owned(), json!(metadata));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes;
        let info =
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]});
        header.insert(tensor.name.clone(), info);
        start = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(LENGTH_BYTES), b' ');
    [(header.len() as u64).to_le_bytes().to_vec(), header].concat()
}

/// A file whose tensors are read one at a time.
pub(crate) struct TensorFile {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// Where the tensors begin.
    start: u64,
}

impl TensorFile {
    /// Reads and checks the header.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let unreadable = |source| Error::SafeTensors {
            path: path.to_owned(),
            source,
        };
        let damaged = |message: String| Error::Unsupported {
            path: path.to_owned(),
            message,
        };
        let mut file = crate::folder::files::open(path)?;
        let length = file.metadata().map_err(Error::io(path))?.len();
        let mut size = [0; LENGTH_BYTES];
        if length < LENGTH_BYTES as u64 {
            return Err(unreadable(SafeTensorError::HeaderTooSmall));
        }
        file.read_exact(&mut size).map_err(Error::io(path))?;
        if &size == GIT_LFS {
            return Err(damaged(
                "is a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`"
                    .to_owned(),
            ));
        }
        let size = u64::from_le_bytes(size);
        if size > HEADER_BYTES_MAX {
            return Err(unreadable(SafeTensorError::HeaderTooLarge));
        }
        let start = LENGTH_BYTES as u64 + size;
        if start > length {
            return Err(unreadable(SafeTensorError::InvalidHeaderLength));
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(Error::io(path))?;
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|e| match unknown_type(&header) {
                Some((tensor, message)) => Error::Tensor {
                    path: path.to_owned(),
                    tensor,
                    message,
                },
                None => unreadable(SafeTensorError::InvalidHeaderDeserialization(e)),
            })?;
        let expected = start.checked_add(header.data_len() as u64);
        if expected != Some(length) {
            let expected = expected.map_or("more".to_owned(), |bytes| bytes.to_string());
            return Err(damaged(format!(
                "has {length} bytes, by its header {expected}: it was cut off, or is still being \
                 written; copy it again"
            )));
        }
        Ok(TensorFile {
            path: path.to_owned(),
            file,
            header,
            start,
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Sorted, so that of several bad tensors the same one is reported every time.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort_unstable();
        names
    }

    /// An entry of the file's metadata.
    pub(crate) fn said(&self, key: &str) -> Option<&str> {
        let metadata = self.header.metadata().as_ref()?;
        metadata.get(key).map(String::as_str)
    }

    /// Type and shape of a tensor.
    pub(crate) fn info(&self, name: &str) -> Option<(Dtype, &[usize])> {
        let info = self.header.info(name)?;
        Some((info.dtype, &info.shape))
    }

    /// Whether all of its tensors are in bf16.
    pub(crate) fn is_in_bf16(&self) -> bool {
        let names = self.header.offset_keys();
        let mut found = names.iter().filter_map(|name| self.header.info(name));
        found.all(|info| info.dtype == Dtype::BF16)
    }

    /// How many bytes a tensor has.
    pub(crate) fn bytes_of(&self, name: &str) -> usize {
        let info = self.header.info(name);
        info.map_or(0, |info| info.data_offsets.1 - info.data_offsets.0)
    }

    /// The bytes of a tensor; none where there is no such tensor.
    pub(crate) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let Some(info) = self.header.info(name) else {
            return Ok(Vec::new());
        };
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        self.file
            .read_exact_at(&mut bytes, self.start + start as u64)
            .map_err(Error::io(&self.path))?;
        Ok(bytes)
    }
}

/// The first tensor of a header whose type `safetensors` does not know, and what to say of it.
fn unknown_type(header: &[u8]) -> Option<(String, String)> {
    let header: Map<String, Value> = serde_json::from_slice(header).ok()?;
    header.into_iter().find_map(|(name, info)| {
        let found = info.get("dtype")?.clone();
        match serde_json::from_value::<Dtype>(found.clone()) {
            Ok(_) => None,
            Err(_) => Some((
                name,
                format!("has type {found}; f32, f16 and bf16 are supported"),
            )),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::SafeTensors;
    use safetensors::tensor::TensorView;

    #[test]
    fn files_are_those_of_safetensors_and_are_read_tensor_by_tensor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        let long: Vec<f32> = (0..5000).map(|x| x as f32 * 0.5).collect();
        let dense = [0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0];
        let entries = BTreeMap::from([
            ("a.norm".to_owned(), entry("a.norm", vec![5000], &long)),
            (
                "b.q_proj.weight".to_owned(),
                entry("b.q_proj.weight", vec![3, 2], &dense),
            ),
        ]);
        save(&path, &entries, &[("format", "pt".to_owned())]).unwrap();
        let bytes = |x: &[f32]| -> Vec<u8> { x.iter().flat_map(|x| x.to_le_bytes()).collect() };
        let (long, dense) = (bytes(&long), bytes(&[0.0, 2.0, 4.0, 1.0, 3.0, 5.0]));
        let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes);
        let views = [
            ("a.norm", view(&[5000], &long).unwrap()),
            ("b.q_proj.weight", view(&[2, 3], &dense).unwrap()),
        ];
        let format = [("format".to_owned(), "pt".to_owned())].into();
        let expected = safetensors::serialize(views, Some(format)).unwrap();
        assert!(std::fs::read(&path).unwrap() == expected);

        let file = TensorFile::open(&path).unwrap();
        assert_eq!(file.names(), ["a.norm", "b.q_proj.weight"]);
        assert_eq!(file.said("format"), Some("pt"));
        assert_eq!(file.info("b.q_proj.weight").unwrap().1, [2, 3]);
        assert_eq!(file.read("b.q_proj.weight").unwrap(), dense);
        assert_eq!(file.read("a.norm").unwrap(), long);

        // A truncated file is refused wherever it is cut, as by `safetensors`.
        for length in [0, 7, 8, 40, expected.len() - 1] {
            std::fs::write(&path, &expected[..length]).unwrap();
            assert!(SafeTensors::deserialize(&expected[..length]).is_err());
            let error = TensorFile::open(&path).err().unwrap().to_string();
            assert!(error.contains("model.safetensors"), "{error}");
        }
    }

    /// The maps of `safetensors` have a different order every time.
    #[test]
    fn metadata_have_one_order() {
        let dir = tempfile::tempdir().unwrap();
        let numbers = [1.0];
        let mut files = (0..8).map(|i| {
            let path = dir.path().join(i.to_string());
            let entries = BTreeMap::from([("w".to_owned(), flat(&numbers))]);
            let metadata = [("units", "3".to_owned()), ("nodes", "[]".to_owned())];
            save(&path, &entries, &metadata).unwrap();
            std::fs::read(&path).unwrap()
        });
        let first = files.next().unwrap();
        assert!(files.all(|file| file == first));
    }
}
