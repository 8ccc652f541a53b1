//! `inspect RUN [ITERATION [STAGE [PART]]]`: from the whole run down to single tokens, as text or
//! JSON. Everything shown is verified against the digests of its commit.

pub(crate) mod screen;

use crate::cli::{Global, InspectArgs};
use crate::metrics::{Row, RunMetrics, read_row};
use crate::records::{Filter, RecordDocument, content};
use crate::runs::RunView;
use crate::status::{Known, WarningDocument, warning_lines, warnings};
use crate::{Error, Result, text};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_storage::Manifest;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// An iteration of a run.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct IterationLine {
    iteration: u32,
    parts_committed: usize,
    parts: usize,
    success: Option<f64>,
    held_out_success: Option<f64>,
}

/// `inspect RUN`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct RunDocument {
    warnings: Vec<WarningDocument>,
    run: String,
    revision: u32,
    identity: String,
    iterations_planned: u32,
    commits: usize,
    iterations: Vec<IterationLine>,
}

/// A commit, with every figure of its metrics and of its attempt.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Commit {
    #[cfg_attr(test, schemars(with = "crate::documents::testing::Manifest"))]
    manifest: Manifest,
    metrics: Map<String, Value>,
    stats: Map<String, Value>,
    wall_s: Option<f64>,
}

impl Commit {
    fn of(manifest: Manifest, row: Row) -> Self {
        Self {
            manifest,
            metrics: row.figures,
            stats: row.stats,
            wall_s: row.wall_s,
        }
    }
}

/// A part of an iteration.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct PartLine {
    part: String,
    committed: bool,
    attempts: usize,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    commit: Option<Commit>,
}

/// `inspect RUN N`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct IterationDocument {
    run: String,
    iteration: u32,
    parts: Vec<PartLine>,
    warnings: Vec<WarningDocument>,
}

/// `inspect RUN N STAGE PART`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PartDocument {
    part: String,
    #[serde(flatten)]
    commit: Commit,
    #[cfg_attr(test, schemars(with = "Vec<crate::documents::testing::Object>"))]
    records: Vec<RecordDocument>,
}

/// `inspect RUN N STAGE`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StageDocument {
    run: String,
    parts: Vec<PartDocument>,
}

/// Runs the command.
pub(crate) async fn inspect(view: &RunView, args: &InspectArgs, global: &Global) -> Result<()> {
    if args.jsonl && args.stage.is_none() {
        return Err(Error::Usage(
            "--jsonl prints records, which live in a stage: give RUN ITERATION STAGE [PART]".into(),
        ));
    }
    match (args.iteration, &args.stage) {
        (None, _) => run(view, global).await,
        (Some(n), None) => iteration(view, n, global).await,
        (Some(n), Some(stage)) => {
            let stage: Stage = stage.parse().map_err(Error::Missing)?;
            let mut ids = view.stage_parts(n, stage)?;
            if let Some(part) = args.part {
                let last = ids.len() - 1;
                ids.retain(|id| id.part == part);
                if ids.is_empty() {
                    return Err(Error::Missing(format!(
                        "{n}/{stage} has parts 0 to {last}, not {part}"
                    )));
                }
            }
            parts(view, &ids, args, global).await
        }
    }
}

async fn run(view: &RunView, global: &Global) -> Result<()> {
    let plan = &view.plan;
    let commits = view.commits().await?;
    let progress = view.progress().await?;
    let mut book = RunMetrics::default();
    let figures = (commits.iter().copied()).filter(|id| id.stage.facts().in_overview);
    book.absorb(view, figures).await?;
    let evaluations = book.evaluations(plan);
    let mut rows = Vec::new();
    let mut documents = Vec::new();
    for n in 0..=plan.iterations {
        let all = view.iteration_parts(n)?;
        let done = all.iter().filter(|id| progress.contains(id)).count();
        // An iteration that a fork took over has few or no parts of its own.
        if all.is_empty() {
            continue;
        }
        if done == 0 {
            break;
        }
        let training = book.training(plan, n);
        let held_out = evaluations.iter().rev().find(|e| e.iteration == n);
        let held_out = held_out.and_then(|e| e.overall()).map(|s| s.success);
        let success = training.as_ref().and_then(|t| t.success);
        rows.push(vec![
            n.to_string(),
            format!("{done}/{}", all.len()),
            text::share(success),
            text::share(training.as_ref().and_then(|t| t.reward)),
            text::share(held_out),
            training
                .as_ref()
                .map_or_else(|| "–".into(), |t| text::seconds(t.wall_s)),
        ]);
        documents.push(IterationLine {
            iteration: n,
            parts_committed: done,
            parts: all.len(),
            success,
            held_out_success: held_out,
        });
    }
    let warned = warnings(view, &progress, &mut Known::default(), None).await?;
    if global.json {
        text::emit_json(&RunDocument {
            warnings: warned.iter().map(Into::into).collect(),
            run: plan.run.to_string(),
            revision: plan.revision,
            identity: plan.identity.clone(),
            iterations_planned: plan.iterations,
            commits: commits.len(),
            iterations: documents,
        });
    } else {
        let head = [
            "iteration",
            "parts",
            "success",
            "reward",
            "held out",
            "wall",
        ];
        text::emit(&format!(
            "run {}  revision {}  identity {}  {} commits\n{}{}",
            plan.run,
            plan.revision,
            &plan.identity[..16.min(plan.identity.len())],
            commits.len(),
            text::table(&head, &rows),
            warning_lines(&warned)
        ));
    }
    Ok(())
}

