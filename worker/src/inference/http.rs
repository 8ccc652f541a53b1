//! Requests to a server that generates. What may be over in a moment (it is away, too busy, restarting,
//! or behind a proxy that answers with a page of its own) may be asked again; what another request would
//! not change is an error at once. A key goes to the address that was given and nowhere else.

use crate::{Error, Result};
use agentgym_envs::{Unread, body, causes, excerpt, http_client, redirected, shown};
use reqwest::Method;
use serde_json::Value;
use std::time::Duration;

/// The key of a server that wants one. It is in no plan and in no message.
pub const KEY_VARIABLE: &str = "AGENTGYM_SERVER_KEY";

/// Longest pause that a server may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// A key this long is taken out of answers that repeat it; a shorter one is no secret, and may be a
/// word of an answer.
const KEY_BYTES_MIN: usize = 8;

/// Why a request brought nothing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Failure {
    /// Another request may succeed, after the pause if the server named one.
    Passing(String, Option<Duration>),
    /// It is no use to ask again.
    Lasting(String),
}

/// An address, and how it is asked.
#[derive(Debug)]
pub(crate) struct Http {
    http: reqwest::Client,
    url: String,
    /// Without secrets and with its proxy, for messages.
    shown: String,
    key: Option<String>,
    timeout_s: f64,
    /// Largest answer that is read.
    answer_bytes_max: usize,
}

impl Http {
    /// # Errors
    /// No HTTP client can be made.
    pub(crate) fn to(
        url: &str,
        key: Option<String>,
        timeout_s: f64,
        answer_bytes_max: usize,
    ) -> Result<Self> {
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::from_secs(300));
        let http = http_client(url)
            .timeout(timeout)
            .build()
            .map_err(|e| Error::Server(format!("no HTTP client: {}", causes(&e))))?;
        Ok(Self {
            http,
            url: url.trim_end_matches('/').to_owned(),
            shown: shown(url),
            key: key.filter(|key| !key.is_empty()),
            timeout_s,
            answer_bytes_max,
        })
    }

    /// The address, for messages.
    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    pub(crate) async fn post(&self, route: &str, body: &Value) -> Result<Value, Failure> {
        self.send(Method::POST, route, Some(body)).await
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        route: &str,
        content: Option<&Value>,
    ) -> Result<Value, Failure> {
        let passing = |text: String| Failure::Passing(text, None);
        let failed = |e: reqwest::Error| match e.is_timeout() {
            true => passing(format!(
                "no answer in {} s (actor_rollout_ref.rollout.server.timeout_s)",
                self.timeout_s
            )),
            false => passing(format!("no connection ({})", causes(&e))),
        };
        let mut request = self.http.request(method, format!("{}{route}", self.url));
        if let Some(content) = content {
            request = request.json(content);
        }
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status().as_u16();
        let pause = (response.headers().get("retry-after"))
            .and_then(|value| value.to_str().ok()?.trim().parse::<f64>().ok())
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .map(|pause| pause.min(PAUSE_MAX));
        let most = self.answer_bytes_max;
        let bytes = body(&mut response, most).await;
        let mut bytes = bytes.map_err(|unread| match unread {
            Unread::Failed(e) => failed(e),
            Unread::TooLarge => {
                Failure::Lasting(format!("{route} answers with more than {most} bytes"))
            }
        })?;
        if let Some(key) = self.key.as_deref().filter(|key| key.len() >= KEY_BYTES_MIN)
            && let Ok(text) = std::str::from_utf8(&bytes)
            && text.contains(key)
        {
            bytes = text.replace(key, "…").into_bytes();
        }
        let found = || format!("{route} answers {status}: {}", excerpt(&bytes));
        match status {
            // vLLM's development routes answer with nothing.
            200..=299 if bytes.is_empty() => Ok(Value::Null),
            200..=299 => serde_json::from_slice(&bytes)
                .map_err(|e| passing(format!("no JSON ({e}) in its answer: {}", excerpt(&bytes)))),
            408 | 429 | 500..=599 => Err(Failure::Passing(found(), pause)),
            401 | 403 => Err(Failure::Lasting(format!(
                "{}; set {KEY_VARIABLE} to its key",
                found()
            ))),
            _ => Err(Failure::Lasting(match redirected(&response) {
                None => found(),
                Some(to) => format!(
                    "{route} answers {status} to {to}: redirects are not followed; where that address is \
                     meant, set actor_rollout_ref.rollout.server.url to it"
                ),
            })),
        }
    }
}
