//! Keeps the special strings of untrusted contents apart while a template renders
//! them: placeholders go in, and come out as stretches that are spelled in ordinary
//! tokens.

use super::{CLOSE, Message};
use crate::tokenizer::{Part, find_first};

/// How the placeholder of a special string in a content begins.
const GUARD: &str = "\u{E000}guarded ";

/// Placeholders and the special strings they stand for, in order.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    originals: Vec<(String, String)>,
}

impl Guarded {
    /// Puts placeholders where contents hold special strings, or a placeholder's own
    /// opening.
    pub(super) fn new(messages: &mut [Message], special: &[String]) -> Self {
        let needles = || special.iter().map(String::as_str).chain([GUARD]);
        let mut guarded = Guarded::default();
        for message in messages {
            let content = std::mem::take(&mut message.content);
            let mut rest = content.as_str();
            while let Some((start, found)) = find_first(rest, needles()) {
                let mark = format!("{GUARD}{}{CLOSE}", guarded.originals.len());
                message.content.push_str(&rest[..start]);
                message.content.push_str(&mark);
                guarded.originals.push((mark, found.to_owned()));
                rest = &rest[start + found.len()..];
            }
            message.content.push_str(rest);
        }
        guarded
    }

    /// Rendered text with the special strings of contents back in place, untrusted.
    pub(super) fn parts<'a>(&'a self, text: &'a str) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let mut rest = text;
        let marks = || self.originals.iter().map(|(mark, _)| mark.as_str());
        while let Some((start, mark)) = find_first(rest, marks()) {
            let (_, original) = (self.originals.iter())
                .find(|(known, _)| known == mark)
                .expect("the mark was found among the originals");
            parts.push(Part {
                text: &rest[..start],
                trusted: true,
            });
            parts.push(Part {
                text: original,
                trusted: false,
            });
            rest = &rest[start + mark.len()..];
        }
        parts.push(Part {
            text: rest,
            trusted: true,
        });
        parts
    }
}
