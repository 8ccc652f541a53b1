//! One task as the policy that training began with and the last one play it, side by side.

use crate::metrics::RunMetrics;
use crate::runs::RunView;
use crate::text::{many, one_line};
use crate::{Result, metrics};
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_jobs::pipeline::{PartId, Stage};

/// Characters of a column; both and their margins fit a terminal of 80.
const COLUMN: usize = 37;

/// Turns shown of each.
const TURNS_MAX: usize = 8;

/// Of the first evaluation set with such a task, the one that the start failed and the last
/// one solved in the fewest turns of both: what each did. Empty where there is none. What cannot be
/// read is said: the run is none the less finished.
pub async fn before_and_after(view: &RunView, book: &RunMetrics) -> String {
    let shown = found(view, book).await;
    shown.unwrap_or_else(|error| format!("episodes of evaluations cannot be shown: {error}\n"))
}

async fn found(view: &RunView, book: &RunMetrics) -> Result<String> {
    let evaluations = book.evaluations(&view.plan);
    let Some((last, earlier)) = evaluations.split_last() else {
        return Ok(String::new());
    };
    // After a warm start, if there was one.
    let start = earlier.iter().rfind(|row| row.iteration == 0);
    let Some(first) = start.filter(|_| !metrics::is_all(&view.plan)) else {
        return Ok(String::new());
    };
    let sets = &view.plan.config.evaluation.sets;
    for (part, set) in sets.iter().enumerate() {
        let mut both = Vec::new();
        for row in [first, last] {
            let stage = match row.before_warm_start {
                true => Stage::EvaluateInit,
                false => Stage::Evaluate,
            };
            let id = PartId {
                iteration: row.iteration,
                stage,
                part: part as u32,
            };
            let Some(manifest) = view.manifest(id).await? else {
                break;
            };
            let episodes: Episodes = view.payload(&manifest, artifact_names::EPISODES).await?;
            both.push(episodes.into_vec());
        }
        let [before, after] = &both[..] else {
            continue;
        };
        if let Some((before, after)) = learnt(before, after, view.plan.config.evaluation.samples) {
            let columns = [(first.label.as_str(), before), (last.label.as_str(), after)];
            return Ok(side_by_side(&set.name, columns));
        }
    }
    Ok(String::new())
}

/// The pair to show. `greedy` is the number of the greedy sample, where there is one.
fn learnt<'a>(
    before: &'a [Episode],
    after: &'a [Episode],
    greedy: u32,
) -> Option<(&'a Episode, &'a Episode)> {
    let pairs = before.iter().filter_map(|one| {
        let same = |two: &&Episode| (two.group, two.sample) == (one.group, one.sample);
        Some((one, after.iter().find(same)?))
    });
    let learnt = pairs.filter(|(one, two)| one.usable() && !one.success && two.success);
    // A greedy one, if there is any: nothing of it is chance.
    learnt.min_by_key(|(one, two)| (one.sample != greedy, one.turns.len() + two.turns.len()))
}

fn side_by_side(set: &str, columns: [(&str, &Episode); 2]) -> String {
    let (_, before) = columns[0];
    let lines = || before.prompt.lines().filter(|line| !line.trim().is_empty());
    let names_goal = |line: &&str| line.to_lowercase().contains("goal:");
    let goal = lines().rfind(names_goal).or_else(|| lines().next_back());
    let mut out = format!(
        "a task of {set} before and after, item {}: {}\n",
        before.task.item_id,
        one_line(goal.unwrap_or_default(), 2 * COLUMN)
    );
    let cells = columns.map(|(label, episode)| {
        let ended = format!(
            "{label}: {} in {}",
            episode.outcome.name(),
            many(episode.turns.len() as u64, "turn")
        );
        let mut lines = vec![one_line(&ended, COLUMN)];
        for turn in episode.turns.iter().take(TURNS_MAX) {
            let said = turn.action.as_deref().unwrap_or(&turn.text);
            lines.push(one_line(said.trim(), COLUMN));
            lines.push(one_line(
                &format!("  → {}", turn.observation.trim()),
                COLUMN,
            ));
        }
        let left = episode.turns.len().saturating_sub(TURNS_MAX);
        lines.extend((left > 0).then(|| format!("… {} more", many(left as u64, "turn"))));
        lines
    });
    for row in 0..cells[0].len().max(cells[1].len()) {
        let cell = |column: usize| cells[column].get(row).map_or("", String::as_str);
        let line = format!("  {:<COLUMN$}  {}", cell(0), cell(1));
        out += line.trim_end();
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::episode::{Finish, Outcome, Parse, Task, Turn};

    fn episode(group: u32, sample: u32, solved: bool, turns: &[(&str, &str)]) -> Episode {
        let turn = |(action, observation): &(&str, &str)| Turn {
            sequence: 0,
            context: (0, 0),
            policy: (0, 0),
            text: format!("Action: {action}"),
            action: Some((*action).to_owned()),
            parse: Parse::Clean,
            observation: (*observation).to_owned(),
            reward: None,
            done: false,
            finish: Finish::Eos,
            policy_iteration: 0,
        };
        Episode {
            task: Task {
                env: "textcraft".into(),
                item_id: i64::from(group) + 70,
            },
            group,
            sample,
            outcome: if solved {
                Outcome::Solved
            } else {
                Outcome::Horizon
            },
            success: solved,
            reward: 0.0,
            prompt: "Crafting commands:\n…\n\nGoal: craft planks.\n".into(),
            sequences: Vec::new(),
            turns: turns.iter().map(turn).collect(),
            fault: None,
            extra: Vec::new(),
        }
    }

    #[test]
    fn the_shortest_greedy_task_that_was_learnt_is_shown() {
        let long = [("get 1 log", "Got 1 log"); 9];
        let refused = [("get 1 \u{1b}[31mlog", "Could not find log"); 2];
        let made = [(
            "craft planks using 1 log",
            "Crafted 4 minecraft:planks, which is more than fits",
        )];
        let before = [
            episode(0, 2, false, &long),
            episode(1, 2, false, &refused),
            episode(2, 0, false, &made),
            episode(3, 2, true, &made),
        ];
        let after: Vec<Episode> = (before.iter())
            .map(|e| episode(e.group, e.sample, true, &made))
            .collect();
        let (one, two) = learnt(&before, &after, 2).unwrap();
        assert_eq!((one.group, two.group), (1, 1));
        insta::assert_snapshot!(side_by_side("worlds", [("before training", one), ("iteration 9", two)]), @r"
        a task of worlds before and after, item 71: Goal: craft planks.
          before training: horizon in 2 turns    iteration 9: solved in 1 turn
          get 1 ␛[31mlog                         craft planks using 1 log
            → Could not find log                   → Crafted 4 minecraft:planks, whic…
          get 1 ␛[31mlog
            → Could not find log
        ");
        assert!(learnt(&after, &before, 2).is_none(), "nothing was learnt");
        let whole = side_by_side("worlds", [("before", &before[0]), ("after", two)]);
        assert!(whole.contains("… 1 turn more"), "{whole}");
        let mut listed = before[0].clone();
        listed.prompt = "Your goal: open the door.\nAvailable actions: [\"left\"]".into();
        let whole = side_by_side("rooms", [("before", &listed), ("after", two)]);
        assert!(
            whole.contains("item 70: Your goal: open the door."),
            "{whole}"
        );
    }
}
