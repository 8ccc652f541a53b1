//! The source of mazes: there is only one maze.

use std::sync::Arc;

use super::game::Maze;
use super::server::MazeServer;
use super::spec::SPEC;
use crate::builtin::options::Address;
use crate::builtin::registered::{ArgumentError, BuiltIn, NoArguments, Progress, Tasks};
use crate::error::EnvError;
use crate::replica::Replica;
use crate::server::ServerOptions;
use crate::server::http::App;
use crate::spec::EnvSpec;

#[derive(Debug)]
pub(crate) struct Source;

impl Tasks for Source {
    fn app(&self, options: &ServerOptions, _: Progress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(MazeServer::new(options)))
    }

    fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String> {
        let game = Maze::start(item_id);
        Ok(Box::new(
            game.map_err(|_| format!("there is no maze {item_id}"))?,
        ))
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve the maze; the base URL for clients ends in /maze";
    const PORT: u16 = 36006;
    const ADDRESSES: &'static [Address] = &[Address::new(":maze")];
    type Arguments = NoArguments;

    fn from_arguments(_: NoArguments) -> Result<Self, ArgumentError> {
        Ok(Self)
    }
}
