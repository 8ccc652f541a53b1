//! What a request of an agent asks: the ids of its prompt, and what is recorded of it.

use super::answers::{Candidates, SlotRequest, digest};
use super::player::Player;
use super::texts::off_thread;
use crate::gateway::Call;
use agentgym_model::{Message, Role, Sampling};
use agentgym_serve::Refusal;
use serde_json::Value;
use std::collections::BTreeMap;

/// A request that was read.
pub(super) struct Reading {
    pub(super) prompt: Vec<u32>,
    /// Messages of the assistant that were not sampled here.
    unsampled_messages: u32,
}

impl Reading {
    /// Reads a request in which some messages were sampled here.
    ///
    /// # Errors
    /// What its agent reads of it.
    pub(super) async fn of(
        player: &Player,
        call: &Call,
        (sampled, unsampled_messages): (BTreeMap<usize, Candidates>, u32),
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
            let read = chat.recorded_ids_within(tokenizer, &messages, &replies, ids, context);
            // A template's complaint is for the agent.
            Ok(read.map_err(|error| error.to_string()))
        });
        let ids = ids
            .await
            .map_err(|error| Refusal::failed(error.to_string()))?;
        let ids = ids.map_err(|why| Refusal::bad("messages", why))?;
        let prompt = ids.ok_or_else(|| {
            let message = format!("the policy reads {context} ids, and the conversation has more");
            Refusal::too_long("messages", message)
        })?;
        Ok(Self {
            prompt,
            unsampled_messages,
        })
    }

    /// What is recorded of the request, in an episode that is sampled so.
    pub(super) fn request(self, call: &Call, sampling: Sampling) -> SlotRequest {
        let messages = call.asked.messages();
        let is_reply = |message: &Message| message.role == Role::Assistant;
        let last = messages.iter().rposition(is_reply);
        let since = &messages[last.map_or(0, |last| last + 1)..];
        let said: Vec<&str> = since.iter().map(|message| &*message.content).collect();
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
            said: said.join("\n"),
            tools: call.asked.tools().cloned(),
            unsampled_messages: self.unsampled_messages,
            overridden: overridden.map(|(name, _)| name.clone()).collect(),
            heard: None,
        }
    }
}
