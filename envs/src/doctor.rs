//! Checks whether a server matches its specification, and measures its speed.
//!
//! Works with any AgentGym server, including the original Python ones. It uses only its own
//! sessions, and opens as few as possible if the server cannot close them.

mod report;
mod speed;
mod subject;

#[cfg(test)]
mod tests;

use crate::client::{ClientOptions, EnvClient};
use crate::error::EnvError;
use crate::http_client::{Unread, body, causes, http_client, shown};
use crate::spec::{Actions, CreateBody, EnvSpec, ErrorShape, IdInReply, Items, Replay};
use agentgym_text::without_secrets;
pub use report::{Check, Report, Speed, Verdict};
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};
use subject::{Doctor, REPEATED};

/// A session id that no server has given out.
const NO_SESSION: i64 = 987_654_321;

/// How much is tested and measured.
#[derive(Clone, Debug, PartialEq)]
pub struct DoctorOptions {
    /// Sessions opened and closed in the leak test; 0 skips it.
    pub leaks: usize,
    /// The numbers of concurrent clients to measure the speed with.
    pub clients: Vec<usize>,
    /// How long each measurement takes, in seconds.
    pub measure_s: f64,
    /// Longest time for a call, in seconds.
    pub call_timeout_s: f64,
}

/// Largest reply that is read.
const BODY_BYTES_MAX: usize = 32 << 20;

impl Default for DoctorOptions {
    fn default() -> Self {
        Self {
            leaks: 500,
            clients: vec![1, 8, 64],
            measure_s: 2.0,
            call_timeout_s: 120.0,
        }
    }
}

/// Examines a server. `tell` is called before each step, since some take minutes.
pub async fn examine(
    spec: &'static EnvSpec,
    url: &str,
    options: &DoctorOptions,
    tell: impl Fn(&str) + Sync,
) -> Result<Report, EnvError> {
    let url = url.trim_end_matches('/');
    let limits = ClientOptions {
        call_timeout_s: options.call_timeout_s,
        attempts_max: 1,
        checks_servers: true,
        ..ClientOptions::default()
    };
    let timeout = Duration::try_from_secs_f64(options.call_timeout_s)
        .map_err(|error| EnvError::Client(format!("the call timeout: {error}")))?;
    let http = http_client(url)
        .timeout(timeout)
        .pool_max_idle_per_host(0)
        .build()
        .map_err(|error| EnvError::Client(error.to_string()))?;
    let mut doctor = Doctor {
        tell: &tell,
        spec,
        url,
        http,
        client: EnvClient::new(spec, &[url.to_owned()], limits)?,
        checks: Vec::new(),
    };
    let mut speeds = Vec::new();
    if doctor.answers().await && doctor.plays().await {
        tell("opening the same tasks again …");
        doctor.repeats().await;
        tell("looking which items there are …");
        doctor.item_range().await;
        tell("sending bad requests …");
        doctor.errors().await;
        tell("opening and closing sessions …");
        doctor.leaks(options.leaks).await;
        // An agent behind a harness would have nobody to ask.
        let clients = options.clients.iter().filter(|_| !spec.harness);
        for clients in clients {
            // Expensive sessions are not opened in large numbers.
            let clients = match spec.creates_at_once {
                ..=2 => (*clients).min(2),
                _ => *clients,
            };
            if speeds.iter().all(|speed: &Speed| speed.clients != clients) {
                tell(&format!(
                    "measuring with {clients} at once for {} s, and until each has made a step …",
                    options.measure_s
                ));
                let speed = doctor.speed(clients, options.measure_s).await;
                if speed.steps == 0 {
                    let found = format!(
                        "no step was finished with {clients} at once, {} failed",
                        speed.failures
                    );
                    doctor.note("speed", Verdict::Bad, found);
                }
                speeds.push(speed);
            }
        }
        tell("closing the last sessions …");
        doctor.client.drain().await;
    }
    Ok(Report {
        url: without_secrets(url),
        task: spec.name,
        checks: doctor.checks,
        speeds,
    })
}

