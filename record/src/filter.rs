//! What an AgentEvol iteration trains on: of the episodes that reach their environment's threshold, the
//! best of each task, or all distinct ones. Trajectories that earlier iterations kept take part too,
//! unless `agentevol.accumulate` is off.
//!
//! Source: AgentEvol, arXiv:2406.04151.

use crate::iteration::episodes;
use crate::metrics::Kept as Counts;
use crate::{Error, Result, documents};
use agentgym_jobs::artifact_names::{EPISODES, LINEAGE};
use agentgym_jobs::config::{AgentEvol, Keep};
use agentgym_jobs::episode::{Episode, Task};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::trajectory::Lineage;
use agentgym_storage::Inputs;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The input that holds what earlier iterations kept.
const BEFORE: &str = "before";

/// A trajectory and its origin.
#[derive(Debug, Clone)]
pub struct Kept {
    pub lineage: Lineage,
    pub episode: Episode,
}

/// The candidates of an iteration.
#[derive(Debug, Clone, Default)]
pub struct Pool {
    /// What the previous iteration trained on.
    pub before: Vec<Kept>,
    /// The iteration's own, by group and sample.
    pub played: Vec<Kept>,
}

impl Pool {
    /// Reads the candidates from the inputs of the iteration's `filter`; `read` is called after each
    /// part.
    ///
    /// # Errors
    /// The store fails, or an input is not what its name says.
    pub async fn read(
        plan: &Plan,
        iteration: u32,
        inputs: &Inputs,
        read: impl Fn(),
    ) -> Result<Self> {
        let before = match inputs.names().any(|name| name == BEFORE) {
            true => kept(inputs, BEFORE).await?,
            false => Vec::new(),
        };
        let mut played = Vec::new();
        for part in 0..plan.rollout_parts() {
            let own = episodes(inputs, &format!("rollout.{part}"), EPISODES).await?;
            let own = own.into_iter().enumerate().map(|(index, episode)| Kept {
                lineage: lineage(iteration, part, index as u32, &episode),
                episode,
            });
            played.extend(own);
            read();
        }
        played.sort_by_key(|k| (k.episode.group, k.episode.sample));
        Ok(Self { before, played })
    }

    /// All of them: earlier trajectories, then this iteration's episodes.
    pub fn all(self) -> Vec<Kept> {
        let mut all = self.before;
        all.extend(self.played);
        all
    }
}

fn lineage(iteration: u32, part: u32, index: u32, episode: &Episode) -> Lineage {
    Lineage {
        iteration,
        part,
        episode: index,
        group: episode.group,
        sample: episode.sample,
        item_id: episode.task.to_string(),
        reward: episode.reward,
        success: episode.success,
        turns: episode.turns.len(),
    }
}

/// The trajectories that an iteration trains on, from the input that is its filter's commit.
///
/// # Errors
/// The store fails, or they do not belong to their origins.
pub async fn kept(inputs: &Inputs, input: &str) -> Result<Vec<Kept>> {
    let episodes = episodes(inputs, input, EPISODES).await?;
    let lineage: Vec<Lineage> = documents::read(inputs, input).await?;
    if lineage.len() != episodes.len() {
        return Err(Error::Stage(format!(
            "{LINEAGE} of the input `{input}` has {} rows for {} episodes",
            lineage.len(),
            episodes.len()
        )));
    }
    let both = lineage.into_iter().zip(episodes);
    Ok(both
        .map(|(lineage, episode)| Kept { lineage, episode })
        .collect())
}

/// What became of a candidate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// The iteration trains on it.
    Kept,
    /// Its reward does not reach the threshold of its environment, or the environment failed.
    BelowThreshold,
    /// It has more tokens than `sft.max_length`.
    TooLong,
    /// Another one of its task is better, or the same.
    Duplicate {
        /// The ones of the task that were kept.
        kept: Vec<Lineage>,
    },
}

/// A candidate of a filter and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// Where it was played.
    #[serde(flatten)]
    pub lineage: Lineage,
    /// Tokens of its longest sequence.
    pub tokens: usize,
    /// What became of it.
    #[serde(flatten)]
    pub fate: Fate,
}

