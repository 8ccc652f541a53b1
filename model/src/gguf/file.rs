//! The header of a GGUF file, of version 2 or 3. Every length and count in it is untrusted: none takes
//! memory before the file is found to be that long.

use super::blocks::Kind;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"GGUF";
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
/// Bounds beyond any model: entries and tensors of a header, entries of a list, bytes of a text.
const ENTRIES_MAX: u64 = 1 << 16;
const LIST_MAX: u64 = 1 << 22;
/// Entries of all lists together: each takes more memory than it has bytes in the file.
const LISTED_MAX: u64 = 1 << 24;
const TEXT_MAX: u64 = 1 << 24;
const DIMENSIONS_MAX: u32 = 4;
/// Lists of lists end here.
const DEPTH_MAX: u32 = 2;

/// A value of the header.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Whole(i64),
    Real(f64),
    Switch(bool),
    Text(String),
    List(Vec<Value>),
}

impl Value {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn whole(&self) -> Option<i64> {
        match self {
            Value::Whole(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn real(&self) -> Option<f64> {
        match self {
            Value::Real(number) => Some(*number),
            other => other.whole().map(|number| number as f64),
        }
    }
}

/// Where a tensor lies in the file.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) kind: Kind,
    /// Numbers of a row, then the rows, as the file counts them.
    pub(super) sizes: Vec<usize>,
    /// From the beginning of the file.
    start: u64,
    pub(super) bytes: u64,
}

impl Place {
    pub(super) fn numbers(&self) -> usize {
        self.sizes.iter().product()
    }
}

/// A GGUF file whose tensors are read piece by piece.
#[derive(Debug)]
pub(super) struct GgufFile {
    pub(super) path: PathBuf,
    file: File,
    values: BTreeMap<String, Value>,
    pub(super) tensors: BTreeMap<String, Place>,
}

impl GgufFile {
    /// Reads the header.
    ///
    /// # Errors
    /// No GGUF file, or one that is damaged or cut off.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = crate::folder::files::open(path)?;
        let length = file.metadata().map_err(Error::io(path))?.len();
        let mut header = Header {
            path,
            left: length,
            listed: LISTED_MAX,
            file: BufReader::new(file),
        };
        if length < MAGIC.len() as u64 || &header.bytes::<4>()? != MAGIC {
            return Err(header.bad("is no GGUF file: it does not begin with GGUF".to_owned()));
        }
        let version = header.u32()?;
        if !VERSIONS.contains(&version) {
            return Err(header.bad(format!(
                "is GGUF of version {version}; 2 and 3 of its little-endian form are read: take a newer file of \
                 this model"
            )));
        }
        let tensors = header.count("tensors", ENTRIES_MAX)?;
        let entries = header.count("entries", ENTRIES_MAX)?;
        let mut values = BTreeMap::new();
        for _ in 0..entries {
            let key = header.text()?;
            let kind = header.u32()?;
            let value = header.value(kind, DEPTH_MAX)?;
            if values.insert(key.clone(), value).is_some() {
                return Err(header.damaged(format!("{key} is given twice")));
            }
        }
        let mut listed = Vec::new();
        for _ in 0..tensors {
            listed.push(header.tensor()?);
        }
        let alignment = match values.get("general.alignment") {
            None => 32,
            Some(Value::Whole(n)) if (1..=1 << 20).contains(n) => *n as u64,
            Some(other) => {
                return Err(header.damaged(format!("general.alignment is {other:?}")));
            }
        };
        let begin = (length - header.left).next_multiple_of(alignment);
        let mut places = BTreeMap::new();
        for (name, mut place) in listed {
            let start = begin.checked_add(place.start);
            let end = start.and_then(|start| start.checked_add(place.bytes));
            match (start, end) {
                (Some(start), Some(end)) if end <= length => place.start = start,
                _ => {
                    return Err(header.damaged(format!(
                        "tensor {name} ends beyond its {length} bytes: it was cut off, or is still being written"
                    )));
                }
            }
            if places.insert(name.clone(), place).is_some() {
                return Err(header.damaged(format!("tensor {name} is there twice")));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            file: header.file.into_inner(),
            values,
            tensors: places,
        })
    }

    pub(super) fn bad(&self, message: String) -> Error {
        Error::Unsupported {
            path: self.path.clone(),
            message,
        }
    }

    /// Reads `bytes` of a tensor, from its byte `at` on.
    pub(super) fn read(&mut self, place: &Place, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.file
            .seek(SeekFrom::Start(place.start + at))
            .and_then(|_| self.file.read_exact(bytes))
            .map_err(Error::io(&self.path))
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    fn wrong(&self, key: &str, wanted: &str) -> Error {
        let found = match self.value(key) {
            None => "missing",
            Some(_) => "not what belongs there",
        };
        self.bad(format!(
            "{key} is {found}, {wanted}; take another file of this model"
        ))
    }

    /// What `take` takes a value for, which is called `wanted`.
    fn get<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        take: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else {
            return Ok(None);
        };
        let taken = take(value).ok_or_else(|| self.wrong(key, wanted))?;
        Ok(Some(taken))
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "a text", Value::text)
    }

