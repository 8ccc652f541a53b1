//! A harness of one's own, in this process: an agent that plays the toolbox through OpenAI's API, in ways
//! that depend on the task alone.

use agentgym_envs::client::{ClientOptions, EnvClient, Session};
use agentgym_envs::server::http::{Answer, Asked, HttpRefusal, Method, Route, Routes};
use agentgym_envs::server::sessions::{Sessions, Table};
use agentgym_envs::server::validation::{reset, step};
use agentgym_envs::server::{ServerHandle, ServerOptions, serve};
use agentgym_envs::{builtin, http_client, spec};
use futures::future::join_all;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;

/// Ids of a prompt, and of its answer.
pub(super) type Told = (Vec<u32>, Vec<u32>);

/// What becomes of agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Plays,
    /// It dies once, after an answer that its task decides.
    FailsOnce,
    /// After each answer the harness loses its session.
    LosesSessions,
    /// After each answer it waits for the death of its worker: [`House::wants_a_death`].
    AwaitsDeaths,
    /// It never asks the same twice, and the harness loses the first sessions.
    Wavers,
    /// It writes its prompts itself.
    Completes,
    /// It asks what it may not, before and after what it may.
    AsksBadly,
}

struct Shared {
    fate: Fate,
    toolbox: EnvClient,
    http: reqwest::Client,
    told: Mutex<BTreeSet<(String, Told)>>,
    /// Answers that ended something.
    ends: Mutex<BTreeSet<Told>>,
    wants_a_death: Mutex<Option<Told>>,
    started: AtomicUsize,
    complaints: Mutex<Vec<String>>,
}

struct App {
    shared: Arc<Shared>,
    sessions: Sessions<(i64, Option<watch::Receiver<Option<Value>>>)>,
    runtime: tokio::runtime::Handle,
}

pub(super) struct House {
    shared: Arc<Shared>,
    server: ServerHandle,
    _toolbox: ServerHandle,
    folder: tempfile::TempDir,
}

/// The first message of the toolbox.
pub(super) fn prompt(observation: &str) -> String {
    spec("toolbox").unwrap().first_message(observation)
}

impl House {
    pub(super) async fn open(fate: Fate) -> Self {
        agentgym_games::provide();
        let games = builtin::start("builtin:toolbox?terms=1").await.unwrap();
        let urls = [games.url.clone()];
        let toolbox = spec("toolbox").unwrap();
        let toolbox = EnvClient::new(toolbox, &urls, ClientOptions::default()).unwrap();
        let shared = Arc::new(Shared {
            fate,
            toolbox,
            http: http_client(&urls[0]).build().unwrap(),
            told: Mutex::default(),
            ends: Mutex::default(),
            wants_a_death: Mutex::default(),
            started: AtomicUsize::new(0),
            complaints: Mutex::default(),
        });
        let options = ServerOptions::default();
        let app = Arc::new(App {
            shared: Arc::clone(&shared),
            sessions: Sessions::new(&options),
            runtime: tokio::runtime::Handle::current(),
        });
        let address = "127.0.0.1:0".parse().unwrap();
        let server = serve(app, "", address, options).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let spec = "name: house\nharness: true\n";
        std::fs::write(folder.path().join("house.yaml"), spec).unwrap();
        Self {
            shared,
            server,
            _toolbox: games,
            folder,
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.server.url
    }

    pub(super) fn spec(&self) -> PathBuf {
        self.folder.path().join("house.yaml")
    }

    /// What agents were told, each answer once for each episode.
    pub(super) fn told(&self) -> Vec<Told> {
        let all = self.shared.told.lock().unwrap();
        all.iter().map(|(_, told)| told.clone()).collect()
    }

    /// After how many answers something ended.
    pub(super) fn ends(&self) -> usize {
        self.shared.ends.lock().unwrap().len()
    }

    /// The answer after which an agent waits for the death of its worker; said once.
    pub(super) fn wants_a_death(&self) -> Option<Told> {
        self.shared.wants_a_death.lock().unwrap().take()
    }

    pub(super) fn complaints(&self) -> Vec<String> {
        self.shared.complaints.lock().unwrap().clone()
    }
}

impl App {
    fn create(&self, _: &Asked<'_>) -> Answer {
        let opened = self
            .sessions
            .create(|_| (0, None), |id, _| json!({ "id": id }));
        opened.ok_or(HttpRefusal::Full)
    }

