//! `workers [RUN]`: who has worked, where, on what, and for how much. It follows from the records of
//! attempts; the queue, where there is one, adds who has vanished. No worker is contacted, so one
//! that waits for its first part is not there yet.

use crate::cli::Global;
use crate::fork::FORK;
use crate::runs::{RunView, part_id};
use crate::{Result, claims, text};
use agentgym_jobs::pipeline::PartId;
use agentgym_storage::{AttemptStart, Store};
use agentgym_text::visible_name;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A worker by the newest of its attempts.
struct Line {
    run: String,
    start: AttemptStart,
    part: PartId,
    attempt: u32,
    /// Its parts that are not committed, and whether somebody renews their claims.
    open: Vec<(PartId, Option<bool>)>,
    /// Its newest attempt has no end, and another one took its part over.
    replaced: bool,
    /// When it was last heard of, seconds since 1970 on its own clock.
    seen_unix_s: f64,
}

/// A part that is not committed, and whether somebody renews its claim.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OpenPart {
    part: String,
    alive: Option<bool>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct WorkerDocument {
    worker: String,
    run: String,
    host: String,
    device: Option<String>,
    /// `at work`, `idle`, `lost` or `vanished`.
    state: &'static str,
    open: Vec<OpenPart>,
    stage: &'static str,
    part: String,
    attempt: u32,
    began_unix_s: f64,
    seen_unix_s: f64,
    program: Option<String>,
    price: Option<f64>,
    labels: BTreeMap<String, String>,
}

/// `workers [RUN]`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WorkersDocument {
    now_unix_s: u64,
    workers: Vec<WorkerDocument>,
    /// Runs that cannot be read, and why.
    unreadable: Vec<String>,
}

impl Line {
    fn state(&self) -> &'static str {
        let alive = |wanted| self.open.iter().any(|(_, alive)| *alive == wanted);
        match self.open.is_empty() {
            true if self.replaced => "vanished",
            true => "idle",
            false if alive(Some(true)) || alive(None) => "at work",
            false => "lost",
        }
    }

    fn document(&self) -> WorkerDocument {
        let machine = &self.start.machine;
        let open = self.open.iter().map(|(part, alive)| OpenPart {
            part: part.to_string(),
            alive: *alive,
        });
        let some = |text: &str| named(text).map(str::to_owned);
        WorkerDocument {
            worker: self.start.worker.clone(),
            run: self.run.clone(),
            host: host(&self.start.worker).to_owned(),
            device: some(&machine.device),
            state: self.state(),
            open: open.collect(),
            stage: self.part.stage.name(),
            part: self.part.to_string(),
            attempt: self.attempt,
            began_unix_s: self.start.began_unix_s(),
            seen_unix_s: self.seen_unix_s,
            program: some(&self.start.code_version),
            price: machine.price,
            labels: machine.labels.clone(),
        }
    }

    fn row(&self, now: f64, with_program: bool) -> Vec<String> {
        let machine = &self.start.machine;
        let labels = machine
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"));
        let dash = |text: &str| named(text).unwrap_or("–").to_owned();
        let age = match self.seen_unix_s > 0.0 {
            true => text::seconds((now - self.seen_unix_s).max(0.0)),
            false => "–".to_owned(),
        };
        let mut row = vec![
            short_worker(&self.start.worker),
            dash(&machine.device),
            self.state().to_owned(),
            self.part.to_string(),
            age,
            machine
                .price
                .map_or_else(|| "–".to_owned(), |price| format!("{price}")),
            dash(&labels.collect::<Vec<_>>().join(" ")),
        ];
        row.extend(with_program.then(|| dash(&self.start.code_version)));
        row
    }
}

