//! A double of an inference server for tests: it speaks each dialect strictly, refusing what its
//! server would not understand, generates with a real policy, and fails when it is told to.

use agentgym_jobs::config::ServerDialect;
use agentgym_model::{
    ComputeOptions, Engine, EngineOptions, FinishReason, GenerationRequest, Policy, Sampling,
    ScoreRequest, score,
};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// What the next answer is instead of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// A status, and the pause that it names.
    Status(u16, Option<&'static str>),
    /// A page, with status 200.
    Page,
    /// A message that lacks its last log-prob.
    FewerLogProbs,
}

/// The double, and what it has seen.
pub(crate) struct Double {
    pub(crate) url: String,
    state: Arc<Inner>,
}

struct Inner {
    dialect: ServerDialect,
    context: usize,
    policy: Mutex<Policy>,
    faults: Mutex<VecDeque<Fault>>,
    asked: Mutex<Vec<Vec<u32>>>,
    /// Requests with a forced id.
    forced: AtomicUsize,
    /// A message takes one of these; probes need none.
    allowed: Semaphore,
    key: Option<&'static str>,
    foreign_ends: Mutex<Vec<u32>>,
}

fn held<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Double {
    pub(crate) async fn start(dialect: ServerDialect, policy: Policy) -> Self {
        Self::with(dialect, policy, 4096, None).await
    }

    pub(crate) async fn with(
        dialect: ServerDialect,
        policy: Policy,
        context: usize,
        key: Option<&'static str>,
    ) -> Self {
        let state = Arc::new(Inner {
            foreign_ends: Mutex::default(),
            dialect,
            context,
            policy: Mutex::new(policy),
            faults: Mutex::default(),
            asked: Mutex::default(),
            forced: AtomicUsize::new(0),
            allowed: Semaphore::new(Semaphore::MAX_PERMITS),
            key,
        });
        let app = axum::Router::new()
            .route("/{*path}", post(answered))
            .route("/props", get(told))
            .route("/v1/models", get(told))
            .route("/get_server_info", get(told))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, state }
    }

    /// Serves another policy from now on.
    pub(crate) fn serve(&self, policy: Policy) {
        *held(&self.state.policy) = policy;
    }

    /// Ends messages with these ids too, as llama.cpp with those that end other models'.
    pub(crate) fn ends_with(&self, ids: impl Iterator<Item = u32>) {
        held(&self.state.foreign_ends).extend(ids);
    }

    /// Fails so often, once for each.
    pub(crate) fn fail(&self, faults: &[Fault]) {
        held(&self.state.faults).extend(faults);
    }

    /// Answers so many messages more, and none after them until this is called again.
    pub(crate) fn allow(&self, messages: usize) {
        self.state.allowed.forget_permits(Semaphore::MAX_PERMITS);
        self.state.allowed.add_permits(messages);
    }

    /// Prompts that were answered so far, those of probes left out.
    pub(crate) fn take_asked(&self) -> Vec<Vec<u32>> {
        std::mem::take(&mut *held(&self.state.asked))
    }

    /// Requests for the log-probs of all ids so far.
    pub(crate) fn forced(&self) -> usize {
        self.state.forced.load(Ordering::Relaxed)
    }
}