/// The fate of every candidate of an iteration. The kept ones are those that the stage keeps.
pub fn candidates(plan: &Plan, iteration: u32, pool: Pool) -> Vec<Candidate> {
    let pool = pool.all();
    let (options, tokens_max) = (&plan.config.agentevol, plan.config.sft.max_length);
    let (kept, _) = filter(options, tokens_max, iteration, pool.clone());
    let own = |k: &Kept| (k.lineage.iteration, k.lineage.part, k.lineage.episode);
    let fate = |candidate: &Kept| {
        if let Some(verdict) = verdict(options, tokens_max, iteration, candidate) {
            return verdict;
        }
        let rivals = kept.iter();
        let rivals = rivals.filter(|k| k.episode.task == candidate.episode.task);
        match rivals.clone().any(|k| own(k) == own(candidate)) {
            true => Fate::Kept,
            false => Fate::Duplicate {
                kept: rivals.map(|k| k.lineage.clone()).collect(),
            },
        }
    };
    pool.iter()
        .map(|candidate| Candidate {
            tokens: longest(&candidate.episode),
            fate: fate(candidate),
            lineage: candidate.lineage.clone(),
        })
        .collect()
}

fn longest(episode: &Episode) -> usize {
    let lengths = episode.sequences.iter().map(|s| s.token_ids.len());
    lengths.max().unwrap_or(0)
}

/// Why a candidate cannot be kept, whatever the others are.
fn verdict(
    options: &AgentEvol,
    tokens_max: usize,
    iteration: u32,
    candidate: &Kept,
) -> Option<Fate> {
    let is_new = candidate.lineage.iteration == iteration;
    if is_new && !options.keeps(&candidate.episode) {
        Some(Fate::BelowThreshold)
    } else if longest(&candidate.episode) > tokens_max {
        Some(Fate::TooLong)
    } else {
        None
    }
}

/// Filters `pool`, which is sorted: earlier trajectories, then this iteration's episodes.
pub fn filter(
    options: &AgentEvol,
    tokens_max: usize,
    iteration: u32,
    pool: Vec<Kept>,
) -> (Vec<Kept>, Counts) {
    let mut counts = Counts::default();
    let mut good = Vec::new();
    for candidate in pool {
        match verdict(options, tokens_max, iteration, &candidate) {
            Some(Fate::BelowThreshold) => {
                counts.below_threshold += usize::from(candidate.episode.usable());
            }
            Some(_) => counts.too_long += 1,
            None => good.push(candidate),
        }
    }
    let candidates = good.len();
    let mut kept = match options.keep {
        Keep::Best => best(good),
        Keep::All => different(good),
    };
    kept.sort_by_key(|k| (k.lineage.iteration, k.lineage.group, k.lineage.sample));
    let tasks: BTreeSet<&Task> = kept.iter().map(|k| &k.episode.task).collect();
    counts.tasks_kept = tasks.len();
    counts.kept = kept.len();
    counts.kept_new = kept
        .iter()
        .filter(|k| k.lineage.iteration == iteration)
        .count();
    counts.duplicates = candidates - kept.len();
    (kept, counts)
}

/// One per task: the highest reward, then the fewest turns, then the first.
fn best(good: Vec<Kept>) -> Vec<Kept> {
    let mut by_task: BTreeMap<Task, Kept> = BTreeMap::new();
    for candidate in good {
        let better = by_task.get(&candidate.episode.task).is_none_or(|old| {
            let (new, old) = (&candidate.episode, &old.episode);
            new.reward > old.reward
                || (new.reward == old.reward && new.turns.len() < old.turns.len())
        });
        if better {
            by_task.insert(candidate.episode.task.clone(), candidate);
        }
    }
    by_task.into_values().collect()
}

