//! The list of episodes with its filters.

use super::known::Known;
use super::rows::{Listed, PARTS_AT_ONCE, Rank, Ranks, Row, RowCache};
use crate::{Error, Result};
use agentgym_jobs::episode::{Episode, Outcome};
use agentgym_jobs::pipeline::{PartId, Records, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_text::visible_name;
use agentgym_view::EpisodeFilter;
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use std::collections::BTreeSet;

/// Values to choose from.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Facets {
    env: BTreeSet<String>,
    outcome: BTreeSet<String>,
    stage: BTreeSet<String>,
    worker: BTreeSet<String>,
    iteration: BTreeSet<u32>,
}

/// An episode in a list.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EpisodeRow {
    pub(crate) part: String,
    iteration: u32,
    stage: &'static str,
    pub(crate) task: String,
    pub(crate) greedy: bool,
    #[serde(flatten)]
    pub(crate) row: Row,
    pub(crate) loops: bool,
    worker: String,
    pub(crate) slot: Option<usize>,
    pub(crate) advantage: Option<f64>,
    mismatch: Option<f32>,
    /// Its place among the episodes of its iteration and stage, counted from 1, and how many there are.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    rank: Option<Rank>,
}

/// `episodes RUN`: the rows that a filter keeps, in its order.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EpisodeList {
    pub(crate) run: String,
    pub(crate) total: usize,
    pub(crate) of: usize,
    pub(crate) absent: Vec<String>,
    pub(crate) rows: Vec<EpisodeRow>,
    pub(crate) facets: Facets,
    pub(crate) cursor: Option<usize>,
    pub(crate) unreadable: Vec<String>,
}

pub(super) async fn list(
    known: &Known,
    rows: &RowCache,
    filter: &EpisodeFilter,
) -> Result<EpisodeList> {
    let plan = known.plan().await;
    possible(filter, &plan)?;
    let samples = plan.config.evaluation.samples;
    let index = rows.of_run(known, |id| in_part(filter, id)).await?;
    let mut all = index.rows;
    let greedy: BTreeSet<(PartId, u32)> = all
        .iter()
        .filter(|l| is_greedy(l, samples) && l.row.success)
        .map(|l| (l.part, l.row.group))
        .collect();
    let facets = facets(&all);
    let (of, absent) = (all.len(), absent(filter, &all));
    let ranks = Ranks::of(&all);
    all.retain(|l| keeps(filter, l, &greedy, samples));
    if let Some(text) = &filter.text {
        all = with_text(known, all, text).await?;
    }
    sort(filter, &mut all);
    let total = all.len();
    let page = all.iter().skip(filter.cursor).take(filter.limit);
    let rows: Vec<EpisodeRow> = page.map(|l| row(l, samples, Some(ranks.get(l)))).collect();
    let next = filter.cursor + rows.len();
    Ok(EpisodeList {
        run: plan.run.to_string(),
        total,
        of,
        absent,
        rows,
        facets,
        cursor: (next < total).then_some(next),
        unreadable: index.unreadable,
    })
}

/// Refuses values that no episode of the run can have.
fn possible(filter: &EpisodeFilter, plan: &Plan) -> Result<()> {
    let stages = Stage::ALL
        .iter()
        .filter(|stage| stage.facts().records == Records::Episodes);
    let outcomes = Outcome::ALL.map(|outcome| outcome.name().to_owned());
    let fields = [
        ("env", plan.config.environments().into_keys().collect()),
        (
            "stage",
            stages.map(|stage| stage.name().to_owned()).collect(),
        ),
        ("outcome", Vec::from(outcomes)),
    ];
    for (key, value) in &filter.named {
        let field = fields.iter().find(|(field, _)| field == key);
        if let Some((_, known)) =
            field.filter(|(_, known): &&(_, Vec<String>)| !known.contains(value))
        {
            return Err(Error::Usage(format!(
                "{key}={}: no episode of this run can have that; it is one of {}",
                visible_name(value),
                known.join(", ")
            )));
        }
    }
    let iterations = filter.between.iter().filter(|(key, ..)| key == "iteration");
    for (_, low, high) in iterations {
        if *low > f64::from(plan.iterations) || *high < 0.0 {
            return Err(Error::Usage(format!(
                "iteration: this run has iterations 0 to {}",
                plan.iterations
            )));
        }
    }
    Ok(())
}

/// Values of a filter's message.
const VALUES_MAX: usize = 8;

