//! Descriptions of environments, as data.
//!
//! AgentGym's servers differ in field names, reply shapes and the meaning of a reward. There is one
//! client, which reads the differences from an [`EnvSpec`]. A server that this program does not know
//! is described by a person's file ([`declared`]).

mod base;
pub(crate) mod calls;
pub mod declared;
pub mod games;
mod remote;
pub(crate) mod signs;
mod tools;
pub(crate) mod types;
mod wire;

#[cfg(test)]
mod tests;

pub use calls::{Argument, ArgumentType, Tool};
pub use types::*;

use crate::error::EnvError;

/// Every known environment; those written in Rust come first.
pub fn all() -> impl Iterator<Item = &'static EnvSpec> {
    games::ALL.into_iter().chain(&remote::REMOTE)
}

/// The specification of this name (letter case does not matter).
pub fn spec(name: &str) -> Result<&'static EnvSpec, EnvError> {
    all()
        .find(|spec| spec.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| EnvError::UnknownSpec {
            name: name.to_owned(),
            known: all().map(|s| s.name).collect::<Vec<_>>().join(", "),
        })
}
