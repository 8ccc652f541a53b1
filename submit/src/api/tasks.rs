//! Tasks by evaluations, and two policies on the same tasks.

use super::known::Known;
use super::rows::{Listed, RowCache};
use crate::{Error, Result};
use agentgym_jobs::pipeline::PartId;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The episodes of a task in one evaluation.
#[derive(Debug, Clone, Default)]
struct Cell {
    part: Option<PartId>,
    group: u32,
    /// Place in the part and success, of each usable sample.
    samples: Vec<(u32, bool)>,
    greedy: Option<(u32, bool)>,
    reward: f64,
}

impl Cell {
    fn success(&self) -> Option<f64> {
        let solved = self.samples.iter().filter(|(_, solved)| *solved).count();
        match (self.samples.len(), self.greedy) {
            (0, None) => None,
            (0, Some((_, solved))) => Some(f64::from(u8::from(solved))),
            (all, _) => Some(solved as f64 / all as f64),
        }
    }

    fn shown(&self) -> ShownCell {
        ShownCell {
            part: self.part.map(|id| id.to_string()),
            group: self.group,
            success: self.success(),
            n: self.samples.len(),
            reward: self.reward / self.samples.len().max(1) as f64,
            ks: self.samples.iter().map(|(k, _)| *k).collect(),
            solved: self.samples.iter().map(|(_, solved)| *solved).collect(),
            greedy: self.greedy.map(|(_, solved)| solved),
            greedy_k: self.greedy.map(|(k, _)| k),
        }
    }
}

/// The episodes of a task in one evaluation: places in the part, and which are solved.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ShownCell {
    pub(crate) part: Option<String>,
    pub(crate) group: u32,
    pub(crate) success: Option<f64>,
    pub(crate) n: usize,
    pub(crate) reward: f64,
    pub(crate) ks: Vec<u32>,
    pub(crate) solved: Vec<bool>,
    pub(crate) greedy: Option<bool>,
    pub(crate) greedy_k: Option<u32>,
}

/// A set and a task of it.
type Task = (u32, String, i64);

/// An evaluation: its iteration, and whether it came before a warm start.
type Place = (u32, bool);

fn cells(all: &[Listed], samples: u32) -> BTreeMap<Task, BTreeMap<Place, Cell>> {
    let mut out: BTreeMap<Task, BTreeMap<Place, Cell>> = BTreeMap::new();
    for l in all {
        let (id, row) = (l.part, &l.row);
        let place = (
            id.iteration,
            id.stage == agentgym_jobs::pipeline::Stage::Evaluate,
        );
        let task = (id.part, row.env.clone(), row.item);
        let cell = out.entry(task).or_default().entry(place).or_default();
        (cell.part, cell.group) = (Some(id), row.group);
        let usable = row.outcome.usable();
        match (usable, row.sample < samples) {
            (true, true) => {
                cell.samples.push((row.k, row.success));
                cell.reward += row.reward;
            }
            (true, false) => cell.greedy = Some((row.k, row.success)),
            (false, _) => {}
        }
    }
    out
}

#[derive(Debug, Serialize)]
struct Evaluation {
    iteration: u32,
    label: Option<String>,
}

#[derive(Debug, Serialize)]
struct TaskRow {
    set: Option<String>,
    env: String,
    item: i64,
    task: String,
    cells: Vec<Option<ShownCell>>,
}

/// Every task with a cell for each evaluation.
#[derive(Debug, Serialize)]
pub(crate) struct Matrix {
    run: String,
    samples: u32,
    unreadable: Vec<String>,
    evaluations: Vec<Evaluation>,
    tasks: Vec<TaskRow>,
}

