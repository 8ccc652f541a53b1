//! A BM25 index over a corpus of passages, built in one pass and stored in one file.
//!
//! Deterministic: the same corpus gives the same file, and of equal scores the earlier passage
//! comes first. The postings (about 3 bytes for each distinct word of each passage) are in memory;
//! the passages themselves are read from the corpus file when they are shown.
//!
//! Not taken from a search library, because the ranking is part of the task: a policy that was
//! trained with the original's BM25 must find the same passages here. tantivy (version 0.27) has
//! the constants k1 = 1.2 and b = 0.75 compiled in, where the original uses 0.9 and 0.4, and orders
//! equal scores by its segments, which depend on how the index was written. It also needs 38
//! packages that nothing else uses.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use agentgym_envs::EnvError;

/// Term-frequency saturation and length normalisation: the values of Pyserini, which the original's
/// BM25 mode uses.
const K1: f32 = 0.9;
const B: f32 = 0.4;

const MAGIC: &[u8; 8] = b"AGBM25\x00\x01";

/// Bytes from each end of a corpus that, with its length, identify it for the index.
const SAMPLE_BYTES: usize = 1 << 20;

const PROGRESS_EVERY: u64 = 64 << 20;

/// Longest line; a normal passage has some hundred words.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Where the passages are.
#[derive(Debug)]
pub struct Corpus {
    path: PathBuf,
    source: Source,
}

#[derive(Debug)]
enum Source {
    File(File),
    Text(Vec<u8>),
}

/// A line of the corpus: its offset, and its length in bytes.
pub(super) type Line = (u64, u32);

impl Corpus {
    /// A file of JSON lines.
    pub fn open(path: &Path) -> Result<Self, EnvError> {
        let file = agentgym_envs::files::regular(path).map_err(|problem| EnvError::Corpus {
            path: path.to_owned(),
            problem,
        })?;
        Ok(Self {
            path: path.to_owned(),
            source: Source::File(file),
        })
    }

    pub(super) fn from_text(text: &str) -> Self {
        Self {
            path: PathBuf::from("(compiled in)"),
            source: Source::Text(text.as_bytes().to_vec()),
        }
    }

    fn bad(&self, problem: impl std::fmt::Display) -> EnvError {
        EnvError::Corpus {
            path: self.path.clone(),
            problem: problem.to_string(),
        }
    }

    fn len(&self) -> Result<u64, EnvError> {
        match &self.source {
            Source::File(file) => file
                .metadata()
                .map(|meta| meta.len())
                .map_err(|e| self.bad(e)),
            Source::Text(text) => Ok(text.len() as u64),
        }
    }

    fn read(&self, at: u64, length: usize) -> Result<Vec<u8>, EnvError> {
        let mut bytes = vec![0; length];
        match &self.source {
            Source::File(file) => file
                .read_exact_at(&mut bytes, at)
                .map_err(|error| self.bad(format!("at byte {at}: {error}")))?,
            Source::Text(text) => {
                let start = at as usize;
                bytes.copy_from_slice(&text[start..start + length]);
            }
        }
        Ok(bytes)
    }

    /// The text of a passage: a title line and the rest.
    pub(super) fn contents(&self, (at, length): Line) -> Result<String, EnvError> {
        let line = self.read(at, length as usize)?;
        contents(&line).map_err(|problem| self.bad(format!("at byte {at}: {problem}")))
    }

    /// Identifies the corpus that an index file belongs to.
    fn mark(&self) -> Result<[u8; 32], EnvError> {
        let length = self.len()?;
        let sample = SAMPLE_BYTES.min(length as usize);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&length.to_le_bytes());
        hasher.update(&self.read(0, sample)?);
        hasher.update(&self.read(length - sample as u64, sample)?);
        Ok(*hasher.finalize().as_bytes())
    }
}

