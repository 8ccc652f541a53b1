//! Text to token ids and back, with the model folder's own tokenizer.
//!
//! Two ways of encoding text are deliberately separate. *Template* text is trusted:
//! its special strings (`<|im_end|>`) become the special ids. Text from an
//! environment or a task is not trusted: the same characters in it are spelled out
//! as ordinary tokens, so that no web page can end a turn or open a system message.

mod length;
mod needles;

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use self::length::IdLength;
pub(crate) use self::needles::Needles;
use crate::{Error, Result};

/// Files of a tokenizer that are carried along unchanged; the first is required.
pub(crate) const FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// A tokenizer with the files it was read from.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    /// Special strings become special ids.
    parsing: tokenizers::Tokenizer,
    /// Special strings are spelled out.
    spelling: tokenizers::Tokenizer,
    special: BTreeMap<String, u32>,
    /// The keys of `special`.
    needles: Needles,
    /// How much text an id can represent, where that is known.
    id_length: Option<IdLength>,
    vocab_size: usize,
    files: BTreeMap<String, Vec<u8>>,
    path: PathBuf,
}

/// A stretch of rendered text and whether its special strings are trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) text: &'a str,
    pub(crate) trusted: bool,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and its companions from a policy folder.
    pub fn load(dir: &Path) -> Result<Self> {
        Self::from_files(&read_files(dir, &FILES)?, dir)
    }

    /// Builds from the contents of a policy folder's files, by name; other files are
    /// ignored. `dir` appears in messages.
    pub fn from_files(files: &BTreeMap<String, Vec<u8>>, dir: &Path) -> Result<Self> {
        let path = dir.join(FILES[0]);
        let bad = |message: String| Error::Tokenizer {
            path: path.clone(),
            message,
        };
        let json = files
            .get(FILES[0])
            .ok_or_else(|| bad("is missing; a policy folder needs it".to_owned()))?;
        // The library panics at some damaged files instead of refusing them.
        let mut parsing = catch_unwind(|| tokenizers::Tokenizer::from_bytes(json))
            .unwrap_or_else(|_| Err("its reader gave up".into()))
            .map_err(|e| bad(format!("not a tokenizer: {e}; copy the file again")))?;
        // Truncation and padding are the caller's decision.
        parsing
            .with_truncation(None)
            .map_err(|e| bad(e.to_string()))?;
        parsing.with_padding(None);
        let special: BTreeMap<String, u32> = parsing
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (token.content, id))
            .collect();
        let highest = parsing.get_vocab(true).into_values().max();
        let mut spelling = parsing.clone();
        spelling.set_encode_special_tokens(true);
        let needles = Needles::new(special.keys().map(String::as_str)).map_err(bad)?;
        let tokenizer = Tokenizer {
            id_length: IdLength::of(&parsing),
            parsing,
            spelling,
            special,
            needles,
            vocab_size: highest.map_or(0, |id| id as usize + 1),
            files: (FILES.iter())
                .filter_map(|&name| Some((name.to_owned(), files.get(name)?.clone())))
                .collect(),
            path,
        };
        tokenizer.check_spelling()?;
        Ok(tokenizer)
    }

    /// Writes the files that were read, byte for byte.
    pub fn save(&self, dir: &Path) -> Result<()> {
        for (name, bytes) in &self.files {
            let path = dir.join(name);
            std::fs::write(&path, bytes).map_err(Error::io(&path))?;
        }
        Ok(())
    }

    /// The files by name, as they were read.
    pub fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.files
    }

    /// Ids of trusted text: special strings become special ids, none is added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.run(&self.parsing, text)
    }

    /// Ids of untrusted text: no id of a special token can come out.
    ///
    /// Added tokens not marked special, such as Qwen's `<tool_call>`, are words
    /// like any other and keep their id.
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>> {
        self.run(&self.spelling, text)
    }

    /// Text of ids; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, token_ids: &[u32], skip_special: bool) -> String {
        // The library fails only for decoders that run regular expressions over
        // their own output; the fallback is the text id by id.
        self.parsing
            .decode(token_ids, skip_special)
            .unwrap_or_else(|_| {
                let known = token_ids
                    .iter()
                    .filter_map(|&id| self.parsing.id_to_token(id));
                known.collect::<Vec<_>>().concat()
            })
    }

    /// Every id is below this.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The id of a token by its exact spelling in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.parsing.token_to_id(token)
    }

    /// The spelling of an id in the vocabulary.
    #[cfg(feature = "candle")]
    pub(crate) fn id_to_token(&self, id: u32) -> Option<String> {
        self.parsing.id_to_token(id)
    }

    /// Special tokens and their ids, by spelling.
    pub fn special_tokens(&self) -> &BTreeMap<String, u32> {
        &self.special
    }

    /// The first special string in `text`, the longest where several begin at the
    /// same place: its start and its spelling.
    pub(crate) fn find_special<'a>(&self, text: &'a str) -> Option<(usize, &'a str)> {
        self.needles.first(text)
    }

    /// A lower bound on the ids of [`Self::encode_parts`], without encoding anything. 0
    /// where the kind of tokenizer allows no bound.
    pub(crate) fn ids_min(&self, parts: &[Part<'_>]) -> usize {
        (self.id_length).map_or(0, |length| length.ids_min(parts.iter().map(|p| p.text)))
    }

    /// The same for one text.
    pub(crate) fn text_ids_min(&self, text: &str) -> usize {
        let trusted = true;
        self.ids_min(&[Part { text, trusted }])
    }

    /// Any ASCII text of this many bytes has more than `ids` ids; `None` where that is not known.
    pub(crate) fn bytes_above(&self, ids: usize) -> Option<usize> {
        self.id_length.map(|length| length.bytes_above(ids))
    }

    /// Ids of text that consists of trusted and untrusted stretches.
    ///
    /// Without a special string in untrusted text this is [`Self::encode`] of the
    /// whole, so that merges across stretches are those of one rendering. Otherwise
    /// the trusted special strings split the text, as they do inside the tokenizer,
    /// and the pieces between them are spelled out.
    pub(crate) fn encode_parts(&self, parts: &[Part<'_>]) -> Result<Vec<u32>> {
        let injected = |part: &Part<'_>| !part.trusted && self.find_special(part.text).is_some();
        if !parts.iter().any(injected) {
            let whole: String = parts.iter().map(|part| part.text).collect();
            return self.encode(&whole);
        }
        let mut ids = Vec::new();
        let mut pending = String::new();
        for part in parts {
            let mut rest = part.text;
            while part.trusted
                && let Some((start, special)) = self.find_special(rest)
            {
                pending.push_str(&rest[..start]);
                ids.extend(self.encode_ordinary(&std::mem::take(&mut pending))?);
                ids.push(self.special[special]);
                rest = &rest[start + special.len()..];
            }
            pending.push_str(rest);
        }
        ids.extend(self.encode_ordinary(&pending)?);
        Ok(ids)
    }

    fn run(&self, tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>> {
        match tokenizer.encode_fast(text, false) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(e) => Err(Error::Tokenizer {
                path: self.path.clone(),
                message: format!("cannot encode {:?}: {e}", excerpt(text)),
            }),
        }
    }

    /// Refuses a vocabulary that holds a special string as an ordinary word. Checked
    /// once at loading instead of in the middle of an episode.
    fn check_spelling(&self) -> Result<()> {
        for (token, id) in &self.special {
            let ids = self.encode_ordinary(token)?;
            if let Some(found) = ids
                .iter()
                .find(|id| self.special.values().any(|special| special == *id))
            {
                return Err(Error::Tokenizer {
                    path: self.path.clone(),
                    message: format!(
                        "special token {token:?} (id {id}) cannot be spelled out in ordinary \
                         tokens, id {found} comes back; environment text could forge it"
                    ),
                });
            }
        }
        Ok(())
    }
}

/// Those of a folder's files that exist, by name.
pub(crate) fn read_files(dir: &Path, names: &[&str]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for &name in names {
        let path = dir.join(name);
        if let Some(bytes) = crate::folder::files::read_if_there(&path)? {
            files.insert(name.to_owned(), bytes);
        }
    }
    Ok(files)
}

/// The first 80 characters, for messages.
pub(crate) fn excerpt(text: &str) -> String {
    let mut short: String = text.chars().take(80).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
pub(crate) mod tests;
