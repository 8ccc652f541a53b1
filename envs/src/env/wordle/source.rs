//! Selects the games: from an address or the options of the subcommand.

use std::sync::Arc;

use clap::Args;

use super::server::WordleServer;
use super::spec::SPEC;
use crate::builtin::options::AddressOptions;
use crate::builtin::registered::{ArgumentError, BuiltIn, Progress, Tasks};
use crate::error::EnvError;
use crate::server::ServerOptions;
use crate::server::http::App;
use crate::spec::EnvSpec;

/// Every game is a function of its id and this seed.
#[derive(Args, Debug)]
pub(crate) struct Source {
    /// Mixed into every game.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Tasks for Source {
    fn app(&self, options: &ServerOptions, _: Progress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(WordleServer::new(self.seed, options)))
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve Wordle; the base URL for clients ends in /wordle";
    const PORT: u16 = 36007;
    const ADDRESSES: &'static [&'static str] = &[":wordle"];
    type Arguments = Self;

    fn from_address(_: &str, options: &mut AddressOptions) -> Result<Self, EnvError> {
        let seed = options.number("seed", 0)?;
        Ok(Self { seed })
    }

    fn from_arguments(arguments: Self) -> Result<Self, ArgumentError> {
        Ok(arguments)
    }
}
