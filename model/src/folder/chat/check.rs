//! Whether a template fits episodes, whose ids stay as they were sampled.

use super::{Chat, Message, Role, Tokenizer, excerpt};
use crate::Result;

/// Replies that call tools, the first after a thought.
const CALLS: [&str; 2] = [
    "<think>\nAn earlier thought.\n</think>\n\n<tool_call>\n{\"name\": \"one\", \"arguments\": {}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"two\", \"arguments\": {\"key\": \"two\"}}\n</tool_call>",
];

impl Chat {
    /// Verifies that turns appended one by one give the text that the template gives
    /// for the whole conversation, with and without a system message.
    ///
    /// A template that rewrites earlier turns (drops their reasoning, moves the
    /// system message) is refused: the ids of an episode stay as sampled, so its
    /// later prompts would be texts that the template never renders.
    pub fn check(&self, tokenizer: &Tokenizer) -> Result<()> {
        self.end_of_turn_id(tokenizer)?;
        self.check_conversation(tokenizer, &[Message::new(Role::User, "First task.")])?;
        let with_system = [
            Message::new(Role::System, "Some rules."),
            Message::new(Role::User, "First task."),
        ];
        // A template may refuse system messages; a run that uses one gets the error then.
        match self.render(&with_system, true) {
            Ok(_) => self.check_conversation(tokenizer, &with_system),
            Err(_) => Ok(()),
        }
    }

    fn check_conversation(&self, tokenizer: &Tokenizer, prompt: &[Message]) -> Result<()> {
        let replies = match self.tools.is_null() {
            true => [
                "<think>\nAn earlier thought.\n</think>\n\nAction: one",
                "Thought: two.\nAction: two",
            ],
            false => CALLS,
        };
        const OBSERVATIONS: [&str; 2] = ["Seen: [one]", "Seen 2 é\nand more."];
        let mut messages = prompt.to_vec();
        let mut appended = self.render(prompt, true)?;
        let mut ids = self.prompt_ids(tokenizer, prompt)?;
        for (reply, observation) in replies.into_iter().zip(OBSERVATIONS) {
            let (end_of_turn, bridge) = self.after_reply(&self.observed(observation))?;
            appended.extend([reply, &end_of_turn, &bridge]);
            ids.extend(tokenizer.encode_ordinary(reply)?);
            ids.extend(self.observation_ids(tokenizer, false, observation)?);
            messages.push(Message::new(Role::Assistant, reply));
            messages.push(self.observed(observation));
            let whole = self.render(&messages, true)?;
            if whole != appended {
                let (found, expected) = first_difference(&whole, &appended);
                return Err(self.bad(format!(
                    "the chat template rewrites earlier turns: it renders {found:?} where the \
                     episode holds {expected:?}; use a template that leaves history alone, or set \
                     rollout.history: as_sampled"
                )));
            }
        }
        let (text, whole) = (
            tokenizer.decode(&ids, false),
            tokenizer.decode(&tokenizer.encode(&appended)?, false),
        );
        if text != whole {
            let (found, expected) = first_difference(&text, &whole);
            return Err(self.bad(format!(
                "encoding a conversation turn by turn gives {found:?} instead of {expected:?}; \
                 tokenizer and chat template do not belong together"
            )));
        }
        Ok(())
    }
}

/// An excerpt of each text from where they first differ.
fn first_difference(a: &str, b: &str) -> (String, String) {
    let same: usize = (a.chars().zip(b.chars()))
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len_utf8())
        .sum();
    (excerpt(&a[same..]), excerpt(&b[same..]))
}