fn contents(line: &[u8]) -> Result<String, String> {
    let row: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match &row["contents"] {
        Value::String(text) => Ok(text.clone()),
        _ => Err("a passage has no text \"contents\"".to_owned()),
    }
}

/// Words in lower case: runs of letters and digits.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
}

/// The index.
#[derive(Debug, PartialEq)]
pub struct Index {
    lines: Vec<Line>,
    /// Words in each passage.
    lengths: Vec<u32>,
    /// By word: the number of passages that contain it, and for each of them its distance from the
    /// previous one and the word's count in it, as variable-length numbers.
    postings: BTreeMap<String, (u32, Vec<u8>)>,
}

impl Index {
    /// Reads the index file if it belongs to this corpus; otherwise builds and writes it.
    pub fn open_or_build(
        corpus: &Corpus,
        at: &Path,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, EnvError> {
        let mark = corpus.mark()?;
        if let Some(index) = Self::read(at, &mark) {
            return Ok(index);
        }
        let index = Self::build(corpus, progress)?;
        // If it cannot be stored, the next start only takes longer.
        if let Err(error) = index.write(at, &mark) {
            tracing::warn!(path = %at.display(), %error, "the index cannot be kept");
        }
        Ok(index)
    }

    /// Reads the whole corpus.
    pub fn build(corpus: &Corpus, mut progress: impl FnMut(u64, u64)) -> Result<Self, EnvError> {
        let total = corpus.len()?;
        let mut reader: Box<dyn BufRead> = match &corpus.source {
            Source::File(_) => {
                let file = File::open(&corpus.path).map_err(|error| corpus.bad(error))?;
                Box::new(BufReader::with_capacity(1 << 20, file))
            }
            Source::Text(text) => Box::new(&text[..]),
        };
        let mut building: HashMap<String, (u32, u32, Vec<u8>)> = HashMap::new();
        let (mut lines, mut lengths) = (Vec::new(), Vec::new());
        let (mut at, mut told) = (0u64, 0u64);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader)
                .take(LINE_BYTES_MAX + 1)
                .read_until(b'\n', &mut line)
                .map_err(|error| corpus.bad(error))?;
            if read == 0 {
                break;
            }
            if read as u64 > LINE_BYTES_MAX {
                return Err(corpus.bad(format!("the line at byte {at} is too long")));
            }
            if !line.trim_ascii().is_empty() {
                let problem = |problem: String| {
                    corpus.bad(format!("passage {}, at byte {at}: {problem}", lines.len()))
                };
                let text = contents(&line).map_err(problem)?;
                let passage = u32::try_from(lines.len())
                    .map_err(|_| corpus.bad("more than 4 thousand million passages"))?;
                let mut counts: BTreeMap<String, u32> = BTreeMap::new();
                for word in words(&text) {
                    *counts.entry(word).or_default() += 1;
                }
                lengths.push(counts.values().sum());
                for (word, count) in counts {
                    let (passages, last, bytes) = building.entry(word).or_default();
                    put(bytes, passage - *last);
                    put(bytes, count);
                    (*passages, *last) = (*passages + 1, passage);
                }
                let length = u32::try_from(read)
                    .map_err(|_| corpus.bad(format!("the line at byte {at} is too long")))?;
                lines.push((at, length));
            }
            at += read as u64;
            if at - told >= PROGRESS_EVERY {
                told = at;
                progress(at, total);
            }
        }
        progress(at, total);
        let postings = building
            .into_iter()
            .map(|(word, (passages, _, bytes))| (word, (passages, bytes)))
            .collect();
        Ok(Self {
            lines,
            lengths,
            postings,
        })
    }

    /// Number of passages.
    pub fn passages(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn place(&self, passage: u32) -> Line {
        self.lines[passage as usize]
    }

    /// The best passages for a query, best first. There are always as many as requested, if the
    /// corpus has them: those without any of the words come last, in corpus order.
    pub fn search(&self, query: &str, count: usize) -> Vec<u32> {
        let passages = self.lines.len() as f32;
        let mean = self.lengths.iter().map(|n| f64::from(*n)).sum::<f64>() as f32 / passages;
        let mut terms: Vec<String> = words(query).collect();
        terms.sort_unstable();
        let mut scores: HashMap<u32, f32> = HashMap::new();
        for term in &terms {
            let Some((found, bytes)) = self.postings.get(term) else {
                continue;
            };
            let found = *found as f32;
            let weight = (1.0 + (passages - found + 0.5) / (found + 0.5)).ln();
            let mut bytes = &bytes[..];
            let mut passage = 0;
            while let (Some(step), Some(times)) = (take(&mut bytes), take(&mut bytes)) {
                passage = u32::saturating_add(passage, step);
                let Some(length) = self.lengths.get(passage as usize) else {
                    break;
                };
                let length = *length as f32;
                let times = times as f32;
                let norm = K1 * (1.0 - B + B * length / mean);
                *scores.entry(passage).or_default() += weight * times / (times + norm);
            }
        }
        let mut best: Vec<(u32, f32)> = scores.into_iter().collect();
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if best.len() > count && count > 0 {
            best.select_nth_unstable_by(count - 1, order);
        }
        best.truncate(count);
        best.sort_by(order);
        let mut chosen: Vec<u32> = best.into_iter().map(|(passage, _)| passage).collect();
        for passage in 0..self.lines.len() as u32 {
            if chosen.len() >= count {
                break;
            }
            if !chosen.contains(&passage) {
                chosen.push(passage);
            }
        }
        chosen
    }

    fn write(&self, at: &Path, mark: &[u8; 32]) -> std::io::Result<()> {
        // Written under a temporary name first, so that an existing file is always complete.
        let unfinished = at.with_extension(format!("unfinished-{}", std::process::id()));
        let mut out = BufWriter::new(File::create(&unfinished)?);
        out.write_all(MAGIC)?;
        out.write_all(mark)?;
        out.write_all(&(self.lines.len() as u64).to_le_bytes())?;
        for ((place, length), count) in self.lines.iter().zip(&self.lengths) {
            out.write_all(&place.to_le_bytes())?;
            out.write_all(&length.to_le_bytes())?;
            out.write_all(&count.to_le_bytes())?;
        }
        out.write_all(&(self.postings.len() as u64).to_le_bytes())?;
        for (word, (passages, bytes)) in &self.postings {
            out.write_all(&(word.len() as u32).to_le_bytes())?;
            out.write_all(word.as_bytes())?;
            out.write_all(&passages.to_le_bytes())?;
            out.write_all(&(bytes.len() as u64).to_le_bytes())?;
            out.write_all(bytes)?;
        }
        out.into_inner().map_err(std::io::Error::from)?.sync_all()?;
        std::fs::rename(unfinished, at)
    }

    /// `None` if there is no file, or it belongs to another corpus or version.
    fn read(at: &Path, mark: &[u8; 32]) -> Option<Self> {
        let mut file = BufReader::with_capacity(1 << 20, agentgym_envs::files::regular(at).ok()?);
        let mut head = [0; 40];
        file.read_exact(&mut head).ok()?;
        if head[..8] != MAGIC[..] || head[8..] != mark[..] {
            return None;
        }
        let count = number(&mut file)?;
        let (mut lines, mut lengths) = (Vec::new(), Vec::new());
        for _ in 0..count {
            lines.push((number(&mut file)?, short(&mut file)?));
            lengths.push(short(&mut file)?);
        }
        let count = number(&mut file)?;
        let mut postings = BTreeMap::new();
        for _ in 0..count {
            let length = u64::from(short(&mut file)?);
            let word = String::from_utf8(piece(&mut file, length)?).ok()?;
            let passages = short(&mut file)?;
            let length = number(&mut file)?;
            postings.insert(word, (passages, piece(&mut file, length)?));
        }
        Some(Self {
            lines,
            lengths,
            postings,
        })
    }
}

