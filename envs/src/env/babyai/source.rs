//! Selects the worlds: from an address or the options of the subcommand.

use std::sync::Arc;

use clap::Args;

use super::before::Compat;
use super::demonstration::{Play, demonstration};
use super::game::{BabyaiGame, Rules};
use super::server::Babyai;
use super::spec::SPEC;
use crate::builtin::options::{AddressOptions, RulesArgument, RulesVersion};
use crate::builtin::registered::{ArgumentError, BuiltIn, OpenSolver, Progress, Tasks};
use crate::demonstration::{Demonstration, Solver};
use crate::error::EnvError;
use crate::replica::Replica;
use crate::server::ServerOptions;
use crate::server::http::App;
use crate::spec::EnvSpec;
use crate::task_index::TaskIndex;

/// Every world is a function of its id and these values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source(Rules);

impl Tasks for Source {
    fn app(&self, options: &ServerOptions, _: Progress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(Babyai::new(self.0, options)))
    }

    fn solver(&self, style: &str) -> Result<OpenSolver<'_>, String> {
        let play = style.parse()?;
        let rules = self.0;
        Ok(Box::new(move || Ok(Arc::new(SeesAndPlans { rules, play }))))
    }

    fn corpus_style(&self) -> Option<&'static str> {
        Some("")
    }

    fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String> {
        let item = TaskIndex::from(item_id);
        Ok(Box::new(BabyaiGame::start(&item, self.0)?))
    }
}

/// Uses the offered actions for targets in view, and the planner for the others.
#[derive(Debug)]
struct SeesAndPlans {
    rules: Rules,
    play: Play,
}

impl Solver for SeesAndPlans {
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration> {
        demonstration(item_id, self.rules, self.play, instruction)
    }
}

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    rules: RulesArgument,
    /// By rules 1: keep the original's quirks: late successes continue, scores add up, orders are
    /// hidden, sessions closed before their first reset stay. Rules 2 always have them.
    #[arg(long)]
    compat: bool,
    /// By rules 1: mixed into every world.
    #[arg(long)]
    seed: Option<u64>,
}

impl Source {
    /// Only the rules of before have options.
    fn by(
        version: RulesVersion,
        compat: Option<Compat>,
        seed: Option<u64>,
    ) -> Result<Self, &'static str> {
        match version {
            RulesVersion::One => Ok(Self(Rules::Before {
                compat: compat.unwrap_or_default(),
                seed: seed.unwrap_or(0),
            })),
            RulesVersion::Two if compat.is_none() && seed.is_none() => Ok(Self(Rules::AgentGym)),
            RulesVersion::Two => Err(
                "compat and seed are options of rules 1; by rules 2 BabyAI is AgentGym's, habits \
                 and worlds: leave them out, or choose rules 1",
            ),
        }
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve BabyAI: goals in grids of rooms";
    const PORT: u16 = 36002;
    const ADDRESSES: &'static [&'static str] = &[":babyai"];
    type Arguments = Arguments;

    fn from_address(_: &str, options: &mut AddressOptions) -> Result<Self, EnvError> {
        let words = [("fixed", Compat::Fixed), ("original", Compat::Original)];
        let compat = options.choice_if_set("compat", words)?;
        let seed = options.number_if_set("seed")?;
        Self::by(options.rules(), compat, seed).map_err(|problem| options.bad(problem))
    }

    fn from_arguments(arguments: Arguments) -> Result<Self, ArgumentError> {
        let compat = arguments.compat.then_some(Compat::Original);
        Ok(Self::by(arguments.rules.rules, compat, arguments.seed)?)
    }
}
