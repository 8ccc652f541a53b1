//! Preference pairs from two trajectory files, `{item_id, conversations, reward}` as AgentGym's
//! evaluators write them: a JSON array or one object per line.
//!
//! Of several trajectories of a task, the best of the expert file and the worst of the experience
//! file are used. A task in both files makes a pair if the rewards differ by at least
//! `dpo.reward_gap` and the better reward is at least `dpo.expert_threshold`. The better trajectory
//! is the chosen one, whichever file it is from.

use crate::demonstrations::{Conversation, Line};
use crate::{Error, Result};
use agentgym_jobs::config::Dpo;
use agentgym_record::metrics::Pairs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A trajectory as written. An expert trajectory without a reward counts as 1.
#[derive(Debug, Clone, Deserialize)]
struct Trajectory {
    item_id: String,
    conversations: Vec<Line>,
    #[serde(default)]
    reward: Option<f64>,
    #[serde(default)]
    tools: Option<serde_json::Value>,
}

/// Two answers to the same prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pair {
    pub(crate) item_id: String,
    /// The messages that both answers begin with.
    pub(crate) prompt: Vec<Line>,
    pub(crate) chosen: Vec<Line>,
    pub(crate) rejected: Vec<Line>,
    pub(crate) chosen_reward: f64,
    pub(crate) rejected_reward: f64,
    /// What both may call, where anything may be called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tools: Option<serde_json::Value>,
    /// File and row of the chosen and of the rejected answer, for messages.
    #[serde(skip)]
    pub(crate) rows: [String; 2],
}

impl Pair {
    /// File and row of an answer.
    pub(crate) fn from(&self, chosen: bool) -> &str {
        &self.rows[usize::from(!chosen)]
    }

    /// One of the two answers with its prompt, which is not trained on.
    pub(crate) fn conversation(&self, chosen: bool, reply_prefix: Option<&str>) -> Conversation {
        let shown = self.prompt.iter().map(|line| Line {
            loss: Some(false),
            ..line.clone()
        });
        let answer = if chosen { &self.chosen } else { &self.rejected };
        Conversation {
            conversations: shown.chain(answer.iter().cloned()).collect(),
            ids: None,
            item_id: Some(self.item_id.clone()),
            tools: self.tools.clone(),
            reply_prefix: reply_prefix.map(str::to_owned),
        }
    }
}

/// By item id: row, reward and trajectory.
type Kept = BTreeMap<String, (usize, f64, Trajectory)>;

/// Builds the pairs, sorted by item id. Each file comes with its name for messages.
///
/// # Errors
/// A file that cannot be read, a row with a missing field, answers to different prompts, or no pair
/// at all.
pub(crate) fn build(
    options: &Dpo,
    expert: (&str, &[u8]),
    experience: (&str, &[u8]),
) -> Result<(Vec<Pair>, Pairs)> {
    let best = keep(expert, Some(1.0), |new, old| new > old)?;
    let worst = keep(experience, None, |new, old| new < old)?;
    let mut counts = Pairs {
        without_counterpart: worst.keys().filter(|id| !best.contains_key(*id)).count(),
        ..Pairs::default()
    };
    let mut pairs = Vec::new();
    for (id, (expert_row, expert_reward, ours)) in best {
        let Some((row, reward, theirs)) = worst.get(&id) else {
            counts.without_counterpart += 1;
            continue;
        };
        let length = options.prompt_length;
        let (prompt, chosen) = cut(expert.0, expert_row, &ours, length)?;
        let (other, rejected) = cut(experience.0, *row, theirs, length)?;
        let same = prompt.iter().zip(other).all(|(a, b)| a.value == b.value);
        if !same || ours.tools != theirs.tools {
            return Err(Error::stage(format!(
                "{} row {expert_row} and {} row {row} ({id}) do not begin with the same {length} messages \
                 (dpo.prompt_length) and tools: a pair needs a common prompt",
                expert.0, experience.0
            )));
        }
        if (expert_reward - reward).abs() < options.reward_gap {
            counts.below_gap += 1;
            continue;
        }
        if expert_reward.max(*reward) < options.expert_threshold {
            counts.below_threshold += 1;
            continue;
        }
        let mut pair = Pair {
            prompt: prompt.to_vec(),
            chosen: chosen.to_vec(),
            rejected: rejected.to_vec(),
            chosen_reward: expert_reward,
            rejected_reward: *reward,
            tools: ours.tools.clone(),
            item_id: id,
            rows: [
                format!("{} row {expert_row}", expert.0),
                format!("{} row {row}", experience.0),
            ],
        };
        if *reward > expert_reward {
            pair.rows.swap(0, 1);
            std::mem::swap(&mut pair.chosen, &mut pair.rejected);
            std::mem::swap(&mut pair.chosen_reward, &mut pair.rejected_reward);
        }
        pairs.push(pair);
    }
    counts.pairs = pairs.len();
    if pairs.is_empty() {
        return Err(Error::stage(format!(
            "{} and {} make no pair: {} tasks are in one file only, {} are closer than dpo.reward_gap = {}, \
             the better one of {} is below dpo.expert_threshold = {}",
            expert.0,
            experience.0,
            counts.without_counterpart,
            counts.below_gap,
            options.reward_gap,
            counts.below_threshold,
            options.expert_threshold
        )));
    }
    Ok((pairs, counts))
}

