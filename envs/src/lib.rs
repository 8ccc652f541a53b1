//! Environments: what AgentGym's HTTP servers expect ([`mod@spec`]), how a model's text becomes an
//! action ([`parser`]), a client that any such server can be driven with ([`client`]), an examination
//! of such a server ([`doctor`]), and
//! environments written in Rust ([`textcraft`], [`babyai`], [`searchqa`], Sokoban, a maze, Wordle) behind the same
//! wire behaviour ([`server`]), also started inside the process ([`builtin`]), and what solving their
//! tasks looks like ([`mod@demonstration`]).
//!
//! Rollouts always go through HTTP, also to the built-in server: there is one path, and it is
//! the one that production takes. Nothing here knows models, jobs or storage.

pub mod builtin;
pub mod client;
pub mod demonstration;
pub mod doctor;
mod draws;
mod env;
mod error;
mod files;
mod http_client;
pub mod parser;
mod quantity;
pub mod server;
pub mod spec;
mod task_index;

pub use client::{ClientCounters, ClientOptions, EnvClient, Session, StepOutput};
pub use env::{babyai, searchqa, textcraft};
pub use error::{Call, EnvError, FaultKind, Verdict};
pub use http_client::http_client;
pub use parser::{Parsed, Parser};
pub use server::{ServerHandle, ServerOptions};
pub use spec::{EnvSpec, Replay, SuccessRule, spec};

#[cfg(test)]
mod damaged;
#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;

/// Readers of foreign bytes are tested for what they take, too.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
