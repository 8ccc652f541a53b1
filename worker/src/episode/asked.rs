//! What a request of an agent asks: the ids of its prompt, and what is recorded of it.

use super::answers::{Candidates, Known, SlotRequest, digest};
use super::player::Player;
use super::texts::off_thread;
use crate::gateway::Call;
use agentgym_envs::spec::AgentHistory;
use agentgym_model::{Message, RecordedChat, Role, Sampling};
use agentgym_serve::Refusal;
use serde_json::Value;
use std::collections::BTreeMap;

/// A request that was read.
pub(super) struct Reading {
    pub(super) prompt: Vec<u32>,
    /// Messages of the assistant that were not sampled here.
    unsampled_messages: u32,
    /// Sampled ones with thoughts that the template leaves out.
    kept_thoughts: u32,
    /// Of a text, how much of it stands for what was asked and answered before.
    bytes: usize,
}

fn too_long(field: &str, context: usize) -> Refusal {
    let message = format!("the policy reads {context} ids, and the conversation has more");
    Refusal::too_long(field, message)
}

impl Reading {
    /// Reads a request of which some was sampled here.
    ///
    /// # Errors
    /// What its agent reads of it.
    pub(super) async fn of(
        player: &Player,
        call: &Call,
        (known, history): (Known, AgentHistory),
    ) -> Result<Self, Refusal> {
        match known {
            Known::Messages(sampled, unsampled_messages) => {
                let cuts = history == AgentHistory::Template;
                let read = Self::of_chat(player, call, (sampled, cuts)).await?;
                Ok(Self {
                    unsampled_messages,
                    ..read
                })
            }
            Known::Text(ids, bytes) => Self::of_text(player, call, ids, bytes).await,
        }
    }

    /// Reads a text that begins with `bytes` whose ids are known.
    async fn of_text(
        player: &Player,
        call: &Call,
        known: Vec<u32>,
        bytes: usize,
    ) -> Result<Self, Refusal> {
        let field = call.asked.prompt_field();
        if player.engine.is_chat() {
            let why = "a chat API answers in the policy's place, which takes chats alone";
            return Err(Refusal::bad(field, why));
        }
        let prompt = match call.asked.ids() {
            Some(ids) => {
                let vocabulary = player.text.vocab_size();
                if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
                    let why = format!("the id {id} is outside the vocabulary of {vocabulary}");
                    return Err(Refusal::bad(field, why));
                }
                ids.to_vec()
            }
            None => {
                let rest = call.asked.text().unwrap_or_default()[bytes..].to_owned();
                let context = player.rules.context_tokens_max;
                let ids = off_thread(&player.text, rest.len(), move |policy| {
                    let is_behind = !known.is_empty();
                    let rest = policy.text_ids_within(&rest, is_behind, context)?;
                    Ok(rest.map(|rest| [known, rest].concat()))
                });
                let ids = ids.await.map_err(|e| Refusal::failed(e.to_string()))?;
                ids.ok_or_else(|| too_long(field, context))?
            }
        };
        match prompt.is_empty() {
            true => Err(Refusal::bad(field, "the prompt has no ids")),
            false => Ok(Self {
                prompt,
                unsampled_messages: 0,
                kept_thoughts: 0,
                bytes,
            }),
        }
    }

    /// Reads a chat in which some messages were sampled here.
    async fn of_chat(
        player: &Player,
        call: &Call,
        (sampled, cuts): (BTreeMap<usize, Candidates>, bool),
    ) -> Result<Self, Refusal> {
        let chat = call.asked.chat(player.text.chat())?;
        let messages: Vec<Message> = call.asked.messages().to_vec();
        let bytes = messages.iter().map(|message| message.content.len()).sum();
        let context = player.rules.context_tokens_max;
        let ids = off_thread(&player.text, bytes, move |policy| {
            let replies: Vec<usize> = sampled.keys().copied().collect();
            let ids = |at: usize, before: &[u32]| {
                let own = &sampled[&at];
                let before = digest(before);
                // The answer to exactly this; else one that does not depend on what came first.
                let exact = own.iter().find(|(prompt, _)| *prompt == before);
                let least = || own.iter().min_by(|a, b| a.1.cmp(&b.1));
                let reply = exact.or_else(least).map(|(_, reply)| reply.clone());
                reply.unwrap_or_default()
            };
            let tokenizer = policy.tokenizer();
            let conversation = RecordedChat {
                messages: &messages,
                replies: &replies,
                cuts,
            };
            let read = chat.recorded_ids_within(tokenizer, conversation, ids, context);
            // A template's complaint is for the agent.
            Ok(read.map_err(|error| error.to_string()))
        });
        let ids = ids
            .await
            .map_err(|error| Refusal::failed(error.to_string()))?;
        let ids = ids.map_err(|why| Refusal::bad("messages", why))?;
        let read = ids.ok_or_else(|| too_long(call.asked.prompt_field(), context))?;
        let (prompt, kept_thoughts) = read;
        Ok(Self {
            prompt,
            unsampled_messages: 0,
            kept_thoughts,
            bytes: 0,
        })
    }

    /// What is recorded of the request, in an episode that is sampled so.
    pub(super) fn request(self, player: &Player, call: &Call, sampling: Sampling) -> SlotRequest {
        let messages = call.asked.messages();
        let is_reply = |message: &Message| message.role == Role::Assistant;
        let last = messages.iter().rposition(is_reply);
        let since = &messages[last.map_or(0, |last| last + 1)..];
        let said: Vec<&str> = since.iter().map(|message| &*message.content).collect();
        let text = call.asked.text();
        let said = text.map_or_else(|| said.join("\n"), |text| text[self.bytes..].to_owned());
        let planned = |name: &str, value: &Value| match name {
            "temperature" => value.as_f64() == Some(sampling.temperature),
            "top_p" => value.as_f64() == Some(sampling.top_p),
            "top_k" => value.as_i64().unwrap_or(1).max(0) as usize == sampling.top_k,
            "presence_penalty" | "frequency_penalty" | "min_p" => value.as_f64() == Some(0.0),
            _ => false,
        };
        let overridden = call.asked.overridden.iter();
        let overridden = overridden.filter(|(name, value)| !planned(name, value));
        SlotRequest {
            prompt: self.prompt,
            said,
            text: text.map(str::to_owned),
            tools: call.asked.tools().cloned(),
            messages: match player.engine.is_chat() {
                true => messages.to_vec(),
                false => Vec::new(),
            },
            unsampled_messages: self.unsampled_messages,
            kept_thoughts: self.kept_thoughts,
            overridden: overridden.map(|(name, _)| name.clone()).collect(),
            heard: None,
        }
    }
}
