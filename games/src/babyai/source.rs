//! The source of worlds, which has no options.

use std::sync::Arc;

use super::demonstration::{Play, demonstration};
use super::game::BabyaiGame;
use super::server::Babyai;
use agentgym_envs::EnvError;
use agentgym_envs::builtin::options::Address;
use agentgym_envs::builtin::registered::{
    ArgumentError, BuiltIn, GameTasks, NoArguments, OpenSolver, ReadProgress,
};
use agentgym_envs::demonstration::{Demonstration, Solver};
use agentgym_envs::replica::Replica;
use agentgym_envs::server::ServerOptions;
use agentgym_envs::server::http::App;
use agentgym_envs::spec::EnvSpec;
use agentgym_envs::spec::games::babyai::SPEC;
use agentgym_envs::task_index::TaskIndex;

/// Every world is a function of its id.
#[derive(Debug)]
pub(crate) struct Source;

impl GameTasks for Source {
    fn app(&self, options: &ServerOptions, _: ReadProgress<'_>) -> Result<Arc<dyn App>, EnvError> {
        Ok(Arc::new(Babyai::new(options)))
    }

    fn solver(&self, style: &str) -> Result<OpenSolver<'_>, String> {
        let play = style.parse()?;
        Ok(Box::new(move || Ok(Arc::new(SeesAndPlans(play)))))
    }

    fn corpus_style(&self) -> Option<&'static str> {
        Some("")
    }

    fn replica(&self, item_id: i64) -> Result<Box<dyn Replica>, String> {
        let item = TaskIndex::from(item_id);
        Ok(Box::new(BabyaiGame::start(&item)?))
    }
}

/// Uses the offered actions for targets in view, and the planner for the others.
#[derive(Debug)]
struct SeesAndPlans(Play);

impl Solver for SeesAndPlans {
    fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration> {
        demonstration(item_id, self.0, instruction)
    }
}

impl BuiltIn for Source {
    const SPEC: &'static EnvSpec = &SPEC;
    const ABOUT: &'static str = "Serve BabyAI: goals in grids of rooms";
    const PORT: u16 = 36002;
    const ADDRESSES: &'static [Address] = &[Address::new(":babyai")];
    type Arguments = NoArguments;

    fn from_arguments(_: NoArguments) -> Result<Self, ArgumentError> {
        Ok(Self)
    }
}