async fn iteration(view: &RunView, n: u32, global: &Global) -> Result<()> {
    let mut rows = Vec::new();
    let mut documents = Vec::new();
    for id in view.iteration_parts(n)? {
        let manifest = view.manifest(id).await?;
        let attempts = view.store.attempts(&view.slot(id)).await?;
        let Some(manifest) = manifest else {
            rows.push(vec![
                id.to_string(),
                "–".into(),
                attempts.len().to_string(),
                "–".into(),
                String::new(),
            ]);
            documents.push(PartLine {
                part: id.to_string(),
                committed: false,
                attempts: attempts.len(),
                commit: None,
            });
            continue;
        };
        let row = read_row(view, id, &manifest).await?;
        let size: u64 = manifest.outputs.iter().map(|o| o.size).sum();
        let mut names: Vec<&str> = manifest
            .outputs
            .iter()
            .map(|o| o.name.split('/').next().unwrap_or_default())
            .collect();
        names.dedup();
        rows.push(vec![
            id.to_string(),
            manifest.attempt.to_string(),
            attempts.len().to_string(),
            text::bytes(size),
            names.join(" "),
        ]);
        documents.push(PartLine {
            part: id.to_string(),
            committed: true,
            attempts: attempts.len(),
            commit: Some(Commit::of(manifest, row)),
        });
    }
    let progress = view.progress().await?;
    let warned = warnings(view, &progress, &mut Known::default(), Some(n)).await?;
    if global.json {
        text::emit_json(&IterationDocument {
            run: view.plan.run.to_string(),
            iteration: n,
            parts: documents,
            warnings: warned.iter().map(Into::into).collect(),
        });
    } else {
        let head = ["part", "by attempt", "attempts", "bytes", "outputs"];
        text::emit(&(text::table(&head, &rows) + &warning_lines(&warned)));
    }
    Ok(())
}

async fn parts(view: &RunView, ids: &[PartId], args: &InspectArgs, global: &Global) -> Result<()> {
    let filter = Filter {
        group: args.group,
        sample: args.sample,
    };
    let mut documents = Vec::new();
    let mut kept = 0;
    let pieces = match args.tokens || (global.json && !args.jsonl) {
        // Ids are shown even where the model's folder has expired.
        true => screen::Pieces::of(view)
            .await
            .unwrap_or_else(|_| screen::Pieces::none()),
        false => screen::Pieces::none(),
    };
    for &id in ids {
        // A whole stage is shown even while some of its parts still run; a part asked for by number
        // must be committed.
        let manifest = match view.manifest(id).await? {
            Some(manifest) => manifest,
            None if ids.len() > 1 => {
                if !global.json && !args.jsonl {
                    text::emit(&format!("{id}  not committed yet"));
                }
                continue;
            }
            None => view.committed(id).await?,
        };
        let content = content(view, &manifest, filter).await?;
        let asked = [
            (args.tokens, "--tokens"),
            (args.group.is_some(), "--group"),
            (args.sample.is_some(), "--sample"),
        ];
        if let Some((_, option)) = asked.iter().find(|(asked, _)| *asked)
            && content.episodes().is_none()
        {
            return Err(Error::Usage(format!(
                "{option} is for stages with episodes, which {} is not; leave it out",
                id.stage
            )));
        }
        kept += content.episodes().unwrap_or(1);
        if args.jsonl {
            for record in content.documents() {
                text::emit(&json!(record).to_string());
            }
            continue;
        }
        let row = read_row(view, id, &manifest).await?;
        if global.json {
            documents.push(PartDocument {
                part: id.to_string(),
                commit: Commit::of(manifest, row),
                records: pieces.beside(content.documents()),
            });
            continue;
        }
        text::emit(&screen::head(id, &manifest, &row));
        if manifest.attempt > 1 {
            let attempts = view.store.attempts(&view.slot(id)).await?;
            text::emit(&screen::attempts(id, &attempts, &manifest, &row));
        }
        let brief = ids.len() > 1 && !args.tokens && args.group.is_none() && args.sample.is_none();
        text::emit(&screen::body(&content, brief, args.tokens, &pieces));
    }
    if kept == 0 && (args.group.is_some() || args.sample.is_some()) {
        let named =
            |what: &str, n: Option<u32>| n.map_or(String::new(), |n| format!(" {what} {n}"));
        return Err(Error::Missing(format!(
            "no episode there has{}{}; without these options all are shown, each with its group and sample",
            named("group", args.group),
            named("sample", args.sample)
        )));
    }
    if global.json && !args.jsonl {
        match (documents.len(), args.part) {
            (1, Some(_)) => text::emit_json(&documents.remove(0)),
            _ => text::emit_json(&StageDocument {
                run: view.plan.run.to_string(),
                parts: documents,
            }),
        }
    }
    Ok(())
}
