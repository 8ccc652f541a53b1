//! A picture of the board: the guesses with their colours, and the words that are left.

use super::game::{INVALID, OPENING, Wordle};
use agentgym_envs::replica::Replica;
use serde_json::{Value, json};

/// Words that a picture lists.
const LISTED_MAX: usize = 12;

/// A game with what was guessed so far.
pub(super) struct Board {
    game: Wordle,
    guesses: Vec<(String, String)>,
}

impl Board {
    pub(super) fn new(game: Wordle) -> Self {
        let guesses = Vec::new();
        Self { game, guesses }
    }
}

impl Replica for Board {
    fn first(&self) -> String {
        OPENING.to_owned()
    }

    fn step(&mut self, action: &str) -> String {
        let reply = self.game.step(action).observation;
        let guess: String = action.split_whitespace().collect();
        let colours = match reply == INVALID {
            true => String::new(),
            false => reply.split_whitespace().collect(),
        };
        self.guesses.push((guess, colours));
        reply
    }

    fn picture(&self) -> Value {
        let left = self.game.left();
        json!({
            "kind": "guesses", "guesses": self.guesses, "words_left": left.len(),
            "words": left.iter().take(LISTED_MAX).collect::<Vec<_>>(),
        })
    }
}
