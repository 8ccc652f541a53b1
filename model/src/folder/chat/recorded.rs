//! Prompts of conversations in which replies stand as they were sampled (I6): a client of an API sends
//! texts, and the ids of those that this program sampled are known.

use super::{CLOSE, Chat, Guarded, Message, OPEN, Role, exceeds};
use crate::Result;
use crate::folder::tokenizer::Tokenizer;
use serde_json::json;

/// The ids of a reply as they were sampled, and whether they end as the template ends a reply.
pub type SampledReply = (Vec<u32>, bool);

impl Chat {
    /// [`Chat::prompt_ids_within`] of a conversation whose messages at `replies`, in order, were
    /// sampled: `sampled` gives the ids of such a message from its place and all ids before it.
    ///
    /// # Errors
    /// A template that leaves out a reply, or writes it twice.
    pub fn recorded_ids_within(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        replies: &[usize],
        mut sampled: impl FnMut(usize, &[u32]) -> SampledReply,
        ids_max: usize,
    ) -> Result<Option<Vec<u32>>> {
        let mut messages = messages.to_vec();
        // A text that no message and no tool holds.
        let given = json!([messages, self.tools]).to_string();
        let mut name = format!("{OPEN}reply");
        while given.contains(&name) {
            name.push('-');
        }
        let mark = |at: &usize| format!("{name} {at}{CLOSE}");
        for at in replies {
            messages[*at] = Message::new(Role::Assistant, mark(at));
        }
        let mut guarded = Guarded::new(&mut messages, &self.guarded);
        let tools = guarded.guard_json(&self.tools, &self.guarded);
        let contents = super::contents(&messages);
        let text = self.rendered((&json!(messages), &tools), contents, true)?;
        if exceeds(tokenizer, &guarded.parts(&text), ids_max) {
            return Ok(None);
        }
        let (mut ids, mut rest, mut ended) = (Vec::new(), text.as_str(), false);
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
            ids.extend(self.ids_behind(tokenizer, &guarded, end, before)?);
            let (reply, closes) = sampled(*at, &ids);
            ids.extend(reply);
            (rest, ended) = (after, closes);
        }
        let (end, rest) = self.without_end(ended, rest);
        ids.extend(self.ids_behind(tokenizer, &guarded, end, rest)?);
        Ok(Some(ids))
    }
}

#[cfg(test)]
mod tests;
