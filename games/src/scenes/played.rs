//! A recorded episode as its environment saw it, and its pictures.

use serde_json::Value;

/// What an episode recorded of its environment.
#[derive(Clone, Debug)]
pub struct PlayedTask<'a> {
    /// The task.
    pub item_id: i64,
    /// The first message; it ends with the first observation.
    pub prompt: &'a str,
    /// Of each turn the action that was sent, if any, and the observation.
    pub turns: Vec<(Option<&'a str>, &'a str)>,
}

/// Pictures of an episode, as JSON objects whose `kind` says how they are drawn.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Scenes {
    /// Before the first turn; none where each turn shows what it began with.
    pub start: Option<Value>,
    /// One per turn.
    pub turns: Vec<Value>,
}
