//! The viewer: pages in a browser over a read-only data API.
//!
//! This crate owns everything that is about being a web server for one person: which questions a
//! URL can ask ([`Ask`]), who may ask them, how answers are cached and how pages are told of news.
//! It knows no store and no run. What the answers are is decided by a [`Source`]; the program
//! implements it over the readers that its other commands use.
//!
//! Pages are plain ES modules, one style sheet and SVG, embedded in the program; there is nothing
//! to build or to fetch.

mod ask;
mod assets;
mod guard;
mod news;
mod server;

pub use ask::{Ask, EpisodeFilter, PartRef};
pub use assets::{asset, bundle_page};
pub use server::{Viewer, ViewerOptions, serve};

use bytes::Bytes;
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

/// Answers questions about runs.
#[async_trait::async_trait]
pub trait Source: Send + Sync + 'static {
    /// The JSON document that answers a question.
    ///
    /// # Errors
    /// What cannot be answered.
    async fn answer(&self, ask: &Ask) -> Result<Bytes, Refusal>;

    /// A text that changes whenever something new has been committed or started in a run, or in
    /// any run: one listing of the store.
    ///
    /// # Errors
    /// As `answer`.
    async fn pulse(&self, run: Option<&str>) -> Result<String, Refusal>;
}
