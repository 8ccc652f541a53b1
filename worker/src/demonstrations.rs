//! Demonstrations: conversations in AgentTraj-L's format, from a file or from a built-in
//! environment's solver, and the exact tokens and mask to imitate.
//!
//! The tokens are those of a rollout in which the policy had given the same replies: the first
//! prompt is rendered by the policy's chat template, later turns are joined by the bridge, and a
//! reply is its text and the end token. The mask is 1 on replies whose `loss` flag is not false,
//! end token included, and 0 on everything else; it is not shifted.

use crate::{Error, Result};
use agentgym_envs::demonstration::{Demonstration, Solver};
use agentgym_jobs::config::OverlongRows;
pub(crate) use agentgym_jobs::trajectory::Line;
use agentgym_jobs::trajectory::SequenceIds;
use agentgym_model::{Message, Policy, Role, ScoreRequest};
use agentgym_storage::Digest;
use agentgym_text::visible_name;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// One conversation.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Conversation {
    /// In order; the first message is the human's.
    #[serde(default)]
    pub(crate) conversations: Vec<Line>,
    /// In place of these.
    #[serde(default)]
    pub(crate) ids: Option<SequenceIds>,
    /// The task it solves, e.g. `textcraft_12`.
    #[serde(default)]
    pub(crate) item_id: Option<String>,
    /// What the policy may call, as its chat template is given it.
    #[serde(default)]
    pub(crate) tools: Option<Value>,
    /// `agentgym.reply_prefix` of the run: the head of every reply, which is not imitated.
    #[serde(skip)]
    pub(crate) reply_prefix: Option<String>,
}

/// Tokens to imitate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Encoded {
    pub(crate) token_ids: Vec<u32>,
    pub(crate) loss_mask: Vec<bool>,
}

impl Encoded {
    /// Tokens that are trained on.
    pub(crate) fn loss_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|kept| **kept).count()
    }

    pub(crate) fn request(&self) -> ScoreRequest<'_> {
        ScoreRequest {
            token_ids: &self.token_ids,
            loss_mask: &self.loss_mask,
        }
    }

    fn extend(&mut self, ids: &[u32], trained: bool) {
        self.token_ids.extend_from_slice(ids);
        self.loss_mask.resize(self.token_ids.len(), trained);
    }
}

/// Reads an AgentTraj-L file. `what` is its name in errors.
pub(crate) fn parse_file(
    what: &str,
    bytes: &[u8],
    reply_prefix: Option<&str>,
) -> Result<Vec<Conversation>> {
    let mut rows: Vec<Conversation> = serde_json::from_slice(bytes).map_err(|e| {
        Error::stage(format!(
            "{what}: expected a JSON array of {{\"conversations\": [{{\"from\", \"value\", \"loss\"}}], \"item_id\", \"tools\"}}: {e}"
        ))
    })?;
    if rows.is_empty() {
        return Err(Error::stage(format!("{what}: holds no conversation")));
    }
    for row in &mut rows {
        row.reply_prefix = reply_prefix.map(str::to_owned);
    }
    Ok(rows)
}

fn role(line: &Line) -> Option<Role> {
    match line.from.as_str() {
        "system" => Some(Role::System),
        "human" | "user" => Some(Role::User),
        "gpt" | "assistant" => Some(Role::Assistant),
        "tool" => Some(Role::Tool),
        _ => None,
    }
}

fn is_trained(line: &Line) -> bool {
    line.loss != Some(false)
}

impl Conversation {
    /// Encodes the conversation for a policy.
    ///
    /// # Errors
    /// A message order that no rollout could have, or more than `tokens_max` tokens; the error
    /// message starts with `what`.
    pub(crate) fn encode(&self, policy: &Policy, what: &str, tokens_max: usize) -> Result<Encoded> {
        self.encode_below(policy, what, ("sft.max_length", tokens_max))
    }

    /// [`Self::encode`] with the config key of the limit.
    pub(crate) fn encode_below(
        &self,
        policy: &Policy,
        what: &str,
        (key, tokens_max): (&str, usize),
    ) -> Result<Encoded> {
        let out = self.tokens(policy, what)?;
        if out.token_ids.len() <= tokens_max {
            return Ok(out);
        }
        Err(Error::stage(format!(
            "{what} ({}): has {} tokens, {key} = {tokens_max} is too small; raise it or leave the row out",
            self.name(),
            out.token_ids.len()
        )))
    }

