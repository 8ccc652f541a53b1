//! What the watchdog counts in an iteration's episodes, in the stats of the attempt that read them: their
//! metrics' bytes stay as they are.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turns {
    pub turns: u64,
    /// Those without an action.
    pub turns_unparsed: u64,
    /// Those that `rollout.max_tokens` cut off.
    pub turns_cut: u64,
    /// Groups with more than one usable member.
    pub groups_compared: u64,
    /// Those among them whose members are the same text.
    pub groups_identical: u64,
}

impl Turns {
    /// Of an attempt's stats; `None` where an older program made them.
    pub fn of(stats: &Map<String, Value>) -> Option<Self> {
        serde_json::from_value(Value::Object(stats.clone())).ok()
    }

    /// As stats.
    pub fn stats(self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(stats)) => stats,
            _ => Map::new(),
        }
    }
}
