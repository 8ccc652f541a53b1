//! What a run committed, as types: whoever writes a document and whoever reads it use the same struct,
//! so a field that is renamed is renamed for both.
//!
//! The bytes of these documents are artifacts and never change: a field keeps its name and place. One
//! that older programs did not write is an `Option`.

#![allow(missing_docs)]

pub mod documents;
pub mod metrics;
mod numbers;
mod stats;

use agentgym_jobs::pipeline::Stage;
pub use stats::{Stats, Turns};

/// A document that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Storage(#[from] agentgym_storage::Error),
    /// Its bytes are whole, and are not what its name says.
    #[error(
        "{file} of {of} is not what this program reads: {why}; a later version may have written it"
    )]
    Unreadable {
        file: &'static str,
        of: String,
        why: String,
    },
    /// No stage of this kind writes it.
    #[error("{stage} writes no {file}")]
    NoSuch { stage: Stage, file: &'static str },
}

pub type Result<T> = std::result::Result<T, Error>;
