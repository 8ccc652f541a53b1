//! BabyAI: reach a goal given in words, in a grid of rooms seen from inside.
//!
//! An item's level is its number modulo 40, its world's seed the quotient. The rules are those of
//! AgentGym's server, world by world: macros are carried out to their end and the last move alone
//! counts; only what there is a way to is on the list of actions.

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
#[cfg(test)]
mod tests;
mod text;

pub use demonstration::Play;
pub use game::{BabyaiGame, BabyaiReply};
pub use level::LEVELS;
pub(crate) use source::Source;