/// Episodes whose replies differ from those of all earlier ones of the same task.
fn different(good: Vec<Kept>) -> Vec<Kept> {
    let mut seen: BTreeSet<(Task, Vec<String>)> = BTreeSet::new();
    let said = |k: &Kept| k.episode.turns.iter().map(|t| t.text.clone()).collect();
    good.into_iter()
        .filter(|k| seen.insert((k.episode.task.clone(), said(k))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{episode, plan};
    use agentgym_jobs::episode::{Finish, Outcome, Parse, Turn};

    fn options(overrides: &[&str]) -> AgentEvol {
        plan(overrides).config.agentevol
    }

    /// An episode of task `group` with one turn per element of `said`.
    fn played(iteration: u32, group: u32, sample: u32, reward: f64, said: &[&str]) -> Kept {
        let outcome = match reward >= 1.0 {
            true => Outcome::Solved,
            false => Outcome::Horizon,
        };
        let mut episode = episode(group, sample, outcome, reward);
        episode.turns = said
            .iter()
            .map(|text| Turn {
                sequence: 0,
                context: (0, 2),
                policy: (2, 4),
                text: (*text).into(),
                action: None,
                parse: Parse::Clean,
                observation: String::new(),
                reward: None,
                done: false,
                finish: Finish::Eos,
                policy_iteration: iteration - 1,
            })
            .collect();
        Kept {
            lineage: lineage(iteration, 0, sample, &episode),
            episode,
        }
    }

    fn ids(kept: &[Kept]) -> Vec<(u32, u32, u32)> {
        let of = |k: &Kept| (k.lineage.iteration, k.lineage.group, k.lineage.sample);
        kept.iter().map(of).collect()
    }

    #[test]
    fn the_best_of_a_task_is_kept_with_its_lineage() {
        let pool = vec![
            played(1, 0, 0, 1.0, &["a", "b", "c"]),
            played(1, 3, 0, 1.0, &["a"]),
            played(2, 0, 0, 1.0, &["a", "b"]),
            played(2, 0, 1, 1.0, &["b", "a"]),
            played(2, 1, 0, 0.5, &["a"]),
            played(2, 2, 0, 1.0, &["a"]),
            played(2, 3, 1, 1.0, &["b"]),
        ];
        let (kept, counts) = filter(&options(&[]), 100, 2, pool.clone());
        // Task 0: shorter than the earlier one; task 3: equal to the earlier one.
        assert_eq!(ids(&kept), [(1, 3, 0), (2, 0, 0), (2, 2, 0)]);
        let expected = Counts {
            kept: 3,
            kept_new: 2,
            tasks_kept: 3,
            below_threshold: 1,
            duplicates: 3,
            too_long: 0,
        };
        assert_eq!(counts, expected);
        assert_eq!(kept[1].lineage.item_id, "textcraft_0");
        // A threshold for one environment, or one for all.
        for threshold in [
            "agentevol.threshold=0.5",
            "agentevol.threshold={textcraft: 0.5}",
        ] {
            let (kept, _) = filter(&options(&[threshold]), 100, 2, pool.clone());
            assert!(ids(&kept).contains(&(2, 1, 0)), "{threshold}");
        }
        let (kept, counts) = filter(&options(&[]), 5, 2, pool);
        assert_eq!((kept.len(), counts.too_long), (0, 6));
    }

    #[test]
    fn all_that_differ_are_kept_once() {
        let pool = vec![
            played(1, 0, 0, 1.0, &["a", "b"]),
            played(2, 0, 0, 1.0, &["a", "b"]),
            played(2, 0, 1, 1.0, &["a"]),
            played(2, 1, 0, 1.0, &["a"]),
        ];
        let (kept, counts) = filter(&options(&["agentevol.keep=all"]), 100, 2, pool);
        assert_eq!(ids(&kept), [(1, 0, 0), (2, 0, 1), (2, 1, 0)]);
        assert_eq!((counts.duplicates, counts.tasks_kept), (1, 2));
    }

    #[test]
    fn a_spoiled_episode_is_no_failure_and_never_kept() {
        let mut spoiled = played(1, 0, 0, 1.0, &["a"]);
        spoiled.episode.outcome = Outcome::EnvFault;
        let (kept, counts) = filter(&options(&["agentevol.threshold=-1"]), 100, 1, vec![spoiled]);
        assert_eq!((kept.len(), counts.below_threshold), (0, 0));
    }
}
