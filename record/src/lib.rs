//! What a run is: the documents that its stages commit, as types; an iteration, joined from them; and
//! the credit of its episodes. Whoever writes a document and whoever reads it use the same struct, so a
//! field that is renamed is renamed for both.
//!
//! The bytes of these documents are artifacts and never change: a field keeps its name and place. One
//! that older programs did not write is an `Option`.

#![allow(missing_docs)]

pub mod credit;
pub mod documents;
pub mod figures;
pub mod filter;
pub mod iteration;
pub mod metrics;
mod numbers;
pub mod rewards;
mod stats;
#[cfg(test)]
mod testing;
pub mod weights;

use agentgym_jobs::pipeline::Stage;
pub use stats::{Stats, Turns};

/// A document that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Storage(#[from] agentgym_storage::Error),
    /// A payload or a plan.
    #[error(transparent)]
    Jobs(#[from] agentgym_jobs::Error),
    /// Numbers that an algorithm cannot use.
    #[error(transparent)]
    Algorithm(#[from] agentgym_algorithms::Error),
    /// Artifacts that do not belong together, or a config that does not fit them.
    #[error("{0}")]
    Stage(String),
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
