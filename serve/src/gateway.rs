//! The API for agents that somebody else wrote, where another program samples the answers and keeps their
//! ids: a [`Sampler`]. A key of a request names the episode that it belongs to. How ids are drawn is the
//! sampler's business; a request that asks for something else is served all the same, and the header
//! `x-agentgym-overridden` of the answer names the fields.

use crate::answer::{Piece, Teller, document, finish_reason, usage};
use crate::ask::{Ask, Form};
use crate::calls::Calls;
use crate::conversation::AgentPrompt;
use crate::refusal::Refusal;
use crate::spelling::Special;
use crate::wire::{self, Route};
use agentgym_model::{Chat, FinishReason, Message, Tokenizer};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::response::Response;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{Stream, StreamExt, iter};
use serde_json::{Map, Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// The one model that is listed.
const MODEL: &str = "policy";
/// How often a client's library has sent the request before.
const RETRY_COUNT: &str = "x-stainless-retry-count";
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const OVERRIDDEN: HeaderName = HeaderName::from_static("x-agentgym-overridden");
/// Fields that say how ids are drawn, or how long a model is to think.
const SAMPLING: [&str; 13] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "reasoning_effort",
    "verbosity",
    "stop_token_ids",
];

/// Who samples the answers.
pub trait Sampler: Send + Sync + 'static {
    /// The answer to a request with this key.
    ///
    /// # Errors
    /// A key that is none, and what the sampler cannot answer.
    fn sample(
        &self,
        key: String,
        asked: AgentRequest,
    ) -> BoxFuture<'static, Result<AgentAnswer, Refusal>>;
}

/// What an agent asks.
#[derive(Debug)]
pub struct AgentRequest {
    prompt: AgentPrompt,
    ask: Ask,
    /// The most tokens that it wants.
    pub tokens_max: Option<usize>,
    /// The client says that it has sent this before.
    pub is_retry: bool,
    /// The client's own name of the request, which a repetition has too.
    pub idempotency_key: Option<String>,
    /// Fields that ask for another model, other sampling or a call, with what was asked.
    pub overridden: Map<String, Value>,
}

