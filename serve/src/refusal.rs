//! Requests that are not answered, in the form that OpenAI's clients read.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Pause that a client is asked to make.
const PAUSE_S: &str = "1";

/// OpenAI's word for a conversation that is too long.
const TOO_LONG: &str = "context_length_exceeded";

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    message: String,
    /// The field of the request that is to blame.
    param: Option<String>,
    code: Option<&'static str>,
}

impl Refusal {
    /// A status of HTTP that needs no more.
    pub(crate) fn status(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
        }
    }

    /// The request, or this field of it, makes no sense here, and never will.
    pub fn bad(param: &str, message: impl Into<String>) -> Self {
        Self {
            param: (!param.is_empty()).then(|| param.to_owned()),
            ..Self::status(StatusCode::BAD_REQUEST, message)
        }
    }

    /// The policy cannot read that much.
    pub fn too_long(param: &str, message: impl Into<String>) -> Self {
        Self {
            code: Some(TOO_LONG),
            ..Self::bad(param, message)
        }
    }

    /// Whether the conversation is longer than the policy reads.
    pub fn is_too_long(&self) -> bool {
        self.code == Some(TOO_LONG)
    }

    /// There is no such policy here.
    pub(crate) fn no_model(message: impl Into<String>) -> Self {
        Self {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..Self::status(StatusCode::NOT_FOUND, message)
        }
    }

    /// The request has no key that is known here.
    pub fn no_key(message: impl Into<String>) -> Self {
        Self::status(StatusCode::UNAUTHORIZED, message)
    }

    /// There is no room now; there will be.
    pub(crate) fn full(message: impl Into<String>) -> Self {
        Self::status(StatusCode::TOO_MANY_REQUESTS, message)
    }

    /// The server is about to end.
    pub fn leaving() -> Self {
        let message = "the server ends as soon as it has answered what it is at";
        Self::status(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// The engine failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::status(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// The document that says so.
    pub(crate) fn document(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.response(&self.document())
    }
}

impl Refusal {
    /// The response with this document.
    pub(crate) fn response(&self, document: &Value) -> Response {
        let json = [(header::CONTENT_TYPE, "application/json")];
        let mut response = (self.status, json, document.to_string()).into_response();
        // What is left of a body is not read, so the connection can serve no more.
        let unread = [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::REQUEST_TIMEOUT];
        if unread.contains(&self.status) {
            let close = header::HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        let passes = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        if passes.contains(&self.status) {
            let pause = header::HeaderValue::from_static(PAUSE_S);
            response.headers_mut().insert(header::RETRY_AFTER, pause);
        }
        response
    }
}