pub(super) async fn matrix(known: &Known, rows: &RowCache) -> Result<Matrix> {
    let plan = known.plan().await;
    let evaluation = &plan.config.evaluation;
    let all = rows.of_run(known, |id| id.stage.facts().evaluates).await?;
    let cells = cells(&all.rows, evaluation.samples);
    let places: BTreeSet<Place> = cells.values().flat_map(|by| by.keys().copied()).collect();
    let labels = known.state().await.book.evaluations(&plan);
    let evaluations = places.iter().map(|(iteration, after)| {
        let named = labels
            .iter()
            .find(|e| (e.iteration, !e.before_warm_start) == (*iteration, *after));
        Evaluation {
            iteration: *iteration,
            label: named.map(|e| e.label.clone()),
        }
    });
    let tasks = cells.iter().map(|((set, env, item), by)| {
        let name = evaluation.sets.get(*set as usize).map(|s| s.name.clone());
        let row = places.iter().map(|place| by.get(place).map(Cell::shown));
        TaskRow {
            set: name,
            env: env.clone(),
            item: *item,
            task: format!("{env}_{item}"),
            cells: row.collect(),
        }
    });
    Ok(Matrix {
        run: plan.run.to_string(),
        samples: evaluation.samples,
        unreadable: all.unreadable,
        evaluations: evaluations.collect(),
        tasks: tasks.collect(),
    })
}

/// One side of a comparison.
pub(super) struct Policy {
    run: String,
    iteration: u32,
    cells: BTreeMap<(String, i64), Cell>,
}

/// `RUN` or `RUN:ITERATION`.
pub(super) fn side(text: &str) -> Result<(&str, Option<u32>)> {
    match text.split_once(':') {
        None => Ok((text, None)),
        Some((run, n)) => {
            let n = n
                .parse()
                .map_err(|_| Error::Usage(format!("{text}: write RUN or RUN:ITERATION")))?;
            Ok((run, Some(n)))
        }
    }
}

/// The evaluation of a run's policy, the last one if none is named.
pub(super) async fn policy(known: &Known, rows: &RowCache, n: Option<u32>) -> Result<Policy> {
    let plan = known.plan().await;
    let all = rows.of_run(known, |id| id.stage.facts().evaluates).await?;
    let cells = cells(&all.rows, plan.config.evaluation.samples);
    let places: BTreeSet<Place> = cells.values().flat_map(|by| by.keys().copied()).collect();
    let wanted = places
        .iter()
        .rev()
        .find(|(iteration, _)| n.is_none_or(|n| n == *iteration));
    let Some(place) = wanted else {
        let known: BTreeSet<String> = places.iter().map(|(n, _)| n.to_string()).collect();
        return Err(Error::Missing(format!(
            "run {} has no such evaluation; it has those of iterations {}",
            plan.run,
            known.into_iter().collect::<Vec<_>>().join(", ")
        )));
    };
    let own = cells
        .into_iter()
        .filter_map(|((_, env, item), mut by)| by.remove(place).map(|cell| ((env, item), cell)));
    Ok(Policy {
        run: plan.run.to_string(),
        iteration: place.0,
        cells: own.collect(),
    })
}

/// A policy on the tasks of both.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Side {
    pub(crate) run: String,
    pub(crate) iteration: u32,
    /// Of the samples.
    pub(crate) success: Option<f64>,
    pub(crate) greedy: Option<f64>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Pair {
    pub(crate) task: String,
    pub(crate) a: ShownCell,
    pub(crate) b: ShownCell,
    pub(crate) change: f64,
}

/// `compare A B`.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Comparison {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) tasks: u32,
    pub(crate) gained: u32,
    pub(crate) lost: u32,
    pub(crate) same: u32,
    /// Of the exact two-sided sign test.
    pub(crate) p: f64,
    pub(crate) rows: Vec<Pair>,
}

