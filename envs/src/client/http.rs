//! One request to one server: limits on time and size, retries, and a typed error for every result
//! other than a JSON reply.
//!
//! A refused connection means that the server's process was down. The original servers count
//! sessions from 0 again when they start, so a number from before may now belong to another
//! session. After a refused connection, calls that name a session are not repeated, and the
//! server's `gone` counter is incremented.
//!
//! Two properties of the original servers shape the connection pool. They close idle connections
//! after 5 s, and a model often thinks longer than that, so the client discards them when idle for
//! 4 s. They also drop the connection after a 500 without notice, so after such a reply the whole
//! pool is replaced and no later step uses a dead connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::Value;

use super::counters::Counters;
use super::options::ClientOptions;
use super::reply;
use crate::error::{Call, EnvError, Verdict};
use crate::http_client::{
    EXCERPT_BYTES, Proxy, Unread, body, causes, excerpt, http_client, redirected,
};
use agentgym_text::without_secrets;

/// Less than the 5 s after which the original servers close an idle connection.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// How long a server may take to say which environment it is.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// A longer answer names no environment.
const GREETING_BYTES: usize = 4096;

/// When a failed call may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// After any transient failure: running twice is harmless.
    Always,
    /// Only if it cannot have run, which means that no connection was made.
    IfNotRun,
}

/// A request.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    endpoint: &'static str,
    method: &'static Method,
    /// One name and value.
    query: Option<(&'static str, &'a Value)>,
    body: Option<&'a Value>,
}

impl<'a> Ask<'a> {
    pub(super) fn post(endpoint: &'static str, body: Option<&'a Value>) -> Self {
        Self {
            endpoint,
            method: &Method::POST,
            query: None,
            body,
        }
    }

    pub(super) fn get(endpoint: &'static str, query: Option<(&'static str, &'a Value)>) -> Self {
        Self {
            endpoint,
            method: &Method::GET,
            query,
            body: None,
        }
    }

    fn url(&self, base: &str) -> String {
        match self.query {
            None => format!("{base}{}", self.endpoint),
            Some((key, value)) => {
                let value = match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let query = url::form_urlencoded::Serializer::new(String::new())
                    .append_pair(key, &value)
                    .finish();
                format!("{base}{}?{query}", self.endpoint)
            }
        }
    }
}

pub(super) struct Server {
    url: String,
    /// The URL as messages show it, without secrets.
    shown: String,
    /// The proxy that calls go through, for messages.
    via: Option<String>,
    options: ClientOptions,
    http: RwLock<reqwest::Client>,
    counters: Arc<Counters>,
    /// Number of refused connections.
    gone: AtomicU64,
    /// Number of calls whose connection failed.
    failures: AtomicU64,
    /// That number when the server was last asked which environment it is.
    known: tokio::sync::Mutex<Option<u64>>,
}

