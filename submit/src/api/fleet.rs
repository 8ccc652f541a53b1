//! Who worked when on what, and what it cost. Times are the workers' clocks, for people.

use super::known::Known;
use crate::{Result, text};
use agentgym_storage::{AttemptRecord, PartKey};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// One attempt on a worker's lane.
#[derive(Debug, Clone, PartialEq)]
struct Bar {
    slot: PartKey,
    attempt: u32,
    worker: String,
    start: f64,
    /// When it ended. For a worker that vanished: when the next attempt at the part began.
    end: Option<f64>,
    outcome: &'static str,
    message: String,
}

/// Every attempt, by start.
async fn bars(known: &Known) -> Result<Vec<Bar>> {
    let attempts = known.attempts().await?;
    let mut out = Vec::new();
    let state = known.state().await;
    for (slot, all) in &attempts {
        let id = crate::runs::part_id(slot);
        let manifest = id.and_then(|id| state.manifests.get(&id));
        for (at, record) in all.iter().enumerate() {
            let next = all.get(at + 1).map(|next| next.start.started_unix_s as f64);
            let committed = manifest.filter(|m| m.attempt == record.number && m.origin.is_none());
            let work = committed.and_then(|m| m.work.as_ref());
            let start = record.start.started_unix_s as f64;
            let (outcome, end) = match (work, &record.end) {
                (Some(work), _) => ("committed", Some(start + work.wall_s)),
                (None, Some(end)) => (end.outcome.name(), Some(start + end.wall_s)),
                // Somebody else began or finished the part: this worker is gone.
                (None, None) if next.is_some() || manifest.is_some() => ("killed", next),
                (None, None) => ("open", None),
            };
            out.push(Bar {
                slot: slot.clone(),
                attempt: record.number,
                worker: record.start.worker.clone(),
                start,
                end,
                outcome,
                message: message(record),
            });
        }
    }
    out.sort_by(|a, b| a.start.total_cmp(&b.start));
    Ok(out)
}

fn message(record: &AttemptRecord) -> String {
    let of_end = record.end.as_ref().map(|end| end.message.clone());
    record.damage.clone().or(of_end).unwrap_or_default()
}

/// The Gantt chart's data: lanes by worker, and bars as arrays.
pub(super) async fn attempts(known: &Known) -> Result<Value> {
    let bars = bars(known).await?;
    let begun = bars.first().map_or(0.0, |bar| bar.start);
    let mut lanes: Vec<&str> = Vec::new();
    let mut rows = Vec::new();
    for bar in &bars {
        let lane = lanes.iter().position(|lane| *lane == bar.worker);
        let lane = lane.unwrap_or_else(|| {
            lanes.push(&bar.worker);
            lanes.len() - 1
        });
        let part = format!(
            "{}/{}/{}",
            bar.slot.iteration, bar.slot.stage, bar.slot.part
        );
        let end = bar.end.map(|end| round(end - begun));
        rows.push(json!([
            lane,
            round(bar.start - begun),
            end,
            part,
            bar.attempt,
            bar.outcome,
            bar.message
        ]));
    }
    Ok(json!({
        "run": known.plan().await.run.to_string(), "begun_unix_s": begun,
        "now_s": round(text::unix_now_s() as f64 - begun), "lanes": lanes,
        "columns": ["lane", "start_s", "end_s", "part", "attempt", "outcome", "message"], "bars": rows,
    }))
}

fn round(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// Seconds of useful and lost work, and attempts.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    useful_s: f64,
    lost_s: f64,
    attempts: u32,
    lost: u32,
    bytes: u64,
}

impl Account {
    fn add(&mut self, bar: &Bar, bytes: u64) {
        let seconds = bar.end.map_or(0.0, |end| (end - bar.start).max(0.0));
        self.attempts += 1;
        match bar.outcome {
            "committed" => {
                self.useful_s += seconds;
                self.bytes += bytes;
            }
            "open" => {}
            _ => {
                self.lost_s += seconds;
                self.lost += 1;
            }
        }
    }

    fn to_json(self, key: &str, name: &str) -> Value {
        json!({
            key: name, "useful_s": round(self.useful_s), "lost_s": round(self.lost_s),
            "attempts": self.attempts, "lost_attempts": self.lost, "bytes": self.bytes,
        })
    }
}

/// Worker-seconds by stage and by worker: useful, lost and idle; and per solved episode.
pub(super) async fn ledger(known: &Known) -> Result<Value> {
    let bars = bars(known).await?;
    let (mut stages, mut workers) = (
        BTreeMap::<String, Account>::new(),
        BTreeMap::<String, (Account, f64, f64)>::new(),
    );
    let mut total = Account::default();
    let state = known.state().await;
    for bar in &bars {
        let id = crate::runs::part_id(&bar.slot);
        let manifest = id.and_then(|id| state.manifests.get(&id));
        let bytes = manifest.map_or(0, |m| m.outputs.iter().map(|o| o.size).sum());
        stages
            .entry(bar.slot.stage.clone())
            .or_default()
            .add(bar, bytes);
        total.add(bar, bytes);
        let end = bar.end.unwrap_or(bar.start);
        let entry = workers.entry(bar.worker.clone());
        let (account, first, last) = entry.or_insert((Account::default(), bar.start, end));
        account.add(bar, bytes);
        *first = first.min(bar.start);
        *last = last.max(end);
    }
    let mut idle = 0.0;
    let workers: Vec<Value> = workers
        .iter()
        .map(|(name, (account, first, last))| {
            let own = (last - first - account.useful_s - account.lost_s).max(0.0);
            idle += own;
            let mut line = account.to_json("worker", name);
            line["idle_s"] = json!(round(own));
            line
        })
        .collect();
    let solved: f64 = state
        .book
        .rows()
        .filter(|(id, _)| {
            use agentgym_jobs::pipeline::Stage;
            matches!(id.stage, Stage::Advantage | Stage::Filter)
        })
        .filter_map(|(_, row)| Some(row.metric("success")? * row.metric("episodes")?))
        .sum();
    let solved = solved.round();
    let spent = total.useful_s + total.lost_s + idle;
    let stages: Vec<Value> = stages.iter().map(|(n, a)| a.to_json("stage", n)).collect();
    let mut sum = total.to_json("stage", "all");
    sum["idle_s"] = json!(round(idle));
    Ok(json!({
        "run": state.view.plan.run.to_string(), "total": sum, "stages": stages, "workers": workers,
        "solved_episodes": solved,
        "worker_s_per_solved_episode": (solved > 0.0).then(|| round(spent / solved)),
    }))
}
