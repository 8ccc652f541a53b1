//! Selects the worlds: from an address or the options of the subcommand.

use std::sync::Arc;

use clap::Args;

use super::Compat;
use super::demonstration::{Play, demonstration};
use super::server::Babyai;
use super::spec::SPEC;
use crate::builtin::options::AddressOptions;
use crate::builtin::registered::{ArgumentError, BuiltIn, OpenSolver, Progress, Tasks};
use crate::demonstration::{Demonstration, Solver};
use crate::error::EnvError;
use crate::server::ServerOptions;
use crate::server::http::App;
use crate::spec::EnvSpec;

/// Every world is a function of its id and these values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    compat: Compat,
    /// Mixed into every world; with 0 a world depends only on its id.
    seed: u64,
}

impl Tasks for Source {
    fn app(&self, options: &ServerOptions, _: Progress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(Babyai::new(self.compat, self.seed, options)))
    }

    fn solver(&self, style: &str) -> Result<OpenSolver<'_>, String> {
        let play = style.parse()?;
        let source = *self;
        Ok(Box::new(move || {
            Ok(Arc::new(SeesAndPlans { source, play }))
        }))
    }

    fn corpus_style(&self) -> Option<&'static str> {
        Some("")
    }
}

/// Uses the offered actions for targets in view, and the planner for the others.
#[derive(Debug)]
struct SeesAndPlans {
    source: Source,
    play: Play,
}

impl Solver for SeesAndPlans {
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration> {
        let Source { compat, seed } = self.source;
        demonstration(item_id, seed, compat, self.play, instruction)
    }
}

#[derive(Args)]
pub(crate) struct Arguments {
    /// Keep the original's quirks: late successes continue, scores add up, orders are hidden,
    /// sessions closed before their first reset stay.
    #[arg(long)]
    compat: bool,
    /// Mixed into every world.
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve BabyAI: goals in grids of rooms";
    const PORT: u16 = 36002;
    const ADDRESSES: &'static [&'static str] = &[":babyai"];
    type Arguments = Arguments;

    fn from_address(_: &str, options: &mut AddressOptions) -> Result<Self, EnvError> {
        let words = [("fixed", Compat::Fixed), ("original", Compat::Original)];
        Ok(Self {
            compat: options.choice("compat", words)?,
            seed: options.number("seed", 0)?,
        })
    }

    fn from_arguments(arguments: Arguments) -> Result<Self, ArgumentError> {
        Ok(Self {
            compat: match arguments.compat {
                true => Compat::Original,
                false => Compat::Fixed,
            },
            seed: arguments.seed,
        })
    }
}
