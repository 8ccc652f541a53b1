//! Requests to an inference server. What may be over in a moment (it is away, too busy, restarting, or
//! behind a proxy that answers with a page of its own) is asked again; what another request would not
//! change is an error at once.

use super::dialect::{self, Answer, Ask};
use crate::{Error, Result};
use agentgym_envs::{causes, excerpt, http_client};
use agentgym_jobs::config::{RolloutServer, ServerDialect};
use agentgym_text::without_secrets;
use reqwest::Method;
use reqwest::redirect::Policy as Redirects;
use serde_json::Value;
use std::time::Duration;

/// The key of a server that wants one. It is in no plan and in no message.
pub(crate) const KEY_VARIABLE: &str = "AGENTGYM_SERVER_KEY";

/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Longest pause that a server may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// Why a request brought nothing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Failure {
    /// Another request may succeed, after the pause if the server named one.
    Passing(String, Option<Duration>),
    /// It is no use to ask again.
    Lasting(String),
}

/// A server, and how it is spoken to.
#[derive(Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    /// Without secrets, for messages.
    shown: String,
    dialect: ServerDialect,
    model: Option<String>,
    key: Option<String>,
    timeout_s: f64,
}

impl Client {
    /// # Errors
    /// No address or dialect, or no HTTP client can be made.
    pub(crate) fn new(server: &RolloutServer) -> Result<Self> {
        let (Some(url), Some(dialect)) = (&server.url, server.dialect) else {
            return Err(Error::stage(
                "actor_rollout_ref.rollout.engine is server, and actor_rollout_ref.rollout.server has no url \
                 or no dialect; give both",
            ));
        };
        let key = std::env::var(KEY_VARIABLE).ok();
        Self::to(url, dialect, server.model.clone(), server.timeout_s, key)
    }

    /// [`Client::new`] from its parts.
    pub(crate) fn to(
        url: &str,
        dialect: ServerDialect,
        model: Option<String>,
        timeout_s: f64,
        key: Option<String>,
    ) -> Result<Self> {
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::from_secs(300));
        let http = http_client()
            .timeout(timeout)
            .connect_timeout(timeout.min(Duration::from_secs(10)))
            // A key must not be sent to whoever a server names.
            .redirect(Redirects::none())
            .build()
            .map_err(|e| Error::Server(format!("no HTTP client: {}", causes(&e))))?;
        Ok(Self {
            http,
            url: url.trim_end_matches('/').to_owned(),
            shown: without_secrets(url).trim_end_matches('/').to_owned(),
            dialect,
            model,
            key: key.filter(|key| !key.is_empty()),
            timeout_s,
        })
    }

    /// The server, for messages.
    pub(crate) fn name(&self) -> String {
        format!("the {} server at {}", self.dialect.name(), self.shown)
    }

    /// A message, checked against what was asked. A server that ends messages with other ids than the
    /// policy does is asked to go on.
    pub(crate) async fn generate(
        &self,
        ask: &Ask<'_>,
        vocab_size: usize,
    ) -> Result<Answer, Failure> {
        let mut answer = self.part(ask, vocab_size).await?;
        while answer.goes_on {
            let so_far = [ask.prompt, &answer.token_ids].concat();
            let rest = Ask {
                prompt: &so_far,
                tokens_max: ask.tokens_max - answer.token_ids.len(),
                ..*ask
            };
            let next = self.part(&rest, vocab_size).await?;
            answer.token_ids.extend(next.token_ids);
            answer.log_probs.extend(next.log_probs);
            (answer.ended, answer.goes_on) = (next.ended, next.goes_on);
        }
        Ok(answer)
    }

    async fn part(&self, ask: &Ask<'_>, vocab_size: usize) -> Result<Answer, Failure> {
        let body = dialect::body(self.dialect, ask, self.model.as_deref());
        let route = dialect::generate_route(self.dialect);
        let answer = self
            .post(route, &body)
            .await
            .map_err(|failure| match failure {
                Failure::Lasting(text) => Failure::Lasting(format!(
                    "{text} (for a prompt of {} ids and up to {} behind it)",
                    ask.prompt.len(),
                    ask.tokens_max
                )),
                passing @ Failure::Passing(..) => passing,
            })?;
        // A server that is told to load other weights gives up what it is at.
        if answer["meta_info"]["finish_reason"]["type"] == "abort" {
            return Err(Failure::Passing("it gave the request up".to_owned(), None));
        }
        let read = dialect::read(self.dialect, ask, &answer, vocab_size);
        let mut answer = read.map_err(Failure::Lasting)?;
        for at in std::mem::take(&mut answer.unsaid) {
            let before = [ask.prompt, &answer.token_ids[..at]].concat();
            let end = ask.stop_ids.first().copied().unwrap_or_default();
            let body = dialect::distribution_body(&before, end, vocab_size);
            let all = self.post(route, &body).await?;
            let told = dialect::told(&all, before.len(), answer.token_ids[at]);
            answer.log_probs[at] = told.map_err(Failure::Lasting)?;
        }
        Ok(answer)
    }

    /// The longest context, where the server tells it.
    pub(crate) async fn context_max(&self) -> Result<Option<u64>, Failure> {
        let (route, pointers) = dialect::context_route(self.dialect);
        let answer = match self.send(Method::GET, route, None).await {
            Ok(answer) => answer,
            // Not every version has the route.
            Err(Failure::Lasting(_)) => return Ok(None),
            Err(passing) => return Err(passing),
        };
        let told = pointers.iter().find_map(|pointer| answer.pointer(pointer));
        Ok(told.and_then(Value::as_u64))
    }

    /// Has the server read the policy in `folder`; false if it has no route for that.
    pub(crate) async fn reload(&self, folder: &str) -> Result<bool, Failure> {
        let routes = dialect::reload_routes(self.dialect, folder);
        for (route, body) in &routes {
            let answer = self.post(route, body).await?;
            if answer["success"] == false {
                return Err(Failure::Lasting(format!(
                    "{route} failed: {}",
                    excerpt(answer["message"].to_string().as_bytes())
                )));
            }
        }
        Ok(!routes.is_empty())
    }

    async fn post(&self, route: &str, body: &Value) -> Result<Value, Failure> {
        self.send(Method::POST, route, Some(body)).await
    }

    async fn send(
        &self,
        method: Method,
        route: &str,
        body: Option<&Value>,
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
        if let Some(body) = body {
            request = request.json(body);
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
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            if bytes.len() + piece.len() > ANSWER_BYTES_MAX {
                let text = format!("{route} answers with more than {ANSWER_BYTES_MAX} bytes");
                return Err(Failure::Lasting(text));
            }
            bytes.extend_from_slice(&piece);
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
            _ => Err(Failure::Lasting(found())),
        }
    }
}
