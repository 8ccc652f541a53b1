//! Questions that are not answered: one clear reason each.

use serde_json::{Value, json};

/// Version of the data API: part of its path and of every document.
pub const API_VERSION: u32 = 1;

/// A question that cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Which kind.
    pub kind: RefusalKind,
    /// What was found and what to do.
    pub message: String,
}

/// Kinds of refusals; each has one HTTP status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// The question makes no sense.
    BadQuestion,
    /// There is no such run, part or episode.
    NotFound,
    /// Retention has removed it.
    Expired,
    /// It is not as it was committed.
    Damaged,
    /// The store does not answer, or does not let us.
    Unavailable,
    /// Too many at once.
    TooMany,
}

impl RefusalKind {
    /// Name and HTTP status.
    pub fn facts(self) -> (&'static str, u16) {
        match self {
            Self::BadQuestion => ("bad_question", 400),
            Self::NotFound => ("not_found", 404),
            Self::Expired => ("expired", 410),
            Self::Damaged => ("damaged", 500),
            Self::Unavailable => ("unavailable", 502),
            Self::TooMany => ("too_many", 503),
        }
    }
}

impl Refusal {
    /// A refusal.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// The document that is sent.
    pub fn to_json(&self) -> Value {
        json!({
            "version": API_VERSION,
            "error": {"kind": self.kind.facts().0, "message": self.message},
        })
    }
}