    fn reset(&self, asked: &Asked<'_>) -> Answer {
        let (id, item) = reset(&asked.fields()?, "id", "data_idx")?;
        let item = item.as_u64().unwrap() as i64;
        let shown = self
            .runtime
            .block_on(self.shared.toolbox.open(item))
            .unwrap();
        let shown = shown.observation().to_owned();
        Ok(self.sessions.answer(&id, |session| {
            *session = (item, None);
            json!({ "observation": shown })
        }))
    }

    fn step(&self, asked: &Asked<'_>) -> Answer {
        let fields = asked.fields()?;
        let (id, action) = step(&fields, "id")?;
        let told: Value = serde_json::from_str(action).unwrap();
        let shared = &self.shared;
        let running = self.sessions.with(&id, |(item, agent)| {
            let start = || {
                let (tell, ended) = watch::channel(None);
                let (agent, item) = (Agent::new(shared, &told, *item), *item);
                self.runtime.spawn(async move {
                    let _ = tell.send(Some(agent.ends(item).await));
                });
                ended
            };
            agent.get_or_insert_with(start).clone()
        });
        let mut running = running.unwrap();
        let waiting = async {
            let ended = running.wait_for(Option::is_some);
            let ended = tokio::time::timeout(Duration::from_secs(1), ended).await;
            ended.ok().and_then(|ended| ended.unwrap().clone())
        };
        let ended = self.runtime.block_on(waiting);
        let ended = ended.unwrap_or_else(|| json!({"observation": "", "done": false}));
        if ended.is_null() {
            self.sessions.close(&id);
            return Err(HttpRefusal::Failed);
        }
        Ok(ended)
    }

    fn close(&self, asked: &Asked<'_>) -> Answer {
        Ok(json!(self.sessions.close(&asked.body_integer("id")?)))
    }
}

impl Routes for App {
    const ROUTES: &'static [Route<Self>] = &[
        ("/create", Method::POST, Self::create),
        ("/reset", Method::POST, Self::reset),
        ("/step", Method::POST, Self::step),
        ("/close", Method::POST, Self::close),
    ];
    const SLOW: bool = true;

    fn sessions(&self) -> &dyn Table {
        &self.sessions
    }
}

struct Agent {
    shared: Arc<Shared>,
    url: String,
    key: String,
    /// How many were started before.
    number: usize,
    /// After how many answers it dies, if it does.
    dies_after: usize,
}

/// Why an agent stops.
enum Stop {
    /// It gets no answer any more.
    Refused,
    Dies,
    /// The harness loses its session.
    Lost,
}

/// How many sessions of an agent that wavers are lost.
pub(super) const LOST: usize = 8;

impl Agent {
    fn new(shared: &Arc<Shared>, told: &Value, item: i64) -> Self {
        Self {
            shared: Arc::clone(shared),
            url: format!("{}/v1", told["base_url"].as_str().unwrap()),
            key: told["api_key"].as_str().unwrap().to_owned(),
            number: shared.started.fetch_add(1, Ordering::SeqCst),
            dies_after: item as usize / 4 % 3,
        }
    }

    /// What the harness says in the end.
    async fn ends(self, item: i64) -> Value {
        let mut session = self.shared.toolbox.open(item).await.unwrap();
        let played = match self.shared.fate {
            Fate::Completes => self.completes(&prompt(session.observation())).await,
            _ => self.plays(item, &mut session).await,
        };
        match played {
            Err(Stop::Dies) => {
                json!({"observation": "", "done": true, "ended": "failed", "reason": "it dies"})
            }
            Err(Stop::Lost) => Value::Null,
            Ok(reward) => json!({
                "observation": "That was all.", "done": true, "reward": reward,
                "components": {"game": reward}, "reason": "as the game has it",
            }),
            Err(Stop::Refused) => json!({"observation": "", "done": true, "reward": 0.0}),
        }
    }

