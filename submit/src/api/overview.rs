//! A run, its curves and a part's commit.

use super::known::Known;
use crate::metrics::Row;
use crate::runs::stored_tree;
use crate::{Result, text};
use agentgym_jobs::pipeline::{PartId, Stage};
use serde_json::{Map, Value, json};

/// A run in the list of all.
pub(super) async fn line(known: &Known) -> Result<Value> {
    let status = known.status().await?;
    let state = known.state().await;
    let plan = &state.view.plan;
    let trained = (1..=plan.iterations).filter_map(|n| state.book.training(plan, n));
    let trained: Vec<Value> = trained.map(|t| json!([t.iteration, t.success])).collect();
    let evaluated = state.book.evaluations(plan);
    let evaluated: Vec<Value> = evaluated
        .iter()
        .filter_map(|e| Some(json!([e.iteration, e.overall()?.success])))
        .collect();
    let works = || state.manifests.values().filter_map(|m| m.work.as_ref());
    let last = works().map(|w| w.started_unix_s as f64 + w.wall_s);
    let mut workers: Vec<&str> = works().map(|w| w.worker.as_str()).collect();
    workers.sort_unstable();
    workers.dedup();
    Ok(json!({
        "run": plan.run.to_string(), "pipeline": plan.config.run.pipeline,
        "estimator": plan.config.algorithm.adv_estimator,
        "model": crate::evaluation::model(plan),
        "iterations": plan.iterations, "status": status.to_json(),
        "training": trained, "evaluations": evaluated,
        "worker_s": works().map(|w| w.wall_s).sum::<f64>(), "workers": workers.len(),
        "last_unix_s": last.fold(0.0, f64::max),
    }))
}

/// Everything that a run's page shows beside its curves.
pub(super) async fn run(known: &Known) -> Result<Value> {
    let mut out = line(known).await?;
    let state = known.state().await;
    let plan = &state.view.plan;
    out["revision"] = json!(plan.revision);
    out["identity"] = json!(plan.identity);
    out["seed"] = json!(plan.config.run.seed);
    out["forked_at"] = json!(plan.forked_at());
    out["now_unix_s"] = json!(text::unix_now_s());
    out["config"] = stored_tree(plan);
    Ok(out)
}

/// Figures by iteration, and what each evaluation found.
pub(super) async fn series(known: &Known) -> Result<Value> {
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
        iterations.push(Value::Object(point));
    }
    let evaluations: Vec<Value> = book
        .evaluations(plan)
        .iter()
        .map(|e| {
            let stage = match e.before_warm_start {
                true => Stage::EvaluateInit,
                false => Stage::Evaluate,
            };
            let sets = e.sets.iter().enumerate().map(|(at, score)| {
                let id = PartId { iteration: e.iteration, stage, part: at as u32 };
                let score = score.as_ref()?;
                let row = book.row(id)?;
                let rate = row.evaluated().and_then(|of| of.score.pass.get(&1));
                Some(json!({
                    "set": row.set, "success": score.success, "greedy": score.greedy,
                    "tasks": score.tasks, "low": rate.map(|of| of.low), "high": rate.map(|of| of.high),
                    "apart": e.apart.get(at), "part": id.to_string(),
                }))
            });
            json!({
                "label": e.label, "iteration": e.iteration,
                "overall": e.overall().map(|s| json!({"success": s.success, "greedy": s.greedy, "tasks": s.tasks})),
                "sets": sets.collect::<Vec<_>>(),
            })
        })
        .collect();
    Ok(json!({
        "run": plan.run.to_string(), "begun_unix_s": begun, "planned": plan.iterations,
        "iterations": iterations, "evaluations": evaluations,
    }))
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
pub(super) async fn part(known: &Known, id: PartId) -> Result<Value> {
    let manifest = known.committed(id).await?;
    let view = known.view().await;
    let row = crate::metrics::read_row(&view, id, &manifest).await?;
    Ok(json!({
        "run": view.plan.run.to_string(), "part": id.to_string(), "manifest": *manifest,
        "metrics": row.figures, "stats": row.stats, "wall_s": row.wall_s,
    }))
}
