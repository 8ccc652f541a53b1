//! What an inference server is asked, in its dialect.

use super::dialect::{self, Answer, Ask};
use super::http::{Failure, Http, KEY_VARIABLE};
use crate::{Error, Result};
use agentgym_envs::excerpt;
use agentgym_jobs::config::{RolloutServer, ServerDialect};
use reqwest::Method;
use serde_json::Value;

/// Largest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A server, and how it is spoken to.
#[derive(Debug)]
pub(crate) struct Client {
    http: Http,
    dialect: ServerDialect,
    model: Option<String>,
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
        Ok(Self {
            http: Http::to(url, key, timeout_s, ANSWER_BYTES_MAX)?,
            dialect,
            model,
        })
    }

    /// The server, for messages.
    pub(crate) fn name(&self) -> String {
        format!(
            "the {} server at {}",
            self.dialect.name(),
            self.http.shown()
        )
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
            .http
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
            let all = self.http.post(route, &body).await?;
            let told = dialect::told(&all, before.len(), answer.token_ids[at]);
            answer.log_probs[at] = told.map_err(Failure::Lasting)?;
        }
        Ok(answer)
    }

    /// The longest context, where the server tells it.
    pub(crate) async fn context_max(&self) -> Result<Option<u64>, Failure> {
        let (route, pointers) = dialect::context_route(self.dialect);
        let answer = match self.http.send(Method::GET, route, None).await {
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
            let answer = self.http.post(route, body).await?;
            if answer["success"] == false {
                return Err(Failure::Lasting(format!(
                    "{route} failed: {}",
                    excerpt(answer["message"].to_string().as_bytes())
                )));
            }
        }
        Ok(!routes.is_empty())
    }
}
