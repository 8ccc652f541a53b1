//! A model in one GGUF file, written as a folder in Hugging Face's layout that every command takes: weights
//! widened to the bit as PyPI's `gguf` does, config, tokenizer and chat template. No weight is guessed and
//! nothing of the file is left out unsaid: what cannot be had from it is refused by name.

mod blocks;
mod config;
mod file;
mod pre_tokenizer;
#[cfg(test)]
pub(crate) mod tests;
mod vocabulary;

use self::config::Described;
use self::file::{GgufFile, Place};
use crate::dtype::Dtype;
use crate::folder::layout::{Layout, encoded, write_tensors};
use crate::folder::names::CONFIG;
use crate::folder::shards::SHARD_BYTES_MAX;
use crate::policy_text::GENERATION_CONFIG;
use crate::{Architecture, Error, Result, Tokenizer};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Bytes of a tensor that are read at once, a row at the least.
const PIECE: usize = 1 << 20;

/// Number formats of a file, and what of the model is in each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumbersIn {
    /// Its name, such as Q4_1.
    pub format: &'static str,
    /// Whether it has fewer than 16 bits a number.
    pub quantised: bool,
    /// Tensors.
    pub tensors: u64,
    /// Numbers.
    pub parameters: u64,
}

/// What was imported.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// `model_type` of the folder's config.
    pub family: &'static str,
    /// By format, the one with the most numbers first.
    pub formats: Vec<NumbersIn>,
    /// Bits of a number in the file, on average.
    pub bits: f64,
    /// Bytes of the weights that were written.
    pub bytes: u64,
    /// Ids of the tokenizer.
    pub tokens: usize,
    /// The pre-tokenizer's name; `llama` for sentencepiece.
    pub pre_tokenizer: String,
    /// Whether the file has a chat template.
    pub chat_template: bool,
}

impl Imported {
    /// Numbers of the weights.
    pub fn parameters(&self) -> u64 {
        self.formats.iter().map(|format| format.parameters).sum()
    }
}

/// Writes the model of the GGUF file `from` as the folder `to`, which is not there or empty; the folder
/// appears when it is whole. `progress` is told how many bytes of weights are written, and how many will be.
///
/// # Errors
/// A file that is damaged, or whose model is not computed here as its authors do; a folder that cannot be
/// written.
pub fn import(
    from: &Path,
    to: &Path,
    dtype: Dtype,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Imported> {
    let to = &std::path::absolute(to).map_err(Error::io(to))?;
    let mut file = GgufFile::open(from)?;
    // Families first: a tokenizer of another one is no news.
    let tokens = match file.value("tokenizer.ggml.tokens") {
        Some(file::Value::List(tokens)) => tokens.len(),
        _ => 0,
    };
    let described = config::describe(&mut file, tokens)?;
    let text = vocabulary::read(&file)?;
    let written = text.files.iter();
    let written = written.map(|(name, text)| ((*name).to_owned(), text.clone().into_bytes()));
    // Refuses what would be no tokenizer before the weights are written.
    let tokenizer = Tokenizer::from_files(&written.collect(), from).map_err(|e| match e {
        Error::Tokenizer { message, .. } => file.bad(format!("its tokenizer: {message}")),
        other => other,
    })?;
    let scratch = Scratch::beside(to)?;
    let config = described.config.saying(dtype).to_text();
    let generation = described.generation.as_ref().map(vocabulary::pretty);
    let files = text.files.into_iter().chain([(CONFIG, config)]);
    for (name, text) in files.chain(generation.map(|text| (GENERATION_CONFIG, text))) {
        let path = scratch.0.join(name);
        std::fs::write(&path, text).map_err(Error::io(&path))?;
    }
    let bytes = write_weights(&mut file, &described, dtype, &scratch.0, progress)?;
    scratch.becomes(to)?;
    let numbers: usize = described.places.values().map(Place::numbers).sum();
    let stored: u64 = described.places.values().map(|place| place.bytes).sum();
    Ok(Imported {
        family: described.config.architecture.model_type(),
        formats: formats(described.places.values()),
        bits: stored as f64 * 8.0 / numbers as f64,
        bytes,
        tokens: tokenizer.vocab_size(),
        pre_tokenizer: text.kind,
        chat_template: text.chat_template,
    })
}

fn formats<'a>(places: impl Iterator<Item = &'a Place>) -> Vec<NumbersIn> {
    let mut found = BTreeMap::new();
    for place in places {
        let entry = found.entry(place.kind).or_insert((0, 0));
        *entry = (entry.0 + 1, entry.1 + place.numbers() as u64);
    }
    let found = found
        .into_iter()
        .map(|(kind, (tensors, parameters))| NumbersIn {
            format: kind.name(),
            quantised: kind.is_quantised(),
            tensors,
            parameters,
        });
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(|numbers| std::cmp::Reverse(numbers.parameters));
    found
}

