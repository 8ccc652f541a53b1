//! Finds the first of many strings in time linear in the text.

use aho_corasick::{AhoCorasick, MatchKind};

/// Strings that are searched for together.
#[derive(Debug, Clone)]
pub(crate) struct Needles(AhoCorasick);

impl Needles {
    /// Empty strings are never found. The error message refers to the tokenizer as "its".
    pub(crate) fn new<'a>(needles: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(needles.filter(|needle| !needle.is_empty()))
            .map(Needles)
            .map_err(|e| format!("its special tokens cannot be searched for: {e}"))
    }

    /// The needle that begins first in `text`, the longest on ties: its start and the needle.
    pub(crate) fn first<'a>(&self, text: &'a str) -> Option<(usize, &'a str)> {
        self.0
            .find(text)
            .map(|found| (found.start(), &text[found.range()]))
    }

    /// All needles in `text`, from left to right, without overlaps.
    pub(crate) fn all<'a>(&self, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        self.0
            .find_iter(text)
            .map(|found| (found.start(), &text[found.range()]))
    }
}
