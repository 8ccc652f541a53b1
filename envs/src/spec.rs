//! What has to be known about an environment, as data.
//!
//! AgentGym's servers disagree about names of fields, shapes of replies and the meaning of a
//! reward; the client is written once and reads the differences from an [`EnvSpec`]. Adding
//! an environment whose server is somebody else's means adding a value to the list of these.

pub(crate) mod base;
mod remote;
pub(crate) mod types;

#[cfg(test)]
mod tests;

pub use types::*;

use crate::builtin;
use crate::error::EnvError;

/// Every environment that can be named; first those that are written in Rust.
pub fn all() -> impl Iterator<Item = &'static EnvSpec> {
    let own = builtin::ALL.iter().map(|row| row.spec);
    own.chain(&remote::REMOTE)
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