async fn told(State(state): State<Arc<Inner>>, uri: axum::http::Uri) -> Response {
    let context = state.context;
    let body = match (state.dialect, uri.path()) {
        (ServerDialect::LlamaCpp, "/props") => {
            json!({"default_generation_settings": {"n_ctx": context}})
        }
        (ServerDialect::Vllm | ServerDialect::Openai, "/v1/models") => {
            json!({"data": [{"id": "m", "max_model_len": context}]})
        }
        (ServerDialect::Sglang, "/get_server_info") => json!({"context_length": context}),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    axum::Json(body).into_response()
}

async fn answered(
    State(state): State<Arc<Inner>>,
    Path(path): Path<String>,
    headers: axum::http::HeaderMap,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    if let Some(key) = state.key {
        let given = headers
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        if given != Some(&format!("Bearer {key}")) {
            return (StatusCode::UNAUTHORIZED, "no key").into_response();
        }
    }
    let fault = held(&state.faults).pop_front();
    match fault {
        Some(Fault::Status(status, pause)) => {
            let status = StatusCode::from_u16(status).unwrap();
            return match pause {
                Some(pause) => (status, [("retry-after", pause)], "busy").into_response(),
                None => (status, "busy").into_response(),
            };
        }
        Some(Fault::Page) => return "<html>a proxy's own page</html>".into_response(),
        Some(Fault::FewerLogProbs) | None => {}
    }
    let fewer = matches!(fault, Some(Fault::FewerLogProbs));
    if !is_probe(&body)
        && let Ok(permit) = state.allowed.acquire().await
    {
        permit.forget();
    }
    let done = tokio::task::spawn_blocking(move || state.generate(&path, &body, fewer));
    match done.await.unwrap() {
        Ok(answer) => axum::Json(answer).into_response(),
        Err(why) => (StatusCode::BAD_REQUEST, why).into_response(),
    }
}

fn is_probe(body: &Value) -> bool {
    let limits = [
        "/max_tokens",
        "/n_predict",
        "/sampling_params/max_tokens",
        "/sampling_params/max_new_tokens",
    ];
    limits
        .iter()
        .any(|limit| body.pointer(limit).is_some_and(|most| *most == 1))
}

impl Inner {
    fn generate(&self, path: &str, body: &Value, fewer: bool) -> Result<Value, String> {
        if body.get("logit_bias").is_some() {
            return self.distribution(path, body);
        }
        let asked = self.understood(path, body)?;
        if asked.prompt.len() >= self.context {
            return Err(format!("{} ids exceed the context", asked.prompt.len()));
        }
        let policy = held(&self.policy).clone();
        let room = self.context - asked.prompt.len();
        let mut engine = Engine::new(policy.clone(), EngineOptions::default());
        let mut stream = [7; 32];
        stream[..8].copy_from_slice(&asked.seed.to_le_bytes());
        let request = GenerationRequest {
            sequence: 0,
            append: asked.prompt.clone(),
            stream,
            turn: 0,
            sampling: Sampling {
                greedy: asked.greedy,
                ..Sampling::default()
            },
            tokens_max: asked.tokens_max.min(room),
            stop_ids: [policy.eos_ids(), &held(&self.foreign_ends)].concat(),
        };
        engine.submit(request).map_err(|e| e.to_string())?;
        let done = loop {
            if let Some(done) = engine.step().map_err(|e| e.to_string())?.pop() {
                break done;
            }
        };
        if asked.tokens_max > 1 {
            held(&self.asked).push(asked.prompt.clone());
        }
        let mut log_probs = done.log_probs;
        if fewer {
            log_probs.pop();
        }
        let ended = done.finish == FinishReason::Eos;
        let mut said = self.said(&asked.prompt, &done.token_ids, &log_probs, ended);
        if self.dialect == ServerDialect::LlamaCpp && !fewer {
            leave_out_halves(&mut said, &policy, &done.token_ids);
        }
        Ok(said)
    }

    /// llama.cpp with a forced id: the log-probs of all ids, as before it was forced.
    fn distribution(&self, path: &str, body: &Value) -> Result<Value, String> {
        self.forced.fetch_add(1, Ordering::Relaxed);
        let policy = held(&self.policy).clone();
        let size = policy.config().vocab_size;
        let mut plain = body.clone();
        let forced = plain["logit_bias"].take();
        plain
            .as_object_mut()
            .ok_or("no object")?
            .remove("logit_bias");
        plain["n_probs"] = 1.into();
        plain["seed"] = 0.into();
        let asked = self.understood(path, &plain)?;
        let end = policy.eos_ids()[0];
        if self.dialect != ServerDialect::LlamaCpp || forced != json!([[end, 1e6]]) {
            return Err("an id is forced".to_owned());
        }
        if body["n_probs"] != size || body["n_predict"] != 1 || body.get("seed").is_some() {
            return Err("not the log-probs of all ids".to_owned());
        }
        let of = |id: u32| -> Result<Value, String> {
            let ids = [asked.prompt.as_slice(), &[id]].concat();
            let loss_mask: Vec<bool> = (0..ids.len()).map(|at| at > 0).collect();
            let request = ScoreRequest {
                token_ids: &ids,
                loss_mask: &loss_mask,
            };
            let scores = score(&policy, &[request], 1.0, &ComputeOptions::default());
            let log_prob = scores.map_err(|e| e.to_string())?[0].log_probs[ids.len() - 1];
            Ok(json!({"id": id, "logprob": log_prob}))
        };
        let all: Result<Vec<Value>, String> = (0..size as u32).map(of).collect();
        let mut said = self.said(&asked.prompt, &[end], &[0.0], true);
        said["completion_probabilities"][0]["top_logprobs"] = all?.into();
        Ok(said)
    }

    /// The request, if it is one that the server understands.
    fn understood(&self, path: &str, body: &Value) -> Result<Understood, String> {
        let (route, prompt, settings) = match self.dialect {
            ServerDialect::Vllm => ("inference/v1/generate", "token_ids", "sampling_params"),
            ServerDialect::Sglang => ("generate", "input_ids", "sampling_params"),
            ServerDialect::LlamaCpp => ("completion", "prompt", ""),
            ServerDialect::Openai => ("v1/completions", "prompt", ""),
        };
        if path != route {
            return Err(format!("no route {path}"));
        }
        let (outer, inner, most): (&[&str], &[&str], &str) = match self.dialect {
            ServerDialect::Vllm => (
                &["model", "token_ids", "sampling_params", "stream"],
                &[
                    "max_tokens",
                    "temperature",
                    "top_p",
                    "top_k",
                    "min_p",
                    "seed",
                    "logprobs",
                    "stop_token_ids",
                    "skip_special_tokens",
                ],
                "max_tokens",
            ),
            ServerDialect::Sglang => (
                &[
                    "input_ids",
                    "sampling_params",
                    "return_logprob",
                    "logprob_start_len",
                    "stream",
                ],
                &[
                    "max_new_tokens",
                    "temperature",
                    "top_p",
                    "top_k",
                    "min_p",
                    "stop_token_ids",
                    "skip_special_tokens",
                    "no_stop_trim",
                ],
                "max_new_tokens",
            ),
            ServerDialect::LlamaCpp => (
                &[
                    "prompt",
                    "n_predict",
                    "temperature",
                    "samplers",
                    "seed",
                    "n_probs",
                    "return_tokens",
                    "cache_prompt",
                    "stream",
                ],
                &[],
                "n_predict",
            ),
            ServerDialect::Openai => (
                &[
                    "model",
                    "prompt",
                    "max_tokens",
                    "temperature",
                    "top_p",
                    "seed",
                    "logprobs",
                    "stream",
                    "return_token_ids",
                    "return_tokens_as_token_ids",
                    "stop_token_ids",
                ],
                &[],
                "max_tokens",
            ),
        };
        let keys = |of: &Value| -> BTreeSet<String> {
            of.as_object()
                .into_iter()
                .flatten()
                .map(|(key, _)| key.clone())
                .collect()
        };
        let strange = |of: &Value, known: &[&str]| {
            keys(of)
                .into_iter()
                .find(|key| !known.contains(&key.as_str()))
        };
        let settings = if settings.is_empty() {
            body
        } else {
            &body[settings]
        };
        let inner = if inner.is_empty() { outer } else { inner };
        if let Some(key) = strange(body, outer).or_else(|| strange(settings, inner)) {
            return Err(format!("no field {key}"));
        }
        let scored = match self.dialect {
            ServerDialect::Vllm | ServerDialect::Openai => settings["logprobs"] == 1,
            ServerDialect::Sglang => body["return_logprob"] == true,
            ServerDialect::LlamaCpp => {
                body["n_probs"] == 1
                    && body["return_tokens"] == true
                    && body["samplers"] == json!(["temperature"])
            }
        };
        if !scored || body["stream"] != false {
            return Err("a stream, or no log-probs".to_owned());
        }
        let ids = body[prompt].as_array().ok_or("no ids")?;
        let ids: Option<Vec<u32>> = ids.iter().map(|id| Some(id.as_u64()? as u32)).collect();
        Ok(Understood {
            prompt: ids.ok_or("a prompt that is no ids")?,
            tokens_max: settings[most].as_u64().ok_or("no limit")? as usize,
            greedy: settings["temperature"] == 0.0,
            // SGLang knows no seed of a request.
            seed: settings["seed"]
                .as_u64()
                .unwrap_or(held(&self.asked).len() as u64),
        })
    }

    fn said(&self, prompt: &[u32], ids: &[u32], log_probs: &[f32], ended: bool) -> Value {
        let finish = if ended { "stop" } else { "length" };
        let tokens: Vec<String> = ids.iter().map(|id| format!("token_id:{id}")).collect();
        match self.dialect {
            ServerDialect::Vllm => {
                let content = (tokens.iter().zip(log_probs))
                    .map(|(token, p)| json!({"token": token, "logprob": p, "top_logprobs": []}));
                let content: Vec<Value> = content.collect();
                json!({"choices": [{"index": 0, "token_ids": ids, "finish_reason": finish,
                    "logprobs": {"content": content}}]})
            }
            ServerDialect::Sglang => {
                let scored = log_probs
                    .iter()
                    .zip(ids)
                    .map(|(p, id)| json!([p, id, null]));
                let scored: Vec<Value> = scored.collect();
                json!({"text": "", "output_ids": ids, "meta_info": {"prompt_tokens": prompt.len(),
                    "finish_reason": {"type": finish}, "output_token_logprobs": scored}})
            }
            ServerDialect::LlamaCpp => {
                let scored = log_probs
                    .iter()
                    .zip(ids)
                    .map(|(p, id)| json!({"id": id, "logprob": p}));
                let scored: Vec<Value> = scored.collect();
                json!({"content": "", "tokens": ids, "prompt": "", "tokens_evaluated": prompt.len(),
                    "tokens_predicted": ids.len(), "stop_type": if ended { "eos" } else { "limit" }, "completion_probabilities": scored})
            }
            ServerDialect::Openai => json!({
                "choices": [{"text": "", "finish_reason": finish, "token_ids": ids,
                    "logprobs": {"tokens": tokens, "token_logprobs": log_probs}}],
                "usage": {"prompt_tokens": prompt.len()},
            }),
        }
    }
}

/// llama.cpp says nothing of an id behind which the text ends within a character, and leaves the list
/// out if it is empty.
fn leave_out_halves(said: &mut Value, policy: &Policy, ids: &[u32]) {
    let whole = |at: usize| {
        let text = policy.tokenizer().decode(&ids[..=at], false);
        !text.ends_with(char::REPLACEMENT_CHARACTER)
    };
    let entries = said["completion_probabilities"].as_array_mut().unwrap();
    let mut at = 0..;
    entries.retain(|_| at.next().is_some_and(whole));
    if entries.is_empty() {
        (said.as_object_mut().unwrap()).remove("completion_probabilities");
    }
}

struct Understood {
    prompt: Vec<u32>,
    tokens_max: usize,
    greedy: bool,
    seed: u64,
}
