//! The source of mazes: there is only one maze, so there are no options.

use std::sync::Arc;

use super::server::MazeServer;
use super::spec::SPEC;
use crate::builtin::options::AddressOptions;
use crate::builtin::registered::{ArgumentError, BuiltIn, NoArguments, Progress, Tasks};
use crate::error::EnvError;
use crate::server::ServerOptions;
use crate::server::http::App;
use crate::spec::EnvSpec;

#[derive(Debug)]
pub(crate) struct Source;

impl Tasks for Source {
    fn app(&self, options: &ServerOptions, _: Progress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(MazeServer::new(options)))
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve the maze; the base URL for clients ends in /maze";
    const PORT: u16 = 36006;
    const ADDRESSES: &'static [&'static str] = &[":maze"];
    type Arguments = NoArguments;

    fn from_address(_: &str, _: &mut AddressOptions) -> Result<Self, EnvError> {
        Ok(Self)
    }

    fn from_arguments(_: NoArguments) -> Result<Self, ArgumentError> {
        Ok(Self)
    }
}