    async fn plays(&self, item: i64, session: &mut Session) -> Result<f64, Stop> {
        let mut task = prompt(session.observation());
        if self.shared.fate == Fate::Wavers {
            task += &format!("\nThis is start {}.", self.number);
        }
        let user = |text: &str| json!({"role": "user", "content": text});
        let mut messages = vec![user(&task)];
        if item % 4 == 1 {
            let asides = ["What is first?", "What is last?"].map(|aside| {
                let messages = vec![user(&format!("{task}\n{aside}"))];
                async move { self.ask(&messages, &[]).await }
            });
            for aside in join_all(asides).await {
                aside?;
            }
        }
        for turn in 0.. {
            if self.shared.fate == Fate::AsksBadly {
                self.asks_badly(&messages).await;
            }
            let said = self.ask(&messages, &[]).await?;
            if item % 4 == 3 {
                // Asked again it answers anew; repeated by its client's word it does not.
                let other = self.ask(&messages, &[]).await?;
                let same = self
                    .ask(&messages, &[("x-stainless-retry-count", "1")])
                    .await?;
                assert_eq!(other, same);
            }
            let calls = said["tool_calls"].as_array().cloned().unwrap_or_default();
            messages.push(said.clone());
            for call in &calls {
                let function = &call["function"];
                let arguments: Value =
                    serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
                let call_text = json!({"name": function["name"], "arguments": arguments});
                let text = format!("<tool_call>{call_text}</tool_call>");
                let step = session.step(&text).await.unwrap();
                let id = &call["id"];
                let answer =
                    json!({"role": "tool", "tool_call_id": id, "content": step.observation});
                messages.push(answer);
                if step.done {
                    return Ok(step.reward);
                }
            }
            if calls.is_empty() {
                messages.push(user("Call a tool."));
            }
            if item % 4 == 2 && turn == 0 {
                // It goes on with a rewritten past.
                messages[0] = user(&format!("{task}\n(shortened)"));
            }
        }
        unreachable!("it is refused before")
    }

    /// Goes on with a text three times, with its ids once, and with a text of its own.
    async fn completes(&self, task: &str) -> Result<f64, Stop> {
        let user =
            |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
        let mut text = user(task);
        let mut ids: Vec<Value> = Vec::new();
        for turn in 0..3 {
            // A text that ends the answer is the client's to write.
            let stop = (turn == 0).then_some("e");
            let (choice, prompt) = self.complete(&json!(text), stop).await?;
            let begins = prompt[..ids.len().min(prompt.len())] == ids[..];
            let same = turn == 0 || begins;
            let answer = choice["text"].as_str().unwrap();
            ids = prompt;
            ids.extend(choice["token_ids"].as_array().unwrap().clone());
            let stopped = choice["stop_reason"].as_str();
            let ended = choice["finish_reason"] == "stop" && stopped.is_none();
            if !same {
                self.complain(format!(
                    "turn {turn} does not begin with what was told: {ids:?}"
                ));
            }
            // Blanks at the ends of an answer do not matter.
            text += if turn == 1 { answer.trim() } else { answer };
            text += stopped.unwrap_or(if ended { "<|im_end|>" } else { "" });
            text += &format!("\n{}", user("Go on."));
        }
        let (choice, prompt) = self.complete(&json!(ids), None).await?;
        if prompt != ids {
            self.complain(format!("ids are not themselves: {prompt:?}"));
        }
        if choice["text"].is_null() {
            self.complain(format!("no text: {choice}"));
        }
        self.complete(&json!([user("Another task.")]), None).await?;
        for (prompt, more, words) in [
            (json!(["a", "b"]), json!({}), "must be one text"),
            (json!([1_000_000]), json!({}), "outside the vocabulary"),
            (json!(""), json!({}), "no ids"),
            (json!("a"), json!({"echo": true}), "echo"),
            (json!("a"), json!({"suffix": "b"}), "suffix"),
            (json!("get ".repeat(40_000)), json!({}), "has more"),
        ] {
            let mut body = json!({"model": "policy", "prompt": prompt});
            let fields = body.as_object_mut().unwrap();
            fields.extend(more.as_object().unwrap().clone());
            let found = self.post_to("completions", &body, &[]).await;
            if !found.as_ref().is_some_and(|(status, answer)| {
                let message = answer["error"]["message"].as_str().unwrap_or_default();
                *status == 400 && message.contains(words)
            }) {
                self.complain(format!("{words}: {found:?}"));
            }
        }
        Ok(0.5)
    }

    fn complain(&self, complaint: String) {
        self.shared.complaints.lock().unwrap().push(complaint);
    }

    /// The choice, and the ids of the prompt.
    async fn complete(
        &self,
        prompt: &Value,
        stop: Option<&str>,
    ) -> Result<(Value, Vec<Value>), Stop> {
        let body = json!({
            "model": "policy", "prompt": prompt, "max_tokens": 12, "stop": stop, "return_token_ids": true,
        });
        let Some((200, answer)) = self.post_to("completions", &body, &[]).await else {
            return Err(Stop::Refused);
        };
        let choice = answer["choices"][0].clone();
        let ids = |of: &str| -> Vec<u32> { serde_json::from_value(choice[of].clone()).unwrap() };
        let told = (ids("prompt_token_ids"), ids("token_ids"));
        let id = answer["id"].as_str().unwrap().to_owned();
        self.shared.told.lock().unwrap().insert((id, told));
        let prompt = choice["prompt_token_ids"].as_array().unwrap().clone();
        Ok((choice, prompt))
    }

