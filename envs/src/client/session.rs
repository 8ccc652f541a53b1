//! A session: one task being played on a server.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Inner;
use super::http::Repeat;
use crate::error::EnvError;
use crate::parser::Parsed;

/// What a step brought.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutput {
    /// Text for the policy.
    pub observation: String,
    /// Scaled reward of this step.
    pub reward: f64,
    /// The episode is over.
    pub done: bool,
    /// The reward meets the environment's rule for success.
    pub success: bool,
    /// The action that was sent.
    pub action: Option<String>,
    /// What the parser made of the model's text.
    pub parsed: Parsed,
    /// The client answered by itself; nothing was sent.
    pub local: bool,
}

/// An open session. Dropping it closes it in the background.
pub struct Session {
    inner: Arc<Inner>,
    server: usize,
    /// `None` once closed.
    id: Option<Value>,
    observation: String,
    finished: bool,
}

impl Session {
    pub(super) fn new(inner: Arc<Inner>, server: usize, id: Value) -> Self {
        Self {
            inner,
            server,
            id: Some(id),
            observation: String::new(),
            finished: false,
        }
    }

    pub(super) async fn reset(&mut self, item_id: i64) -> Result<(), EnvError> {
        let spec = self.inner.spec;
        let body = json!({ spec.id_key: self.id, spec.reset_key: item_id });
        let reply = self.call("/reset", &body, Repeat::Always).await?;
        self.observation = match &reply {
            Value::String(text) => text.clone(),
            reply => self.text("/reset", reply)?,
        };
        Ok(())
    }

    /// The first observation of the task.
    pub fn observation(&self) -> &str {
        &self.observation
    }

    /// Plays one model text. A reply given without a call has reward 0 and leaves the episode
    /// open. After the end, or after a step whose fate is unknown, every step is an error.
    pub async fn step(&mut self, model_text: &str) -> Result<StepOutput, EnvError> {
        let spec = self.inner.spec;
        if self.finished {
            let error = EnvError::Finished {
                call: self.inner.servers[self.server].name("/step"),
            };
            self.inner.counters.fault(&error);
            return Err(error);
        }
        let parsed = spec.parser.parse(model_text);
        self.inner.counters.note(|counters| {
            counters.normalised += u64::from(parsed.normalised);
            counters.local_replies += u64::from(parsed.action.is_none());
        });
        let Some(action) = parsed.action.clone() else {
            return Ok(StepOutput {
                observation: parsed.local_reply.clone().unwrap_or_default(),
                reward: 0.0,
                done: false,
                success: false,
                action: None,
                parsed,
                local: true,
            });
        };
        let body = json!({ spec.id_key: self.id, "action": action });
        // Until a reply is understood the state of the session is unknown; a caller that goes
        // on regardless, or was cancelled here, must not play on in it.
        self.finished = true;
        let reply = self.call("/step", &body, Repeat::IfNotRun).await?;
        let server = &self.inner.servers[self.server];
        let observation = self.text("/step", &reply)?;
        let reward = reply[spec.reward_key]
            .as_f64()
            .ok_or_else(|| server.protocol("/step", "no reward", &reply))?
            * spec.reward_scale;
        let done = reply[spec.done_key]
            .as_bool()
            .ok_or_else(|| server.protocol("/step", "no end-of-episode flag", &reply))?;
        self.finished = done;
        Ok(StepOutput {
            observation,
            reward,
            done,
            success: spec.success.holds(reward),
            action: Some(action),
            parsed,
            local: false,
        })
    }

    /// Closes the session and waits for it.
    pub async fn close(mut self) -> Result<(), EnvError> {
        let inner = Arc::clone(&self.inner);
        let server = self.server;
        // The id stays until the reply is there: a caller that is cancelled while it waits
        // leaves the close to `drop`. Closing twice is harmless.
        let Some(id) = self.id.clone() else {
            return Ok(());
        };
        let closed = inner.close(server, &id).await;
        self.id = None;
        closed
    }

    async fn call(
        &self,
        endpoint: &'static str,
        body: &Value,
        repeat: Repeat,
    ) -> Result<Value, EnvError> {
        let reply = self.inner.servers[self.server]
            .call(endpoint, Some(body), repeat)
            .await?;
        self.inner.without_error(self.server, endpoint, reply)
    }

    fn text(&self, endpoint: &'static str, reply: &Value) -> Result<String, EnvError> {
        match &reply[self.inner.spec.observation_key] {
            Value::String(text) => Ok(text.clone()),
            _ => Err(self.inner.servers[self.server].protocol(endpoint, "no observation", reply)),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            self.inner.counters.note(|counters| counters.leaked += 1);
            return;
        };
        let inner = Arc::clone(&self.inner);
        let server = self.server;
        inner.closing.send_modify(|count| *count += 1);
        runtime.spawn(async move {
            // A failure has been counted and logged; nobody is left to tell.
            let _ = inner.close(server, &id).await;
            inner.closing.send_modify(|count| *count -= 1);
        });
    }
}