    /// The task it solves, for messages.
    pub(crate) fn name(&self) -> &str {
        self.item_id.as_deref().unwrap_or("no item_id")
    }

    /// Encodes the conversation for a policy, without a length limit.
    ///
    /// # Errors
    /// A message order that no rollout could have; the error message starts with `what`.
    pub(crate) fn tokens(&self, policy: &Policy, what: &str) -> Result<Encoded> {
        let name = self.name();
        let bad = |message: String| Error::stage(format!("{what} ({name}): {message}"));
        if let Some(ids) = &self.ids {
            return recorded(ids, policy).map_err(bad);
        }
        let roles = self
            .conversations
            .iter()
            .map(|line| {
                role(line).ok_or_else(|| {
                    bad(format!(
                        "message from `{}`; known are human, gpt, system, tool",
                        line.from
                    ))
                })
            })
            .collect::<Result<Vec<Role>>>()?;
        // The messages before the first reply are the prompt of an episode.
        let first = roles.iter().position(|role| *role == Role::Assistant);
        let first = first.ok_or_else(|| bad("has no gpt message".into()))?;
        if !self
            .conversations
            .iter()
            .zip(&roles)
            .any(|(l, role)| *role == Role::Assistant && is_trained(l))
        {
            return Err(bad(
                "has nothing to imitate: loss is false on every gpt message".into(),
            ));
        }
        let message = |at: usize| Message::new(roles[at], &*self.conversations[at].value);
        if first == 0 || roles[first - 1] != Role::User {
            return Err(bad(format!(
                "message {first} is a reply to nothing; a human message must come before it"
            )));
        }
        let prompt: Vec<Message> = (0..first).map(message).collect();
        let offering = self.tools.as_ref();
        let offering = offering.map(|tools| policy.chat().with_tools(tools));
        let offering = offering.transpose().map_err(|e| bad(e.to_string()))?;
        if let Some(at) = roles.iter().position(|role| *role == Role::Tool)
            && (at < first || offering.is_none())
        {
            return Err(bad(format!(
                "message {at} is from `tool` and answers no call; a call is a reply of a row that has `tools`"
            )));
        }
        let (tokenizer, chat) = (
            policy.tokenizer(),
            offering.as_ref().unwrap_or(policy.chat()),
        );
        let end_of_turn = [chat.end_of_turn_id(tokenizer)?];
        let mut out = Encoded {
            token_ids: vec![],
            loss_mask: vec![],
        };
        out.extend(&chat.prompt_ids(tokenizer, &prompt)?, false);
        for at in first..roles.len() {
            let replies = (at - first).is_multiple_of(2);
            let in_turn = match roles[at] {
                Role::Assistant => replies,
                Role::User | Role::Tool => !replies,
                Role::System => false,
            };
            if !in_turn {
                return Err(bad(format!(
                    "message {at} is from `{}` out of turn",
                    self.conversations[at].from
                )));
            }
            let line = &self.conversations[at];
            if replies {
                let prefix = self.reply_prefix.as_deref().unwrap_or_default();
                let (head, rest) = reply_parts(prefix, &line.value);
                if head != prefix && is_trained(line) {
                    return Err(bad(format!(
                        "message {at}, a reply, does not begin with actor_rollout_ref.agentgym.reply_prefix = {prefix:?}; \
                         leave the key out, or change the replies (a solver's by sft.sources' style)"
                    )));
                }
                out.extend(&tokenizer.encode_ordinary(head)?, false);
                out.extend(&tokenizer.encode_ordinary(rest)?, is_trained(line));
                out.extend(&end_of_turn, is_trained(line));
            } else if at + 1 < roles.len() {
                // A last observation without a reply has nothing to train on.
                out.extend(&chat.next_ids(tokenizer, true, message(at))?, false);
            }
        }
        Ok(out)
    }
}

