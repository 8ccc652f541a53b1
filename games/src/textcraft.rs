//! TextCraft: craft a goal item with text commands, using a list of recipes.
//!
//! The rules and the wording are those of AgentGym's server; the recipes are our own
//! ([`RecipeBook::builtin`]), Minecraft's ([`RecipeBook::from_folder`]) or invented from a
//! seed ([`Worlds`]).

mod book;
mod builtin;
mod demonstration;
mod folder;
mod game;
mod player;
mod scene;
pub(crate) mod server;
mod solver;
mod source;
mod task;
#[cfg(test)]
mod tests;
mod words;
mod world;
mod worlds;

pub use book::{Ingredient, Name, Recipe, RecipeBook};
pub use demonstration::{Style, demonstration};
pub use game::{Game, StepReply};
pub use solver::{Gather, Move, solve, solve_with};
pub(crate) use source::Source;
pub use task::Tasks;
pub use words::{Vocabulary, lexicon};
pub use world::{DISTRACTORS_MAX, World, required_lines};
pub use worlds::Worlds;
