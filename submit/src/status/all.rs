//! Every run of a store, one line each, the newest first.

use super::{StatusDocument, status};
use crate::cli::Global;
use crate::runs::RunView;
use crate::{Result, claims, text};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_jobs::plan::Plan;
use agentgym_storage::Store;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What identifies a fork, and not how it differs from another run.
const APART: [&str; 2] = ["run.seed", "run.fork"];

/// A run of the list.
struct Listed {
    /// When its first part was begun; none for one that nobody has begun.
    begun_unix_s: Option<u64>,
    plan: Option<Arc<Plan>>,
    /// State, iteration, parts and what it waits for.
    cells: [String; 4],
    document: RunDocument,
    run: String,
}

/// A run of `status`.
#[derive(Serialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum RunDocument {
    Read {
        #[serde(flatten)]
        status: Box<StatusDocument>,
        #[serde(flatten)]
        own: Own,
    },
    Unreadable {
        run: String,
        error: String,
    },
}

/// What tells a run from the others.
#[derive(Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Own {
    name: Option<String>,
    seed: u64,
    begun_unix_s: Option<u64>,
    differs: BTreeMap<&'static str, Value>,
}

/// `status` without a run.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct AllDocument {
    runs: Vec<RunDocument>,
}

/// One line per run of a store.
pub(crate) async fn all(store: &Store, global: &Global) -> Result<()> {
    let mut listed = Vec::new();
    for run in store.runs().await? {
        listed.push(match look(store, run.as_str(), global).await {
            Ok(found) => found,
            // A run that cannot be read does not hide the others.
            Err(e) => Listed {
                begun_unix_s: Some(0),
                plan: None,
                cells: [
                    "unreadable".into(),
                    "–".into(),
                    "–".into(),
                    format!("for you, it cannot be read: {e}"),
                ],
                document: RunDocument::Unreadable {
                    run: run.to_string(),
                    error: e.to_string(),
                },
                run: run.to_string(),
            },
        });
    }
    // Of equal age by name, so that the order is one.
    listed.sort_by_key(|run| run.begun_unix_s.unwrap_or(u64::MAX));
    let plans: Vec<_> = listed.iter().map(|run| run.plan.clone()).collect();
    let named = plans
        .iter()
        .flatten()
        .any(|plan| plan.config.run.name.is_some());
    let (mut rows, mut documents) = (Vec::new(), Vec::new());
    for (at, mut run) in listed.into_iter().enumerate().rev() {
        let (mut seed, mut name, mut changed) = ("–".to_owned(), String::new(), BTreeMap::new());
        if let Some(plan) = &run.plan {
            changed = differs(plan, plans[..at].iter().flatten());
            let own = &plan.config.run;
            name = own.name.clone().unwrap_or_default();
            seed = own.seed.to_string();
            if let RunDocument::Read { own: said, .. } = &mut run.document {
                *said = Own {
                    name: own.name.clone(),
                    seed: own.seed,
                    begun_unix_s: run.begun_unix_s,
                    differs: changed.clone(),
                };
            }
        }
        let changed: Vec<String> = (changed.iter())
            .map(|(key, value)| {
                let key = key.rsplit('.').next().unwrap_or(key);
                format!("{key}={}", text::one_line(&value.to_string(), 20))
            })
            .collect();
        let [state, iteration, parts, waiting] = run.cells;
        let mut row = vec![run.run];
        row.extend(named.then_some(name));
        row.extend([state, iteration, parts, seed, changed.join(" "), waiting]);
        rows.push(row);
        documents.push(run.document);
    }
    if global.json {
        text::emit_json(&AllDocument { runs: documents });
    } else if rows.is_empty() {
        text::emit(&format!("no runs in the store at {}", store.url()));
    } else {
        let mut head = vec!["run"];
        head.extend(named.then_some("name"));
        head.extend(["state", "iteration", "parts", "seed", "differs", "waiting"]);
        text::emit(&text::table(&head, &rows));
    }
    Ok(())
}

async fn look(store: &Store, run: &str, global: &Global) -> Result<Listed> {
    let view = RunView::open(store, run).await?;
    let view = view.with_queue(global.queue.clone());
    let queue = claims::queue(&view, global).await;
    let status = status(&view, queue.as_ref()).await?;
    let first = PartId {
        iteration: 0,
        stage: Stage::Init,
        part: 0,
    };
    let attempts = store.attempts(&view.slot(first)).await?;
    let waiting = match status.finished {
        true => String::new(),
        false => status.waiting_line(),
    };
    let mut waits: Vec<String> = vec![waiting.trim_start_matches("waiting: ").to_owned()];
    waits.retain(|text| !text.is_empty());
    let names: Vec<&str> = status.warnings.iter().map(|w| w.name.as_str()).collect();
    waits.extend((!names.is_empty()).then(|| format!("warnings: {}", names.join(", "))));
    Ok(Listed {
        begun_unix_s: attempts.first().map(|first| first.start.started_unix_s),
        cells: [
            status.state().to_owned(),
            format!("{}/{}", status.latest.unwrap_or(0), status.iterations),
            format!("{}/{}", status.committed, status.parts),
            waits.join("; "),
        ],
        document: RunDocument::Read {
            status: Box::new(status.document()),
            own: Own::default(),
        },
        run: status.run,
        plan: Some(view.plan),
    })
}

/// Identity keys in which a run differs from the oldest one that is almost the same, with its own
/// values; nothing where there is none.
fn differs<'a>(
    plan: &Plan,
    older: impl Iterator<Item = &'a Arc<Plan>>,
) -> BTreeMap<&'static str, Value> {
    /// With more, it is another config.
    const KEYS_MAX: usize = 5;
    let changed = |other: &Arc<Plan>| {
        let all = other.differences(plan).into_iter();
        let all = all.filter(|(key, ..)| !APART.iter().any(|apart| key.starts_with(apart)));
        let all: BTreeMap<_, _> = all.map(|(key, _, own)| (key, own)).collect();
        (all.len() <= KEYS_MAX).then_some(all)
    };
    older.into_iter().find_map(changed).unwrap_or_default()
}
