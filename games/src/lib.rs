//! The environments written in Rust: [`textcraft`], [`babyai`], [`searchqa`], Sokoban, a maze, Wordle,
//! the toolbox, and ScienceWorld over its Java simulator, each with its game, its server and, where
//! one exists, its solver; and the pictures of their episodes ([`scenes()`]).
//!
//! A program hands them in with [`provide`]: from then on `builtin:` addresses mean them, for whatever
//! in it plays, shows or checks a run. What trains does not depend on this crate.

pub mod babyai;
mod dataset;
mod draws;
mod maze;
mod scenes;
mod sciworld;
pub mod searchqa;
mod sokoban;
pub mod template;
pub mod textcraft;
mod toolbox;
mod wordle;

pub use scenes::{PlayedTask, Scenes, scenes};

use agentgym_envs::builtin::{self, BuiltinAddress, Registered};
use agentgym_envs::{EnvError, ServerHandle};

/// Every environment written in Rust.
pub static ALL: [Registered; 9] = [
    Registered::of::<textcraft::Source>(),
    Registered::of::<babyai::Source>(),
    Registered::of::<searchqa::Source>(),
    Registered::of::<maze::Source>(),
    Registered::of::<wordle::Source>(),
    Registered::of::<sokoban::Source>(),
    Registered::of::<sciworld::Source>(),
    Registered::of::<toolbox::Source>(),
    Registered::of::<dataset::Source>(),
];

/// Makes `builtin:` addresses of this process mean these environments.
pub fn provide() {
    builtin::provide(&ALL);
}

/// [`builtin::parse`] of one of these environments.
///
/// # Errors
/// An address that means nothing.
pub fn parse(address: &str) -> Result<BuiltinAddress, EnvError> {
    provide();
    builtin::parse(address)
}

/// [`builtin::start`] of one of these environments.
///
/// # Errors
/// An address that means nothing, or a server that cannot be started.
pub async fn start(address: &str) -> Result<ServerHandle, EnvError> {
    provide();
    builtin::start(address).await
}

#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;
#[cfg(test)]
mod tests;

/// Counts allocations: tests of the readers of untrusted bytes also check how much memory they
/// allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
