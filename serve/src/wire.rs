//! What all routes have in common: the forms in which a chat comes and goes, its body, its key, and how an
//! answer is sent, whole or as events.

use crate::ask::Form;
use crate::fields::Fields;
use crate::refusal::Refusal;
use crate::{messages, responses};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::serve::{Listener, ListenerExt};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{Stream, iter};
use serde_json::{Map, Value};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Largest body. A conversation of the longest context is far below it.
const BODY_BYTES_MAX: usize = 8 << 20;
/// Of a longer body, how much is read to say that it is too long.
const DROPPED_BYTES_MAX: usize = 1 << 30;
/// Bodies that are read and encoded at once.
pub(crate) const BODIES_MAX: usize = 32;
/// How long a body may take to arrive.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// Listens at an address; port 0 takes a free one. What is written is sent at once.
pub(crate) async fn listen(
    address: SocketAddr,
) -> std::io::Result<(SocketAddr, impl Listener<Addr = SocketAddr>)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot switch off delayed sending");
        }
    });
    Ok((address, listener))
}

/// What is posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Completions,
    Chat,
    /// Anthropic's form of a chat.
    Messages,
    /// OpenAI's newer form.
    Responses,
}

/// Turns the pieces of a chat's stream into events of another form.
type Translate = Box<dyn FnMut(&Value) -> Vec<Value> + Send>;

impl Route {
    pub(crate) const ALL: [(&str, Self); 4] = [
        ("/v1/completions", Self::Completions),
        ("/v1/chat/completions", Self::Chat),
        ("/v1/messages", Self::Messages),
        ("/v1/responses", Self::Responses),
    ];

    pub(crate) fn of(path: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(own, _)| *own == path);
        found.map(|(_, route)| *route)
    }

    /// Which of OpenAI's two forms its requests are read in.
    pub(crate) fn form(self) -> Form {
        match self {
            Self::Completions => Form::Completion,
            Self::Chat | Self::Messages | Self::Responses => Form::Chat,
        }
    }

    /// The fields of a body in OpenAI's form, and what the answer repeats of it.
    pub(crate) fn fields(self, body: &[u8]) -> Result<(Map<String, Value>, Value), Refusal> {
        let fields = Fields::parse(body)?;
        match self {
            Self::Completions | Self::Chat => Ok((fields, Value::Null)),
            Self::Messages => Ok((messages::chat_fields(fields)?, Value::Null)),
            Self::Responses => responses::chat_fields(fields),
        }
    }

    /// A whole answer in the form of the route.
    pub(crate) fn whole(self, repeated: Value, found: Value) -> Value {
        match self {
            Self::Completions | Self::Chat => found,
            Self::Messages => messages::answer(&found),
            Self::Responses => responses::answer(repeated, &found),
        }
    }

    /// An answer as events, to a prompt of `read` ids; its pieces end with null.
    pub(crate) fn stream(
        self,
        (repeated, read): (Value, usize),
        pieces: impl Stream<Item = Value> + Send + 'static,
    ) -> Response {
        let mut events: Translate = match self {
            Self::Messages => {
                let mut events = messages::Events::new(read);
                Box::new(move |piece| events.of(piece))
            }
            Self::Responses => {
                let mut events = responses::Events::new(repeated, read);
                Box::new(move |piece| events.of(piece))
            }
            Self::Completions | Self::Chat => {
                return sent(pieces.map(|piece| {
                    let data = match piece.is_null() {
                        true => "[DONE]".to_owned(),
                        false => piece.to_string(),
                    };
                    Event::default().data(data)
                }));
            }
        };
        let all = pieces.flat_map(move |piece| iter(events(&piece)));
        sent(all.map(|event| {
            let name = event["type"].as_str().unwrap_or_default();
            Event::default().event(name).data(event.to_string())
        }))
    }
}

fn sent(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = Sse::new(events.map(Ok::<_, Infallible>));
    events.keep_alive(KeepAlive::default()).into_response()
}

/// A refusal in the form that clients of the path read.
pub(crate) fn refused(path: &str, refusal: &Refusal) -> Response {
    let document = refusal.document();
    match Route::of(path) {
        Some(Route::Messages) => refusal.response(&messages::error(&document)),
        _ => refusal.response(&document),
    }
}

/// Programs send no Origin; a page of some site in a browser does, and may not use what listens here.
pub(crate) fn check_origin(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.contains_key(header::ORIGIN) {
        false => Ok(()),
        true => {
            let message =
                "pages in a browser may not ask: requests with the header Origin are refused";
            Err(Refusal::status(StatusCode::FORBIDDEN, message))
        }
    }
}

/// The key of a request: its bearer, or as Anthropic's clients send it.
pub(crate) fn key(headers: &HeaderMap) -> &[u8] {
    let bearer = headers.get(header::AUTHORIZATION);
    let bearer = bearer.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    let own = || headers.get("x-api-key").map(|value| value.as_bytes());
    bearer.or_else(own).unwrap_or_default()
}

/// Reads a body; the permit is held until what it says was read too.
pub(crate) async fn body(
    bodies: &Semaphore,
    body: Body,
) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Refusal> {
    let reading = async {
        // The semaphore is never closed.
        let permit = bodies.acquire().await.ok();
        Ok((collected(body).await?, permit))
    };
    let slow = || Refusal::status(StatusCode::REQUEST_TIMEOUT, "the body does not arrive");
    let read = tokio::time::timeout(BODY_PATIENCE, reading).await;
    read.map_err(|_| slow())?
}

/// The bytes of a body. One that is too long is read to its end and dropped: a client that still writes
/// would see a broken connection instead of the reason.
async fn collected(body: Body) -> Result<Bytes, Refusal> {
    let (mut kept, mut length) = (Vec::new(), 0);
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|e| {
            let message = format!("the body cannot be read: {e}");
            Refusal::status(StatusCode::BAD_REQUEST, message)
        })?;
        length += piece.len();
        if length <= BODY_BYTES_MAX {
            kept.extend_from_slice(&piece);
        } else if length <= DROPPED_BYTES_MAX {
            kept = Vec::new();
        } else {
            break;
        }
    }
    if length > BODY_BYTES_MAX {
        let message = format!("the body has more than {BODY_BYTES_MAX} bytes");
        return Err(Refusal::status(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    Ok(kept.into())
}

pub(crate) fn wrong_method(path: &str, method: &str) -> Refusal {
    let message = format!("{path} takes {method} alone");
    Refusal::status(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// That there is nothing under a path.
pub(crate) fn no_path(path: &str) -> Refusal {
    let routes = Route::ALL.map(|(path, _)| path);
    let message = format!(
        "there is no {path}; there are {}, /v1/models and /health",
        routes.join(", ")
    );
    Refusal::status(StatusCode::NOT_FOUND, message)
}

pub(crate) fn document(content: &Value) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::OK, json, content.to_string()).into_response()
}