/// Filters whose value no episode has, with the values that there are.
fn absent(filter: &EpisodeFilter, all: &[Listed]) -> Vec<String> {
    let mut out = Vec::new();
    for (key, value) in &filter.named {
        let of = |l: &Listed| match key.as_str() {
            "env" => l.row.env.clone(),
            "task" => task(l),
            "outcome" => l.row.outcome.name().to_owned(),
            "worker" => l.worker.to_string(),
            _ => value.clone(),
        };
        if all.iter().any(|l| of(l) == *value) {
            continue;
        }
        let values: BTreeSet<String> = all.iter().map(of).collect();
        let mut known: Vec<String> = values.iter().map(|v| visible_name(v)).collect();
        let more = known.len().saturating_sub(VALUES_MAX);
        known.truncate(VALUES_MAX);
        if more > 0 {
            known.push(format!("{more} more"));
        }
        let known = match known.is_empty() {
            true => "there is no episode yet".to_owned(),
            false => format!("there are {}", known.join(", ")),
        };
        out.push(format!(
            "no episode has {key}={}: {known}",
            visible_name(value)
        ));
    }
    out
}

fn task(l: &Listed) -> String {
    format!("{}_{}", l.row.env, l.row.item)
}

fn facets(all: &[Listed]) -> Facets {
    fn set(all: &[Listed], of: fn(&Listed) -> &str) -> BTreeSet<String> {
        all.iter().map(|l| of(l).to_owned()).collect()
    }
    Facets {
        env: set(all, |l| &l.row.env),
        outcome: set(all, |l| l.row.outcome.name()),
        stage: set(all, |l| l.part.stage.name()),
        worker: set(all, |l| &l.worker),
        iteration: all.iter().map(|l| l.part.iteration).collect(),
    }
}

/// `samples` are those of an evaluation; what comes after them is greedy.
pub(super) fn row(l: &Listed, samples: u32, rank: Option<Rank>) -> EpisodeRow {
    EpisodeRow {
        part: l.part.to_string(),
        iteration: l.part.iteration,
        stage: l.part.stage.name(),
        task: task(l),
        greedy: is_greedy(l, samples),
        row: Row::clone(&l.row),
        loops: l.row.loops(),
        worker: l.worker.to_string(),
        slot: l.trained.map(|t| t.slot),
        advantage: l.trained.map(|t| t.advantage),
        mismatch: l.trained.map(|t| t.mismatch),
        rank,
    }
}

fn is_greedy(l: &Listed, samples: u32) -> bool {
    l.part.stage.facts().evaluates && l.row.sample >= samples
}

/// What a filter says of the part, so that other parts need not be read.
fn in_part(filter: &EpisodeFilter, id: PartId) -> bool {
    let stage = filter.named.iter().filter(|(key, _)| key == "stage");
    let iteration = filter.between.iter().filter(|(key, ..)| key == "iteration");
    let n = f64::from(id.iteration);
    stage.clone().all(|(_, name)| id.stage.name() == name)
        && iteration
            .clone()
            .all(|(_, low, high)| (*low..=*high).contains(&n))
}

fn keeps(
    filter: &EpisodeFilter,
    l: &Listed,
    greedy: &BTreeSet<(PartId, u32)>,
    samples: u32,
) -> bool {
    let row = &l.row;
    let named = |(key, value): &(String, String)| match key.as_str() {
        "env" => row.env == *value,
        "task" => task(l) == *value,
        "outcome" => row.outcome.name() == value,
        "worker" => *l.worker == **value,
        "parse" => match value.as_str() {
            "invalid" => row.invalid > 0,
            "normalised" => row.normalised > 0,
            _ => row.invalid == 0 && row.normalised == 0,
        },
        "finish" => (value == "length") == (row.cut > 0),
        "greedy" => (value == "true") == is_greedy(l, samples),
        _ => true,
    };
    let between = |(key, low, high): &(String, f64, f64)| {
        let value = match key.as_str() {
            "reward" => Some(row.reward),
            "advantage" => l.trained.map(|t| t.advantage),
            "turns" => Some(f64::from(row.turns)),
            "length" => Some(f64::from(row.length)),
            "group" => Some(f64::from(row.group)),
            "sample" => Some(f64::from(row.sample)),
            _ => return true,
        };
        value.is_some_and(|value| (*low..=*high).contains(&value))
    };
    let preset = match filter.preset.as_deref() {
        Some("loops") => row.loops(),
        Some("unlucky") => {
            !row.success && row.sample < samples && greedy.contains(&(l.part, row.group))
        }
        _ => true,
    };
    preset && filter.named.iter().all(named) && filter.between.iter().all(between)
}