/// Keeps one trajectory per task: the first, unless a later one is `better`.
fn keep(
    (what, bytes): (&str, &[u8]),
    reward_default: Option<f64>,
    better: fn(f64, f64) -> bool,
) -> Result<Kept> {
    let mut kept = Kept::new();
    for (row, trajectory) in rows(what, bytes)?.into_iter().enumerate() {
        let reward = trajectory.reward.or(reward_default);
        let reward = reward.filter(|reward| reward.is_finite()).ok_or_else(|| {
            Error::stage(format!(
                "{what} row {row} ({}): has no reward that is a number",
                trajectory.item_id
            ))
        })?;
        let id = trajectory.item_id.clone();
        let keeps = kept.get(&id).is_none_or(|(_, old, _)| better(reward, *old));
        if keeps {
            kept.insert(id, (row, reward, trajectory));
        }
    }
    Ok(kept)
}

fn rows(what: &str, bytes: &[u8]) -> Result<Vec<Trajectory>> {
    const SHAPE: &str = "{\"item_id\", \"conversations\": [{\"from\", \"value\"}], \"reward\"}";
    let text = std::str::from_utf8(bytes)
        .map_err(|e| Error::stage(format!("{what}: is not UTF-8 text: {e}")))?;
    let values: Vec<serde_json::Value> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text)
            .map_err(|e| Error::stage(format!("{what}: is not a JSON array of {SHAPE}: {e}")))?
    } else {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines
            .enumerate()
            .map(|(row, line)| {
                serde_json::from_str(line)
                    .map_err(|e| Error::stage(format!("{what} row {row}: is not JSON: {e}")))
            })
            .collect::<Result<_>>()?
    };
    values
        .into_iter()
        .enumerate()
        .map(|(row, value)| {
            serde_json::from_value(value)
                .map_err(|e| Error::stage(format!("{what} row {row}: expected {SHAPE}: {e}")))
        })
        .collect()
}

