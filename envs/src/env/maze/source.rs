//! The source of mazes: there is only one maze, whose items are in the order of the rules.

use std::sync::Arc;

use super::game::Maze;
use super::server::MazeServer;
use super::spec::SPEC;
use crate::builtin::options::{AddressOptions, RulesArgument, RulesVersion};
use crate::builtin::registered::{ArgumentError, BuiltIn, Progress, Tasks};
use crate::error::EnvError;
use crate::replica::Replica;
use crate::server::ServerOptions;
use crate::server::http::App;
use crate::spec::EnvSpec;

#[derive(Debug)]
pub(crate) struct Source(RulesVersion);

impl Tasks for Source {
    fn app(&self, options: &ServerOptions, _: Progress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(MazeServer::new(self.0, options)))
    }

    fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String> {
        let game = Maze::start(item_id, self.0);
        Ok(Box::new(
            game.map_err(|_| format!("there is no maze {item_id}"))?,
        ))
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve the maze; the base URL for clients ends in /maze";
    const PORT: u16 = 36006;
    const ADDRESSES: &'static [&'static str] = &[":maze"];
    type Arguments = RulesArgument;

    fn from_address(_: &str, options: &mut AddressOptions) -> Result<Self, EnvError> {
        Ok(Self(options.rules()))
    }

    fn from_arguments(arguments: RulesArgument) -> Result<Self, ArgumentError> {
        Ok(Self(arguments.rules))
    }
}
