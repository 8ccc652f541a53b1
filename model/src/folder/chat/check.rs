//! Whether a template fits episodes, whose ids stay as they were sampled.

use super::{Chat, Message, Role, Tokenizer, excerpt};
use crate::Result;

/// Replies that call tools, the first after a thought.
const CALLS: [&str; 2] = [
    "<think>\nAn earlier thought.\n</think>\n\n<tool_call>\n{\"name\": \"one\", \"arguments\": {}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"two\", \"arguments\": {\"key\": \"two\"}}\n</tool_call>",
];

impl Chat {
    /// Verifies that turns appended one by one give the ids that the template gives for the whole
    /// conversation, around every reply: a reply itself stays as it was sampled, whatever blanks the
    /// template takes from it or puts around it. Says what an episode holds otherwise all the same.
    ///
    /// A template that rewrites earlier turns (shortens replies, moves the task) is refused: the ids
    /// of an episode stay as sampled, so its later prompts would be ones that the template never
    /// renders.
    pub fn check(&self, tokenizer: &Tokenizer) -> Result<Vec<String>> {
        let user = Message::new(Role::User, "First task.");
        let forgets = self.check_conversation(tokenizer, std::slice::from_ref(&user))?;
        let mut said = Vec::new();
        if forgets {
            said.push(
                "the chat template leaves out the thoughts of earlier replies; an episode keeps them"
                    .to_owned(),
            );
        }
        let with_system = [Message::new(Role::System, "Some rules."), user];
        // A template may refuse system messages; who uses one gets the error then.
        if self.render(&with_system, true).is_ok()
            && let Err(e) = self.check_conversation(tokenizer, &with_system)
        {
            said.push(format!("with a system message, which no episode has: {e}"));
        }
        Ok(said)
    }

    fn check_conversation(&self, tokenizer: &Tokenizer, prompt: &[Message]) -> Result<bool> {
        let replies = match self.tools.is_null() {
            true => [
                "<think>\nAn earlier thought.\n</think>\n\nAction: one",
                "Thought: two.\nAction: two",
            ],
            false => CALLS,
        };
        const OBSERVATIONS: [&str; 2] = ["Seen: [one]", "Seen 2 é\nand more."];
        let end = self.end_of_turn_id(tokenizer)?;
        let before_end = self.bridge()?.end_of_turn;
        let before_end = tokenizer
            .find_special(&before_end)
            .map_or("", |(start, _)| &before_end[..start]);
        let mut messages = prompt.to_vec();
        let mut openings = vec![self.prompt_ids(tokenizer, prompt)?];
        let mut forgets = false;
        for (reply, observation) in replies.into_iter().zip(OBSERVATIONS) {
            messages.push(Message::new(Role::Assistant, reply));
            messages.push(self.observed(observation));
            openings.push(self.observation_ids(tokenizer, true, observation)?);
            let whole = self.prompt_ids(tokenizer, &messages)?;
            // What of it is not yet found in the episode.
            let mut rest = whole.as_slice();
            for (at, opening) in openings.iter().enumerate() {
                let same = (opening.iter().zip(rest))
                    .take_while(|(a, b)| a == b)
                    .count();
                let after = rest.iter().skip(same).position(|id| *id == end);
                let written = after.map_or(rest.len(), |after| same + after);
                let found = tokenizer.decode(&rest[same..written], false);
                let opened = tokenizer.decode(&opening[same..], false);
                let (held, fits) = match replies.get(at) {
                    Some(reply) if at + 1 < openings.len() => {
                        let held = format!("{opened}{reply}{before_end}");
                        let as_it_is = words(&held).eq(words(&found));
                        let answers = words(answer(&held)).eq(words(answer(&found)));
                        let fits = after.is_some() && (as_it_is || answers);
                        forgets |= !as_it_is;
                        (held, fits)
                    }
                    // The conversation ends with the last opening.
                    _ => (opened, opening == rest),
                };
                if !fits {
                    return Err(self.bad(format!(
                        "the chat template rewrites earlier turns: it renders {:?} where the \
                         episode holds {:?}; use a template that leaves history alone, or set \
                         rollout.history: as_sampled",
                        excerpt(&found),
                        excerpt(&held)
                    )));
                }
                rest = rest.get(written + 1..).unwrap_or_default();
            }
        }
        Ok(forgets)
    }
}

/// A reply without its thoughts.
fn answer(reply: &str) -> &str {
    let (_, answer) = reply.rsplit_once("</think>").unwrap_or(("", reply));
    answer.trim_start().trim_start_matches("<think>")
}

/// What blanks, which templates trim, add and join, stand between.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}
