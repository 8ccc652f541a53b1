//! A run, its curves and a part's commit.

use super::known::Known;
use crate::metrics::Row;
use crate::runs::stored_tree;
use crate::status::StatusDocument;
use crate::{Result, text};
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_storage::Manifest;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A run in the list of all.
#[derive(Debug, Serialize)]
pub(crate) struct RunLine {
    run: String,
    pipeline: Pipeline,
    estimator: String,
    model: String,
    iterations: u32,
    status: StatusDocument,
    /// Iteration and success.
    training: Vec<(u32, Option<f64>)>,
    evaluations: Vec<(u32, f64)>,
    worker_s: f64,
    workers: usize,
    last_unix_s: f64,
}

/// A run that cannot be read does not hide the others.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum ListedRun {
    Read(Box<RunLine>),
    Unreadable { run: String, error: String },
}

/// Every run of a store.
#[derive(Debug, Serialize)]
pub(crate) struct Runs {
    pub(super) store: String,
    pub(super) runs: Vec<ListedRun>,
}

/// Everything that a run's page shows beside its curves.
#[derive(Debug, Serialize)]
pub(crate) struct RunPage {
    #[serde(flatten)]
    line: RunLine,
    revision: u32,
    identity: String,
    seed: u64,
    forked_at: Option<u32>,
    now_unix_s: u64,
    config: Value,
}

pub(super) async fn line(known: &Known) -> Result<RunLine> {
    let status = known.status().await?;
    let state = known.state().await;
    let plan = &state.view.plan;
    let trained = (1..=plan.iterations).filter_map(|n| state.book.training(plan, n));
    let evaluated = state.book.evaluations(plan);
    let evaluated = evaluated.iter();
    let works = || state.manifests.values().filter_map(|m| m.work.as_ref());
    let last = works().map(|w| w.started_unix_s as f64 + w.wall_s);
    let workers: BTreeSet<&str> = works().map(|w| w.worker.as_str()).collect();
    Ok(RunLine {
        run: plan.run.to_string(),
        pipeline: plan.config.run.pipeline,
        estimator: plan.config.algorithm.adv_estimator.to_string(),
        model: crate::evaluation::model(plan),
        iterations: plan.iterations,
        status: status.document(),
        training: trained.map(|t| (t.iteration, t.success)).collect(),
        evaluations: evaluated
            .filter_map(|e| Some((e.iteration, e.overall()?.success)))
            .collect(),
        worker_s: works().map(|w| w.wall_s).sum(),
        workers: workers.len(),
        last_unix_s: last.fold(0.0, f64::max),
    })
}

pub(super) async fn run(known: &Known) -> Result<RunPage> {
    let line = line(known).await?;
    let plan = known.plan().await;
    Ok(RunPage {
        line,
        revision: plan.revision,
        identity: plan.identity.clone(),
        seed: plan.config.run.seed,
        forked_at: plan.forked_at(),
        now_unix_s: text::unix_now_s(),
        config: stored_tree(&plan),
    })
}

/// All evaluation sets that count, together.
#[derive(Debug, Serialize)]
struct Overall {
    success: f64,
    greedy: Option<f64>,
    tasks: f64,
}

#[derive(Debug, Serialize)]
struct EvaluatedSet {
    set: Option<String>,
    success: f64,
    greedy: Option<f64>,
    tasks: f64,
    /// The interval of the success.
    low: Option<f64>,
    high: Option<f64>,
    apart: Option<bool>,
    part: String,
}

#[derive(Debug, Serialize)]
struct Evaluated {
    label: String,
    iteration: u32,
    overall: Option<Overall>,
    /// None for a set that is not committed.
    sets: Vec<Option<EvaluatedSet>>,
}

/// Figures by iteration, and what each evaluation found.
#[derive(Debug, Serialize)]
pub(crate) struct Series {
    run: String,
    begun_unix_s: f64,
    planned: u32,
    /// Every figure that there is, by name.
    iterations: Vec<Map<String, Value>>,
    evaluations: Vec<Evaluated>,
}

