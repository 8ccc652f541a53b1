//! Parses the action to send from the model's text.
//!
//! The original clients clean the text before they post it, and rewards depend on that cleaning. It
//! is therefore part of an environment's specification and copied exactly. Changes made by the
//! cleaning are reported, because a lenient parser shifts scores.

pub(crate) mod offered;
pub mod tool_call;

use crate::spec::calls::Tool;
use serde::{Deserialize, Serialize};
pub use tool_call::CallError;

#[cfg(test)]
mod tests;

/// How an environment's action is found in a model's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Parser {
    /// The text after `Action:` up to the end of its line (white space, including line ends, may
    /// follow the colon), reduced to ASCII letters, digits, commas and single spaces. If there is
    /// none, the empty action is sent. If there are several, nothing is sent and the next
    /// observation says so.
    ActionLine,
    /// The text after the last `Action:`, up to the end, trimmed. If there is none, the empty
    /// action is sent, or the whole text if it contains `search[` or `click[`.
    LastAction,
    /// The text between the first `Action:` and the next one or the end, trimmed; the whole
    /// text if there is none.
    FirstAction,
    /// The whole text, if it contains a block between triple backticks (the server takes the
    /// first); otherwise nothing is sent and the next observation says so.
    Fenced,
    /// The text between the last "```sql" and the next triple backticks, trimmed; without "```sql",
    /// the text before the backticks.
    SqlBlock,
    /// The whole text; the server looks for `<search>…</search>` or `<answer>…</answer>`.
    Tags,
    /// The whole text.
    Raw,
    /// The one call of a tool between `<tool_call>` and `</tool_call>`, in JSON and in one order.
    /// Anything but a call that its tool takes is not sent, and the next observation says what is
    /// wrong.
    ToolCall,
}

/// The result of parsing a model's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The action to send; `None` if the client answers locally.
    pub action: Option<String>,
    /// The answer given without a call. Its reward is 0 and the episode continues.
    pub local_reply: Option<String>,
    /// The cleaning changed the action that the model wrote.
    pub normalised: bool,
    /// The text contained the marker that introduces an action.
    pub found: bool,
}

const ACTION_MARKER: &str = "Action:";
const FENCE: &str = "```";
const SQL_FENCE: &str = "```sql";
const END_OF_SEQUENCE: &str = "</s>";
const ONE_ACTION_ONLY: &str =
    "Error: Only one 'Action' is allowed per response. Please adjust your response.";
const NO_FENCE: &str = "Cannot parse action from response. Your action should be inside triple \
                        backticks (```). Please adjust accordingly.";

impl Parser {
    /// Reads an action out of a model's text; `tools` are those that may be called.
    pub fn parse(self, tools: &[Tool], model_text: &str) -> Parsed {
        match self {
            Self::ActionLine => parse_action_line(model_text),
            Self::LastAction => parse_last_action(model_text),
            Self::FirstAction => parse_first_action(model_text),
            Self::Fenced => parse_fenced(model_text),
            Self::SqlBlock => parse_sql_block(model_text),
            Self::Tags => whole(model_text, tagged(model_text).is_some()),
            Self::Raw => whole(model_text, !model_text.trim().is_empty()),
            Self::ToolCall => parse_tool_call(tools, model_text),
        }
    }

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::ActionLine => "Action: line",
            Self::LastAction => "last Action:",
            Self::FirstAction => "first Action:",
            Self::Fenced => "fenced block",
            Self::SqlBlock => "fenced SQL",
            Self::Tags => "tags",
            Self::Raw => "raw",
            Self::ToolCall => "tool call",
        }
    }
}

/// What a tag requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// `<search>`.
    Search,
    /// `<answer>`.
    Answer,
}

impl Tag {
    const ALL: [(Self, &'static str, &'static str); 2] = [
        (Self::Search, "<search>", "</search>"),
        (Self::Answer, "<answer>", "</answer>"),
    ];
}

