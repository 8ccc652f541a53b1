//! Prompts of conversations in which replies stand as they were sampled (I6): a client of an API sends
//! texts, and the ids of those that this program sampled are known.

use super::{CLOSE, Chat, Guarded, Message, OPEN, Role, exceeds};
use crate::Result;
use crate::folder::tokenizer::Tokenizer;
use serde_json::json;

/// The ids of a reply as they were sampled, and whether they end as the template ends a reply.
pub type SampledReply = (Vec<u32>, bool);

/// What ends a thought.
const THOUGHT_ENDS: &str = "</think>";

/// A conversation in which some messages were sampled.
#[derive(Debug, Clone, Copy)]
pub struct RecordedChat<'a> {
    /// All of them.
    pub messages: &'a [Message],
    /// Which were sampled, in order.
    pub replies: &'a [usize],
    /// A reply without the thought that the template leaves out, or its sender; else as it was sampled.
    pub cuts: bool,
}

impl Chat {
    /// [`Chat::prompt_ids_within`] of a conversation with sampled messages: `sampled` gives the ids of such
    /// a message from its place and all ids before it. Also how many replies keep a thought that is to be
    /// cut off, since no id begins behind it.
    ///
    /// # Errors
    /// A template that leaves out a reply, or writes it twice.
    pub fn recorded_ids_within(
        &self,
        tokenizer: &Tokenizer,
        conversation: RecordedChat<'_>,
        mut sampled: impl FnMut(usize, &[u32]) -> SampledReply,
        ids_max: usize,
    ) -> Result<Option<(Vec<u32>, u32)>> {
        let RecordedChat {
            messages,
            replies,
            cuts,
        } = conversation;
        let mut messages = messages.to_vec();
        // A text that no message and no tool holds.
        let given = json!([messages, self.tools]).to_string();
        let mut name = format!("{OPEN}reply");
        while given.contains(&name) {
            name.push('-');
        }
        let mark = |at: &usize| format!("{name} {at}{CLOSE}");
        for at in replies {
            let sent = &messages[*at].content;
            let head = match cuts {
                true => &sent[..answer_start(sent).unwrap_or(0)],
                false => "",
            };
            messages[*at] = Message::new(Role::Assistant, format!("{head}{}", mark(at)));
        }
        let mut guarded = Guarded::new(&mut messages, &self.guarded);
        let tools = guarded.guard_json(&self.tools, &self.guarded);
        let contents = super::contents(&messages);
        let text = self.rendered((&json!(messages), &tools), contents, true)?;
        if exceeds(tokenizer, &guarded.parts(&text), ids_max) {
            return Ok(None);
        }
        let (mut ids, mut rest, mut ended, mut kept) = (Vec::new(), text.as_str(), false, 0);
        for at in replies {
            let found = rest.split_once(&mark(at));
            let Some((before, after)) = found.filter(|(_, after)| !after.contains(&mark(at)))
            else {
                return Err(self.bad(format!(
                    "the chat template leaves out message {at} of the conversation, a reply that was sampled, or \
                     writes it twice"
                )));
            };
            let (end, before) = self.without_end(ended, before);
            let head = messages[*at].content.split(&mark(at)).next();
            let thought = head.and_then(|head| written(before, head.trim()));
            let before = &before[..thought.unwrap_or(before.len())];
            ids.extend(self.ids_behind(tokenizer, &guarded, end, before)?);
            let (reply, closes) = sampled(*at, &ids);
            let start = match cuts && thought.is_none() {
                true => answer_id(tokenizer, &reply).unwrap_or_else(|| {
                    kept += 1;
                    0
                }),
                false => 0,
            };
            ids.extend(&reply[start..]);
            (rest, ended) = (after, closes);
        }
        let (end, rest) = self.without_end(ended, rest);
        ids.extend(self.ids_behind(tokenizer, &guarded, end, rest)?);
        Ok(Some((ids, kept)))
    }
}

/// Where a reply's answer begins behind its thought, if it has one.
fn answer_start(reply: &str) -> Option<usize> {
    let end = reply.rfind(THOUGHT_ENDS)? + THOUGHT_ENDS.len();
    let blanks = reply[end..].len() - reply[end..].trim_start().len();
    Some(end + blanks)
}

/// Where a thought begins with which a rendering ends, blanks aside.
fn written(rendering: &str, thought: &str) -> Option<usize> {
    let first = thought.split_whitespace().next()?;
    let start = rendering
        .rfind(thought)
        .or_else(|| rendering.rfind(first))?;
    let same = (rendering[start..].split_whitespace()).eq(thought.split_whitespace());
    same.then_some(start)
}

/// With which of its ids a reply's answer begins: 0 without a thought, `None` where an id is of both.
fn answer_id(tokenizer: &Tokenizer, reply: &[u32]) -> Option<usize> {
    let text = tokenizer.decode(reply, false);
    let Some(answer) = answer_start(&text) else {
        return Some(0);
    };
    let length = |ids: usize| tokenizer.decode(&reply[..ids], false).len();
    let counts: Vec<usize> = (0..=reply.len()).collect();
    let start = counts.partition_point(|ids| length(*ids) <= answer) - 1;
    text[..length(start).min(answer)]
        .trim_end()
        .ends_with(THOUGHT_ENDS)
        .then_some(start)
}

#[cfg(test)]
mod tests;
