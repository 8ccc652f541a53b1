//! The HTTP server.

use crate::answers::Answers;
use crate::ask::Ask;
use crate::assets::asset;
use crate::guard::{Denied, Guard, HEADERS};
use crate::news::News;
use crate::refusal::{Refusal, RefusalKind};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt;
use bytes::Bytes;
use futures::StreamExt;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Where a server listens.
#[derive(Debug, Clone)]
pub struct ViewerOptions {
    /// Name or address; `127.0.0.1` for this machine alone.
    pub host: String,
    /// 0 for a free one.
    pub port: u16,
}

/// A server that listens.
#[derive(Debug)]
pub struct Viewer {
    /// The address of its pages, with the token.
    pub url: String,
    /// Where it listens.
    pub address: SocketAddr,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Viewer {
    /// Serves until the server fails.
    ///
    /// # Errors
    /// Why it failed.
    pub async fn run(self) -> std::io::Result<()> {
        self.task.await.map_err(std::io::Error::other)?
    }
}

#[derive(Clone)]
struct App {
    source: Arc<dyn Answers>,
    guard: Guard,
    news: News,
}

/// Starts a server.
///
/// # Errors
/// The address cannot be had.
pub async fn serve(source: Arc<dyn Answers>, options: &ViewerOptions) -> std::io::Result<Viewer> {
    let listener = TcpListener::bind((options.host.as_str(), options.port)).await?;
    let address = listener.local_addr()?;
    let guard = Guard::new(&options.host, address.port())?;
    let name = match address.ip().is_unspecified() {
        true => "127.0.0.1".to_owned(),
        false if options.host.contains(':') => format!("[{}]", options.host),
        false => options.host.clone(),
    };
    let url = format!("http://{name}:{}/?token={}", address.port(), guard.token());
    let app = App {
        source,
        guard,
        news: News::default(),
    };
    let router = axum::Router::new().fallback(handle).with_state(app);
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot switch off delayed sending");
        }
    });
    let task = tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(Viewer { url, address, task })
}

async fn handle(State(app): State<App>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let mut response = answered(&app, &parts).await;
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn answered(app: &App, request: &Parts) -> Response {
    let headers = &request.headers;
    if let Err(denied) = app.guard.check_names(&request.method, headers) {
        return deny(denied);
    }
    let uri = &request.uri;
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    let given = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("token="));
    if let (Some(given), "/") = (given, path) {
        return match app.guard.is_token(given) {
            true => admitted(&app.guard),
            false => deny((
                401,
                "this token belongs to another viewer, or to an earlier one".into(),
            )),
        };
    }
    if let Err(denied) = app.guard.check_token(headers) {
        return deny(denied);
    }
    let Some(question) = path.strip_prefix("/api/v1/") else {
        return match asset(path.trim_start_matches('/')) {
            Some((kind, content)) => tagged(headers, kind, content),
            None => deny((404, "there is no such page".into())),
        };
    };
    if question == "events" {
        return events(app, query);
    }
    let answer = match Ask::parse(question, query) {
        Ok(ask) => app.source.answer(&ask).await,
        Err(refusal) => Err(refusal),
    };
    match answer {
        Ok(content) => tagged(headers, "application/json", content),
        Err(refusal) => refused(&refusal),
    }
}

/// The token becomes a cookie and leaves the address bar.
fn admitted(guard: &Guard) -> Response {
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_static("/"));
    if let Ok(cookie) = guard.cookie().parse() {
        headers.insert(header::SET_COOKIE, cookie);
    }
    response
}

/// The content, or that the browser has it already.
fn tagged(headers: &HeaderMap, kind: &'static str, content: Bytes) -> Response {
    let tag = format!("\"{}\"", &blake3::hash(&content).to_hex()[..32]);
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    let known = known.filter_map(|value| value.to_str().ok());
    let is_known = known
        .flat_map(|value| value.split(','))
        .any(|value| value.trim() == tag);
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Response::new(Body::from(content)),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Ok(tag) = tag.parse() {
        headers.insert(header::ETAG, tag);
    }
    response
}

fn events(app: &App, query: &str) -> Response {
    let run = query.split('&').find_map(|pair| pair.strip_prefix("run="));
    let run = match run {
        None => None,
        // A run's name needs no encoding; the parser of questions says whether it is one.
        Some(run) => match Ask::parse(&format!("runs/{run}"), "") {
            Ok(Ask::Run(run)) => Some(run),
            Ok(_) => return refused(&Refusal::new(RefusalKind::BadQuestion, "run is no name")),
            Err(refusal) => return refused(&refusal),
        },
    };
    match app.news.listen(&app.source, run) {
        Ok(stream) => {
            let stream = stream.map(|news| Ok::<_, Infallible>(Event::default().data(news)));
            Sse::new(stream)
                .keep_alive(KeepAlive::default())
                .into_response()
        }
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &Refusal) -> Response {
    let (_, status) = refusal.kind.facts();
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = [(header::CONTENT_TYPE, "application/json")];
    (status, json, refusal.to_json().to_string()).into_response()
}

fn deny((status, message): Denied) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN);
    (status, message + "\n").into_response()
}
