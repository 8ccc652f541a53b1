//! Ids into text as they come. A character may have several ids, so what a new id adds is known only
//! together with those before it; each is decoded within a window of a few, so that the work is linear
//! in the length. Texts that end a message are looked for in what is not yet told.

use agentgym_model::Tokenizer;
use std::collections::BTreeMap;

/// Most bytes of a character, less one: bytes at the end that may belong to one that is not complete.
const OPEN_MAX: usize = 3;
/// Ids after which a window that never comes to a clean border is cut, and how many of it stay. One
/// that does is cut at that many.
const WINDOW_MAX: usize = 64;
const WINDOW_KEPT: usize = 8;

const REPLACEMENT: char = '\u{fffd}';

/// Special tokens by id.
#[derive(Debug)]
pub(crate) struct Special(BTreeMap<u32, String>);

impl Special {
    pub(crate) fn of(tokenizer: &Tokenizer) -> Self {
        let all = tokenizer.special_tokens().iter();
        Self(all.map(|(text, id)| (*id, text.clone())).collect())
    }

    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        self.0.get(&id).map(String::as_str)
    }
}

/// The text of ids that come one by one.
#[derive(Debug, Default)]
pub(crate) struct Spelling {
    /// The last ids, from a border between characters on.
    window: Vec<u32>,
    /// Where in the window the last border is.
    border: usize,
    /// The text of the window that was told.
    told: String,
}

impl Spelling {
    /// The text that an id adds: none if it ends within a character.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        self.window.push(id);
        let text = tokenizer.decode(&self.window, false);
        let mut added = String::new();
        if let Some(rest) = text.strip_prefix(&self.told) {
            let open = open_at_end(rest);
            added.push_str(&rest[..rest.len() - open]);
            self.told.push_str(&added);
            if open == 0 {
                if self.window.len() >= WINDOW_KEPT {
                    self.window.drain(..self.border);
                    self.told = tokenizer.decode(&self.window, false);
                }
                self.border = self.window.len();
            }
        }
        if self.window.len() > WINDOW_MAX {
            self.window.drain(..self.window.len() - WINDOW_KEPT);
            self.border = 0;
            self.told = tokenizer.decode(&self.window, false);
            self.told
                .truncate(self.told.len() - open_at_end(&self.told));
        }
        added
    }

    /// What is left at the end: a character that never became complete.
    pub(crate) fn rest(&mut self, tokenizer: &Tokenizer) -> String {
        let text = tokenizer.decode(&self.window, false);
        let rest = text.strip_prefix(&self.told).unwrap_or_default().to_owned();
        self.told = text;
        rest
    }
}

/// Bytes of the replacement characters at the end that another id may still change.
fn open_at_end(text: &str) -> usize {
    let open = text.chars().rev().take_while(|c| *c == REPLACEMENT).count();
    open.min(OPEN_MAX) * REPLACEMENT.len_utf8()
}

/// Looks for texts that end a message.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    /// What may be the beginning of one.
    held: String,
    /// The one that was found.
    pub(crate) found: Option<String>,
}

impl Stops {
    /// Takes text; returns what can be told, and whether a stop was found.
    pub(crate) fn push(&mut self, stops: &[String], text: &str) -> (String, bool) {
        self.held.push_str(text);
        let found = stops
            .iter()
            .filter_map(|stop| Some((self.held.find(stop)?, stop)));
        if let Some((at, stop)) = found.min_by_key(|(at, _)| *at) {
            self.held.truncate(at);
            self.found = Some(stop.clone());
            return (std::mem::take(&mut self.held), true);
        }
        let ends = |stop: &String| {
            let borders = (1..stop.len()).filter(|at| stop.is_char_boundary(*at));
            let held = borders.filter(|at| self.held.ends_with(&stop[..*at]));
            held.max().unwrap_or(0)
        };
        let open = stops.iter().map(ends).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - open);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back.
    pub(crate) fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_model::{Device, Policy};
    use std::path::Path;

