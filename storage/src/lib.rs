//! Durable state of a run on any object store: a folder, memory, or S3.
//!
//! Guarantees for the crates above:
//! - no object is ever overwritten: every write is create-only, or goes to a folder that belongs to
//!   one attempt;
//! - a part is committed once: the first manifest wins, later attempts learn that they were
//!   superseded;
//! - everything a reader receives has been checked against the digest in a manifest;
//! - every key is built and parsed in [`keys`], and only manifests say where an artifact is stored.
//!
//! This crate knows nothing of stages, queues or tensors.

mod artifact;
mod attempts;
mod backend;
mod commit;
mod difference;
mod error;
mod expire;
mod folder;
mod inputs;
mod journal;
pub mod keys;
mod later;
mod local_files;
mod manifest;
mod near;
mod outputs;
mod plans;
mod probe;
mod run_digest;
mod seal;
mod store;
mod upload;
mod verify;

pub use artifact::{Artifact, CHAIN_MAX, CHUNK_BYTES, Delta, Digest, Digesting, Frame};
pub use attempts::{AttemptEnd, AttemptOutcome, AttemptRecord, AttemptStart, MachineFacts};
pub use commit::Committed;
pub use error::{Error, Result, Verdict};
pub use expire::Expired;
pub use folder::{LocalFolder, make_room};
pub use inputs::{INPUT_BYTES_MAX, Inputs};
pub use journal::{Journal, SEGMENT_BYTES_MAX};
pub use keys::{AttemptId, Key, PartKey, RunId, nonce};
pub use manifest::{InputRef, MANIFEST_BYTES_MAX, Manifest, Origin, Work};
pub use outputs::{OutputWriter, Outputs};
pub use run_digest::SeenCommits;
pub use store::{Created, Patience, RequestCounts, Store};
pub use verify::{BytesRead, Fault, Finding, Planned, Verified};

#[cfg(test)]
mod damaged;
#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;
#[cfg(test)]
mod testing;

/// Counts allocations: tests also limit the memory that readers of untrusted bytes allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