    async fn post(&self, body: &Value, headers: &[(&str, &str)]) -> Option<(u16, Value)> {
        self.post_to("chat/completions", body, headers).await
    }

    async fn post_to(
        &self,
        route: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Option<(u16, Value)> {
        let mut request = self
            .shared
            .http
            .post(format!("{}/{route}", self.url))
            .bearer_auth(&self.key)
            .json(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.json().await.ok()?))
    }

    fn body(messages: &[Value]) -> Value {
        let tools = spec("toolbox").unwrap().offered().unwrap();
        json!({
            "model": "policy", "messages": messages, "tools": tools, "temperature": 0.3, "return_token_ids": true,
        })
    }

    async fn ask(&self, messages: &[Value], headers: &[(&str, &str)]) -> Result<Value, Stop> {
        let body = Self::body(messages);
        let Some((200, answer)) = self.post(&body, headers).await else {
            return Err(Stop::Refused);
        };
        let choice = &answer["choices"][0];
        let ids = |of: &str| -> Vec<u32> { serde_json::from_value(choice[of].clone()).unwrap() };
        let told = (ids("prompt_token_ids"), ids("token_ids"));
        let (id, shared) = (answer["id"].as_str().unwrap().to_owned(), &self.shared);
        shared.told.lock().unwrap().insert((id, told.clone()));
        let replies = messages.iter().filter(|each| each["role"] == "assistant");
        let (replies, is_aside) = (replies.count(), {
            let begins = messages[0]["content"].as_str().unwrap();
            messages.len() == 1 && begins.ends_with('?')
        });
        let ends = match shared.fate {
            Fate::Plays | Fate::AsksBadly | Fate::Completes => false,
            Fate::FailsOnce => replies == self.dies_after && !is_aside,
            Fate::Wavers => self.number < LOST,
            Fate::LosesSessions | Fate::AwaitsDeaths => true,
        };
        if !ends || !shared.ends.lock().unwrap().insert(told.clone()) {
            return Ok(choice["message"].clone());
        }
        match shared.fate {
            Fate::FailsOnce => Err(Stop::Dies),
            Fate::AwaitsDeaths => {
                *shared.wants_a_death.lock().unwrap() = Some(told);
                std::future::pending().await
            }
            _ => Err(Stop::Lost),
        }
    }

    /// Asks in ways that are refused, each with words that say why.
    async fn asks_badly(&self, messages: &[Value]) {
        let body = || Self::body(messages);
        let with = |name: &str, value: Value| {
            let mut body = body();
            body[name] = value;
            body
        };
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
        let long = "get ".repeat(40_000);
        let flood = "get ".repeat(3 << 20);
        for (body, status, words) in [
            (with("n", json!(8)), 400, "one answer at a time"),
            (with("messages", image), 400, "must be text"),
            (
                with("messages", json!([{"role": "user", "content": long}])),
                400,
                "has more",
            ),
            (
                with("response_format", json!({"type": "json_schema"})),
                400,
                "response_format",
            ),
            (with("tools", json!("get")), 400, "list of tools"),
            (with("user", json!(flood)), 413, "has more than"),
        ] {
            let found = self.post(&body, &[]).await;
            let fits = |(found, answer): &(u16, Value)| {
                let message = answer["error"]["message"].as_str().unwrap_or_default();
                *found == status && message.contains(words)
            };
            if !found.as_ref().is_some_and(fits) {
                let complaint = format!("{words}: {found:?}");
                self.shared.complaints.lock().unwrap().push(complaint);
            }
        }
        let stranger = self
            .shared
            .http
            .post(format!("{}/chat/completions", self.url))
            .bearer_auth("other")
            .json(&body());
        let status = stranger.send().await.unwrap().status().as_u16();
        if status != 401 {
            let complaint = format!("another key: {status}");
            self.shared.complaints.lock().unwrap().push(complaint);
        }
        // A client that leaves in the middle gets the answer that it did not hear.
        let mut required = with("tool_choice", json!("required"));
        required["stop"] = json!(["</tool_call>"]);
        let left = self.post(&required, &[]);
        let _ = tokio::time::timeout(Duration::from_millis(1), left).await;
        let Some((200, one)) = self.post(&required, &[]).await else {
            return;
        };
        let content = one["choices"][0]["message"]["content"].as_str();
        if content.is_some_and(|content| content.contains("</tool_call>")) {
            self.shared
                .complaints
                .lock()
                .unwrap()
                .push(format!("a stop is part: {one}"));
        }
    }
}
