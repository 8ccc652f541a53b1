//! Episodes: the list with its filters, one episode with every stream of its tokens, and why these
//! have their advantages.

use super::known::Known;
use super::rows::{Listed, PARTS_AT_ONCE, Ranks, RowCache};
use crate::records::{Filter, ScoredEpisode, content, list_actions};
use crate::runs::RunView;
use crate::{Error, Result};
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::{Episode, Outcome};
use agentgym_jobs::pipeline::{PartId, Records, Stage, batch_of};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{Batch, BatchEpisode};
use agentgym_storage::Manifest;
use agentgym_text::visible_name;
use agentgym_view::EpisodeFilter;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The rows that a filter keeps, in its order, and how many there are.
pub(super) async fn list(known: &Known, rows: &RowCache, filter: &EpisodeFilter) -> Result<Value> {
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
    let shown = page.map(|l| {
        let mut row = row_json(l, samples);
        (row["place"], row["places"]) = ranks.get(l);
        row
    });
    let shown: Vec<Value> = shown.collect();
    let next = filter.cursor + shown.len();
    Ok(json!({
        "run": plan.run.to_string(), "total": total, "of": of, "absent": absent, "rows": shown,
        "facets": facets, "cursor": (next < total).then_some(next), "unreadable": index.unreadable,
    }))
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

/// Values to choose from.
fn facets(all: &[Listed]) -> Value {
    fn set(all: &[Listed], of: fn(&Listed) -> &str) -> BTreeSet<&str> {
        all.iter().map(of).collect()
    }
    let iterations: BTreeSet<u32> = all.iter().map(|l| l.part.iteration).collect();
    json!({
        "env": set(all, |l| &l.row.env), "outcome": set(all, |l| l.row.outcome.name()),
        "stage": set(all, |l| l.part.stage.name()), "worker": set(all, |l| &l.worker),
        "iteration": iterations,
    })
}

/// `samples` are those of an evaluation; what comes after them is greedy.
pub(super) fn row_json(l: &Listed, samples: u32) -> Value {
    let row = &l.row;
    json!({
        "part": l.part.to_string(), "k": row.k, "iteration": l.part.iteration,
        "stage": l.part.stage.name(), "env": row.env, "task": task(l),
        "group": row.group, "sample": row.sample, "greedy": is_greedy(l, samples), "outcome": row.outcome, "success": row.success,
        "reward": row.reward, "turns": row.turns, "length": row.length, "invalid": row.invalid,
        "normalised": row.normalised, "cut": row.cut, "loops": row.loops(),
        "surprise": row.surprise, "worker": &*l.worker,
        "slot": l.trained.map(|t| t.slot), "advantage": l.trained.map(|t| t.advantage),
        "mismatch": l.trained.map(|t| t.mismatch),
    })
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

fn no_episode(id: PartId, k: u32, all: usize) -> Error {
    Error::Missing(format!(
        "{id} has episodes 0 to {}, not {k}",
        all.saturating_sub(1)
    ))
}

/// An episode of a part, with the part's commit and its number of episodes.
pub(super) async fn one(
    known: &Known,
    id: PartId,
    k: u32,
) -> Result<(Arc<Manifest>, usize, Episode)> {
    let (view, manifest) = (known.view().await, known.committed(id).await?);
    if !matches!(id.stage.facts().records, Records::Episodes | Records::Kept) {
        return Err(Error::Missing(format!("{id} holds no episodes")));
    }
    let mut all = crate::records::episodes(&view, &manifest).await?;
    let count = all.len();
    if k as usize >= count {
        return Err(no_episode(id, k, count));
    }
    let mut one = vec![all.swap_remove(k as usize)];
    list_actions(&view.plan, &mut one);
    Ok((manifest, count, one.remove(0)))
}

/// One episode.
pub(super) async fn episode(known: &Known, rows: &RowCache, id: PartId, k: u32) -> Result<Value> {
    let view = known.view().await;
    let (manifest, count, e) = one(known, id, k).await?;
    let alike = |part: PartId| part.iteration == id.iteration && part.stage == id.stage;
    let (scored, trained, listed) = tokio::try_join!(
        scored(known, &view, id, &e),
        trained(known, &view, id, &e),
        rows.of_run(known, alike)
    )?;
    let siblings: Vec<Value> = listed
        .rows
        .iter()
        .filter(|l| {
            l.row.group == e.group && l.row.env == e.task.env && l.row.item == e.task.item_id
        })
        .map(|l| row_json(l, view.plan.config.evaluation.samples))
        .collect();
    let pieces = known.pieces().await?;
    let sequences: Vec<Value> = e
        .sequences
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let streams = scored.as_ref().map(|s| &s.streams);
            let recorded = s.entropies.as_ref();
            json!({
                "ids": s.token_ids,
                "pieces": pieces.texts(&s.token_ids),
                "mask": s.loss_mask.iter().map(|m| u8::from(*m)).collect::<Vec<_>>(),
                "sampled": rounded(Some(&s.sampled_log_probs)),
                "entropies": rounded(streams.and_then(|s| s.entropies.get(i)).or(recorded)),
                "old": rounded(streams.and_then(|s| s.old.get(i))),
                "reference": rounded(streams.and_then(|s| s.reference.as_ref()).and_then(|r| r.get(i))),
                "values": rounded(scored.as_ref().and_then(|s| s.values.as_ref()).and_then(|v| v.get(i))),
                "advantages": trained.as_ref().and_then(|(_, t)| t.sequences.get(i)).map(|s| &s.advantages),
            })
        })
        .collect();
    let work = manifest.work.as_ref();
    let stage_rollout = !id.stage.facts().evaluates;
    Ok(json!({
        "run": view.plan.run.to_string(), "part": id.to_string(), "k": k, "episodes": count,
        "iteration": id.iteration, "stage": id.stage.name(),
        "task": e.task.to_string(), "env": e.task.env, "item": e.task.item_id,
        "group": e.group, "sample": e.sample, "outcome": e.outcome, "success": e.success,
        "reward": e.reward, "fault": e.fault, "prompt": e.told(), "tools": e.tools(),
        "slot": trained.as_ref().map(|(slot, _)| slot),
        "advantage": trained.as_ref().map(|(_, t)| t.advantage),
        "greedy": !stage_rollout && e.sample >= view.plan.config.evaluation.samples,
        "worker": work.map(|w| &w.worker), "attempt": manifest.attempt,
        "turns": e.turns, "available": e.available_actions(), "summaries": e.summaries(),
        "judgement": e.judgement(),
        "sequences": sequences, "siblings": siblings,
    }))
}

