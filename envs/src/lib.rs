//! Environments: the HTTP behaviour of AgentGym's servers ([`mod@spec`]), the parsing of a model's
//! text into an action ([`parser`]), a client for any such server ([`client`]), checks of such a
//! server ([`doctor`]), what a server with the same wire behaviour is made of ([`server`]), starting
//! the environments that a program brings inside its process ([`builtin`]), and solved tasks as
//! conversations ([`mod@demonstration`]). The environments themselves are the crate `games`.
//!
//! Rollouts always use HTTP, even for a built-in server: there is one code path, the one used in
//! production. This crate does not depend on models, jobs or storage.

pub mod builtin;
pub mod client;
pub mod demonstration;
pub mod doctor;
mod error;
pub mod files;
pub mod harness;
mod http_client;
pub mod parser;
pub mod quantity;
pub mod replica;
pub mod server;
pub mod spec;
pub mod task_index;

pub use client::{ClientCounters, ClientOptions, EnvClient, Session, StepOutput};
pub use error::{Call, EnvError, FaultKind, Verdict};
pub use http_client::{Proxy, Unread, body, causes, excerpt, http_client, redirected, shown};
pub use parser::{CallError, Parsed, Parser};
pub use server::{ServerHandle, ServerOptions};
pub use spec::{EnvSpec, Replay, SuccessRule, spec};

#[cfg(test)]
mod damaged;
#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;

/// Counts allocations: tests of the readers of untrusted bytes also check how much memory they
/// allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