fn write_weights(
    file: &mut GgufFile,
    described: &Described,
    dtype: Dtype,
    to: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64> {
    let layout = Layout {
        dtype,
        shard_bytes_max: SHARD_BYTES_MAX,
    };
    let shape = |place: &Place| place.sizes.iter().rev().copied().collect();
    let tensors = described.places.iter();
    let tensors = tensors.map(|(name, place)| (name.clone(), shape(place)));
    let all: usize = described.places.values().map(Place::numbers).sum();
    let all = (all * dtype.bytes()) as u64;
    let (from, mut done) = (file.path.clone(), 0);
    write_tensors(to, layout, tensors.collect(), &mut |path, name, out| {
        let projects = ["q_proj.weight", "k_proj.weight"];
        let turned = described.config.architecture == Architecture::Llama
            && projects.iter().any(|end| name.ends_with(end));
        let head = turned.then_some(described.config.head_dim);
        pieces(file, &described.places[name], head, &mut |numbers| {
            let bytes = match numbers.iter().find(|number| !number.is_finite()) {
                Some(number) => Err(format!("holds {number}; take another file of this model")),
                None => encoded(dtype, numbers),
            };
            let bytes = bytes.map_err(|message| Error::Tensor {
                path: from.clone(),
                tensor: name.to_owned(),
                message,
            })?;
            out.write_all(&bytes).map_err(Error::io(path))?;
            done += bytes.len() as u64;
            progress(done, all);
            Ok(())
        })
    })
}

/// Gives the numbers of a tensor to `take`, some rows at a time. `head`: rows of a head, of which the file has
/// the two halves of a rotation beside each other, and Hugging Face one after the other.
fn pieces(
    file: &mut GgufFile,
    place: &Place,
    head: Option<usize>,
    take: &mut dyn FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let columns = place.sizes[0];
    let rows = place.numbers() / columns;
    let (numbers, bytes) = place.kind.block();
    let row = columns / numbers * bytes;
    let at_once = head.unwrap_or_else(|| (PIECE / row).max(1));
    let (mut bytes, mut read, mut turned) = (Vec::new(), Vec::new(), Vec::new());
    for first in (0..rows).step_by(at_once) {
        bytes.resize(at_once.min(rows - first) * row, 0);
        file.read(place, (first * row) as u64, &mut bytes)?;
        read.clear();
        place.kind.widen(&bytes, &mut read);
        let Some(head) = head else {
            take(&read)?;
            continue;
        };
        turned.clear();
        for from in (0..head).step_by(2).chain((1..head).step_by(2)) {
            turned.extend_from_slice(&read[from * columns..][..columns]);
        }
        take(&turned)?;
    }
    Ok(())
}

/// A folder that is written beside its place, and removed unless it gets there.
struct Scratch(PathBuf);

impl Scratch {
    /// Without anything that an earlier process of this number has left.
    fn beside(to: &Path) -> Result<Self> {
        let name = to.file_name().unwrap_or_default().to_string_lossy();
        let path = to.with_file_name(format!(".{name}.import-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let parent = to.parent().unwrap_or(to);
        std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
        std::fs::create_dir(&path).map_err(Error::io(&path))?;
        Ok(Self(path))
    }

    /// Every byte is on the disk before the folder has its name.
    fn becomes(self, to: &Path) -> Result<()> {
        for entry in std::fs::read_dir(&self.0).map_err(Error::io(&self.0))? {
            let path = entry.map_err(Error::io(&self.0))?.path();
            let synced = File::open(&path).and_then(|file| file.sync_all());
            synced.map_err(Error::io(&path))?;
        }
        std::fs::rename(&self.0, to).map_err(Error::io(to))?;
        let parent = to.parent().unwrap_or(to);
        let synced = File::open(parent).and_then(|folder| folder.sync_all());
        synced.map_err(Error::io(parent))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // After an error it is only in the way; after a success nothing has this name.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