impl Server {
    pub(super) fn new(
        url: &str,
        options: ClientOptions,
        counters: Arc<Counters>,
    ) -> Result<Self, EnvError> {
        let bad = |problem: String| EnvError::Address {
            address: without_secrets(url),
            problem: format!("{problem}; expected something like http://127.0.0.1:36001"),
        };
        let parsed = url::Url::parse(url).map_err(|error| bad(error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(bad(format!(
                "the scheme {:?} is not http or https",
                parsed.scheme()
            )));
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(bad("a base URL has no ? or #".to_owned()));
        }
        if parsed.host().is_none() {
            return Err(bad("no host".to_owned()));
        }
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            shown: without_secrets(url).trim_end_matches('/').to_owned(),
            via: Proxy::to(url).map(|proxy| format!(" ({proxy})")),
            http: RwLock::new(connections(url, &options)?),
            options,
            counters,
            gone: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            known: Default::default(),
        })
    }

    /// Number of refused connections so far. Sessions opened before the last one are lost.
    pub(super) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Relaxed)
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn known(&self) -> &tokio::sync::Mutex<Option<u64>> {
        &self.known
    }

    pub(super) fn is_checked(&self) -> bool {
        self.options.checks_servers
    }

    /// What the server says of itself, if anything.
    pub(super) async fn greeting(&self, root: &str) -> Option<String> {
        let asking = {
            let http = self.http.read().unwrap_or_else(PoisonError::into_inner);
            http.get(format!("{root}/")).timeout(GREETING_MAX)
        };
        let mut response = asking.send().await.ok()?;
        let bytes = body(&mut response, GREETING_BYTES).await.ok()?;
        let text = String::from_utf8_lossy(&bytes);
        Some(serde_json::from_str(&text).unwrap_or_else(|_| text.trim().to_owned()))
    }

    /// The error for a server that is another environment. It is counted.
    pub(super) fn another(&self, expected: &'static str, found: String, how: String) -> EnvError {
        let url = self.shown.clone();
        let error = EnvError::Another {
            url,
            found,
            expected,
            how,
        };
        self.counters.fault(&error);
        error
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn name(&self, endpoint: &'static str) -> Call {
        Call {
            url: self.shown.clone(),
            endpoint,
            via: self.via.clone().unwrap_or_default(),
        }
    }

    /// The error for a reply with something missing. It is counted.
    pub(super) fn protocol(&self, endpoint: &'static str, what: &str, reply: &Value) -> EnvError {
        let error = EnvError::Protocol {
            call: self.name(endpoint),
            found: format!("{what} in {}", excerpt(reply.to_string().as_bytes())),
        };
        self.counters.fault(&error);
        error
    }

    /// Sends a request about a session and reads a JSON reply. A returned error has been counted.
    pub(super) async fn call(&self, ask: Ask<'_>, repeat: Repeat) -> Result<Value, EnvError> {
        let mut attempt = 1;
        let gone = self.gone();
        loop {
            let error = match self.try_call(ask, attempt).await {
                Ok(reply) => {
                    self.counters.note(|counters| counters.trouble = None);
                    return Ok(reply);
                }
                Err(error) => error,
            };
            let may_repeat = match repeat {
                Repeat::Always => error.verdict() == Verdict::Retry,
                Repeat::IfNotRun => matches!(error, EnvError::Unreachable { .. }),
            };
            if !may_repeat || self.gone() != gone || attempt >= self.options.attempts_max {
                self.counters.fault(&error);
                return Err(error);
            }
            tracing::debug!(%error, attempt, "environment call will be repeated");
            self.counters
                .note(|counters| counters.trouble = Some(error.to_string()));
            tokio::time::sleep(self.pause(attempt)).await;
            attempt += 1;
        }
    }

    /// One attempt. `attempt` counts from 1; an error is not counted here.
    pub(super) async fn try_call(&self, ask: Ask<'_>, attempt: u32) -> Result<Value, EnvError> {
        let started = Instant::now();
        let result = self.attempt(ask, attempt).await;
        // Whoever answers errors is who it was before.
        if let Err(EnvError::Unreachable { .. } | EnvError::Dropped { .. }) = result {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        self.counters.note(|counters| {
            counters.calls += 1;
            counters.retries += u64::from(attempt > 1);
            counters.call_time_s += started.elapsed().as_secs_f64();
        });
        result
    }

    /// Exponential backoff. Up to a quarter of it is subtracted, depending on the number of calls,
    /// so that clients that failed together do not retry together.
    pub(super) fn pause(&self, attempt: u32) -> Duration {
        let doubled = self.options.backoff_first_s * 2f64.powi(attempt.min(30) as i32 - 1);
        let spread = (self.counters.snapshot().calls % 16) as f64 / 64.0;
        Duration::from_secs_f64(doubled.min(self.options.backoff_max_s).max(0.0) * (1.0 - spread))
    }

    async fn attempt(&self, ask: Ask<'_>, attempts: u32) -> Result<Value, EnvError> {
        let endpoint = ask.endpoint;
        let http = self
            .http
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut request = http.request(ask.method.clone(), ask.url(&self.url));
        if let Some(body) = ask.body {
            request = request.json(body);
        }
        let failed = |error: reqwest::Error| self.failed(endpoint, &error, attempts);
        let mut response = request.send().await.map_err(failed)?;
        let status = response.status().as_u16();
        if !response.status().is_success() {
            let redirected = redirected(&response);
            let mut start = Vec::new();
            while let Ok(Some(piece)) = response.chunk().await {
                start.extend_from_slice(&piece);
                if start.len() >= EXCERPT_BYTES {
                    break;
                }
            }
            if status >= 500 {
                self.replace_connections()?;
            }
            return Err(EnvError::Refused {
                call: self.name(endpoint),
                status,
                body: redirected.map_or_else(|| excerpt(&start), |to| format!("to {to}")),
            });
        }
        if status == 204 {
            return Ok(Value::Null);
        }
        let limit_bytes = self.options.body_max_bytes;
        let bytes = body(&mut response, limit_bytes)
            .await
            .map_err(|unread| match unread {
                Unread::Failed(error) => failed(error),
                Unread::TooLarge => EnvError::TooLarge {
                    call: self.name(endpoint),
                    limit_bytes,
                },
            })?;
        let (reply, replaced) = reply::read(&bytes).map_err(|found| EnvError::Protocol {
            call: self.name(endpoint),
            found,
        })?;
        self.counters.note(|counters| counters.replaced += replaced);
        Ok(reply)
    }

    fn failed(&self, endpoint: &'static str, error: &reqwest::Error, attempts: u32) -> EnvError {
        let call = self.name(endpoint);
        if error.is_connect() {
            if is_refused(error) {
                self.gone.fetch_add(1, Ordering::Relaxed);
            }
            return EnvError::Unreachable {
                call,
                found: causes(error),
                attempts,
            };
        }
        if error.is_timeout() {
            return EnvError::TimedOut {
                call,
                limit_s: self.options.call_timeout_s,
            };
        }
        EnvError::Dropped {
            call,
            found: causes(error),
        }
    }

    fn replace_connections(&self) -> Result<(), EnvError> {
        let fresh = connections(&self.url, &self.options)?;
        *self.http.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }
}

fn connections(url: &str, options: &ClientOptions) -> Result<reqwest::Client, EnvError> {
    let seconds = |value: f64, name: &str| {
        Duration::try_from_secs_f64(value)
            .ok()
            .filter(|limit| !limit.is_zero())
            .ok_or_else(|| EnvError::Client(format!("{name} is {value}; it must be above 0")))
    };
    http_client(url)
        .timeout(seconds(options.call_timeout_s, "the call timeout")?)
        .connect_timeout(seconds(options.connect_timeout_s, "the connect timeout")?)
        .pool_idle_timeout(IDLE_MAX)
        .build()
        .map_err(|error| EnvError::Client(causes(&error)))
}

fn is_refused(error: &reqwest::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<std::io::Error>().map(|e| e.kind());
        if kind == Some(std::io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = error.source();
    }
    false
}
