//! What an environment that is written in Rust says of itself.

use std::fmt::Debug;
use std::sync::Arc;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::options::AddressOptions;
use crate::demonstration::Solver;
use crate::error::EnvError;
use crate::server::ServerOptions;
use crate::server::http::App;
use crate::spec::EnvSpec;

/// Why an argument of the command line does not do.
pub type ArgumentError = Box<dyn std::error::Error + Send + Sync>;

/// Told how many bytes of how many a long reading has behind it.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Reads what a solver needs.
pub(crate) type OpenSolver<'a> = Box<dyn FnOnce() -> Result<Arc<dyn Solver>, EnvError> + 'a>;

/// Tasks of one environment, as an address or a command line asks for them.
pub(crate) trait Tasks: Debug + Send + Sync {
    /// Looks at the files that a server would read, without opening one.
    fn check_files(&self) -> Result<(), EnvError> {
        Ok(())
    }

    /// A server's answers, with what has to be read for them.
    fn app(
        &self,
        options: &ServerOptions,
        progress: Progress<'_>,
    ) -> Result<Arc<dyn App>, EnvError>;

    /// The solver whose solutions are written in this style; "" is the plain one. Only the
    /// function that is returned reads files.
    fn solver(&self, _style: &str) -> Result<OpenSolver<'_>, String> {
        let problem = "this environment has no solver; demonstrations for it come from a file";
        Err(problem.to_owned())
    }

    /// The style of the solutions that the tokenizer of a preset is made from. `None`: it is
    /// made without them.
    fn corpus_style(&self) -> Option<&'static str> {
        None
    }
}

/// The facts of an environment that is written in Rust.
pub(crate) trait BuiltIn: Tasks + Sized + 'static {
    /// How clients speak to it.
    const SPEC: &'static EnvSpec;
    /// What its subcommand does, for the help text.
    const ABOUT: &'static str;
    /// The port that its subcommand listens on unless told otherwise.
    const PORT: u16;
    /// What follows `builtin` in addresses.
    const ADDRESSES: &'static [&'static str];
    /// The options of its subcommand.
    type Arguments: Args;

    /// Reads the options of an address; `name` is one of [`Self::ADDRESSES`].
    fn from_address(name: &str, options: &mut AddressOptions) -> Result<Self, EnvError>;

    /// Takes the options of the subcommand.
    fn from_arguments(arguments: Self::Arguments) -> Result<Self, ArgumentError>;
}

/// The tasks that were asked for.
type Asked<E> = Result<Arc<dyn Tasks>, E>;

/// No options at all.
#[derive(Args)]
pub(crate) struct NoArguments {}

/// An environment of the registry: `BuiltIn`, the same for all.
#[derive(Debug)]
pub struct Registered {
    /// How clients speak to it.
    pub spec: &'static EnvSpec,
    /// What its subcommand does.
    pub about: &'static str,
    /// The port that its subcommand listens on unless told otherwise.
    pub port: u16,
    /// Adds the options of its subcommand.
    pub arguments: fn(Command) -> Command,
    pub(crate) addresses: &'static [&'static str],
    pub(crate) from_address: fn(&str, &mut AddressOptions) -> Asked<EnvError>,
    pub(crate) from_matches: fn(&ArgMatches) -> Asked<ArgumentError>,
}

impl Registered {
    pub(crate) const fn of<B: BuiltIn>() -> Self {
        Self {
            spec: B::SPEC,
            about: B::ABOUT,
            port: B::PORT,
            arguments: B::Arguments::augment_args,
            addresses: B::ADDRESSES,
            from_address: |name, options| Ok(Arc::new(B::from_address(name, options)?)),
            from_matches: |matches| {
                let arguments = B::Arguments::from_arg_matches(matches)?;
                Ok(Arc::new(B::from_arguments(arguments)?))
            },
        }
    }
}