impl Doctor<'_> {
    fn note(&mut self, name: &'static str, verdict: Verdict, found: impl Into<String>) {
        self.checks.push(Check {
            name,
            verdict,
            found: found.into(),
        });
    }

    /// Status and body; a body that is not JSON is returned as a text.
    async fn ask(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(u16, Value), String> {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let mut reply = request.send().await.map_err(|error| causes(&error))?;
        let status = reply.status().as_u16();
        let bytes = crate::http_client::body(&mut reply, BODY_BYTES_MAX);
        let bytes = bytes.await.map_err(|unread| match unread {
            Unread::Failed(error) => causes(&error),
            Unread::TooLarge => format!("more than {BODY_BYTES_MAX} bytes"),
        })?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok((
            status,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        ))
    }

    async fn post(&self, path: &str, body: Value) -> Result<(u16, Value), String> {
        self.ask(reqwest::Method::POST, path, Some(body)).await
    }

    async fn answers(&mut self) -> bool {
        (self.tell)("looking whether the server answers …");
        let root = match self.url.strip_suffix(self.spec.path_prefix) {
            Some(root) => root.to_owned(),
            None => {
                let found = format!("the base URL has to end in {}", self.spec.path_prefix);
                self.note("address", Verdict::Bad, found);
                return false;
            }
        };
        match self.http.get(format!("{root}/")).send().await {
            Err(error) => {
                self.note(
                    "address",
                    Verdict::Bad,
                    format!("no answer from {}: {}", shown(self.url), causes(&error)),
                );
                return false;
            }
            Ok(mut reply) => {
                let banner = body(&mut reply, BODY_BYTES_MAX).await.unwrap_or_default();
                let banner = String::from_utf8_lossy(&banner);
                let banner: String = banner.trim().chars().take(60).collect();
                self.note("address", Verdict::Good, format!("answers {banner}"));
                if let Err(another @ EnvError::Another { .. }) = self.client.greet().await {
                    self.note(report::KIND, Verdict::Bad, another.to_string());
                    return false;
                }
            }
        }
        match self.sessions().await {
            Some(open) => self.note("health", Verdict::Good, format!("{open} sessions open")),
            None => self.note(
                "health",
                Verdict::Good,
                "no /health, as the original servers",
            ),
        }
        true
    }

    /// Number of open sessions, if the server reports it.
    async fn sessions(&self) -> Option<u64> {
        let root = self.url.strip_suffix(self.spec.path_prefix)?;
        let mut reply = self.http.get(format!("{root}/health")).send().await.ok()?;
        if reply.status().as_u16() != 200 {
            return None;
        }
        let found: Value =
            serde_json::from_slice(&body(&mut reply, BODY_BYTES_MAX).await.ok()?).ok()?;
        found["sessions"].as_u64()
    }

    /// An item that most servers have.
    fn item(&self) -> i64 {
        match &self.spec.items {
            Items::Within(range) => range.start,
            _ => 0,
        }
    }

    async fn plays(&mut self) -> bool {
        (self.tell)("opening a session …");
        let mut session = match self.client.open(self.item()).await {
            Ok(session) => session,
            Err(error) => {
                let name = match error {
                    EnvError::Another { .. } => report::KIND,
                    _ => "open",
                };
                self.note(name, Verdict::Bad, error.to_string());
                return false;
            }
        };
        let length = session.observation().chars().count();
        let found = format!("item {}: a first text of {length} characters", self.item());
        match length {
            0 => self.note("open", Verdict::Bad, "the first text is empty"),
            _ => self.note("open", Verdict::Good, found),
        }
        match session.available_actions().await {
            Ok(Some(actions)) => {
                let shown: Vec<&str> = actions.iter().take(3).map(String::as_str).collect();
                let found = format!("{} listed: {}, …", actions.len(), shown.join(", "));
                self.note("actions", Verdict::Good, found);
            }
            Ok(None) if self.spec.actions == Actions::None => {}
            Ok(None) => self.note("actions", Verdict::Note, "none listed"),
            Err(error) => self.note("actions", Verdict::Note, error.to_string()),
        }
        let plays = match session.step(&self.spec.probe_text()).await {
            Ok(_) | Err(EnvError::Faulted { .. }) if self.spec.harness => {
                self.note(
                    "step",
                    Verdict::Note,
                    "an agent plays here: none was started",
                );
                true
            }
            Ok(step) => {
                let found = format!(
                    "reward {}, {}, {} characters",
                    step.reward,
                    if step.done { "done" } else { "not done" },
                    step.observation.chars().count()
                );
                self.note("step", Verdict::Good, found);
                true
            }
            Err(error) => {
                self.note("step", Verdict::Bad, error.to_string());
                false
            }
        };
        if let Err(error) = session.close().await {
            self.note("close", Verdict::Bad, error.to_string());
        }
        plays
    }

    /// Opens the same item twice: in consecutive sessions.
    async fn repeats(&mut self) {
        let (mut same, mut differing, mut refused) = (0, Vec::new(), 0);
        for item in self.item()..self.item() + REPEATED {
            let mut texts = Vec::new();
            for _ in 0..2 {
                if let Ok(session) = self.client.open(item).await {
                    texts.push(session.observation().to_owned());
                    // Failures to close are checked separately.
                    let _ = session.close().await;
                }
            }
            match &texts[..] {
                [one, two] if one == two => same += 1,
                [one, two] => differing.push((item, self.spec.replay.accepts(one, two))),
                _ => refused += 1,
            }
        }
        let as_declared = differing.iter().all(|(_, accepted)| *accepted);
        let items: Vec<String> = differing.iter().map(|(item, _)| item.to_string()).collect();
        let items = items.join(", ");
        let (verdict, found) = match (&self.spec.replay, differing.is_empty()) {
            (_, true) => (Verdict::Good, format!("{same} items, twice the same text")),
            (Replay::None, false) => (
                Verdict::Note,
                format!("items {items} differ, as is known of this environment"),
            ),
            (Replay::SameLines, false) if as_declared => (
                Verdict::Note,
                format!("items {items} have the same lines in another order, as is known"),
            ),
            _ => (
                Verdict::Bad,
                format!("items {items} gave two different tasks"),
            ),
        };
        let found = match refused {
            0 => found,
            _ => format!("{found}; {refused} items could not be opened"),
        };
        self.note("same task", verdict, found);
    }

    async fn opens(&self, item: i64) -> Result<String, EnvError> {
        let session = self.client.open(item).await?;
        let text = session.observation().to_owned();
        // Failures to close are checked separately.
        let _ = session.close().await;
        Ok(text)
    }

    async fn item_range(&mut self) {
        let (verdict, found) = match self.spec.items.clone() {
            Items::Unknown => (Verdict::Good, "depends on the server's data".to_owned()),
            Items::Any => match self.opens(1_000_000).await {
                Ok(_) => (Verdict::Good, "any number; 1000000 opens".to_owned()),
                Err(error) => (Verdict::Note, format!("1000000: {error}")),
            },
            Items::Wrapping(count) => match (self.opens(0).await, self.opens(count).await) {
                (Ok(first), Ok(last)) if self.spec.replay.accepts(&first, &last) => {
                    (Verdict::Good, format!("{count} wraps to 0"))
                }
                (Ok(_), Ok(_)) => (
                    Verdict::Note,
                    format!("{count} is not item 0: this server has other tasks"),
                ),
                (_, Err(error)) | (Err(error), _) => (Verdict::Note, error.to_string()),
            },
            Items::Within(range) => {
                let last = self.opens(range.end - 1).await;
                let beyond = self.opens(range.end).await;
                match (last, beyond) {
                    (Ok(_), Err(_)) => (
                        Verdict::Good,
                        format!("{} opens, {} is refused", range.end - 1, range.end),
                    ),
                    (Ok(_), Ok(_)) => (
                        Verdict::Note,
                        format!("{} opens too: more tasks than published", range.end),
                    ),
                    (Err(_), _) => (
                        Verdict::Note,
                        format!("{} is refused: fewer tasks than published", range.end - 1),
                    ),
                }
            }
        };
        self.note("items", verdict, found);
    }

    /// A failed call must not look like a step.
    async fn errors(&mut self) {
        let step = json!({self.spec.id_key: NO_SESSION, "action": "x"});
        let reply = self.post(self.spec.routes.step, step).await;
        let (verdict, found) = match (reply, self.spec.errors) {
            (Err(error), _) => (
                Verdict::Bad,
                format!("no reply to an unknown session: {error}"),
            ),
            (Ok((200, body)), ErrorShape::Soft) if body.get("error").is_some() => (
                Verdict::Good,
                format!("200 with an error: {}", body["error"]),
            ),
            (Ok((200, body)), ErrorShape::InObservation(_)) if body["info"].is_null() => {
                (Verdict::Good, "200 with info null".to_owned())
            }
            (Ok((status @ 400.., _)), _) => (Verdict::Good, format!("status {status}")),
            (Ok((status, body)), _) => {
                let body: String = body.to_string().chars().take(80).collect();
                (
                    Verdict::Bad,
                    format!("a step in no session was answered with {status} {body}"),
                )
            }
        };
        self.note("errors", verdict, found);
        let reply = self.post(self.spec.routes.step, json!({})).await;
        let (verdict, found) = match reply {
            Ok((422, body)) => {
                let count = body["detail"].as_array().map_or(0, Vec::len);
                (Verdict::Good, format!("422 with {count} details"))
            }
            Ok((status @ 400.., _)) => (Verdict::Good, format!("status {status}")),
            Ok((status, body)) if body.get("error").is_some() => {
                (Verdict::Good, format!("{status} with an error"))
            }
            Ok((status, _)) => (
                Verdict::Bad,
                format!("an empty step was answered with {status}"),
            ),
            Err(error) => (Verdict::Bad, error),
        };
        self.note("bad requests", verdict, found);
    }

    /// Opens and closes many sessions, without playing in them.
    async fn leaks(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        if !self.spec.close {
            let found = "the server has no /close: every session it opens stays; the client \
                         uses them again";
            self.note("leaks", Verdict::Note, found);
            return;
        }
        // Starting a browser or a Java process for each would take hours.
        let count = if self.spec.creates_at_once <= 2 {
            count.min(3)
        } else {
            count
        };
        let before = self.sessions().await;
        let started = Instant::now();
        let (mut failed, mut unclosed) = (0, 0);
        for _ in 0..count {
            match self.create_and_close().await {
                Ok(true) => {}
                Ok(false) => unclosed += 1,
                Err(_) => failed += 1,
            }
        }
        let each_ms = started.elapsed().as_secs_f64() * 1000.0 / count as f64;
        let after = self.sessions().await;
        let left = before
            .zip(after)
            .map(|(before, after)| after as i64 - before as i64);
        let told = left.map_or(String::new(), |left| {
            format!(", {left} more open than before")
        });
        let found = format!(
            "{count} opened and closed in {each_ms:.2} ms each; {failed} failed, {unclosed} not \
             closed{told}"
        );
        let verdict = match (failed, unclosed, left.unwrap_or(0)) {
            (0, 0, ..=0) => Verdict::Good,
            // Sessions that were never reset cannot be closed; others can.
            (0, ..) if self.spec.name == "babyai" => Verdict::Note,
            _ => Verdict::Bad,
        };
        self.note("leaks", verdict, found);
    }

    async fn create_and_close(&self) -> Result<bool, String> {
        let routes = self.spec.routes;
        let path = routes.create;
        let created = match self.spec.create_body {
            CreateBody::Nothing => self.ask(reqwest::Method::POST, path, None).await?,
            CreateBody::EmptyObject => self.post(path, json!({})).await?,
            CreateBody::Item(key) => self.post(path, json!({ key: self.item() })).await?,
        };
        let id = match self.spec.id_in_reply {
            IdInReply::Bare => created.1,
            IdInReply::Key(key) => created.1[key].clone(),
        };
        if created.0 != 200 || id.is_null() {
            return Err(format!("status {}", created.0));
        }
        let mut body = Map::new();
        body.insert(self.spec.id_key.to_owned(), id);
        let (status, reply) = self.post(routes.close, Value::Object(body)).await?;
        Ok(status == 200 && reply != json!(false))
    }
}
