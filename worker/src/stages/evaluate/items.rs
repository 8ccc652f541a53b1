//! An evaluation task by task: one line per item with all of its samples, from which every metric
//! of the set can be recomputed, and the scores of any list of items.

use crate::Result;
use agentgym_algorithms::evaluation::{EvaluationScore, ItemSamples, score as score_of};
use agentgym_jobs::config::EvaluationSet;
use agentgym_jobs::episode::{Episode, Outcome};
use agentgym_jobs::plan::Plan;
use serde::Serialize;
use std::collections::BTreeMap;

/// A line of `items.jsonl`.
#[derive(Debug, Serialize)]
pub(super) struct Item {
    set: String,
    /// `<environment>_<item id>`.
    task: String,
    item_id: i64,
    categories: Vec<String>,
    /// At `evaluation.temperature`, in order.
    samples: Vec<Sample>,
    /// The additional greedy episode, if requested.
    greedy: Option<Sample>,
}

/// One episode of an item. A faulted one has only an outcome.
#[derive(Debug, Serialize)]
struct Sample {
    outcome: Outcome,
    success: Option<bool>,
    reward: Option<f64>,
    rounds: Option<usize>,
}

impl Sample {
    fn of(episode: &Episode) -> Self {
        let usable = episode.usable();
        Self {
            outcome: episode.outcome,
            success: usable.then_some(episode.success),
            reward: usable.then_some(episode.reward),
            rounds: usable.then_some(episode.turns.len()),
        }
    }
}

/// The items of a set, in the set's order. `episodes` are sorted by (group, sample).
pub(super) fn of(
    plan: &Plan,
    set: &EvaluationSet,
    part: u32,
    episodes: &[Episode],
) -> Result<Vec<Item>> {
    let samples = plan.config.evaluation.samples;
    let categories = set.categories_of(&format!("evaluation.sets[{part}]"))?;
    let items = episodes.chunk_by(|a, b| a.group == b.group).map(|group| {
        let task = &group[0].task;
        let inside = |(name, ids): (&String, &std::collections::BTreeSet<i64>)| {
            ids.contains(&task.item_id).then(|| name.clone())
        };
        let (sampled, greedy): (Vec<&Episode>, Vec<&Episode>) =
            group.iter().partition(|e| e.sample < samples);
        Item {
            set: set.name.clone(),
            task: task.to_string(),
            item_id: task.item_id,
            categories: categories.iter().filter_map(inside).collect(),
            samples: sampled.into_iter().map(Sample::of).collect(),
            greedy: greedy.first().map(|e| Sample::of(e)),
        }
    });
    Ok(items.collect())
}

/// One JSON line per item.
pub(super) fn to_jsonl(items: &[Item]) -> String {
    let line = |item| serde_json::to_string(item).expect("items are plain numbers and text") + "\n";
    items.iter().map(line).collect()
}

/// Scores the items, or those of one category.
pub(super) fn score(
    items: &[Item],
    ks: &[usize],
    category: Option<&String>,
) -> Result<EvaluationScore> {
    let wanted = items
        .iter()
        .filter(|item| category.is_none_or(|name| item.categories.contains(name)));
    let samples: Vec<ItemSamples> = wanted
        .map(|item| ItemSamples {
            rewards: item.samples.iter().filter_map(|s| s.reward).collect(),
            solved: item
                .samples
                .iter()
                .filter(|s| s.success == Some(true))
                .count(),
            rounds: item
                .samples
                .iter()
                .filter_map(|s| s.rounds.map(|rounds| rounds as f64))
                .collect(),
            faults: item.samples.iter().filter(|s| s.success.is_none()).count(),
        })
        .collect();
    Ok(score_of(&samples, ks)?)
}

/// The score of every category of the set.
pub(super) fn by_category(
    items: &[Item],
    set: &EvaluationSet,
    ks: &[usize],
) -> Result<BTreeMap<String, EvaluationScore>> {
    let names = set.categories.iter().flatten().map(|(name, _)| name);
    names
        .map(|name| Ok((name.clone(), score(items, ks, Some(name))?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::testing::{episode, plan};

    #[test]
    fn lines_and_categories_tell_the_same() {
        let plan = plan(&[
            "evaluation.samples=2",
            "evaluation.sets=[{name: s, env: textcraft, ids: 0..3, categories: {even: [0, 2], odd: [1]}}]",
        ]);
        let set = &plan.config.evaluation.sets[0];
        let episodes = [
            (0, 0, Outcome::Solved, 1.0),
            (0, 1, Outcome::Failed, 0.5),
            (0, 2, Outcome::Solved, 1.0),
            (1, 0, Outcome::EnvFault, 0.0),
            (1, 1, Outcome::EnvFault, 0.0),
            (1, 2, Outcome::Failed, 0.0),
            (2, 0, Outcome::Failed, 0.0),
            (2, 1, Outcome::EnvFault, 0.0),
            (2, 2, Outcome::Failed, 0.0),
        ]
        .map(|(group, sample, outcome, reward)| episode(group, sample, outcome, reward));
        let items = of(&plan, set, 0, &episodes).unwrap();
        let lines = to_jsonl(&items);
        let lines: Vec<serde_json::Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["task"], "textcraft_0");
        assert_eq!(lines[0]["samples"][1]["reward"], 0.5);
        assert_eq!(lines[0]["greedy"]["success"], true);
        assert_eq!(lines[1]["categories"][0], "odd");
        assert_eq!(lines[1]["samples"][0]["outcome"], "env_fault");
        assert!(lines[1]["samples"][0]["reward"].is_null(), "not a zero");

        let all = score(&items, &[1, 2], None).unwrap();
        assert_eq!((all.items, all.items_lost), (3, 1));
        assert_eq!(all.pass[&1].mean, 0.25, "greedy ones do not count");
        assert_eq!((all.pass[&2].mean, all.pass[&2].of), (1.0, 1));
        assert_eq!(all.fault_rate.unwrap().mean, 0.5);
        let by = by_category(&items, set, &[1]).unwrap();
        assert_eq!((by["even"].items, by["odd"].items_lost), (2, 1));
        assert!(by["odd"].avg.is_none());
    }
}
