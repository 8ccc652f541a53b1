//! Tools that a policy calls. A template that has no place for them, or writes calls in another form
//! than replies are read in, would teach what is never understood, so it is refused by name.

use super::{Chat, Message, Role, placeholder};
use crate::Result;
use serde_json::{Value as Json, json};
use std::sync::{Arc, PoisonError};

/// What a call stands between: the form of Qwen and Hermes.
const CALL: (&str, &str) = ("<tool_call>", "</tool_call>");

impl Chat {
    /// The same template, which offers these tools at the head of a conversation and gives the
    /// answers to calls as `tool` messages. `tools` is a list of
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`.
    ///
    /// # Errors
    /// A template that says the same without tools, leaves out their answers, or writes calls in
    /// another form; a list that is none.
    pub fn with_tools(&self, tools: &Json) -> Result<Self> {
        // Row after row of demonstrations asks for the same ones.
        let mut last = self.offering.lock().unwrap_or_else(PoisonError::into_inner);
        // As text: templates write fields in their order, in which equal values may differ.
        let asked = tools.to_string();
        if let Some((_, offering)) = last.as_ref().filter(|(known, _)| *known == asked) {
            return Ok((**offering).clone());
        }
        let offering = self.offered(tools)?;
        *last = Some((asked, Box::new(offering.clone())));
        Ok(offering)
    }

    fn offered(&self, tools: &Json) -> Result<Self> {
        let listed = tools.as_array().filter(|all| !all.is_empty());
        let names = listed.and_then(|all| {
            let names = all.iter().map(|tool| tool["function"]["name"].as_str());
            names.collect::<Option<Vec<&str>>>()
        });
        let Some(names) = names else {
            return Err(self.bad(
                "is given tools that are no list of {\"type\": \"function\", \"function\": {\"name\": …}}"
                    .to_owned(),
            ));
        };
        let offering = Self {
            tools: tools.clone(),
            offering: Arc::default(),
            ..self.clone()
        };
        let asked = [Message::new(Role::User, placeholder("task"))];
        let (told, plain) = (offering.render(&asked, true)?, self.render(&asked, true)?);
        if told == plain || names.iter().any(|name| !told.contains(name)) {
            return Err(self.bad(
                "the chat template tells the policy of no tools: give the model a template that does, such \
                 as that of Qwen2.5's instruct models, or take an environment whose actions are text"
                    .to_owned(),
            ));
        }
        offering.check_call()?;
        offering.bridge()?;
        Ok(offering)
    }

    /// That a call which the template writes is one that is read in replies.
    fn check_call(&self) -> Result<()> {
        let call = json!({"name": "probe", "arguments": {"key": "a b", "number": 12}});
        let messages = json!([
            {"role": "user", "content": "task"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        ]);
        let text = self.rendered((&messages, &self.tools), 0, false)?;
        let (open, close) = CALL;
        if self
            .special
            .first(open)
            .or(self.special.first(close))
            .is_some()
        {
            return Err(self.bad(format!(
                "{open} or {close} is a special token, which is left out of what is read of a reply, so no call \
                 would be found; write \"special\": false at both in tokenizer.json"
            )));
        }
        // The head of the conversation may show how a call looks.
        let written = text
            .rsplit_once(open)
            .and_then(|(_, rest)| rest.split_once(close));
        let written = written.and_then(|(json, _)| serde_json::from_str::<Json>(json).ok());
        match written == Some(call) {
            true => Ok(()),
            false => Err(self.bad(format!(
                "the chat template does not write a call of a tool as {open} {{\"name\": …, \"arguments\": \
                 {{…}}}} {close}, the only form that is read in replies; take a model that calls tools so, \
                 such as one of Qwen's"
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