/// Ids as they stand.
fn recorded(ids: &SequenceIds, policy: &Policy) -> std::result::Result<Encoded, String> {
    let own = policy.tokenizer().files().get("tokenizer.json");
    let own = own.map_or_else(String::new, |file| Digest::of(file).to_string());
    if own != ids.tokenizer {
        return Err(format!(
            "has ids of another tokenizer (tokenizer.json with the digest {}, the policy's has {own}); such rows \
             train a policy with the same tokenizer alone",
            visible_name(&ids.tokenizer)
        ));
    }
    let (length, vocabulary) = (ids.token_ids.len(), policy.config().vocab_size);
    if let Some(id) = ids.token_ids.iter().find(|id| **id as usize >= vocabulary) {
        return Err(format!(
            "has the id {id}; the policy's are below {vocabulary}"
        ));
    }
    let mut loss_mask = vec![false; length];
    for (start, end) in &ids.trained {
        // Nothing stands before the first id that it could be learnt from.
        if *start == 0 || start >= end || *end > length {
            return Err(format!(
                "`trained` has the stretch {start} to {end}; it must lie between 1 and the row's {length} ids"
            ));
        }
        loss_mask[*start..*end].fill(true);
    }
    match ids.trained.is_empty() {
        true => Err("has nothing to imitate: `trained` is empty".to_owned()),
        false => Ok(Encoded {
            token_ids: ids.token_ids.clone(),
            loss_mask,
        }),
    }
}

/// A reply's `agentgym.reply_prefix`, if it begins with that, and the rest: two texts, each with ids
/// of its own.
pub(crate) fn reply_parts<'a>(prefix: &'a str, reply: &'a str) -> (&'a str, &'a str) {
    match reply.strip_prefix(prefix) {
        Some(rest) => (prefix, rest),
        None => ("", reply),
    }
}

/// The most tasks tried for one row.
const CANDIDATES_MAX: usize = 1000;

/// Tasks that a solver demonstrates.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) solver: Arc<dyn Solver>,
    /// The tasks.
    pub(crate) ids: Vec<i64>,
    /// The turns and the text that conversations begin with.
    pub(crate) opening: Vec<Line>,
    pub(crate) instruction: String,
    pub(crate) reply_prefix: Option<String>,
}

impl Shown {
    /// The demonstration for the task in a row. If it has no solution, or none short enough, the
    /// following tasks are tried in turn.
    ///
    /// # Errors
    /// It solves none of them; or, with `overlong` `refuse`, a solution has more than `tokens_max`
    /// tokens. The error message starts with `what`.
    pub(crate) fn encode(
        &self,
        row: usize,
        policy: &Policy,
        what: &str,
        tokens_max: usize,
        overlong: OverlongRows,
    ) -> Result<Encoded> {
        let (before, after) = self.ids.split_at(row);
        let candidates = after.iter().chain(before).take(CANDIDATES_MAX);
        let mut solutions = candidates
            .filter_map(|id| self.solver.demonstrate(*id, &self.instruction))
            .map(|shown| Conversation {
                reply_prefix: self.reply_prefix.clone(),
                ..Conversation::after(&self.opening, shown)
            });
        let found = match overlong {
            OverlongRows::Refuse => {
                let first = solutions.next();
                first.map(|shown| shown.encode(policy, what, tokens_max))
            }
            OverlongRows::LeaveOut => solutions
                .map(|shown| shown.tokens(policy, what))
                .find(|shown| !matches!(shown, Ok(shown) if shown.token_ids.len() > tokens_max)),
        };
        found.unwrap_or_else(|| {
            Err(Error::stage(format!(
                "{what}: neither its task nor those that follow have a solution to demonstrate of at most sft.max_length = {tokens_max} tokens; raise it or give other ids"
            )))
        })
    }
}

impl Conversation {
    /// What was shown, after the turns that all conversations begin with.
    pub(crate) fn after(opening: &[Line], shown: Demonstration) -> Self {
        let lines = shown.conversations.into_iter().map(|line| Line {
            from: line.from.to_owned(),
            loss: line.loss,
            value: line.value,
        });
        Self {
            conversations: opening.iter().cloned().chain(lines).collect(),
            ids: None,
            item_id: Some(shown.item_id),
            tools: shown.tools,
            reply_prefix: None,
        }
    }
}

#[cfg(test)]
mod tests;