fn number(file: &mut impl Read) -> Option<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

fn short(file: &mut impl Read) -> Option<u32> {
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes).ok()?;
    Some(u32::from_le_bytes(bytes))
}

fn piece(file: &mut impl Read, length: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = file.take(length).read_to_end(&mut bytes).ok()?;
    (read as u64 == length).then_some(bytes)
}

/// Seven bits per byte, low bits first; the high bit means that more bytes follow.
fn put(bytes: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..u32::BITS).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(passages: &[&str]) -> String {
        let line = |text: &&str| serde_json::json!({"id": "x", "contents": text}).to_string();
        passages.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn numbers_of_any_size_are_kept() {
        let mut bytes = Vec::new();
        let values = [0, 1, 127, 128, 300, 1 << 21, u32::MAX];
        for value in values {
            put(&mut bytes, value);
        }
        let mut rest = &bytes[..];
        for value in values {
            assert_eq!(take(&mut rest), Some(value));
        }
        assert_eq!(take(&mut rest), None);
    }

    #[test]
    fn rare_words_and_short_passages_win() {
        let text = corpus(&[
            "Rivers\nThe river runs and the river runs through a long valley full of trees.",
            "Mill\nThe mill stands by the river.",
            "Bridge\nThe bridge is old.",
            "Other\nNothing here.",
        ]);
        let index = Index::build(&Corpus::from_text(&text), |_, _| {}).expect("valid");
        assert_eq!(index.search("the old bridge", 1), [2]);
        assert_eq!(index.search("mill RIVER", 2), [1, 0]);
        assert_eq!(index.search("unknown", 3), [0, 1, 2]);
        assert_eq!(index.search("bridge", 9).len(), 4);
        assert!(index.search("bridge", 0).is_empty());
    }

    /// The formula, checked by hand on a corpus of two passages.
    #[test]
    fn scores_follow_the_formula() {
        let text = corpus(&["a\na b b c", "d\nb"]);
        let index = Index::build(&Corpus::from_text(&text), |_, _| {}).expect("valid");
        // `b`: twice in five words, once in two; the mean is 3.5 words.
        let score = |times: f32, length: f32| times / (times + 0.9 * (0.6 + 0.4 * length / 3.5));
        assert!(score(2.0, 5.0) > score(1.0, 2.0));
        assert_eq!(index.search("b", 2), [0, 1]);
        assert_eq!(index.lengths, [5, 2]);
    }

    #[test]
    fn an_index_is_kept_and_belongs_to_its_corpus() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, at) = (folder.path().join("c.jsonl"), folder.path().join("i"));
        let mut builds = 0;
        let mut open = |text: &str| {
            std::fs::write(&file, text).expect("written");
            let corpus = Corpus::open(&file).expect("there");
            Index::open_or_build(&corpus, &at, |_, _| builds += 1).expect("valid")
        };
        let first = open(&corpus(&["a\nb"]));
        assert_eq!(open(&corpus(&["a\nb"])), first);
        assert_ne!(open(&corpus(&["a\nc"])), first);
        assert_eq!(builds, 2);
        std::fs::write(&at, b"AGBM25\x00\x01 but not really").expect("written");
        let corpus = Corpus::open(&file).expect("there");
        assert_eq!(
            Index::open_or_build(&corpus, &at, |_, _| {})
                .expect("built anew")
                .passages(),
            1
        );
    }

    #[test]
    fn a_bad_passage_is_named() {
        let corpus = Corpus::from_text("{\"contents\": \"a\"}\n\n{\"text\": \"b\"}");
        let message = Index::build(&corpus, |_, _| {})
            .expect_err("no contents")
            .to_string();
        assert!(message.contains("passage 1, at byte 19"), "{message}");
    }
}