fn named(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// A worker as the tables name it, `host:pid/index`; --json has the whole name.
pub(crate) fn short_worker(worker: &str) -> String {
    let pieces: Vec<&str> = worker.split(':').collect();
    let short = match pieces[..] {
        [_, pid, start] => {
            let index = start.split_once('/').map_or("0", |(_, index)| index);
            format!("{}:{pid}/{index}", host(worker))
        }
        _ => worker.to_owned(),
    };
    visible_name(&short)
}

/// The host in a worker's name, `host-boot-namespace:pid:start/index`.
fn host(worker: &str) -> &str {
    let process = worker.split(':').next().unwrap_or(worker);
    let mut pieces = process.rsplitn(3, '-');
    let (_, _, host) = (pieces.next(), pieces.next(), pieces.next());
    host.filter(|_| worker.contains(':')).unwrap_or(process)
}

/// Runs the command.
pub(crate) async fn workers(store: &Store, run: Option<&str>, global: &Global) -> Result<()> {
    let mut lines = Vec::new();
    let mut unreadable = Vec::new();
    match run {
        Some(run) => lines = of_run(&RunView::open(store, run).await?, global).await?,
        None => {
            for run in store.runs().await? {
                // One that cannot be read does not hide the others.
                let read = async {
                    let view = RunView::open(store, run.as_str()).await?;
                    match view.progress().await?.finished(&view.plan) {
                        true => Ok(Vec::new()),
                        false => of_run(&view, global).await,
                    }
                };
                match read.await {
                    Ok(found) => lines.extend(found),
                    Err(e) => unreadable.push(format!("{run}: {e}")),
                }
            }
        }
    }
    lines.sort_by(|a, b| b.seen_unix_s.total_cmp(&a.seen_unix_s));
    if global.json {
        text::emit_json(&WorkersDocument {
            now_unix_s: text::unix_now_s(),
            workers: lines.iter().map(Line::document).collect(),
            unreadable,
        });
        return Ok(());
    }
    for message in unreadable {
        text::tell(&format!("cannot be read: {message}"));
    }
    if lines.is_empty() {
        text::emit(match run {
            Some(_) => "nobody has worked on this run yet",
            None => {
                "no run of this store is unfinished and has had a worker; `workers RUN` shows those of a finished one"
            }
        });
        return Ok(());
    }
    let now = text::unix_now_s() as f64;
    let programs: BTreeSet<&str> = (lines.iter())
        .map(|line| line.start.code_version.as_str())
        .collect();
    let one = programs.len() == 1;
    let rows: Vec<Vec<String>> = lines.iter().map(|line| line.row(now, !one)).collect();
    let mut head = vec![
        "worker",
        "device",
        "state",
        "part",
        "seen before",
        "price/h",
        "labels",
    ];
    head.extend((!one).then_some("program"));
    let mut out = text::table(&head, &rows);
    if let Some(program) = programs.first().filter(|_| one) {
        out += &format!("all of them by {}\n", named(program).unwrap_or("–"));
    }
    text::emit(&out);
    Ok(())
}

async fn of_run(view: &RunView, global: &Global) -> Result<Vec<Line>> {
    let queue = claims::queue(view, global).await;
    let committed: BTreeSet<PartId> = view.commits().await?.into_iter().collect();
    let attempts = view.store.all_attempts(&view.plan.run).await?;
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for (slot, all) in attempts {
        let Some(part) = part_id(&slot) else { continue };
        for (at, record) in all.iter().enumerate() {
            let began = record.start.began_unix_s();
            let ended = record.end.as_ref().map(|end| began + end.wall_s);
            let name = record.start.worker.clone();
            if name == FORK {
                continue;
            }
            let line = lines.entry(name).or_insert_with(|| Line {
                run: view.plan.run.to_string(),
                start: record.start.clone(),
                part,
                attempt: record.number,
                open: Vec::new(),
                replaced: false,
                seen_unix_s: 0.0,
            });
            line.seen_unix_s = line.seen_unix_s.max(ended.unwrap_or(began));
            if began >= line.start.began_unix_s() {
                line.start = record.start.clone();
                (line.part, line.attempt) = (part, record.number);
                line.replaced = ended.is_none() && at + 1 < all.len();
            }
            // A later attempt means that this one is over.
            if ended.is_none() && at + 1 == all.len() && !committed.contains(&part) {
                line.open.push((part, None));
            }
        }
    }
    for line in lines.values_mut() {
        for (part, alive) in &mut line.open {
            *alive = claims::liveness(view, *part, queue.as_ref())
                .await
                .is_alive();
        }
        // A commit is its attempt's end, and says how long that took.
        if line.open.is_empty()
            && committed.contains(&line.part)
            && let Some(manifest) = view.manifest(line.part).await?
            && manifest.attempt == line.attempt
            && let Some(work) = manifest.work
        {
            let ended = line.start.began_unix_s() + work.wall_s;
            line.seen_unix_s = line.seen_unix_s.max(ended);
        }
    }
    Ok(lines.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_s_name_begins_with_its_host() {
        assert_eq!(host("gpu-box-1a2b3c4d-4026531836:812:99/0"), "gpu-box");
        assert_eq!(host("box-1a2b3c4d-4026531836:812:99"), "box");
        assert_eq!(host("worker-a"), "worker-a");
        let whole = "gpu-box-1a2b3c4d-4026531836:812:99/3";
        assert_eq!(short_worker(whole), "gpu-box:812/3");
        assert_eq!(short_worker("worker-a"), "worker-a");
        assert_eq!(host(""), "");
    }

    #[test]
    fn a_worker_is_lost_when_nobody_renews_its_claim() {
        let part: PartId = "1/rollout/0".parse().unwrap();
        let mut line = Line {
            run: "r".into(),
            start: AttemptStart::default(),
            part,
            attempt: 1,
            open: vec![],
            replaced: false,
            seen_unix_s: 0.0,
        };
        assert_eq!(line.state(), "idle");
        line.replaced = true;
        assert_eq!(line.state(), "vanished");
        for (alive, state) in [
            (None, "at work"),
            (Some(true), "at work"),
            (Some(false), "lost"),
        ] {
            line.open = vec![(part, alive)];
            assert_eq!(line.state(), state);
        }
        assert_eq!(line.document().device, None);
    }
}
