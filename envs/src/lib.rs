//! Environments: the HTTP behaviour of AgentGym's servers ([`mod@spec`]), the parsing of a model's
//! text into an action ([`parser`]), a client for any such server ([`client`]), checks of such a
//! server ([`doctor`]), environments written in Rust ([`textcraft`], [`babyai`], [`searchqa`],
//! Sokoban, a maze, Wordle, and ScienceWorld over its Java simulator) with the same wire behaviour
//! ([`server`]), starting them inside the
//! process ([`builtin`]), and solved tasks as conversations ([`mod@demonstration`]).
//!
//! Rollouts always use HTTP, even for a built-in server: there is one code path, the one used in
//! production. This crate does not depend on models, jobs or storage.

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
mod replica;
mod scenes;
pub mod server;
pub mod spec;
mod task_index;
pub mod template;

pub use client::{ClientCounters, ClientOptions, EnvClient, Session, StepOutput};
pub use env::{babyai, searchqa, textcraft};
pub use error::{Call, EnvError, FaultKind, Verdict};
pub use http_client::{Proxy, Unread, body, causes, excerpt, http_client, redirected, shown};
pub use parser::{CallError, Parsed, Parser};
pub use scenes::{PlayedTask, Scenes, scenes};
pub use server::{ServerHandle, ServerOptions};
pub use spec::{EnvSpec, Replay, SuccessRule, spec};

#[cfg(test)]
mod damaged;
#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;
#[cfg(test)]
mod reach;

/// Counts allocations: tests of the readers of untrusted bytes also check how much memory they
/// allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
