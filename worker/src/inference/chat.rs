//! A chat-completions API that plays an evaluation: it takes the messages of the conversation and gives
//! a text, no ids and no log-probs.
//!
//! Three guarantees. A turn is what was answered as a whole; anything else is asked again, fails the
//! attempt, or leaves the episode out, and is never a reward of zero (I8). Ids are the run's own record
//! of the text, made by the tokenizer of `model.path`, and their log-probs are marked as absent. And no
//! more than `server.concurrent` requests are under way; a pause that the API asks for holds for all.

use super::http::{Failure, Http, KEY_VARIABLE};
use super::patience::Patience;
use crate::blocking::blocking;
use crate::{Beat, Error, Report, Result};
use agentgym_envs::excerpt;
use agentgym_jobs::config::RolloutServer;
use agentgym_jobs::episode::NO_LOG_PROB;
use agentgym_jobs::journal::Told;
use agentgym_model::{FinishReason, Generation, Message, PolicyText, Role, Sampling, ToolCall};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

const ROUTE: &str = "/v1/chat/completions";
/// Largest answer that is read, and largest text in one: encoding takes hundreds of bytes for each of it.
const ANSWER_BYTES_MAX: usize = 8 << 20;
const TEXT_BYTES_MAX: usize = 1 << 20;
/// Answers without a usable text in a row, after which an episode is left out.
const UNUSABLE_MAX: usize = 3;

/// An API, and the model that is asked there.
pub(crate) struct ChatServer {
    http: Http,
    model: String,
    /// Per million tokens, read and written.
    prices: Option<(f64, f64)>,
    text: PolicyText,
    patience: Patience,
    beat: Beat,
    cancel: CancellationToken,
    places: Semaphore,
    /// Nobody asks before, since the API asked for a pause.
    not_before: Mutex<Option<Instant>>,
    /// It calls the limit of tokens `max_completion_tokens`.
    renamed: AtomicBool,
    spent: Mutex<Spent>,
    sampled_tokens: AtomicU64,
    busy_us: AtomicU64,
}

/// What the answers took, by the API's own count: those of the part's episodes, taken over ones too,
/// and those that brought no turn.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Spent {
    answers: u64,
    tokens_in: u64,
    tokens_out: u64,
    /// Answers that did not say what they took.
    uncounted: u64,
}

/// A message that is asked for.
#[derive(Clone, Copy)]
pub(crate) struct ChatAsk<'a> {
    /// All messages before it.
    pub(crate) messages: &'a [Message],
    /// What may be called in it.
    pub(crate) tools: Option<&'a Value>,
    /// Most tokens.
    pub(crate) tokens_max: usize,
    pub(crate) sampling: Sampling,
}

/// What an answer says.
#[derive(Debug, PartialEq)]
enum Said {
    /// A turn, and whether it ended by itself.
    Text(String, bool),
    /// A whole answer in which there is no text to play; why.
    Nothing(String),
}

impl ChatServer {
    /// # Errors
    /// No address or model.
    pub(crate) fn open(
        config: &RolloutServer,
        text: &PolicyText,
        beat: Beat,
        cancel: CancellationToken,
    ) -> Result<Arc<Self>> {
        let key = std::env::var(KEY_VARIABLE).ok();
        Self::with_key(config, key, text, beat, cancel)
    }

    fn with_key(
        config: &RolloutServer,
        key: Option<String>,
        text: &PolicyText,
        beat: Beat,
        cancel: CancellationToken,
    ) -> Result<Arc<Self>> {
        let (Some(url), Some(model)) = (&config.url, &config.model) else {
            return Err(Error::stage(
                "actor_rollout_ref.rollout.engine is chat, and actor_rollout_ref.rollout.server has no url or no \
                 model; give both",
            ));
        };
        // Clients are often given an address that ends so.
        let url = url.trim_end_matches('/');
        let url = url.strip_suffix("/v1").unwrap_or(url);
        let http = Http::to(url, key, config.timeout_s, ANSWER_BYTES_MAX)?;
        let name = format!("the chat API at {}", http.shown());
        Ok(Arc::new(Self {
            patience: Patience::new(name, config.patience_s, &beat, cancel.clone()),
            http,
            model: model.clone(),
            prices: config.price_input.zip(config.price_output),
            text: text.clone(),
            beat,
            cancel,
            places: Semaphore::new(config.concurrent.max(1)),
            not_before: Mutex::default(),
            renamed: AtomicBool::new(false),
            spent: Mutex::default(),
            sampled_tokens: AtomicU64::new(0),
            busy_us: AtomicU64::new(0),
        }))
    }

