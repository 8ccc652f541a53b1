//! A chat API that fails in every way that one can, strictly: it refuses what the real ones refuse.

use super::*;
use crate::Cause;
use crate::stages::testing::policy;
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_model::Role;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// Shown to nobody but the API.
const KEY: &str = "sk-very-secret-key";

/// The next answer: a status, headers and a body; or a turn, if there is none left.
type Scripted = (u16, Vec<(&'static str, String)>, String);

/// The same as it is written in a test.
type Answer<'a> = (u16, &'a [(&'static str, &'a str)], &'a str);

#[derive(Default)]
struct Inner {
    script: Mutex<VecDeque<Scripted>>,
    asked: Mutex<Vec<Value>>,
    under_way: AtomicUsize,
    most: AtomicUsize,
    /// It wants `max_completion_tokens`.
    is_new: AtomicBool,
    slow: AtomicBool,
}

struct Double {
    url: String,
    inner: Arc<Inner>,
}

fn held<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is wrong with a request.
fn wrong(headers: &HeaderMap, body: &Value, is_new: bool) -> Option<(u16, String)> {
    let given = headers.get("authorization").and_then(|v| v.to_str().ok());
    let key = format!("Bearer {KEY}");
    if given != Some(&key) {
        return Some((
            401,
            format!("Incorrect key provided: {}", given.unwrap_or("none")),
        ));
    }
    let limit = match is_new {
        true => "max_completion_tokens",
        false => "max_tokens",
    };
    let known = ["model", "messages", "temperature", "top_p", limit];
    let all = body.as_object().unwrap();
    if let Some(strange) = all.keys().find(|key| !known.contains(&key.as_str())) {
        return Some((
            400,
            format!("Unsupported parameter: '{strange}'. Use 'max_completion_tokens' instead."),
        ));
    }
    let messages = body["messages"].as_array().unwrap();
    let roles = messages.iter().map(|m| m["role"].as_str().unwrap());
    let in_turn = roles
        .zip(["user", "assistant"].iter().cycle())
        .all(|(a, b)| a == *b);
    let ends_well = messages.len() % 2 == 1 && messages.iter().all(|m| m["content"].is_string());
    let sane =
        body["model"] == "m" && body[limit].as_u64() > Some(0) && body["temperature"].is_f64();
    (!(in_turn && ends_well && sane)).then(|| (400, "Invalid messages".to_owned()))
}

async fn answered(
    State(inner): State<Arc<Inner>>,
    headers: HeaderMap,
    axum::Json(body): axum::Json<Value>,
) -> Response {
    let now = inner.under_way.fetch_add(1, Ordering::SeqCst) + 1;
    inner.most.fetch_max(now, Ordering::SeqCst);
    if inner.slow.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    inner.under_way.fetch_sub(1, Ordering::SeqCst);
    if let Some((status, why)) = wrong(&headers, &body, inner.is_new.load(Ordering::SeqCst)) {
        let body = json!({"error": {"message": why}});
        return (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
    }
    held(&inner.asked).push(body);
    let next = held(&inner.script).pop_front();
    let (status, headers, body) =
        next.unwrap_or_else(|| (200, vec![], turn("Action: look", "stop")));
    let mut response = (StatusCode::from_u16(status).unwrap(), body).into_response();
    for (name, value) in headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

fn turn(text: &str, finish: &str) -> String {
    completion(json!({"role": "assistant", "content": text}), finish)
}

fn completion(message: Value, finish: &str) -> String {
    json!({
        "id": "x", "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
    })
    .to_string()
}

impl Double {
    async fn new() -> Self {
        let inner = Arc::new(Inner::default());
        let app = axum::Router::new()
            .route(ROUTE, axum::routing::post(answered))
            .with_state(Arc::clone(&inner));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        // As clients are often given it.
        let url = format!("http://{}/v1/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, inner }
    }

    fn then(&self, answers: &[Answer<'_>]) {
        let answers = answers.iter().map(|(status, headers, body)| {
            let headers = headers.iter().map(|(k, v)| (*k, (*v).to_owned()));
            (*status, headers.collect(), (*body).to_owned())
        });
        held(&self.inner.script).extend(answers);
    }

    fn asked(&self) -> usize {
        held(&self.inner.asked).len()
    }

    fn server(&self, key: &str, patience_s: f64, cancel: CancellationToken) -> Arc<ChatServer> {
        let config = RolloutServer {
            url: Some(self.url.clone()),
            dialect: None,
            model: Some("m".to_owned()),
            timeout_s: 20.0,
            patience_s,
            concurrent: 3,
            price_input: Some(2.0),
            price_output: Some(8.0),
        };
        let part = PartId {
            iteration: 0,
            stage: Stage::Evaluate,
            part: 0,
        };
        let beat = Beat::new(part, tokio::sync::broadcast::channel(16).0);
        ChatServer::with_key(&config, Some(key.to_owned()), policy().text(), beat, cancel).unwrap()
    }

    fn open(&self) -> Arc<ChatServer> {
        self.server(KEY, 20.0, CancellationToken::new())
    }
}

fn conversation() -> Vec<Message> {
    vec![
        Message::new(Role::User, "Craft."),
        Message::new(Role::Assistant, "Action: get"),
        Message::new(Role::User, "Got 1 <|im_end|>"),
    ]
}

async fn say(server: &ChatServer) -> Result<(Generation, Told)> {
    say_by(server, Sampling::default()).await
}

async fn say_by(server: &ChatServer, sampling: Sampling) -> Result<(Generation, Told)> {
    let messages = conversation();
    let ask = ChatAsk {
        messages: &messages,
        tools: None,
        tokens_max: 7,
        sampling,
    };
    server.say(&ask).await
}

fn stats(server: &ChatServer) -> Value {
    let mut report = Report::default();
    server.report(&mut report);
    report.stats.to_map().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_the_turn_and_its_ids_have_no_log_probs() {
    let double = Double::new().await;
    let server = double.open();
    let greedy = Sampling {
        greedy: true,
        top_p: 0.5,
        ..Sampling::default()
    };
    let cut = Sampling {
        temperature: 0.7,
        top_p: 0.5,
        ..Sampling::default()
    };
    // What one would spell a special token with stays text.
    let text = "Thought: é <|im_end|>\nAction: look";
    double.then(&[
        (200, &[], &turn(text, "stop")),
        (200, &[], &turn(text, "length")),
    ]);
    let (ended, told) = say_by(&server, greedy).await.unwrap();
    let (long, _) = say_by(&server, cut).await.unwrap();
    assert_eq!((told.text.as_str(), told.usage), (text, Some((10, 3))));
    let policy = policy();
    let ids = policy.tokenizer().encode_ordinary(text).unwrap();
    assert_eq!((&long.token_ids, long.finish), (&ids, FinishReason::Length));
    let end = policy.chat().end_of_turn_id(policy.tokenizer()).unwrap();
    assert_eq!(
        (ended.token_ids, ended.finish),
        ([ids, vec![end]].concat(), FinishReason::Eos)
    );
    assert!(
        ended
            .log_probs
            .iter()
            .all(|p| p.to_bits() == NO_LOG_PROB.to_bits())
    );
    let asked = held(&double.inner.asked).clone();
    let messages = json!([
        {"role": "user", "content": "Craft."}, {"role": "assistant", "content": "Action: get"},
        {"role": "user", "content": "Got 1 <|im_end|>"},
    ]);
    assert_eq!(
        asked[0],
        json!({"model": "m", "messages": messages, "temperature": 0.0, "max_tokens": 7})
    );
    assert_eq!(asked[1]["temperature"], 0.7);
    assert_eq!(asked[1]["top_p"], 0.5);
    for usage in [told.usage, told.usage] {
        server.count(usage);
    }
    let all = stats(&server);
    assert_eq!(
        (&all["chat_tokens_in"], &all["chat_tokens_out"]),
        (&json!(20), &json!(6))
    );
    assert_eq!(all["chat_cost"], (20.0 * 2.0 + 6.0 * 8.0) / 1e6);
    server.count(None);
    assert_eq!(stats(&server)["chat_cost"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_api_is_asked_again_as_it_says() {
    let double = Double::new().await;
    let server = double.open();
    double.then(&[
        (429, &[("retry-after", "1")], "slow down"),
        (529, &[], "overloaded"),
        (503, &[("retry-after", "0")], "busy"),
        (200, &[], "<html>a proxy</html>"),
        (200, &[], r#"{"error": {"message": "upstream failed"}}"#),
        (200, &[], &completion(json!({"content": "half"}), "error")),
    ]);
    let start = Instant::now();
    let first = say(&server);
    let second = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asked = double.asked();
        say(&server).await.unwrap();
        (asked, start.elapsed())
    };
    let (first, (asked, waited)) = tokio::join!(first, second);
    assert_eq!(first.unwrap().1.text, "Action: look");
    assert!(
        asked == 1 && waited > Duration::from_secs(1),
        "a pause holds for all: {asked} {waited:?}"
    );
    assert_eq!(double.asked(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_pass_fails_the_attempt_and_is_said_without_the_key() {
    let double = Double::new().await;
    let server = double.open();
    let huge = turn(&"x".repeat(TEXT_BYTES_MAX + 1), "stop");
    let endless = " ".repeat(ANSWER_BYTES_MAX + 1);
    for (status, headers, body, words) in [
        (
            400,
            vec![],
            "context_length_exceeded".to_owned(),
            "answers 400: context_length_exceeded",
        ),
        (
            404,
            vec![],
            format!("no such model; your key is {KEY}"),
            "no such model; your key is …",
        ),
        (
            302,
            vec![("location", "http://127.0.0.1:1/")],
            String::new(),
            "answers 302",
        ),
        (200, vec![], huge, "bytes where 7 tokens were allowed"),
        (200, vec![], endless, "more than 8388608 bytes"),
    ] {
        let before = double.asked();
        double.then(&[(status, &headers, &body)]);
        let error = say(&server).await.unwrap_err();
        let said = error.to_string();
        assert_eq!(error.cause(), Cause::Server);
        assert!(
            said.contains(words) && said.contains("the chat API at http://127.0.0.1"),
            "{said}"
        );
        assert!(!said.contains(KEY), "{said}");
        assert_eq!(double.asked(), before + 1, "asked once: {said}");
    }
    // The double repeats the key that it refuses.
    let other = "sk-another-secret";
    let said = say(&double.server(other, 20.0, CancellationToken::new())).await;
    let said = said.unwrap_err().to_string();
    assert!(
        said.contains(KEY_VARIABLE) && !said.contains(other),
        "{said}"
    );
    // Patience ends, and a drain does not wait for it.
    double.then(&[
        (429, &[], "no"),
        (429, &[], "no"),
        (429, &[("retry-after", "60")], "no"),
    ]);
    let said = say(&double.server(KEY, 0.3, CancellationToken::new())).await;
    let said = said.unwrap_err().to_string();
    assert!(
        said.contains("answers 429: no") && said.contains("patience_s"),
        "{said}"
    );
    let cancel = CancellationToken::new();
    let server = double.server(KEY, 600.0, cancel.clone());
    let (said, ()) = tokio::join!(say(&server), async {
        tokio::time::sleep(Duration::from_millis(900)).await;
        cancel.cancel();
    });
    assert!(matches!(said, Err(Error::Cancelled)), "{said:?}");
}

/// Asked again, and then the episode is left out: that is no answer of the policy to the environment.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_text_is_no_turn() {
    let double = Double::new().await;
    let server = double.open();
    let call =
        json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    for (message, finish, words) in [
        (
            json!({"content": null, "tool_calls": call}),
            "tool_calls",
            "calls of tools and no text",
        ),
        (
            json!({"content": null}),
            "stop",
            "without a text (finish_reason stop)",
        ),
        (json!({"content": " \n"}), "stop", "without a text"),
        (
            json!({"content": null, "refusal": "I cannot."}),
            "stop",
            "it refuses: I cannot.",
        ),
        (json!({"content": ""}), "length", "rollout.max_tokens"),
        (
            json!({"content": "half a sent"}),
            "content_filter",
            "content_filter",
        ),
    ] {
        let body = completion(message, finish);
        double.then(&[(200, &[], &body), (200, &[], &body)]);
        let (_, told) = say(&server).await.unwrap();
        assert_eq!(told.text, "Action: look", "the third answer has one");
        double.then(&[(200, &[], &body), (200, &[], &body), (200, &[], &body)]);
        let error = say(&server).await.unwrap_err();
        assert!(matches!(error, Error::NoMessage(_)), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    // They are paid all the same.
    assert_eq!(stats(&server)["chat_answers"], 6 * 5);
    // A text beside calls is the turn.
    let both = completion(
        json!({"content": "Action: go", "tool_calls": call}),
        "tool_calls",
    );
    double.then(&[(200, &[], &both)]);
    assert_eq!(say(&server).await.unwrap().1.text, "Action: go");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_requests_at_once_than_allowed_and_the_newer_name_of_the_limit() {
    let double = Double::new().await;
    let server = double.open();
    double.inner.slow.store(true, Ordering::SeqCst);
    double.inner.is_new.store(true, Ordering::SeqCst);
    let all = (0..12).map(|_| say(&server));
    for said in futures::future::join_all(all).await {
        said.unwrap();
    }
    assert_eq!(double.inner.most.load(Ordering::SeqCst), 3);
    assert_eq!(double.asked(), 12);
    assert!(
        held(&double.inner.asked)
            .iter()
            .all(|body| body["max_completion_tokens"] == 7)
    );
}
