//! What the record of an episode says of the agent that played it, where that is none of this program's.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Entry of an episode's `extra`: how an agent behind a harness came to its turns, an [`AgentRecord`].
pub const AGENT: &str = "agent";

/// How an agent that this program only answers came to its turns. The turns stand in an order that their
/// ids decide, not their arrival: each conversation from its beginning on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentRecord {
    /// For each turn the one whose conversation it continues.
    pub continues: Vec<Option<u32>>,
    /// How the agent ended, in the harness's word.
    pub ended: String,
    /// Messages of the assistant that were not sampled here: edited, cut short or made up.
    pub unsampled_messages: u32,
    /// Replies that stand with their thoughts where the template leaves these out, since no id begins behind
    /// them.
    #[serde(skip_serializing_if = "is_zero")]
    pub kept_thoughts: u32,
    /// By field: the turns whose request asked for something else than the plan's.
    pub overridden: BTreeMap<String, u32>,
    /// Requests that were refused since no call or no room was left.
    pub refused: u32,
    /// Requests equal to one that was in flight: their arrival decided who got which answer.
    pub equal_at_once: u32,
    /// Recorded answers that the agent did not ask for when it was started again.
    pub not_asked_again: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl AgentRecord {
    /// Where a turn stands that does not continue the one before it.
    pub fn place(&self, turn: usize) -> Option<String> {
        match self.continues.get(turn)? {
            None => (turn > 0).then(|| "begins a conversation".to_owned()),
            Some(before) if *before as usize + 1 != turn => {
                Some(format!("continues turn {}", before + 1))
            }
            Some(_) => None,
        }
    }

    /// What else is to be known, in words.
    pub fn words(&self) -> String {
        let counts = [
            (
                self.unsampled_messages,
                "messages of the assistant not sampled here",
            ),
            (
                self.kept_thoughts,
                "replies with thoughts that the template leaves out",
            ),
            (self.refused, "requests refused"),
            (self.equal_at_once, "equal requests at once"),
            (self.not_asked_again, "recorded answers not asked for again"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts = counts.map(|(count, what)| format!("{count} {what}"));
        let fields = self.overridden.iter();
        let fields = fields.map(|(name, turns)| format!("{name} not heeded in {turns} turns"));
        let ended = [self.ended.clone()].into_iter();
        ended
            .chain(counts)
            .chain(fields)
            .collect::<Vec<_>>()
            .join(", ")
    }
}