    pub(super) fn switch(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "true or false", |value| match value {
            Value::Switch(on) => Some(*on),
            _ => None,
        })
    }

    pub(super) fn real(&self, key: &str) -> Result<Option<f64>> {
        let finite = |value: &Value| value.real().filter(|number| number.is_finite());
        self.get(key, "a number", finite)
    }

    /// A whole number of 0 or more.
    pub(super) fn whole(&self, key: &str) -> Result<Option<u64>> {
        let whole = |value: &Value| value.whole().and_then(|number| number.try_into().ok());
        self.get(key, "a whole number", whole)
    }

    /// A positive whole number that has to be there.
    pub(super) fn size(&self, key: &str) -> Result<u64> {
        let found = self.whole(key)?.filter(|size| *size > 0);
        found.ok_or_else(|| self.wrong(key, "a positive whole number"))
    }

    /// A list whose entries are all of the kind that `take` takes; empty where there is none.
    pub(super) fn list<'a, T>(
        &'a self,
        key: &str,
        take: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Vec<T>> {
        let list = |value: &'a Value| match value {
            Value::List(all) => all.iter().map(&take).collect(),
            _ => None,
        };
        Ok(self.get(key, "a list", list)?.unwrap_or_default())
    }
}

struct Header<'a> {
    path: &'a Path,
    left: u64,
    /// Entries that its lists may still have.
    listed: u64,
    file: BufReader<File>,
}

impl Header<'_> {
    fn bad(&self, message: String) -> Error {
        Error::Unsupported {
            path: self.path.to_owned(),
            message,
        }
    }

    fn damaged(&self, what: String) -> Error {
        self.bad(format!("is damaged: {what}; copy the file again"))
    }

    fn take(&mut self, bytes: u64) -> Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => return Err(self.damaged("its header goes on beyond its end".to_owned())),
        }
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N as u64)?;
        let mut bytes = [0; N];
        self.file
            .read_exact(&mut bytes)
            .map_err(Error::io(self.path))?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    /// A count of things that have a byte each at the least.
    fn count(&mut self, what: &str, most: u64) -> Result<u64> {
        let count = self.u64()?;
        match count > most.min(self.left) {
            true => Err(self.damaged(format!("it counts {count} {what}"))),
            false => Ok(count),
        }
    }

    fn text(&mut self) -> Result<String> {
        let length = self.count("bytes of a text", TEXT_MAX)?;
        self.take(length)?;
        let mut bytes = vec![0; length as usize];
        self.file
            .read_exact(&mut bytes)
            .map_err(Error::io(self.path))?;
        String::from_utf8(bytes).map_err(|_| self.damaged("a text in it is no UTF-8".to_owned()))
    }

    fn value(&mut self, kind: u32, depth: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Whole(u8::from_le_bytes(self.bytes()?).into()),
            1 => Value::Whole(i8::from_le_bytes(self.bytes()?).into()),
            2 => Value::Whole(u16::from_le_bytes(self.bytes()?).into()),
            3 => Value::Whole(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Whole(self.u32()?.into()),
            5 => Value::Whole(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Real(as_written(f32::from_le_bytes(self.bytes()?))),
            7 => Value::Switch(self.bytes::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            9 if depth > 0 => {
                let kind = self.u32()?;
                let count = self.count("entries of a list", LIST_MAX.min(self.listed))?;
                self.listed -= count;
                let mut all = Vec::new();
                for _ in 0..count {
                    all.push(self.value(kind, depth - 1)?);
                }
                Value::List(all)
            }
            10 => Value::Whole(i64::try_from(self.u64()?).unwrap_or(i64::MAX)),
            11 => Value::Whole(i64::from_le_bytes(self.bytes()?)),
            12 => Value::Real(f64::from_le_bytes(self.bytes()?)),
            other => return Err(self.damaged(format!("a value in it has type {other}"))),
        })
    }

    /// A tensor; its place is counted from where all begin.
    fn tensor(&mut self) -> Result<(String, Place)> {
        let name = self.text()?;
        let dimensions = self.u32()?;
        if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
            return Err(self.damaged(format!("tensor {name} has {dimensions} dimensions")));
        }
        let (mut sizes, mut numbers) = (Vec::new(), Some(1u64));
        for _ in 0..dimensions {
            let size = self.u64()?;
            numbers = numbers.and_then(|numbers| numbers.checked_mul(size));
            sizes.push(usize::try_from(size).unwrap_or(usize::MAX));
        }
        let kind = Kind::of(self.u32()?).map_err(|found| Error::Tensor {
            path: self.path.to_owned(),
            tensor: name.clone(),
            message: format!(
                "has type {found}, which is not read; {} are: take a file in one of these, such as Q8_0",
                Kind::known()
            ),
        })?;
        let start = self.u64()?;
        let (block, bytes) = kind.block();
        let blocks = numbers.filter(|numbers| *numbers > 0 && sizes[0].is_multiple_of(block));
        let bytes = blocks.and_then(|numbers| (numbers / block as u64).checked_mul(bytes as u64));
        match bytes {
            Some(bytes) => Ok((
                name,
                Place {
                    kind,
                    sizes,
                    start,
                    bytes,
                },
            )),
            None => Err(self.damaged(format!("tensor {name} has the sizes {sizes:?}"))),
        }
    }
}

/// The number that was meant: 1e-5, and not the f64 of the f32 that is nearest to it.
fn as_written(number: f32) -> f64 {
    number
        .to_string()
        .parse()
        .unwrap_or_else(|_| f64::from(number))
}
