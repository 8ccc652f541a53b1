//! Guards the special strings of untrusted contents while a template renders them: placeholders
//! replace them, and become stretches of text that are encoded in ordinary tokens.
//!
//! Contents come from servers, so both directions take time linear in the text, for
//! any number of special strings.

use super::{CLOSE, Message};
use crate::folder::tokenizer::{Needles, Part};

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
        let mut originals = Vec::new();
        for message in messages {
            let content = std::mem::take(&mut message.content);
            let mut end = 0;
            for (start, found) in guarded.all(&content) {
                message.content.push_str(&content[end..start]);
                message.content.push_str(&mark(originals.len()));
                originals.push(found.to_owned());
                end = start + found.len();
            }
            message.content.push_str(&content[end..]);
        }
        Guarded { originals }
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