/// The episodes in which a text occurs, in what was said, done or answered.
async fn with_text(known: &Known, all: Vec<Listed>, text: &str) -> Result<Vec<Listed>> {
    let wanted = text.to_lowercase();
    let contains = |t: &str| t.to_lowercase().contains(&wanted);
    let view = known.view().await;
    let parts: BTreeSet<PartId> = all.iter().map(|l| l.part).collect();
    let search = |id: PartId| {
        let (view, contains) = (&view, &contains);
        async move {
            let manifest = known.committed(id).await?;
            let episodes = crate::records::episodes(view, &manifest).await?;
            let said = |e: &Episode| {
                let turns = e.turns.iter();
                let mut said = turns.flat_map(|t| [t.text.as_str(), t.observation.as_str()]);
                contains(&e.prompt) || said.any(contains)
            };
            let found = episodes.iter().enumerate().filter(|(_, e)| said(e));
            Ok::<_, Error>(found.map(|(k, _)| (id, k as u32)).collect::<Vec<_>>())
        }
    };
    let found = stream::iter(parts).map(search).buffered(PARTS_AT_ONCE);
    let found: Vec<Vec<(PartId, u32)>> = found.try_collect().await?;
    let hits: BTreeSet<(PartId, u32)> = found.into_iter().flatten().collect();
    let kept = all.into_iter();
    Ok(kept.filter(|l| hits.contains(&(l.part, l.row.k))).collect())
}

fn sort(filter: &EpisodeFilter, all: &mut [Listed]) {
    let by = match (filter.sort.as_deref(), filter.preset.as_deref()) {
        (Some(sort), _) => sort,
        (None, Some(preset @ ("best" | "worst"))) => return extremes(preset == "best", all),
        (None, _) => return,
    };
    let (descending, by) = match by.strip_prefix('-') {
        Some(by) => (true, by),
        None => (false, by),
    };
    let value = |l: &Listed| -> Option<f64> {
        match by {
            "reward" => Some(l.row.reward),
            "advantage" => l.trained.map(|t| t.advantage.abs()),
            "length" => Some(f64::from(l.row.length)),
            "turns" => Some(f64::from(l.row.turns)),
            "surprise" => l.row.surprise.map(f64::from),
            "mismatch" => l.trained.map(|t| f64::from(t.mismatch)),
            _ => Some(f64::from(l.part.iteration)),
        }
    };
    // Those without the figure come last in both directions.
    all.sort_by(|a, b| match (value(a), value(b)) {
        (Some(a), Some(b)) if descending => b.total_cmp(&a),
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    });
}

/// Of equal rewards: the newest first; then, of the worst, those with most turns without an action or cut
/// and the longest, of the best the shortest.
fn extremes(best: bool, all: &mut [Listed]) {
    all.sort_by(|a, b| {
        let reward = a.row.reward.total_cmp(&b.row.reward);
        let newest = b.part.iteration.cmp(&a.part.iteration);
        let spoilt = |l: &Listed| l.row.invalid + l.row.cut;
        let length = a.row.length.cmp(&b.row.length);
        match best {
            true => reward.reverse().then(newest).then(length),
            false => (reward.then(newest))
                .then(spoilt(b).cmp(&spoilt(a)))
                .then(length.reverse()),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::pipeline::PartId;
    use std::sync::Arc;

    fn listed(iteration: u32, item: i64, reward: f64, invalid: u32, length: u32) -> Listed {
        Listed {
            part: PartId {
                iteration,
                stage: Stage::Rollout,
                part: 0,
            },
            row: Arc::new(Row {
                k: 0,
                env: "maze".into(),
                item,
                group: 0,
                sample: 0,
                outcome: Outcome::Failed,
                success: false,
                reward,
                turns: 1,
                length,
                invalid,
                normalised: 0,
                cut: 0,
                repeats: 1,
                surprise: None,
            }),
            worker: "w".into(),
            trained: None,
        }
    }

    #[test]
    fn of_equal_rewards_the_worst_is_the_newest_most_spoilt_and_longest() {
        let mut all = vec![
            listed(1, 0, 0.0, 9, 90),
            listed(2, 1, 0.0, 0, 10),
            listed(2, 2, 1.0, 0, 5),
            listed(2, 3, 0.0, 0, 20),
            listed(2, 4, 0.0, 1, 1),
        ];
        let order = |all: &[Listed]| all.iter().map(|l| l.row.item).collect::<Vec<_>>();
        extremes(false, &mut all);
        assert_eq!(order(&all), [4, 3, 1, 0, 2]);
        extremes(true, &mut all);
        assert_eq!(order(&all), [2, 4, 1, 3, 0]);
    }

    #[test]
    fn a_value_that_no_episode_has_is_told_those_that_there_are() {
        let all: Vec<Listed> = (0..10).map(|at| listed(1, at, 0.0, 0, 1)).collect();
        let filter = |key: &str, value: &str| EpisodeFilter {
            named: vec![(key.to_owned(), value.to_owned())],
            ..EpisodeFilter::default()
        };
        assert_eq!(absent(&filter("task", "maze_3"), &all), [""; 0]);
        assert_eq!(
            absent(&filter("task", "nosuch"), &all),
            [
                "no episode has task=nosuch: there are maze_0, maze_1, maze_2, maze_3, maze_4, maze_5, \
                 maze_6, maze_7, 2 more"
            ]
        );
    }
}
