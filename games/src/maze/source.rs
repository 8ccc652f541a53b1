//! The source of mazes: there is only one maze.

use std::sync::Arc;

use super::game::Maze;
use super::server::MazeServer;
use agentgym_envs::EnvError;
use agentgym_envs::builtin::options::Address;
use agentgym_envs::builtin::registered::{
    ArgumentError, BuiltIn, GameTasks, NoArguments, ReadProgress,
};
use agentgym_envs::replica::Replica;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::App;
use agentgym_envs::spec::EnvSpec;
use agentgym_envs::spec::games::maze::SPEC;

#[derive(Debug)]
pub(crate) struct Source;

impl GameTasks for Source {
    fn app(&self, options: &ServerOptions, _: ReadProgress<'_>) -> Result<Arc<dyn App>, EnvError> {
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
