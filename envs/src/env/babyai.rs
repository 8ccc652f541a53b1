//! BabyAI: reach a goal given in words, in a grid of rooms seen from inside.
//!
//! An item's level is its number modulo 40, its world's seed the quotient. There are two sets of
//! rules: those of AgentGym's server, world by world ([`Rules::AgentGym`]), and those of before.

mod before;
mod demonstration;
mod game;
mod grid;
mod level;
mod mission;
mod original;
mod planner;
mod scene;
pub(crate) mod server;
mod source;
mod spec;
#[cfg(test)]
mod tests;
mod text;

pub use before::Compat;
pub use demonstration::Play;
pub use game::{BabyaiGame, BabyaiReply, Rules};
pub use level::LEVELS;
pub(crate) use source::Source;
