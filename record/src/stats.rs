//! What an attempt measured: rates, times and counts that no artifact may hold. `docs/metrics.md`
//! explains every name.

use crate::{Error, Result};
use agentgym_jobs::pipeline::PartId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Each stage has some of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    pub busy_s: Option<f64>,
    pub store_s: Option<f64>,
    pub store_waited_s: Option<f64>,
    pub put_bytes: Option<u64>,
    pub got_bytes: Option<u64>,
    pub got_ahead_bytes: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    pub updates_made_again: Option<u64>,
    pub made_again_s: Option<f64>,
    pub put_after_bytes: Option<u64>,
    pub parameters: Option<u64>,
    pub adapter_parameters: Option<u64>,
    pub sampled_tokens: Option<u64>,
    pub sampled_tokens_per_s: Option<f64>,
    pub scored_tokens: Option<u64>,
    pub scored_tokens_per_s: Option<f64>,
    pub trained_tokens: Option<u64>,
    pub trained_tokens_per_s: Option<f64>,
    pub log_prob_mismatch_max: Option<f64>,
    pub prompt_tokens_shared: Option<u64>,
    pub policy_s: Option<f64>,
    pub probe_distance: Option<f64>,
    pub probe_separation: Option<f64>,
    pub probe_tells_apart: Option<bool>,
    pub chat_answers: Option<u64>,
    pub chat_answers_uncounted: Option<u64>,
    pub chat_tokens_in: Option<u64>,
    pub chat_tokens_out: Option<u64>,
    /// In the currency of the prices; `None` where some answers did not say what they took.
    pub chat_cost: Option<f64>,
    pub env_s: Option<f64>,
    pub env_calls: Option<u64>,
    pub env_call_fault_rate: Option<f64>,
    /// Failed calls by kind.
    pub env_call_faults: Option<BTreeMap<String, u64>>,
    pub env_sessions_leaked: Option<u64>,
    pub env_servers_away: Option<Vec<String>>,
    pub env_characters_replaced: Option<u64>,
    pub episodes_replayed: Option<usize>,
    pub episodes_taken_up: Option<u64>,
    pub episodes_resumed: Option<u64>,
    pub episodes_begun_anew: Option<u64>,
    pub journalled_tokens: Option<u64>,
    pub taken_up_tokens: Option<u64>,
    pub sampled_twice_tokens: Option<u64>,
    #[serde(flatten)]
    pub turns: Option<Turns>,
}

/// What the watchdog counts in an iteration's episodes, beside their metrics, whose bytes stay as they
/// are.
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

impl Stats {
    /// Reads what the record of an attempt at `part` says.
    ///
    /// # Errors
    /// One of them has another type than this program gives it.
    pub fn read(part: PartId, stats: &Map<String, Value>) -> Result<Self> {
        Self::deserialize(stats).map_err(|e| Error::Unreadable {
            file: "the stats",
            of: part.to_string(),
            why: e.to_string(),
        })
    }

    /// As records have them: without those that were not measured.
    pub fn to_map(&self) -> Map<String, Value> {
        let Ok(Value::Object(mut stats)) = serde_json::to_value(self) else {
            return Map::new();
        };
        stats.retain(|_, value| !value.is_null());
        stats
    }

    /// Tokens that a policy sampled, and their rate.
    pub fn sampled(&mut self, tokens: u64, seconds: f64) {
        (self.sampled_tokens, self.sampled_tokens_per_s) = rate(tokens, seconds);
    }

    /// Tokens that were scored, once for each model.
    pub fn scored(&mut self, tokens: u64, seconds: f64) {
        (self.scored_tokens, self.scored_tokens_per_s) = rate(tokens, seconds);
    }

    /// Tokens of all training steps.
    pub fn trained(&mut self, tokens: u64, seconds: f64) {
        (self.trained_tokens, self.trained_tokens_per_s) = rate(tokens, seconds);
    }
}

fn rate(tokens: u64, seconds: f64) -> (Option<u64>, Option<f64>) {
    (Some(tokens), Some(tokens as f64 / seconds.max(1e-9)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::pipeline::BASE_PART as PART;
    use serde_json::json;

    /// Names are those of all versions; what was not measured is left out, and what another program
    /// measured is no error.
    #[test]
    fn stats_keep_their_names() {
        let counted = r#"
            parameters adapter_parameters peak_memory_bytes put_bytes got_bytes got_ahead_bytes sampled_tokens
            updates_made_again put_after_bytes
            scored_tokens trained_tokens prompt_tokens_shared chat_answers chat_answers_uncounted chat_tokens_in
            chat_tokens_out env_calls env_sessions_leaked env_characters_replaced episodes_replayed
            episodes_taken_up episodes_resumed episodes_begun_anew journalled_tokens taken_up_tokens
            sampled_twice_tokens turns turns_unparsed turns_cut groups_compared groups_identical"#;
        let measured = r#"
            busy_s made_again_s store_s store_waited_s sampled_tokens_per_s scored_tokens_per_s trained_tokens_per_s
            log_prob_mismatch_max policy_s probe_distance probe_separation chat_cost env_s env_call_fault_rate"#;
        let mut all = json!({
            "probe_tells_apart": true, "env_call_faults": {"timeout": 1}, "env_servers_away": ["url"],
        });
        for (names, value) in [(counted, json!(9)), (measured, json!(0.5))] {
            for name in names.split_whitespace() {
                all[name] = value.clone();
            }
        }
        let all = all.as_object().unwrap();
        assert_eq!(Stats::read(PART, all).unwrap().to_map(), *all);
        let mut some = Stats::default();
        some.trained(10, 2.0);
        let written = json!({"trained_tokens": 10, "trained_tokens_per_s": 5.0});
        assert_eq!(some.to_map(), *written.as_object().unwrap());
        let other = json!({"trained_tokens": 10, "trained_tokens_per_s": 5.0, "of_tomorrow": [1]});
        assert_eq!(Stats::read(PART, other.as_object().unwrap()).unwrap(), some);
        let wrong = json!({"trained_tokens": "many"});
        let why = Stats::read(PART, wrong.as_object().unwrap()).unwrap_err();
        assert!(why.to_string().contains("the stats of 0/init/0"), "{why}");
    }
}
