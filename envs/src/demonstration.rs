//! Conversations that solve tasks of the built-in environments, in the format of AgentGym's
//! trajectory files: what a warm start imitates.
//!
//! A conversation has the very shape of an episode of the trainer: the instruction and the
//! first observation are one human message, then model and environment take turns. It is
//! played in a game, so what the environment says is what it would say.

mod talk;

use crate::builtin::TaskSource;
use crate::env::babyai::{self, Compat, Play};
use crate::env::searchqa::{self, Library};
use crate::env::textcraft::{self, Style, Tasks};
use crate::error::EnvError;
use std::sync::Arc;
pub(crate) use talk::Talk;
pub use talk::{Demonstration, Message};

/// Solves the tasks of one source.
#[derive(Clone, Debug)]
pub enum Solver {
    /// Knows the recipe book.
    Textcraft(Tasks, Style),
    /// Takes what it sees by the actions that are offered, and knows the way where it does not.
    Babyai(Compat, u64, Play),
    /// Knows the answer, and searches until a passage shows it.
    Searchqa(Arc<Library>),
}

impl Solver {
    /// The solver of a source. `style` says how its solutions are written: see [`Style`] for
    /// TextCraft and [`Play`] for BabyAI; SearchQA has one way.
    pub fn new(source: &TaskSource, style: &str) -> Result<Self, EnvError> {
        Ok(match Told::parse(source, style)? {
            Told::Babyai(compat, seed, play) => Self::Babyai(compat, seed, play),
            Told::Searchqa => Self::Searchqa(Arc::new(source.library(|_, _| {})?)),
            Told::Textcraft(style) => Self::Textcraft(source.tasks()?, style),
        })
    }

    /// Whether the source's solver knows this style. Reads none of its files.
    pub fn check_style(source: &TaskSource, style: &str) -> Result<(), EnvError> {
        Told::parse(source, style).map(drop)
    }

    /// Solves a task and tells how; `None` if the solver does not know how.
    pub fn demonstrate(&self, item_id: i64, instruction: &str) -> Option<Demonstration> {
        match self {
            Self::Textcraft(tasks, style) => {
                textcraft::demonstration(&tasks.world(item_id), item_id, instruction, *style)
            }
            Self::Babyai(compat, seed, play) => {
                babyai::demonstration(item_id, *seed, *compat, *play, instruction)
            }
            Self::Searchqa(library) => searchqa::demonstration(library, item_id, instruction),
        }
    }
}

/// How solutions are written down.
enum Told {
    Babyai(Compat, u64, Play),
    Searchqa,
    Textcraft(Style),
}

impl Told {
    fn parse(source: &TaskSource, style: &str) -> Result<Self, EnvError> {
        let told = match source {
            TaskSource::Babyai { compat, seed } => {
                (style.parse()).map(|play| Self::Babyai(*compat, *seed, play))
            }
            TaskSource::Searchqa { .. } if style.trim().is_empty() => Ok(Self::Searchqa),
            TaskSource::Searchqa { .. } => Err(format!(
                "its solutions are told in one way; it knows no style {style:?}"
            )),
            _ => style.parse().map(Self::Textcraft),
        };
        told.map_err(|problem| EnvError::Address {
            address: format!("builtin:{}", source.env()),
            problem,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::parse;

    #[test]
    fn each_environment_with_a_solver_has_one_and_says_how_it_is_told() {
        let solver = |address: &str, style: &str| {
            let source = parse(address).expect("valid").source;
            Solver::new(&source, style)
        };
        for (address, item) in [
            ("builtin:worlds", "textcraft_7"),
            ("builtin:babyai", "babyai_7"),
            ("builtin:searchqa", "searchqa_7"),
        ] {
            let shown = solver(address, "").expect(address).demonstrate(7, "Do it.");
            let shown = shown.expect(address);
            assert_eq!(shown.item_id, item);
            let first = &shown.conversations[0];
            assert!(first.value.starts_with("Do it.\n\n") && first.from == "human");
            assert_eq!(shown.conversations.last().expect("some").from, "gpt");
        }
        for (address, style, words) in [
            ("builtin:babyai", "thought", "babyai knows wander=PERCENT"),
            ("builtin:searchqa", "goals=2", "told in one way"),
            ("builtin", "loud", "unknown style"),
            ("builtin:maze", "", "has no solver"),
        ] {
            let message = solver(address, style).expect_err(address).to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
