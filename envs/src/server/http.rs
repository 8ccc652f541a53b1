//! The layer between the socket and the environment, common to all servers.
//!
//! One function checks path and method, because the original servers' answers to wrong ones are
//! part of the copied behaviour: 404 and 405 as JSON, also for HEAD and OPTIONS, and a redirect for
//! a trailing slash.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
pub use axum::http::Method;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::sessions::Table;
use super::validation::{Problems, fields, integer, query_integer};
use crate::task_index::TaskIndex;

const BODY_MAX_BYTES: usize = 1 << 20;

const HEALTH: &str = "/health";

/// A server's answer.
pub type Answer = Result<Value, HttpRefusal>;

/// A path, the method that it accepts, and the handler.
pub type Route<S> = (&'static str, Method, fn(&S, &Asked<'_>) -> Answer);

/// An environment's side of a server.
pub trait Routes: Send + Sync + Sized + 'static {
    /// All routes.
    const ROUTES: &'static [Route<Self>];

    /// Answers are slow enough that they must not block the other requests on their thread.
    const SLOW: bool = false;

    /// The open sessions.
    fn sessions(&self) -> &dyn Table;
}

/// [`Routes`] of any environment, as a trait object.
pub trait App: Send + Sync + 'static {
    /// The index of the route with this path.
    fn find(&self, path: &str) -> Option<usize>;

    /// Path and method of a route.
    fn route(&self, at: usize) -> (&'static str, &'static Method);

    /// The reply to a request for a route.
    fn answer(&self, at: usize, asked: &Asked<'_>) -> Answer;

    /// See [`Routes::SLOW`].
    fn is_slow(&self) -> bool;

    /// The open sessions.
    fn open(&self) -> &dyn Table;
}

impl<R: Routes> App for R {
    fn find(&self, path: &str) -> Option<usize> {
        R::ROUTES.iter().position(|(known, ..)| *known == path)
    }

    fn route(&self, at: usize) -> (&'static str, &'static Method) {
        let (path, method, _) = &R::ROUTES[at];
        (path, method)
    }

    fn answer(&self, at: usize, asked: &Asked<'_>) -> Answer {
        let (.., answer) = &R::ROUTES[at];
        answer(self, asked)
    }

    fn is_slow(&self) -> bool {
        R::SLOW
    }

    fn open(&self) -> &dyn Table {
        self.sessions()
    }
}

/// The parts of a request that an environment needs.
pub struct Asked<'a> {
    query: &'a str,
    content_type: Option<&'a str>,
    body: &'a [u8],
}

impl Asked<'_> {
    /// The fields of the body, which has to be a JSON object.
    pub fn fields(&self) -> Result<Map<String, Value>, Problems> {
        fields(self.content_type, self.body)
    }

    /// A number from a body, in which all other fields are ignored.
    pub fn body_integer(&self, key: &str) -> Result<TaskIndex, Problems> {
        let mut problems = Problems::default();
        let number = integer(&self.fields()?, key, &mut problems);
        problems.some(number)
    }

    /// A number from the query string.
    pub fn query_integer(&self, key: &str) -> Result<TaskIndex, Problems> {
        let mut problems = Problems::default();
        let number = query_integer(self.query, key, &mut problems);
        problems.some(number)
    }
}

/// Replies other than 200.
pub enum HttpRefusal {
    /// The framework's status 422.
    Invalid(Problems),
    /// No further session can be opened.
    Full,
    /// Corresponds to an uncaught exception in the original.
    Failed,
}

impl From<Problems> for HttpRefusal {
    fn from(problems: Problems) -> Self {
        Self::Invalid(problems)
    }
}

/// The answer to an action after the end.
pub fn finished(id: &TaskIndex) -> Value {
    json!({"error": format!("The task with environment {id} has finished.")})
}

pub(crate) fn router(app: Arc<dyn App>) -> Router {
    Router::new().fallback(dispatch).with_state(app)
}

async fn dispatch(State(app): State<Arc<dyn App>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if path == HEALTH && head.method == Method::GET {
        let health = json!({"status": "ok", "sessions": app.open().count()});
        return reply(StatusCode::OK, &health);
    }
    let Some(at) = app.find(path) else {
        if let Some(shorter) = app.find(path.trim_end_matches('/')) {
            return redirect(app.route(shorter).0);
        }
        return reply(StatusCode::NOT_FOUND, &json!({"detail": "Not Found"}));
    };
    let (_, method) = app.route(at);
    if head.method != *method {
        let body = json!({"detail": "Method Not Allowed"});
        let mut response = reply(StatusCode::METHOD_NOT_ALLOWED, &body);
        if let Ok(allowed) = HeaderValue::from_str(method.as_str()) {
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        return response;
    }
    let Ok(body) = axum::body::to_bytes(body, BODY_MAX_BYTES).await else {
        let detail = format!("no whole body of at most {BODY_MAX_BYTES} bytes could be read");
        return reply(StatusCode::PAYLOAD_TOO_LARGE, &json!({"detail": detail}));
    };
    if app.is_slow() {
        let slow = Arc::clone(&app);
        let answered = tokio::task::spawn_blocking(move || answer(&*slow, at, &head, &body));
        answered.await.unwrap_or_else(|_| failed())
    } else {
        answer(&*app, at, &head, &body)
    }
}

fn answer(app: &dyn App, at: usize, head: &axum::http::request::Parts, body: &Bytes) -> Response {
    let content_type = head.headers.get(header::CONTENT_TYPE);
    let asked = Asked {
        query: head.uri.query().unwrap_or_default(),
        content_type: content_type.and_then(|value| value.to_str().ok()),
        body,
    };
    match app.answer(at, &asked) {
        Ok(answer) => reply(StatusCode::OK, &answer),
        Err(HttpRefusal::Invalid(problems)) => {
            let detail = problems.detail().unwrap_or_default();
            reply(StatusCode::UNPROCESSABLE_ENTITY, &detail)
        }
        Err(HttpRefusal::Full) => {
            let body = json!({"error": "Too many sessions are open; close some."});
            reply(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
        Err(HttpRefusal::Failed) => failed(),
    }
}

fn failed() -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response()
}

fn reply(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn redirect(path: &'static str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let path = HeaderValue::from_static(path);
    response.headers_mut().insert(header::LOCATION, path);
    response
}
