//! Guards the special strings of untrusted contents while a template renders them: placeholders
//! replace them, and become stretches of text that are encoded in ordinary tokens.
//!
//! Contents come from servers, so both directions take time linear in the text, for
//! any number of special strings.

use super::{CLOSE, Message};
use crate::folder::tokenizer::{Needles, Part};
use serde_json::{Map, Value as Json};

/// The start of the placeholder of a special string in a content. Its first character
/// does not occur in it again, so that no two placeholders overlap.
pub(super) const GUARD: &str = "\u{E000}guarded ";

/// The special strings that placeholders stand for, by the placeholder's number.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    originals: Vec<String>,
}

impl Guarded {
    /// Replaces every occurrence of one of the `guarded` strings in contents by a
    /// placeholder; those are the special strings, and [`GUARD`].
    pub(super) fn new(messages: &mut [Message], guarded: &Needles) -> Self {
        let mut all = Guarded::default();
        for message in messages {
            message.content = all.guard(&message.content, guarded);
            for call in &mut message.tool_calls {
                call.name = all.guard(&call.name, guarded);
                call.arguments = all.guard_map(&call.arguments, guarded);
            }
        }
        all
    }

    fn guard(&mut self, text: &str, guarded: &Needles) -> String {
        let (mut safe, mut end) = (String::with_capacity(text.len()), 0);
        for (start, found) in guarded.all(text) {
            safe.push_str(&text[end..start]);
            safe.push_str(&mark(self.originals.len()));
            self.originals.push(found.to_owned());
            end = start + found.len();
        }
        safe + &text[end..]
    }

    /// The same for all texts of a JSON value, names of fields included.
    pub(super) fn guard_json(&mut self, value: &Json, guarded: &Needles) -> Json {
        match value {
            Json::String(text) => Json::String(self.guard(text, guarded)),
            Json::Array(all) => all
                .iter()
                .map(|one| self.guard_json(one, guarded))
                .collect(),
            Json::Object(all) => Json::Object(self.guard_map(all, guarded)),
            other => other.clone(),
        }
    }

    fn guard_map(&mut self, all: &Map<String, Json>, guarded: &Needles) -> Map<String, Json> {
        let fields = all.iter();
        fields
            .map(|(name, value)| (self.guard(name, guarded), self.guard_json(value, guarded)))
            .collect()
    }

    /// Rendered text with the special strings of contents back in place, untrusted.
    pub(super) fn parts<'a>(&'a self, text: &'a str) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        // Start of the trusted stretch, and where the search for the next placeholder begins.
        let (mut begin, mut from) = (0, 0);
        while let Some(at) = text[from..].find(GUARD) {
            let start = from + at;
            from = start + GUARD.len();
            let Some(number) = number(&text[from..]).filter(|&n| n < self.originals.len()) else {
                continue;
            };
            parts.push(Part {
                text: &text[begin..start],
                trusted: true,
            });
            parts.push(Part {
                text: &self.originals[number],
                trusted: false,
            });
            from = start + mark(number).len();
            begin = from;
        }
        parts.push(Part {
            text: &text[begin..],
            trusted: true,
        });
        parts
    }
}

/// The placeholder with this number.
fn mark(number: usize) -> String {
    format!("{GUARD}{number}{CLOSE}")
}

/// The number of a placeholder from the text after [`GUARD`], if it is one.
fn number(text: &str) -> Option<usize> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).take(20).count();
    let number: usize = text[..digits].parse().ok()?;
    // [`mark`] never writes `007`.
    let is_mark = text[digits..].starts_with(CLOSE) && number.to_string().len() == digits;
    is_mark.then_some(number)
}