/// Prompt and answer of a trajectory.
fn cut<'a>(
    what: &str,
    row: usize,
    trajectory: &'a Trajectory,
    prompt_length: usize,
) -> Result<(&'a [Line], &'a [Line])> {
    let all = &trajectory.conversations;
    let answers = all.iter().skip(prompt_length);
    if !answers
        .clone()
        .any(|line| line.from == "gpt" || line.from == "assistant")
    {
        return Err(Error::stage(format!(
            "{what} row {row} ({}): has no reply after its first {prompt_length} messages (dpo.prompt_length)",
            trajectory.item_id
        )));
    }
    Ok(all.split_at(prompt_length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Dpo {
        let plan = crate::stages::testing::plan(&[]);
        Dpo {
            prompt_length: 1,
            ..plan.config.dpo
        }
    }

    fn row(id: &str, prompt: &str, reply: &str, reward: Option<f64>) -> serde_json::Value {
        let mut row = serde_json::json!({
            "item_id": id,
            "conversations": [
                {"from": "human", "value": prompt},
                {"from": "gpt", "value": reply, "loss": true},
            ],
        });
        if let Some(reward) = reward {
            row["reward"] = reward.into();
        }
        row
    }

    fn array(rows: &[serde_json::Value]) -> Vec<u8> {
        serde_json::to_vec(rows).unwrap()
    }

    fn built(expert: &[u8], experience: &[u8]) -> Result<(Vec<Pair>, Pairs)> {
        build(
            &options(),
            ("expert.json", expert),
            ("experience.jsonl", experience),
        )
    }

    #[test]
    fn thresholds_duplicates_and_sides() {
        let expert = array(&[
            row("t_1", "one", "good", None),
            row("t_2", "two", "fair", Some(0.5)),
            row("t_2", "two", "worse", Some(0.2)),
            row("t_3", "three", "equal", Some(0.9)),
            row("t_4", "four", "weak", Some(0.1)),
            row("t_5", "five", "alone", None),
        ]);
        let lines = [
            row("t_1", "one", "bad", Some(0.4)),
            row("t_1", "one", "worst", Some(0.0)),
            row("t_2", "two", "poor", Some(0.0)),
            row("t_3", "three", "equal too", Some(0.9)),
            row("t_4", "four", "better", Some(0.8)),
            row("t_6", "six", "alone too", Some(0.0)),
        ]
        .map(|row| row.to_string())
        .join("\n");
        let (pairs, counts) = built(&expert, lines.as_bytes()).unwrap();
        let shown: Vec<_> = pairs
            .iter()
            .map(|p| {
                (
                    p.item_id.as_str(),
                    p.chosen[0].value.as_str(),
                    p.rejected[0].value.as_str(),
                )
            })
            .collect();
        // For t_4 the experience trajectory is the better one.
        assert_eq!(shown, [("t_1", "good", "worst"), ("t_4", "better", "weak")]);
        assert_eq!(pairs[1].from(true), "experience.jsonl row 4");
        assert_eq!(pairs[1].from(false), "expert.json row 4");
        let expected = Pairs {
            pairs: 2,
            without_counterpart: 2,
            below_gap: 1,
            below_threshold: 1,
            too_long: 0,
        };
        assert_eq!(counts, expected);
        let whole = pairs[0].conversation(false, None);
        assert_eq!(whole.conversations[0].loss, Some(false));
        assert_eq!(whole.conversations[1].value, "worst");
    }

    #[test]
    fn bad_input_is_named_with_file_and_row() {
        let good = array(&[row("t_1", "one", "good", None)]);
        let message =
            |expert: &[u8], experience: &[u8]| built(expert, experience).err().unwrap().to_string();
        let other = array(&[row("t_1", "other", "bad", Some(0.0))]);
        let found = message(&good, &other);
        assert!(
            found.contains("common prompt") && found.contains("t_1"),
            "{found}"
        );
        let missing = array(&[row("t_1", "one", "bad", None)]);
        let found = message(&good, &missing);
        assert!(
            found.contains("experience.jsonl row 0") && found.contains("reward"),
            "{found}"
        );
        let found = message(&good, b"{\"conversations\": []}");
        assert!(
            found.contains("row 0") && found.contains("item_id"),
            "{found}"
        );
        let found = message(&good, &array(&[row("t_9", "one", "bad", Some(0.0))]));
        assert!(found.contains("make no pair"), "{found}");
        let silent = array(&[serde_json::json!({
            "item_id": "t_1", "conversations": [{"from": "human", "value": "one"}], "reward": 0.0,
        })]);
        let found = message(&good, &silent);
        assert!(
            found.contains("no reply after its first 1 messages"),
            "{found}"
        );
    }
}
