//! What has to be known about an environment, as data.
//!
//! AgentGym's servers disagree about names of fields, shapes of replies and the meaning of a
//! reward; the client is written once and reads the differences from an [`EnvSpec`]. Adding
//! an environment means adding a value to [`ALL`].

mod all;
mod types;

#[cfg(test)]
mod tests;

pub use all::ALL;
pub use types::*;

use crate::error::EnvError;

/// The specification of this name (letter case does not matter).
pub fn spec(name: &str) -> Result<&'static EnvSpec, EnvError> {
    ALL.iter()
        .find(|spec| spec.name.eq_ignore_ascii_case(name))
        .ok_or_else(|| EnvError::UnknownSpec {
            name: name.to_owned(),
            known: ALL.iter().map(|s| s.name).collect::<Vec<_>>().join(", "),
        })
}
