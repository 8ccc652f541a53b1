//! A game that is played again for somebody who wants to see it.
//!
//! Each game has its own file with its [`Replica`]; `scenes` of the crate `games` plays a recorded episode's
//! actions in one and compares every observation.

use serde_json::Value;

/// A game in progress, outside of any server.
pub trait Replica: Send {
    /// The first observation.
    fn first(&self) -> String;

    /// Plays an action as it was sent, and returns the observation.
    fn step(&mut self, action: &str) -> String;

    /// What the game looks like now: an object whose `kind` says how it is drawn.
    fn picture(&self) -> Value;
}
