//! Selects the games: from an address or the options of the subcommand.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::game::{Wordle, Words};
use super::scene::Board;
use super::server::WordleServer;
use agentgym_envs::EnvError;
use agentgym_envs::builtin::options::{Address, number};
use agentgym_envs::builtin::registered::{ArgumentError, BuiltIn, GameTasks, ReadProgress};
use agentgym_envs::files::read_text;
use agentgym_envs::replica::Replica;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::App;
use agentgym_envs::spec::EnvSpec;
use agentgym_envs::spec::games::wordle::SPEC;

/// Every game is a function of its id and this seed.
#[derive(Args, Debug)]
pub(crate) struct Source {
    /// Mixed into every game.
    #[arg(long, default_value_t = 0, value_parser = number::<u64>)]
    seed: u64,
    /// A list of words of five letters, one on each line, in place of our own forty.
    #[arg(long, value_name = "FILE")]
    words: Option<PathBuf>,
}

impl Source {
    fn words(&self) -> Result<Words, EnvError> {
        let Some(path) = &self.words else {
            return Ok(Words::own());
        };
        let words = read_text(path).and_then(|text| Words::parse(&text));
        words.map_err(|problem| EnvError::Words {
            path: path.clone(),
            problem,
        })
    }
}

impl GameTasks for Source {
    fn check_files(&self) -> Result<(), EnvError> {
        self.words().map(drop)
    }

    fn app(&self, options: &ServerOptions, _: ReadProgress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(WordleServer::new(
            self.words()?,
            self.seed,
            options,
        )))
    }

    fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String> {
        let words = Arc::new(self.words().map_err(|e| e.to_string())?);
        let game = Wordle::start(&words, self.seed, &item_id.to_string());
        Ok(Box::new(Board::new(game)))
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve Wordle; the base URL for clients ends in /wordle";
    const PORT: u16 = 36007;
    const ADDRESSES: &'static [Address] = &[Address::new(":wordle")];
    type Arguments = Self;

    fn from_arguments(arguments: Self) -> Result<Self, ArgumentError> {
        Ok(arguments)
    }
}
