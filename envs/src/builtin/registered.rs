//! The description of an environment written in Rust.

use std::fmt::Debug;
use std::sync::Arc;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::options::Address;
use crate::demonstration::Solver;
use crate::error::EnvError;
use crate::replica::Replica;
use crate::server::ServerOptions;
use crate::server::http::App;
use crate::spec::EnvSpec;

/// Why a command-line argument is invalid.
pub type ArgumentError = Box<dyn std::error::Error + Send + Sync>;

/// Gets the bytes read so far and in total, during a long read.
pub type ReadProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Reads the files that a solver needs.
pub type OpenSolver<'a> = Box<dyn FnOnce() -> Result<Arc<dyn Solver>, EnvError> + 'a>;

/// GameTasks of one environment, as selected by an address or a command line.
pub trait GameTasks: Debug + Send + Sync {
    /// Checks the files that a server would need, without reading them.
    fn check_files(&self) -> Result<(), EnvError> {
        Ok(())
    }

    /// The numbers of all tasks, where they are those of a file.
    fn items(&self) -> Result<Option<Vec<i64>>, EnvError> {
        Ok(None)
    }

    /// The server's handler, after reading the files that it needs.
    fn app(
        &self,
        options: &ServerOptions,
        progress: ReadProgress<'_>,
    ) -> Result<Arc<dyn App>, EnvError>;

    /// The solver that writes solutions in this style; "" is the plain one. Files are read only by
    /// the returned function.
    fn solver(&self, _style: &str) -> Result<OpenSolver<'_>, String> {
        let problem = "this environment has no solver; demonstrations for it come from a file";
        Err(problem.to_owned())
    }

    /// A task to be played again and looked at. Reads the files that the tasks need. `Err`: why it
    /// cannot be.
    fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String>;

    /// The style of the solutions in the text that a preset's tokenizer is trained on. `None`: the
    /// text contains none.
    fn corpus_style(&self) -> Option<&'static str> {
        None
    }
}

/// The description of an environment written in Rust.
pub trait BuiltIn: GameTasks + Sized + 'static {
    /// Its HTTP behaviour, for clients.
    const SPEC: &'static EnvSpec;
    /// What its subcommand does, for the help text.
    const ABOUT: &'static str;
    /// The default port of its subcommand.
    const PORT: u16;
    /// Its addresses.
    const ADDRESSES: &'static [Address];
    /// The options of its subcommand.
    type Arguments: Args;

    /// Words that a preset's tokenizer should know, whatever the run plays.
    fn corpus_words() -> &'static [String] {
        &[]
    }

    /// Converts the options of the subcommand.
    fn from_arguments(arguments: Self::Arguments) -> Result<Self, ArgumentError>;

    /// Converts the same options of an address, which may be in a plan that another person made.
    fn from_address(arguments: Self::Arguments) -> Result<Self, ArgumentError> {
        Self::from_arguments(arguments)
    }
}

/// The selected tasks.
type Asked = Result<Arc<dyn GameTasks>, ArgumentError>;

/// For subcommands without options.
#[derive(Args)]
pub struct NoArguments {}

/// An entry of the registry: the items of `BuiltIn` as a value, of one type for all environments.
#[derive(Debug)]
pub struct Registered {
    /// Its HTTP behaviour, for clients.
    pub spec: &'static EnvSpec,
    /// What its subcommand does.
    pub about: &'static str,
    /// The default port of its subcommand.
    pub port: u16,
    /// Adds the options of its subcommand.
    pub arguments: fn(Command) -> Command,
    /// See [`BuiltIn::corpus_words`].
    pub corpus_words: fn() -> &'static [String],
    /// Its addresses.
    pub addresses: &'static [Address],
    pub(crate) from_address: fn(&ArgMatches) -> Asked,
    pub(crate) from_matches: fn(&ArgMatches) -> Asked,
}

impl Registered {
    /// The entry of an environment.
    pub const fn of<B: BuiltIn>() -> Self {
        Self {
            spec: B::SPEC,
            about: B::ABOUT,
            port: B::PORT,
            arguments: B::Arguments::augment_args,
            corpus_words: B::corpus_words,
            addresses: B::ADDRESSES,
            from_address: |matches| {
                let arguments = B::Arguments::from_arg_matches(matches)?;
                Ok(Arc::new(B::from_address(arguments)?))
            },
            from_matches: |matches| {
                let arguments = B::Arguments::from_arg_matches(matches)?;
                Ok(Arc::new(B::from_arguments(arguments)?))
            },
        }
    }
}