/// The first tag with a matching closing tag, and the text inside; it may span lines.
pub fn tagged(text: &str) -> Option<(Tag, &str)> {
    let found = Tag::ALL.iter().filter_map(|(tag, open, close)| {
        let start = text.find(open)?;
        let inside = &text[start + open.len()..];
        Some((start, *tag, &inside[..inside.find(close)?]))
    });
    found
        .min_by_key(|(start, ..)| *start)
        .map(|(_, tag, inside)| (tag, inside))
}

fn whole(text: &str, found: bool) -> Parsed {
    Parsed {
        action: Some(text.to_owned()),
        found,
        ..Parsed::default()
    }
}

fn trimmed(raw: &str, found: bool) -> Parsed {
    let action = raw.trim();
    Parsed {
        action: Some(action.to_owned()),
        local_reply: None,
        normalised: action != raw,
        found,
    }
}

fn without_end(text: &str) -> &str {
    text.strip_suffix(END_OF_SEQUENCE).unwrap_or(text)
}

fn parse_last_action(text: &str) -> Parsed {
    let text = without_end(text);
    match text.rsplit_once(ACTION_MARKER) {
        // One space or line end after the marker is the normal form, not a change.
        Some((_, raw)) => trimmed(raw.strip_prefix([' ', '\n']).unwrap_or(raw), true),
        None if text.contains("search[") || text.contains("click[") => trimmed(text, true),
        None => trimmed("", false),
    }
}

fn parse_first_action(text: &str) -> Parsed {
    let mut pieces = without_end(text).split(ACTION_MARKER);
    let before = pieces.next().unwrap_or_default();
    match pieces.next() {
        Some(raw) => trimmed(raw.strip_prefix([' ', '\n']).unwrap_or(raw), true),
        None => trimmed(before, false),
    }
}

fn parse_fenced(text: &str) -> Parsed {
    let closed = text
        .split_once(FENCE)
        .is_some_and(|(_, after)| after.contains(FENCE));
    if closed {
        return whole(text, true);
    }
    Parsed {
        local_reply: Some(NO_FENCE.to_owned()),
        ..Parsed::default()
    }
}

fn parse_sql_block(text: &str) -> Parsed {
    let (found, block) = match text.rsplit_once(SQL_FENCE) {
        Some((_, block)) => (true, block),
        None => (false, text),
    };
    let raw = block.split(FENCE).next().unwrap_or_default();
    let raw = raw.strip_prefix('\n').unwrap_or(raw);
    trimmed(raw.strip_suffix('\n').unwrap_or(raw), found)
}

fn parse_tool_call(tools: &[Tool], text: &str) -> Parsed {
    let found = text.contains(tool_call::OPEN);
    match tool_call::only(tools, text) {
        Ok((call, written)) => {
            let action = call.to_string();
            Parsed {
                normalised: action != written,
                action: Some(action),
                local_reply: None,
                found,
            }
        }
        Err(error) => Parsed {
            local_reply: Some(format!("Error: {error}.")),
            found,
            ..Parsed::default()
        },
    }
}

fn parse_action_line(text: &str) -> Parsed {
    let mut raw = "";
    let mut count = 0;
    let mut rest = text;
    while let Some(at) = rest.find(ACTION_MARKER) {
        let after = rest[at + ACTION_MARKER.len()..].trim_start();
        let line_end = after.find('\n').unwrap_or(after.len());
        raw = &after[..line_end];
        rest = &after[line_end..];
        count += 1;
    }
    if count > 1 {
        return Parsed {
            local_reply: Some(ONE_ACTION_ONLY.to_owned()),
            found: true,
            ..Parsed::default()
        };
    }
    let kept: String = raw
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, ',' | ' '))
        .collect();
    let action = kept.split_whitespace().collect::<Vec<_>>().join(" ");
    Parsed {
        normalised: action != raw,
        action: Some(action),
        local_reply: None,
        found: count == 1,
    }
}