/// Two policies on the tasks that both were evaluated on: gained and lost tasks, and the exact
/// two-sided sign test over them (tasks that do not differ say nothing).
pub(super) fn compare(a: &Policy, b: &Policy) -> Comparison {
    let (mut gained, mut lost, mut same) = (0u32, 0u32, 0u32);
    let (mut sum_a, mut sum_b) = (0.0, 0.0);
    let (mut greedy_a, mut greedy_b) = (Vec::new(), Vec::new());
    let mut rows = Vec::new();
    for ((env, item), ours) in &a.cells {
        let Some(theirs) = b.cells.get(&(env.clone(), *item)) else {
            continue;
        };
        let (Some(x), Some(y)) = (ours.success(), theirs.success()) else {
            continue;
        };
        sum_a += x;
        sum_b += y;
        greedy_a.extend(ours.greedy.map(|(_, solved)| solved));
        greedy_b.extend(theirs.greedy.map(|(_, solved)| solved));
        match x.total_cmp(&y) {
            std::cmp::Ordering::Less => gained += 1,
            std::cmp::Ordering::Greater => lost += 1,
            std::cmp::Ordering::Equal => same += 1,
        }
        rows.push(Pair {
            task: format!("{env}_{item}"),
            a: ours.shown(),
            b: theirs.shown(),
            change: y - x,
        });
    }
    let tasks = gained + lost + same;
    let mean = |sum: f64| (tasks > 0).then(|| sum / f64::from(tasks));
    let greedy = |of: &[bool]| {
        let solved = of.iter().filter(|solved| **solved).count();
        (!of.is_empty()).then(|| solved as f64 / of.len() as f64)
    };
    let side = |of: &Policy, sum: f64, solved: &[bool]| Side {
        run: of.run.clone(),
        iteration: of.iteration,
        success: mean(sum),
        greedy: greedy(solved),
    };
    Comparison {
        a: side(a, sum_a, &greedy_a),
        b: side(b, sum_b, &greedy_b),
        tasks,
        gained,
        lost,
        same,
        p: sign_test(gained, lost),
        rows,
    }
}

/// The chance that a fair coin falls at least this unevenly, in both directions.
/// Source: Dixon and Mood, JASA 41 (1946), 557–566.
fn sign_test(gained: u32, lost: u32) -> f64 {
    let (n, least) = (gained + lost, gained.min(lost));
    // C(n, k) / 2^n, from one k to the next; in logarithms, for many tasks.
    let mut log = -f64::from(n) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for k in 0..=least {
        tail += log.exp();
        log += (f64::from(n - k) / f64::from(k + 1)).ln();
    }
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sign_test_is_exact() {
        assert_eq!(sign_test(0, 0), 1.0);
        assert_eq!(sign_test(3, 3), 1.0);
        for (gained, lost, p) in [
            (5, 0, 0.0625),
            (0, 5, 0.0625),
            (6, 1, 0.125),
            (9, 1, 22.0 / 1024.0),
        ] {
            assert!(
                (sign_test(gained, lost) - p).abs() < 1e-12,
                "{gained} {lost}"
            );
        }
        let many = sign_test(3000, 2700);
        assert!(many > 0.0 && many < 0.001, "{many}");
    }

    #[test]
    fn only_tasks_of_both_are_compared() {
        let policy = |cells: &[(i64, &[bool], Option<bool>)]| Policy {
            run: "r".to_owned(),
            iteration: 0,
            cells: cells
                .iter()
                .map(|(item, samples, greedy)| {
                    let cell = Cell {
                        samples: samples.iter().map(|&solved| (0, solved)).collect(),
                        greedy: greedy.map(|solved| (0, solved)),
                        ..Cell::default()
                    };
                    (("w".to_owned(), *item), cell)
                })
                .collect(),
        };
        let a = policy(&[
            (1, &[true, false], Some(true)),
            (2, &[false; 2], Some(false)),
            (3, &[true; 2], Some(true)),
        ]);
        let b = policy(&[
            (1, &[true; 2], Some(true)),
            (2, &[false; 2], Some(true)),
            (4, &[true; 2], None),
        ]);
        let found = compare(&a, &b);
        assert_eq!((found.a.success, found.a.greedy), (Some(0.25), Some(0.5)));
        assert_eq!((found.b.success, found.b.greedy), (Some(0.5), Some(1.0)));
        let counts = [found.tasks, found.gained, found.lost, found.same];
        assert_eq!(counts, [2, 1, 0, 1]);
        let nothing = compare(&a, &policy(&[]));
        assert!(nothing.a.success.is_none() && nothing.b.greedy.is_none());
    }

    #[test]
    fn a_side_names_a_run_and_an_iteration() {
        assert_eq!(side("r").unwrap(), ("r", None));
        assert_eq!(side("r:3").unwrap(), ("r", Some(3)));
        assert!(side("r:x").is_err());
    }
}