/// An answer as its client reads it.
pub struct AgentAnswer {
    /// How many of the sampled ids it has: those up to the text or call that ends it.
    pub kept: usize,
    /// Its text, without calls.
    pub text: String,
    /// Its calls: their names and arguments.
    pub calls: Vec<(String, Value)>,
    /// Ids of its prompt.
    read: usize,
    /// In OpenAI's form.
    whole: Value,
    /// The fields that were not heeded, for a header.
    pub overridden: Vec<String>,
    /// Called when the last byte was given to the connection.
    pub delivered: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl AgentRequest {
    fn read(route: Route, body: &[u8], headers: &HeaderMap) -> Result<(Self, Value), Refusal> {
        let (mut fields, repeated) = route.fields(body)?;
        let mut overridden = Map::new();
        for name in SAMPLING {
            let value = fields.shift_remove(name).filter(|value| !value.is_null());
            overridden.extend(value.map(|value| (name.to_owned(), value)));
        }
        let model = fields.shift_remove("model");
        let model = model.filter(|model| *model != MODEL);
        overridden.extend(model.map(|model| ("model".to_owned(), model)));
        let plain = [json!("auto"), json!("none"), Value::Null];
        if let Some(choice) = fields.get_mut("tool_choice")
            && !plain.contains(choice)
        {
            overridden.insert("tool_choice".to_owned(), choice.take());
        }
        let (ask, prompt, tokens_max) = Ask::of_agent(route.form(), fields)?;
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let count = text(RETRY_COUNT).and_then(|count| count.parse::<u32>().ok());
        let asked = Self {
            prompt,
            ask,
            tokens_max,
            is_retry: count.is_some_and(|count| count > 0),
            idempotency_key: text(IDEMPOTENCY_KEY).map(str::to_owned),
            overridden,
        };
        Ok((asked, repeated))
    }

    /// The messages of a chat so far.
    pub fn messages(&self) -> &[Message] {
        match &self.prompt {
            AgentPrompt::Chat(conversation) => &conversation.messages,
            _ => &[],
        }
    }

    /// The text that a completion continues.
    pub fn text(&self) -> Option<&str> {
        match &self.prompt {
            AgentPrompt::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The ids that a completion continues, where it gives those.
    pub fn ids(&self) -> Option<&[u32]> {
        match &self.prompt {
            AgentPrompt::Ids(ids) => Some(ids),
            _ => None,
        }
    }

    /// Whether it is a chat; else it is a completion.
    pub fn is_chat(&self) -> bool {
        matches!(self.prompt, AgentPrompt::Chat(_))
    }

    /// Its field with what is to be answered.
    pub fn prompt_field(&self) -> &'static str {
        match self.is_chat() {
            true => "messages",
            false => "prompt",
        }
    }

    /// The tools that it offers, as a template is given them.
    pub fn tools(&self) -> Option<&Value> {
        match &self.prompt {
            AgentPrompt::Chat(conversation) => conversation.tools.as_ref(),
            _ => None,
        }
    }

    /// The policy's template with its tools.
    ///
    /// # Errors
    /// A template that has no place for them.
    pub fn chat(&self, chat: &Chat) -> Result<Chat, Refusal> {
        match &self.prompt {
            AgentPrompt::Chat(conversation) => conversation.chat(chat),
            _ => Ok(chat.clone()),
        }
    }

    /// What of a sampled message its client reads: all of it, or what comes before a text or behind a
    /// call that ends it. Of `key` the ids of calls are made.
    pub fn hear(
        &self,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        drawn: impl Iterator<Item = (u32, f32)>,
        (finish, key): (FinishReason, [u8; 32]),
    ) -> AgentAnswer {
        let ask = Ask {
            prompts: vec![prompt.to_vec()],
            stream: false,
            ..self.ask.clone()
        };
        let special = Special::of(tokenizer);
        let mut teller = Teller::new(&ask, tokenizer, &special);
        let mut calls = ask.reads_calls.then(|| Calls::new(key, ask.one_call));
        let (mut all, mut end) = (Piece::default(), None);
        for one in drawn {
            let (mut piece, stopped) = teller.drawn(&[one]);
            end = piece.heard(&mut calls, stopped.then_some("stop"));
            all.join(piece);
            if end.is_some() {
                break;
            }
        }
        let end = end.or_else(|| {
            let (mut piece, stopped) = teller.rest();
            let end = if stopped {
                "stop"
            } else {
                finish_reason(finish)
            };
            let end = piece.heard(&mut calls, Some(end));
            all.join(piece);
            end
        });
        let kept = all.length();
        let choice = teller.choice(0, (&all, kept), end);
        let id = blake3::Hash::from_bytes(key).to_hex();
        let (kind, said) = match ask.form {
            Form::Completion => ("cmpl", &choice["text"]),
            Form::Chat => ("chatcmpl", &choice["message"]["content"]),
        };
        let id = format!("{kind}-{}", &id[..24]);
        let calls = choice["message"]["tool_calls"].as_array();
        let call = |call: &Value| {
            let function = &call["function"];
            let arguments = function["arguments"].as_str().unwrap_or_default();
            let name = function["name"].as_str().unwrap_or_default();
            let arguments = serde_json::from_str(arguments).unwrap_or(Value::Null);
            (name.to_owned(), arguments)
        };
        let text = said.as_str().unwrap_or_default();
        let (text, calls) = (
            text.to_owned(),
            calls.into_iter().flatten().map(call).collect(),
        );
        let mut whole = document((&id, MODEL), &ask, vec![choice]);
        whole["usage"] = usage(prompt.len(), kept);
        AgentAnswer {
            kept,
            text,
            calls,
            read: prompt.len(),
            whole,
            overridden: Vec::new(),
            delivered: None,
        }
    }
}

impl AgentAnswer {
    /// The answer as the pieces of a stream.
    fn pieces(&self, ask: &Ask) -> Vec<Value> {
        let piece = |choices: Value| {
            let mut piece = self.whole.clone();
            piece["choices"] = choices;
            if let Some(fields) = piece.as_object_mut() {
                fields.shift_remove("usage");
            }
            if ask.form == Form::Chat {
                piece["object"] = json!("chat.completion.chunk");
            }
            piece
        };
        let mut all = match ask.form {
            Form::Completion => vec![piece(self.whole["choices"].clone())],
            Form::Chat => self
                .chat_choices()
                .map(|choice| piece(json!([choice])))
                .into(),
        };
        if ask.counts {
            let mut last = piece(json!([]));
            last["usage"] = self.whole["usage"].clone();
            all.push(last);
        }
        all
    }

    /// The choice of a chat's answer in two pieces: its role, and all else.
    fn chat_choices(&self) -> [Value; 2] {
        let begins = json!({
            "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null,
        });
        let mut choice = self.whole["choices"][0].clone();
        let mut delta = json!({});
        let message = choice["message"].take();
        if !self.text.is_empty() {
            delta["content"] = json!(self.text);
        }
        let calls = message["tool_calls"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if !calls.is_empty() {
            let calls = calls.into_iter().enumerate();
            let numbered = calls.map(|(number, mut call)| {
                call["index"] = json!(number);
                call
            });
            delta["tool_calls"] = numbered.collect();
        }
        if let Some(fields) = choice.as_object_mut() {
            fields.shift_remove("message");
        }
        choice["delta"] = delta;
        [begins, choice]
    }

    fn response(mut self, route: Route, repeated: Value, ask: &Ask) -> Response {
        let delivered = self.delivered.take();
        let mut response = match ask.stream {
            true => {
                // A client may go on as soon as it has read the end.
                let pieces = tracked(iter(self.pieces(ask)), delivered);
                let pieces = pieces.chain(iter([Value::Null]));
                route.stream((repeated, self.read), pieces)
            }
            false => {
                let whole = route.whole(repeated, std::mem::take(&mut self.whole));
                let bytes = iter([Ok::<_, Infallible>(Bytes::from(whole.to_string()))]);
                let mut response = Response::new(Body::from_stream(tracked(bytes, delivered)));
                let json = HeaderValue::from_static("application/json");
                response.headers_mut().insert(header::CONTENT_TYPE, json);
                response
            }
        };
        if let Ok(fields) = HeaderValue::from_str(&self.overridden.join(", "))
            && !self.overridden.is_empty()
        {
            response.headers_mut().insert(OVERRIDDEN, fields);
        }
        response
    }
}

/// Says when more than these items is asked for: then all of them were written.
fn tracked<T: Send + 'static>(
    items: impl Stream<Item = T> + Send + 'static,
    delivered: Option<Box<dyn FnOnce() + Send + Sync>>,
) -> impl Stream<Item = T> + Send + 'static {
    let last = futures::stream::once(async move {
        if let Some(delivered) = delivered {
            delivered();
        }
    });
    items.chain(last.filter_map(|()| async { None }))
}

/// A gateway that listens, until it is dropped.
pub struct Gateway {
    /// Where it listens.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct App {
    sampler: Arc<dyn Sampler>,
    bodies: Semaphore,
}

/// Starts a gateway; port 0 takes a free one.
///
/// # Errors
/// The address cannot be had.
pub async fn gateway(address: SocketAddr, sampler: Arc<dyn Sampler>) -> std::io::Result<Gateway> {
    let (address, listener) = wire::listen(address).await?;
    let app = Arc::new(App {
        sampler,
        bodies: Semaphore::new(wire::BODIES_MAX),
    });
    let router = axum::Router::new().fallback(handle).with_state(app);
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::warn!(%error, "the gateway has ended");
        }
    });
    Ok(Gateway { address, task })
}

