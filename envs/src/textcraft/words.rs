//! Made-up words for invented recipe books.
//!
//! The words come from one fixed list of pronounceable syllables: a small model's tokenizer can
//! learn them, and none means anything outside of a world. Names within a world share a few
//! words, so that reading one needs all of its words.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::random::Draws;

const ONSETS: [&str; 16] = [
    "b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z",
];
const VOWELS: [&str; 5] = ["a", "e", "i", "o", "u"];
const CODAS: [&str; 6] = ["", "", "n", "l", "r", "s"];
const LEXICON_WORDS: usize = 320;

/// Words drawn for one world, before any more are needed.
const WORLD_WORDS: std::ops::RangeInclusive<u32> = 8..=14;

/// Every word that an invented book can use, in a fixed order: what a tokenizer is trained on.
pub fn lexicon() -> &'static [String] {
    static WORDS: LazyLock<Vec<String>> = LazyLock::new(|| {
        let mut draws = Draws::new("lexicon", &[]);
        let mut known = BTreeSet::new();
        let mut words = Vec::with_capacity(LEXICON_WORDS);
        while words.len() < LEXICON_WORDS {
            let mut word = String::new();
            for _ in 0..2 {
                word.push_str(ONSETS[draws.below(ONSETS.len())]);
                word.push_str(VOWELS[draws.below(VOWELS.len())]);
            }
            word.push_str(CODAS[draws.below(CODAS.len())]);
            if known.insert(word.clone()) {
                words.push(word);
            }
        }
        words
    });
    &WORDS
}

/// Gives out names of one to three words, each only once.
pub(crate) struct Names {
    words: Vec<&'static str>,
    given: BTreeSet<String>,
}

impl Names {
    pub(crate) fn new(draws: &mut Draws) -> Self {
        let mut names = Self {
            words: Vec::new(),
            given: BTreeSet::new(),
        };
        for _ in 0..draws.between(WORLD_WORDS) {
            names.add_word(draws);
        }
        names
    }

    fn add_word(&mut self, draws: &mut Draws) {
        let lexicon = lexicon();
        loop {
            let word = lexicon[draws.below(lexicon.len())].as_str();
            if !self.words.contains(&word) {
                self.words.push(word);
                return;
            }
        }
    }

    /// A new name, as an identifier.
    pub(crate) fn next(&mut self, draws: &mut Draws) -> String {
        loop {
            for _ in 0..8 {
                let count = 1 + draws.weighted(&[35, 45, 20]);
                draws.shuffle(&mut self.words);
                let name = self.words[..count].join("_");
                if self.given.insert(name.clone()) {
                    return name;
                }
            }
            self.add_word(draws);
        }
    }
}
