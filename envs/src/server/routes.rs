//! The routes and what they answer.
//!
//! One function looks at path and method, since the original's answers to wrong ones are part
//! of its behaviour too: 404 and 405 as JSON, also for HEAD and OPTIONS, and a redirect for a
//! slash too many.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::sessions::{Play, Sessions};
use super::validation::{
    Problems, fields, integer, integer_or_null, query_integer, text, text_or_null,
};
use crate::textcraft::TaskIndex;

const BODY_MAX_BYTES: usize = 1 << 20;

/// Path, method, and what serves it.
const ROUTES: &[(&str, Method, Route)] = &[
    ("/", Method::GET, Route::Banner),
    ("/health", Method::GET, Route::Health),
    ("/create", Method::POST, Route::Create),
    ("/reset", Method::POST, Route::Reset),
    ("/step", Method::POST, Route::Step),
    ("/close", Method::POST, Route::Close),
    ("/observation", Method::GET, Route::Observation),
    ("/detail", Method::GET, Route::Detail),
    ("/commands", Method::GET, Route::Missing),
    ("/goal", Method::GET, Route::Missing),
];

#[derive(Clone, Copy)]
enum Route {
    Banner,
    Health,
    Create,
    Reset,
    Step,
    Close,
    Observation,
    Detail,
    /// The original has the path, but not the function behind it.
    Missing,
}

pub(super) fn router(sessions: Arc<Sessions>) -> Router {
    Router::new().fallback(dispatch).with_state(sessions)
}

async fn dispatch(State(sessions): State<Arc<Sessions>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let Some((_, method, route)) = ROUTES.iter().find(|(known, _, _)| *known == path) else {
        let shorter = path.trim_end_matches('/');
        if let Some((known, _, _)) = ROUTES.iter().find(|(known, _, _)| *known == shorter) {
            return redirect(known);
        }
        return reply(StatusCode::NOT_FOUND, &json!({"detail": "Not Found"}));
    };
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
    let content_type = head.headers.get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let query = head.uri.query().unwrap_or_default();
    let answer = match route {
        Route::Banner => Ok(json!("This is environment TextCraft.")),
        Route::Health => Ok(json!({"status": "ok", "sessions": sessions.count()})),
        Route::Missing => {
            return (StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error").into_response();
        }
        Route::Observation => queried(&sessions, query, |play| json!(play.observation)),
        Route::Detail => queried(&sessions, query, |play| {
            json!({
                "observation": play.observation,
                "done": play.done,
                "reward": play.reward,
                "deleted": false,
            })
        }),
        Route::Create | Route::Reset | Route::Step | Route::Close => fields(content_type, &body)
            .and_then(|fields| match route {
                Route::Create => create(&sessions, &fields),
                Route::Reset => reset(&sessions, &fields),
                Route::Step => step(&sessions, &fields),
                _ => close(&sessions, &fields),
            }),
    };
    match answer {
        Ok(Value::Null) => {
            let body = json!({"error": "Too many sessions are open; close some."});
            reply(StatusCode::SERVICE_UNAVAILABLE, &body)
        }
        Ok(answer) => reply(StatusCode::OK, &answer),
        Err(problems) => {
            let detail = problems.detail().unwrap_or_default();
            reply(StatusCode::UNPROCESSABLE_ENTITY, &detail)
        }
    }
}

/// Null if no further session can be opened.
fn create(sessions: &Sessions, fields: &Map<String, Value>) -> Result<Value, Problems> {
    let mut problems = Problems::default();
    text_or_null(fields, "commands", &mut problems);
    text_or_null(fields, "goal", &mut problems);
    if problems.detail().is_some() {
        return Err(problems);
    }
    Ok(sessions.create().map_or(Value::Null, |(id, observation)| {
        json!({"id": id, "observation": observation, "done": false, "reward": 0})
    }))
}

fn reset(sessions: &Sessions, fields: &Map<String, Value>) -> Result<Value, Problems> {
    let mut problems = Problems::default();
    let id = integer(fields, "id", &mut problems);
    let task = integer_or_null(fields, "data_idx", 0, &mut problems);
    let Some(id) = id.filter(|_| problems.detail().is_none()) else {
        return Err(problems);
    };
    let Some(task) = task.flatten() else {
        let known = sessions.with(
            &id,
            |_| json!({"error": "unsupported operand type(s) for %: 'NoneType' and 'int'"}),
        );
        return Ok(known.unwrap_or_else(|| not_valid(&id)));
    };
    let shown = sessions.reset(&id, &task, |play| {
        json!({
            "id": id.as_u64(),
            "observation": play.observation,
            "done": play.done,
            "reward": play.reward,
        })
    });
    Ok(shown.unwrap_or_else(|| not_valid(&id)))
}

fn step(sessions: &Sessions, fields: &Map<String, Value>) -> Result<Value, Problems> {
    let mut problems = Problems::default();
    let id = integer(fields, "id", &mut problems);
    let action = text(fields, "action", &mut problems);
    let (Some(id), Some(action)) = (id, action) else {
        return Err(problems);
    };
    let answer = sessions.with(&id, |play| match play.step(action) {
        Ok(()) => json!({
            "observation": play.observation,
            "reward": play.reward,
            "done": play.done,
        }),
        Err(text) => json!({"error": text}),
    });
    Ok(answer.unwrap_or_else(|| not_valid(&id)))
}

fn close(sessions: &Sessions, fields: &Map<String, Value>) -> Result<Value, Problems> {
    let mut problems = Problems::default();
    match integer(fields, "id", &mut problems) {
        Some(id) => Ok(json!(sessions.close(&id))),
        None => Err(problems),
    }
}

fn queried(
    sessions: &Sessions,
    query: &str,
    view: impl FnOnce(&Play) -> Value,
) -> Result<Value, Problems> {
    let mut problems = Problems::default();
    match query_integer(query, "id", &mut problems) {
        Some(id) => Ok(sessions
            .with(&id, |play| view(play))
            .unwrap_or_else(|| not_valid(&id))),
        None => Err(problems),
    }
}

fn not_valid(id: &TaskIndex) -> Value {
    json!({"error": format!("The id {id} is not valid.")})
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