async fn handle(State(app): State<Arc<App>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let answered = answered(&app, &parts, body).await;
    answered.unwrap_or_else(|refusal| wire::refused(parts.uri.path(), &refusal))
}

async fn answered(app: &App, parts: &Parts, body: Body) -> Result<Response, Refusal> {
    wire::check_origin(&parts.headers)?;
    let path = parts.uri.path();
    let gets = parts.method == Method::GET;
    match path.trim_end_matches('/') {
        "/health" if gets => return Ok(wire::document(&json!({"status": "ok"}))),
        "/v1/models" if gets => {
            let model =
                json!({"id": MODEL, "object": "model", "created": 0, "owned_by": "agentgym"});
            return Ok(wire::document(&json!({"object": "list", "data": [model]})));
        }
        _ => {}
    }
    let Some(route) = Route::of(path) else {
        return Err(wire::no_path(path));
    };
    if parts.method != Method::POST {
        return Err(wire::wrong_method(path, "POST"));
    }
    let key = String::from_utf8_lossy(wire::key(&parts.headers)).into_owned();
    let (body, permit) = wire::body(&app.bodies, body).await?;
    let (asked, repeated) = AgentRequest::read(route, &body, &parts.headers)?;
    drop((body, permit));
    let ask = asked.ask.clone();
    let answer = app.sampler.sample(key, asked).await?;
    Ok(answer.response(route, repeated, &ask))
}