    /// The answer to a conversation: its text, and ids that stand for it.
    ///
    /// # Errors
    /// [`Error::Server`]: it refuses, or the patience is over. [`Error::NoMessage`]: it answers, and
    /// there is no text. [`Error::Cancelled`].
    pub(crate) async fn say(&self, ask: &ChatAsk<'_>) -> Result<(Generation, Told)> {
        let saying = self.answered(ask);
        let (text, ended, usage) = self.patience.alive_during(saying).await?;
        let (own, told) = (self.text.clone(), text.clone());
        let token_ids = blocking(move || {
            let mut ids = own.tokenizer().encode_ordinary(&text)?;
            if ended {
                ids.push(own.chat().end_of_turn_id(own.tokenizer())?);
            }
            Ok(ids)
        });
        let token_ids = token_ids.await?;
        let tokens = token_ids.len() as u64;
        tracing::trace!("sampled tokens={tokens}");
        self.sampled_tokens.fetch_add(tokens, Ordering::Relaxed);
        let generation = Generation {
            sequence: 0,
            log_probs: vec![NO_LOG_PROB; token_ids.len()],
            token_ids,
            entropies: Vec::new(),
            log_kept_masses: None,
            finish: match ended {
                true => FinishReason::Eos,
                false => FinishReason::Length,
            },
        };
        Ok((generation, Told { text: told, usage }))
    }

    /// Counts what an answer of an episode took: one that was just given, or a journalled one.
    pub(crate) fn count(&self, usage: Option<(u64, u64)>) {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        spent.answers += 1;
        match usage {
            None => spent.uncounted += 1,
            Some((read, written)) => {
                spent.tokens_in = spent.tokens_in.saturating_add(read);
                spent.tokens_out = spent.tokens_out.saturating_add(written);
            }
        }
    }

    /// Tokens that stand for its answers.
    pub(crate) fn sampled_tokens(&self) -> u64 {
        self.sampled_tokens.load(Ordering::Relaxed)
    }

    /// What it took; docs/metrics.md.
    pub(crate) fn report(&self, report: &mut Report) {
        let spent = *self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let busy_us = self.busy_us.load(Ordering::Relaxed);
        report.stats.policy_s = Some(busy_us as f64 / 1e6);
        report.stats.chat_answers = Some(spent.answers);
        report.stats.chat_answers_uncounted = Some(spent.uncounted);
        report.stats.chat_tokens_in = Some(spent.tokens_in);
        report.stats.chat_tokens_out = Some(spent.tokens_out);
        // A sum that lacks some of its answers is no cost.
        let cost = (self.prices.filter(|_| spent.uncounted == 0)).map(|(input, output)| {
            (spent.tokens_in as f64 * input + spent.tokens_out as f64 * output) / 1e6
        });
        report.stats.chat_cost = cost;
    }

    /// A text, whether it ended by itself, and what it took.
    async fn answered(&self, ask: &ChatAsk<'_>) -> Result<(String, bool, Option<(u64, u64)>)> {
        // Held through pauses too, so that a busy API is not asked by others meanwhile. Never closed.
        let _place = self.places.acquire().await;
        let mut nothing = String::new();
        for _ in 0..UNUSABLE_MAX {
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let start = Instant::now();
            let call = self.beat.busy();
            let (said, usage) = self.patience.ask(|| self.asked(ask)).await?;
            drop(call);
            let elapsed = start.elapsed().as_micros() as u64;
            self.busy_us.fetch_add(elapsed, Ordering::Relaxed);
            match said {
                Said::Text(text, ended) => return Ok((text, ended, usage)),
                Said::Nothing(why) => {
                    // Paid, and in no journal.
                    self.count(usage);
                    nothing = why;
                }
            }
        }
        Err(Error::NoMessage(format!(
            "the chat API at {}: {nothing}; asked {UNUSABLE_MAX} times",
            self.http.shown()
        )))
    }

    /// One request.
    async fn asked(&self, ask: &ChatAsk<'_>) -> Result<(Said, Option<(u64, u64)>), Failure> {
        let held = || {
            self.not_before
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let until = *held();
        if let Some(until) = until {
            tokio::select! {
                // Whoever asks sees it, too.
                () = self.cancel.cancelled() => return Err(Failure::Passing("stopped".to_owned(), None)),
                () = tokio::time::sleep_until(until.into()) => {}
            }
        }
        let renamed = self.renamed.load(Ordering::Relaxed);
        let body = ask.body(&self.model, renamed);
        match self.http.post(ROUTE, &body).await {
            Ok(answer) => read(&answer, ask),
            // Newer models of OpenAI want the limit by that name and refuse the usual one.
            Err(Failure::Lasting(why)) if !renamed && why.contains("max_completion_tokens") => {
                self.renamed.store(true, Ordering::Relaxed);
                Err(Failure::Passing(why, None))
            }
            Err(Failure::Passing(why, Some(pause))) => {
                let until = Instant::now() + pause;
                let mut held = held();
                *held = Some(held.map_or(until, |known| known.max(until)));
                Err(Failure::Passing(why, Some(pause)))
            }
            Err(other) => Err(other),
        }
    }
}

impl ChatAsk<'_> {
    /// `renamed`: the limit of tokens has its newer name.
    fn body(&self, model: &str, renamed: bool) -> Value {
        let sampling = self.sampling;
        let mut body = json!({
            "model": model,
            "messages": messages(self.messages),
            "temperature": if sampling.greedy { 0.0 } else { sampling.temperature },
        });
        let limit = match renamed {
            true => "max_completion_tokens",
            false => "max_tokens",
        };
        body[limit] = self.tokens_max.into();
        // Some refuse both at once; 1 cuts nothing.
        if !sampling.greedy && sampling.top_p < 1.0 {
            body["top_p"] = sampling.top_p.into();
        }
        if let Some(tools) = self.tools {
            body["tools"] = tools.clone();
        }
        body
    }
}