    fn tokenizer() -> Tokenizer {
        let folder = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/fixtures/qwen2-tiny"
        ));
        let policy = Policy::load(folder, &Device::cpu()).unwrap();
        policy.tokenizer().clone()
    }

    fn spelled(tokenizer: &Tokenizer, ids: &[u32]) -> (Vec<String>, String) {
        let mut spelling = Spelling::default();
        let pieces: Vec<String> = ids.iter().map(|id| spelling.push(tokenizer, *id)).collect();
        let rest = spelling.rest(tokenizer);
        (pieces, rest)
    }

    #[test]
    fn characters_of_several_ids_come_whole() {
        let tokenizer = tokenizer();
        let text = "a é 你好 🦀🦀 naïve \u{fffd} end".repeat(20);
        let ids = tokenizer.encode(&text).unwrap();
        assert!(ids.len() > text.chars().count(), "some have several ids");
        let (pieces, rest) = spelled(&tokenizer, &ids);
        assert_eq!(pieces.concat() + &rest, text);
        let whole = pieces.iter().filter(|piece| piece.contains('🦀')).count();
        assert!(whole > 0);
        let cut = &ids[..tokenizer.encode("a é 你").unwrap().len() - 1];
        let (pieces, rest) = spelled(&tokenizer, cut);
        assert!(!pieces.concat().contains(REPLACEMENT) && rest.contains(REPLACEMENT));
        assert_eq!(pieces.concat() + &rest, tokenizer.decode(cut, false));
    }

    /// Bytes that are no text, for ever and in any order: nothing is lost, and no window grows.
    #[test]
    fn what_is_no_text_is_told_too() {
        let tokenizer = tokenizer();
        let special: Vec<u32> = tokenizer.special_tokens().values().copied().collect();
        let ordinary: Vec<u32> = (0..tokenizer.vocab_size() as u32)
            .filter(|id| !special.contains(id))
            .collect();
        let broken: Vec<u32> = (ordinary.iter().copied())
            .filter(|id| tokenizer.decode(&[*id], false).contains(REPLACEMENT))
            .collect();
        assert!(broken.len() > 20, "{} ids within characters", broken.len());
        let mut state = 7u64;
        let mut draw = |from: &[u32]| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            from[(state >> 33) as usize % from.len()]
        };
        for length in [1, 5, 63, 64, 65, 130, 700] {
            for from in [&broken, &ordinary] {
                let ids: Vec<u32> = (0..length).map(|_| draw(from)).collect();
                let (pieces, rest) = spelled(&tokenizer, &ids);
                let whole = tokenizer.decode(&ids, false);
                assert_eq!(pieces.concat() + &rest, whole, "{length} ids");
            }
            let same = vec![broken[0]; length];
            let (pieces, rest) = spelled(&tokenizer, &same);
            assert_eq!(pieces.concat() + &rest, tokenizer.decode(&same, false));
        }
    }

    #[test]
    fn a_stop_is_found_across_pieces_and_nothing_else_is_held_back_for_long() {
        let told = |stops: &[&str], pieces: &[&str]| {
            let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
            let (mut search, mut out) = (Stops::default(), Vec::new());
            for piece in pieces {
                let (text, found) = search.push(&stops, piece);
                out.push(text);
                if found {
                    return (out, true);
                }
            }
            out.push(search.rest());
            (out, false)
        };
        let (out, found) = told(&["END"], &["a E", "N", "D b"]);
        assert_eq!((out.concat(), found), ("a ".to_owned(), true));
        let (out, found) = told(&["END"], &["a E", "N", "d b"]);
        assert_eq!(out, ["a ", "", "ENd b", ""]);
        assert!(!found);
        // The one that begins first, even where another is listed before it.
        let (out, found) = told(&["b", "abc"], &["xa", "bc"]);
        assert_eq!((out.concat(), found), ("x".to_owned(), true));
        let (out, found) = told(&["é!"], &["é", "?"]);
        assert_eq!((out.concat(), found), ("é?".to_owned(), false));
        let (out, found) = told(&["aab"], &["aa", "ab"]);
        assert_eq!((out.concat(), found), ("a".to_owned(), true));
        assert_eq!(told(&[], &["x"]).0, ["x", ""]);
    }
}
