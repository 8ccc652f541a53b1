//! Wordle as LMRL-Gym plays it: the hidden word is not fixed. Each guess draws a new one among the
//! words consistent with all answers so far, so only the last remaining word is a certain win.

use std::sync::Arc;

use crate::draws::Draws;

/// Our own word list.
pub(crate) const WORDS: [&str; 40] = [
    "amber", "apron", "bench", "brook", "candy", "cedar", "cider", "cliff", "crane", "daisy",
    "delta", "eagle", "ember", "fable", "ferry", "frost", "glove", "grape", "honey", "ivory",
    "jelly", "knife", "lemon", "linen", "maple", "mirth", "noble", "ocean", "olive", "pearl",
    "plume", "quilt", "raven", "river", "slate", "spoon", "tiger", "tulip", "wagon", "yeast",
];

/// Guesses per game, including those that are not words.
const GUESSES_MAX: usize = 6;

pub(crate) const INVALID: &str = "invalid word";

pub(crate) const OPENING: &str = "Let's start Wordle!";

/// The result of a guess.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WordleReply {
    pub(crate) observation: String,
    pub(crate) reward: f64,
    pub(crate) done: bool,
}

/// The words that can be guessed and hidden.
#[derive(Debug)]
pub(crate) struct Words(Vec<String>);

impl Words {
    /// Our own words.
    pub(crate) fn own() -> Self {
        Self(WORDS.map(str::to_owned).to_vec())
    }

    /// Reads a list, a word on each line. The error text says what is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut words: Vec<String> = Vec::new();
        for (line, word) in text
            .lines()
            .enumerate()
            .filter(|(_, word)| !word.is_empty())
        {
            if word.len() != 5 || !word.bytes().all(|letter| letter.is_ascii_lowercase()) {
                return Err(format!(
                    "line {} is {word:?}; give words of five letters from a to z, one on each line",
                    line + 1
                ));
            }
            words.push(word.to_owned());
        }
        if words.is_empty() {
            return Err("has no words; give one on each line".to_owned());
        }
        words.sort_unstable();
        words.dedup();
        Ok(Self(words))
    }
}

/// A game in progress.
pub(crate) struct Wordle {
    draws: Draws,
    words: Arc<Words>,
    /// Places in the list of words.
    left: Vec<usize>,
    guesses: usize,
}

impl Wordle {
    pub(crate) fn start(words: &Arc<Words>, server_seed: u64, seed: &str) -> Self {
        let parts: [&[u8]; 2] = [&server_seed.to_le_bytes(), seed.as_bytes()];
        Self {
            draws: Draws::new("wordle", &parts),
            words: Arc::clone(words),
            left: (0..words.0.len()).collect(),
            guesses: 0,
        }
    }

    /// The words consistent with all answers so far.
    pub(crate) fn left(&self) -> Vec<&str> {
        self.left
            .iter()
            .map(|at| self.words.0[*at].as_str())
            .collect()
    }

    /// Plays a guess: five letters, with or without white space between them.
    pub(crate) fn step(&mut self, guess: &str) -> WordleReply {
        self.guesses += 1;
        let guess: String = guess.split_whitespace().collect();
        let last = self.guesses >= GUESSES_MAX;
        let words = Arc::clone(&self.words);
        if words.0.binary_search(&guess).is_err() {
            return WordleReply {
                observation: INVALID.to_owned(),
                reward: 0.0,
                done: last,
            };
        }
        let hidden = words.0[self.left[self.draws.below(self.left.len())]].as_str();
        let colours = colours(&guess, hidden);
        // The drawn word is consistent with its own answer, so at least one word is left.
        self.left
            .retain(|word| self::colours(&guess, &words.0[*word]) == colours);
        let won = guess == hidden;
        let letters: Vec<String> = colours.iter().map(|c| char::from(*c).to_string()).collect();
        WordleReply {
            observation: format!("{}\n", letters.join(" ")),
            reward: f64::from(u8::from(won)),
            done: won || last,
        }
    }
}

/// `g`: right place; `y`: elsewhere in the word; `b`: not in the word.
fn colours(guess: &str, hidden: &str) -> [u8; 5] {
    let mut colours = [b'b'; 5];
    for (place, (guessed, letter)) in guess.bytes().zip(hidden.bytes()).enumerate() {
        if guessed == letter {
            colours[place] = b'g';
        } else if hidden.bytes().any(|letter| letter == guessed) {
            colours[place] = b'y';
        }
    }
    colours
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(server_seed: u64, seed: &str) -> Wordle {
        Wordle::start(&Arc::new(Words::own()), server_seed, seed)
    }

    #[test]
    fn a_list_of_words_is_read_or_refused_by_its_line() {
        let words = Words::parse("tulip\nbench\n\nbench\n").expect("a list");
        assert_eq!(words.0, ["bench", "tulip"]);
        let mut game = Wordle::start(&Arc::new(words), 0, "1");
        assert_eq!(game.step("crane").observation, "invalid word");
        assert_ne!(game.step("tulip").observation, "invalid word");
        for (text, why) in [
            ("", "has no words"),
            ("bench\nstra\u{df}e\n", "line 2 is \"stra\u{df}e\""),
            ("Bench", "line 1"),
            ("benches", "line 1"),
        ] {
            let message = Words::parse(text).expect_err(text);
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn words_are_five_letters_in_order() {
        assert!(WORDS.is_sorted());
        assert!(WORDS.iter().all(|word| word.len() == 5));
        assert_eq!(&colours("crane", "raven"), b"byyyy");
        assert_eq!(&colours("ember", "eagle"), b"gbbyb");
    }

    #[test]
    fn a_player_of_fitting_words_always_wins_or_runs_out() {
        let mut won = 0;
        for seed in 0..200 {
            let mut game = start(0, &seed.to_string());
            for turn in 1..=6 {
                let guess = game.left()[0].to_owned();
                let reply = game.step(&guess);
                assert_eq!(reply.done, reply.reward == 1.0 || turn == 6);
                if reply.done {
                    assert_eq!(reply.reward == 1.0, reply.observation == "g g g g g\n");
                    won += u32::from(reply.reward == 1.0);
                    break;
                }
                assert!(!game.left().is_empty());
            }
        }
        assert!(won > 150, "{won}");
    }

    #[test]
    fn games_are_functions_of_their_seeds() {
        let play = |server: u64, seed: &str| {
            let mut game = start(server, seed);
            let turns = ["c r a n e", "slate", "CRANE", "zzzzz", "", "honey"];
            turns.map(|guess| game.step(guess))
        };
        assert_eq!(play(0, "7"), play(0, "7"));
        assert!((0..20).any(|seed| play(0, &seed.to_string()) != play(1, &seed.to_string())));
        let replies = play(0, "7");
        for invalid in &replies[2..5] {
            assert_eq!(
                (invalid.observation.as_str(), invalid.done),
                ("invalid word", false)
            );
        }
        assert!(replies[5].done);
    }
}