/// Messages in OpenAI's form, in which a call has an id and its answer names it.
fn messages(all: &[Message]) -> Value {
    let (mut calls, mut unanswered) = (0, VecDeque::new());
    let message = |message: &Message| {
        let mut sent = json!({"role": message.role, "content": message.content});
        let called = message.tool_calls.iter().map(|call| {
            let id = format!("call_{calls}");
            calls += 1;
            unanswered.push_back(id.clone());
            let arguments = Value::Object(call.arguments.clone()).to_string();
            let function = json!({"name": call.name, "arguments": arguments});
            json!({"id": id, "type": "function", "function": function})
        });
        let called: Vec<Value> = called.collect();
        if !called.is_empty() {
            sent["tool_calls"] = called.into();
        }
        if message.role == Role::Tool {
            sent["tool_call_id"] = unanswered.pop_front().unwrap_or_default().into();
        }
        sent
    };
    all.iter().map(message).collect()
}

/// A text, and behind it the calls of an answer as the policy writes them. `None`: what is called cannot be
/// read.
fn with_calls(text: &str, calls: &[Value]) -> Option<String> {
    let called = calls.iter().map(|call| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            // Of a tool without parameters.
            Value::String(text) if text.trim().is_empty() => Map::new(),
            Value::String(text) => serde_json::from_str(text).ok()?,
            Value::Object(arguments) => arguments.clone(),
            _ => return None,
        };
        let name = function["name"].as_str()?.to_owned();
        Some(ToolCall { name, arguments }.text())
    });
    let text = Some(text).filter(|text| !text.trim().is_empty());
    let all = text.map(|text| Some(text.to_owned())).into_iter();
    let all: Option<Vec<String>> = all.chain(called).collect();
    Some(all?.join("\n"))
}

/// What an answer says; a failure if it is no chat completion.
fn read(answer: &Value, ask: &ChatAsk<'_>) -> Result<(Said, Option<(u64, u64)>), Failure> {
    let choice = &answer["choices"][0];
    let message = &choice["message"];
    let strange = |what: &str| {
        let found = excerpt(answer.to_string().as_bytes());
        Err(Failure::Passing(format!("{what}: {found}"), None))
    };
    if !message.is_object() {
        return strange("no chat completion in its answer");
    }
    let Some(finish) = choice["finish_reason"].as_str() else {
        return strange("its answer has no finish_reason");
    };
    let count = |name: &str| answer["usage"][name].as_u64();
    let usage = count("prompt_tokens").zip(count("completion_tokens"));
    let text = message["content"].as_str().unwrap_or_default();
    let calls = message["tool_calls"].as_array();
    let calls = calls.map_or(&[][..], Vec::as_slice);
    let heard = match ask.tools {
        Some(_) => with_calls(text, calls),
        None => Some(text.to_owned()),
    };
    let Some(text) = heard else {
        let why = "it answers with a call that has no name, or arguments that are no JSON object";
        return Ok((Said::Nothing(why.to_owned()), usage));
    };
    let tokens_max = ask.tokens_max;
    if text.len() > TEXT_BYTES_MAX {
        return Err(Failure::Lasting(format!(
            "it answers with a text of {} bytes where {tokens_max} tokens were allowed; more than {TEXT_BYTES_MAX} \
             are not read",
            text.len()
        )));
    }
    let is_silent = text.trim().is_empty();
    let said = match finish {
        "content_filter" => {
            Said::Nothing("it filters its answer (finish_reason content_filter)".into())
        }
        "length" if is_silent => Said::Nothing(format!(
            "it has used up the {tokens_max} tokens of a turn without a text (finish_reason length); raise \
             actor_rollout_ref.rollout.max_tokens"
        )),
        _ if is_silent && !calls.is_empty() => {
            Said::Nothing("it answers with calls of tools and no text".into())
        }
        "stop" | "length" | "tool_calls" if is_silent => {
            Said::Nothing(match message["refusal"].as_str() {
                Some(refusal) => format!("it refuses: {}", excerpt(refusal.as_bytes())),
                None => format!("it answers without a text (finish_reason {finish})"),
            })
        }
        "stop" | "tool_calls" => Said::Text(text, true),
        "length" => Said::Text(text, false),
        _ => return strange("its answer has a finish_reason that is not known"),
    };
    Ok((said, usage))
}

#[cfg(test)]
mod tests;