/// Five decimals: what a picture can show. Exact values are in `inspect --json`.
fn rounded(stream: Option<&Vec<f32>>) -> Value {
    let Some(stream) = stream else {
        return Value::Null;
    };
    let cut = stream.iter().map(|v| (f64::from(*v) * 1e5).round() / 1e5);
    json!(cut.collect::<Vec<f64>>())
}

/// The streams that `log_probs` made for an episode of a rollout, once there.
async fn scored(
    known: &Known,
    view: &RunView,
    id: PartId,
    e: &Episode,
) -> Result<Option<ScoredEpisode>> {
    let log_probs = PartId {
        stage: Stage::LogProbs,
        ..id
    };
    let Some(manifest) = training_commit(known, id, log_probs).await else {
        return Ok(None);
    };
    let filter = Filter {
        group: Some(e.group),
        sample: Some(e.sample),
    };
    Ok(match content(view, &manifest, filter).await? {
        crate::records::Content::LogProbs(mut all) => all.pop(),
        _ => None,
    })
}

/// A commit of the same iteration's training; none for an evaluation, or before it is there.
async fn training_commit(known: &Known, id: PartId, wanted: PartId) -> Option<Arc<Manifest>> {
    if !matches!(id.stage, Stage::Rollout | Stage::Reward) {
        return None;
    }
    known.state().await.manifests.get(&wanted).cloned()
}

/// The slot of an episode in the batch, if it is trained on.
async fn trained(
    known: &Known,
    view: &RunView,
    id: PartId,
    e: &Episode,
) -> Result<Option<(usize, BatchEpisode)>> {
    let Some(manifest) = training_commit(known, id, batch_of(id.iteration)).await else {
        return Ok(None);
    };
    let Batch::V1(batch) = view.payload(&manifest, artifact_names::BATCH).await?;
    let mut slots = batch.into_iter().enumerate();
    Ok(slots.find_map(|(slot, entry)| {
        let entry = entry?;
        ((entry.group, entry.sample) == (e.group, e.sample)).then_some((slot, entry))
    }))
}

/// Part and place of the episodes that an iteration trains on, by group and sample.
pub(super) type Places = BTreeMap<(u32, u32), (PartId, u32)>;

/// See [`Places`].
pub(super) async fn places(known: &Known, rows: &RowCache, n: u32) -> Result<Places> {
    let trained = |id: PartId| id.iteration == n && !id.stage.facts().evaluates;
    let listed = rows.of_run(known, trained).await?.rows.into_iter();
    let place = |l: Listed| ((l.row.group, l.row.sample), (l.part, l.row.k));
    Ok(listed.map(place).collect())
}

/// Why the tokens of an episode have their advantages.
pub(super) async fn credit(known: &Known, id: PartId, k: u32) -> Result<Value> {
    let (view, manifest) = (known.view().await, known.committed(id).await?);
    if !matches!(id.stage, Stage::Rollout | Stage::Reward) {
        return Err(Error::Missing(format!(
            "{id} is not trained on: only the episodes of a training iteration get advantages"
        )));
    }
    let all = crate::records::episodes(&view, &manifest).await?;
    let e = all
        .get(k as usize)
        .ok_or_else(|| no_episode(id, k, all.len()))?;
    if view.plan.config.run.pipeline == agentgym_jobs::config::Pipeline::AgentEvol {
        let (candidates, equal) = crate::credit::evolved(&view, id.iteration).await?;
        let own = candidates.iter().find(|c| {
            let l = &c.lineage;
            (l.iteration, l.group, l.sample) == (id.iteration, e.group, e.sample)
        });
        return Ok(json!({
            "pipeline": "agentevol", "candidate": own, "lineage_equal": equal,
            "lines": own.map(|c| vec![crate::credit::fate(&c.fate)]),
        }));
    }
    let (played, compared) = known.credit(id.iteration).await?;
    let found = played.explain(&view.plan, e.group, e.sample);
    let found = found
        .map_err(crate::credit::failed)?
        .ok_or_else(|| no_episode(id, k, all.len()))?;
    let mut out = json!(found);
    out["pipeline"] = json!("rl");
    out["lines"] = json!(found.lines());
    out["batch"] = compared.to_json();
    out["bits"] = json!(found.advantage.map(|a| format!("{:016x}", a.to_bits())));
    out["run"] = json!(view.plan.run.to_string());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::rows::Row;
    use agentgym_jobs::pipeline::PartId;

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
