//! Made-up words for invented recipe books.
//!
//! The words are built from a fixed list of pronounceable syllables: a small model's tokenizer can
//! learn them, and none has a meaning outside of a world. Names within a world share a few words,
//! so that all words of a name have to be read.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use crate::draws::Draws;

const ONSETS: [&str; 16] = [
    "b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z",
];
const VOWELS: [&str; 5] = ["a", "e", "i", "o", "u"];
const CODAS: [&str; 6] = ["", "", "n", "l", "r", "s"];
const LEXICON_WORDS: usize = 320;

/// Words drawn for a world initially; more are drawn when needed.
const WORLD_WORDS: std::ops::RangeInclusive<u32> = 8..=14;

/// Every word of the lexicon vocabulary, in a fixed order: the training text of a tokenizer.
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

/// The source of a world's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Vocabulary {
    /// The fixed list of [`lexicon`]: a trained tokenizer usually has one token per word.
    #[default]
    Lexicon,
    /// New words for each world, made of English-like letter groups: unseen words of many tokens,
    /// as real recipe books have for a small tokenizer.
    Wide,
}

const WIDE_STARTS: [&str; 40] = [
    "b", "bl", "br", "c", "ch", "cl", "cr", "d", "dr", "f", "fl", "fr", "g", "gl", "gr", "h", "j",
    "k", "l", "m", "n", "p", "pl", "pr", "qu", "r", "s", "sh", "sk", "sl", "sm", "sp", "st", "str",
    "t", "th", "tr", "v", "w", "",
];
const WIDE_VOWELS: [&str; 16] = [
    "a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "ee", "oa", "oo", "ou", "y",
];
const WIDE_ENDS: [&str; 40] = [
    "", "", "", "b", "ck", "d", "ff", "g", "l", "ll", "ld", "lk", "lt", "m", "mp", "n", "nd", "ng",
    "nk", "nt", "p", "r", "rd", "rk", "rm", "rn", "rt", "s", "sh", "sk", "ss", "st", "t", "tch",
    "th", "w", "x", "le", "er", "en",
];

/// A word of one or two English-like syllables.
fn wide_word(draws: &mut Draws) -> String {
    let mut word = String::new();
    for _ in 0..1 + draws.weighted(&[45, 55]) {
        word.push_str(WIDE_STARTS[draws.below(WIDE_STARTS.len())]);
        word.push_str(WIDE_VOWELS[draws.below(WIDE_VOWELS.len())]);
        word.push_str(WIDE_ENDS[draws.below(WIDE_ENDS.len())]);
    }
    word
}

/// Generates names of one to three words, each name only once.
pub(crate) struct Names {
    vocabulary: Vocabulary,
    words: Vec<String>,
    given: BTreeSet<String>,
}

impl Names {
    pub(crate) fn new(vocabulary: Vocabulary, draws: &mut Draws) -> Self {
        let mut names = Self {
            vocabulary,
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
            let word = match self.vocabulary {
                Vocabulary::Lexicon => lexicon[draws.below(lexicon.len())].clone(),
                Vocabulary::Wide => wide_word(draws),
            };
            // Rejects one-letter words. The grammar's "using" is about one in 10^8 wide words.
            if word.len() > 1 && !self.words.contains(&word) {
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