pub(super) async fn series(known: &Known) -> Result<Series> {
    let state = known.state().await;
    let (plan, book) = (&state.view.plan, &state.book);
    let works = state.manifests.values().filter_map(|m| m.work.as_ref());
    let begun = works.map(|w| w.started_unix_s).min().unwrap_or(0) as f64;
    let (mut sampled, mut worker_s) = (0.0, 0.0);
    let mut iterations = Vec::new();
    for n in 0..=plan.iterations {
        let mut point = Map::new();
        let mut ended = 0.0_f64;
        let mut any = false;
        for (id, manifest) in state.manifests.iter().filter(|(id, _)| id.iteration == n) {
            any = true;
            let Some(work) = &manifest.work else { continue };
            worker_s += work.wall_s;
            ended = ended.max(work.started_unix_s as f64 + work.wall_s);
            if !manifest.stage.starts_with("evaluate") {
                let tokens = book.row(*id).and_then(|row| row.measured.sampled_tokens);
                sampled += tokens.unwrap_or(0) as f64;
            }
        }
        if !any {
            continue;
        }
        for (id, row) in book.rows().filter(|(id, _)| id.iteration == n) {
            let prefix = match id.stage {
                Stage::Advantage | Stage::Filter => "",
                Stage::Update | Stage::Sft | Stage::Dpo | Stage::CriticUpdate => id.stage.name(),
                _ => continue,
            };
            numbers(&mut point, prefix, row);
        }
        if let Some(training) = book.training(plan, n) {
            point.insert("success_within".into(), json!(training.success_within));
            point.insert("signal".into(), json!(training.signal));
            point.insert("tokens_per_s".into(), json!(training.tokens_per_s));
            point.insert("wall_s".into(), json!(training.wall_s));
        }
        point.insert("iteration".into(), json!(n));
        point.insert("time_s".into(), json!((ended - begun).max(0.0)));
        point.insert("sampled_tokens".into(), json!(sampled));
        point.insert("worker_s".into(), json!(worker_s));
        iterations.push(point);
    }
    let evaluations = book.evaluations(plan);
    let evaluations = evaluations.iter().map(|e| {
        let stage = match e.before_warm_start {
            true => Stage::EvaluateInit,
            false => Stage::Evaluate,
        };
        let sets = e.sets.iter().enumerate().map(|(at, score)| {
            let (iteration, part) = (e.iteration, at as u32);
            let id = PartId {
                iteration,
                stage,
                part,
            };
            let score = score.as_ref()?;
            let row = book.row(id)?;
            let rate = row.evaluated().and_then(|of| of.score.pass.get(&1));
            Some(EvaluatedSet {
                set: row.set.clone(),
                success: score.success,
                greedy: score.greedy,
                tasks: score.tasks,
                low: rate.map(|of| of.low),
                high: rate.map(|of| of.high),
                apart: e.apart.get(at).copied(),
                part: id.to_string(),
            })
        });
        Evaluated {
            label: e.label.clone(),
            iteration: e.iteration,
            overall: e.overall().map(|s| Overall {
                success: s.success,
                greedy: s.greedy,
                tasks: s.tasks,
            }),
            sets: sets.collect(),
        }
    });
    let evaluations = evaluations.collect();
    Ok(Series {
        run: plan.run.to_string(),
        begun_unix_s: begun,
        planned: plan.iterations,
        iterations,
        evaluations,
    })
}

/// The numbers of a part's metrics; of several parts the last one counts.
fn numbers(point: &mut Map<String, Value>, prefix: &str, row: &Row) {
    for (name, value) in &row.figures {
        if value.is_number() {
            let name = match prefix {
                "" => name.clone(),
                _ => format!("{prefix}.{name}"),
            };
            point.insert(name, value.clone());
        }
    }
}

/// A part's commit and metrics.
#[derive(Debug, Serialize)]
pub(crate) struct PartPage {
    run: String,
    part: String,
    manifest: Manifest,
    metrics: Map<String, Value>,
    stats: Map<String, Value>,
    wall_s: Option<f64>,
}

pub(super) async fn part(known: &Known, id: PartId) -> Result<PartPage> {
    let manifest = known.committed(id).await?;
    let view = known.view().await;
    let row = crate::metrics::read_row(&view, id, &manifest).await?;
    Ok(PartPage {
        run: view.plan.run.to_string(),
        part: id.to_string(),
        manifest: Arc::unwrap_or_clone(manifest),
        metrics: row.figures,
        stats: row.stats,
        wall_s: row.wall_s,
    })
}
