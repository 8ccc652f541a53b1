//! `status`: the state of a run and what it waits for. Everything follows from the plan, the
//! commits and the attempt records; the queue, where there is one, adds which attempts have lost
//! their worker. No worker is contacted, so it works even if none is alive.

pub(crate) mod all;
mod document;
mod watched;

pub use crate::claims::Liveness;
pub use crate::estimate::TimeLeft;
use crate::estimate::{self, estimate};
use crate::metrics::finite;
use crate::runs::RunView;
use crate::{Error, Result, claims, text};
use agentgym_jobs::pipeline::{PartId, Stage, parts, policy_of};
use agentgym_jobs::planner::Progress;
use agentgym_queue::{Queue, Trouble};
use agentgym_record::metrics::Metrics;
use agentgym_storage::{AttemptOutcome, AttemptRecord};
use agentgym_text::visible_name;
use agentgym_worker::{Cause, Exhausted, Warning};
pub(crate) use all::all;
pub use document::StatusDocument;
pub(crate) use document::WarningDocument;
use std::collections::{BTreeMap, BTreeSet};
pub(crate) use watched::{Known, warning_lines, warnings};

/// State of a part that is not committed.
#[derive(Debug, Clone, PartialEq)]
pub enum State {
    /// An attempt has started and not ended.
    Running {
        /// Attempt number.
        attempt: u32,
        /// The worker's name.
        worker: String,
        /// Seconds since 1970 on the worker's clock.
        since_unix_s: u64,
        /// Whether the worker is still there.
        claim: Liveness,
    },
    /// All inputs are there and no attempt has started.
    Runnable,
    /// Inputs are missing.
    Waiting(Vec<PartId>),
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The part.
    pub part: PartId,
    /// Attempt number.
    pub attempt: u32,
    /// Why.
    pub message: String,
}

/// Everything that `status RUN` shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The run.
    pub run: String,
    /// The run and its store as arguments of a command.
    pub arguments: String,
    /// The command that gives it a worker.
    pub start: String,
    /// Newest plan revision.
    pub revision: u32,
    /// Planned iterations.
    pub iterations: u32,
    /// Newest iteration whose policy is committed.
    pub latest: Option<u32>,
    /// Committed parts.
    pub committed: usize,
    /// All parts of the plan.
    pub parts: usize,
    /// Parts in flight.
    pub in_flight: Vec<(PartId, State)>,
    /// Failed attempts of parts in flight.
    pub failures: Vec<Failure>,
    /// The part that has used up its attempts, and the limit that it reached.
    pub exhausted: Option<(PartId, Exhausted)>,
    /// Workers of the queue that have stepped back.
    pub troubled: Vec<(String, Trouble)>,
    /// The run is on hold.
    pub on_hold: bool,
    /// Why the guard has paused the run.
    pub paused: Option<String>,
    /// What is wrong with the run by its figures.
    pub warnings: Vec<Warning>,
    /// How long the run still takes.
    pub pace: Option<TimeLeft>,
    /// Metrics of the last supervised part.
    pub fitted: Option<Fitted>,
    /// Every part is committed.
    pub finished: bool,
}

/// Progress of supervised training, by its last committed part.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Fitted {
    /// Optimizer steps made.
    pub step: u32,
    /// Mean loss of the part.
    pub loss: f64,
    /// Loss on held-out data.
    pub validation_loss: Option<f64>,
}

/// Reads the status of a run; `queue` says which attempts have lost their worker.
///
/// # Errors
/// The store cannot be read. A queue that does not answer is as good as none.
pub async fn status(view: &RunView, queue: Option<&Queue>) -> Result<Status> {
    status_again(view, &mut Known::default(), queue).await
}

/// [`status`] for a caller that polls.
pub(crate) async fn status_again(
    view: &RunView,
    known: &mut Known,
    queue: Option<&Queue>,
) -> Result<Status> {
    let plan = &view.plan;
    let mut progress = view.progress().await?;
    let frontier = progress.frontier(plan);
    let finished = progress.finished(plan);
    let mut out = Status {
        run: plan.run.to_string(),
        arguments: view.arguments(),
        start: view.start(),
        revision: plan.revision,
        iterations: plan.iterations,
        latest: progress.latest_policy(plan),
        committed: progress.len(),
        parts: (0..=plan.iterations).map(|n| parts(plan, n).len()).sum(),
        in_flight: Vec::new(),
        failures: Vec::new(),
        exhausted: None,
        troubled: Vec::new(),
        on_hold: plan.config.jobs.hold && !finished,
        paused: None,
        warnings: warnings(view, &progress, known, None).await?,
        pace: None,
        fitted: fitted(view, &progress).await?,
        finished,
    };
    if let (Some(queue), false) = (queue, finished) {
        // Who is alive says the same of a queue that does not answer.
        out.troubled = queue.in_trouble().await.unwrap_or_default();
    }
    let (of, url) = ((&**plan, &progress), view.store.argument());
    if !finished {
        out.pace = pace(view, out.latest).await?;
        out.paused = agentgym_worker::pause(of, &out.warnings, &url);
    }
    let runnable = frontier.runnable.iter().map(|part| view.slot(part.id));
    let mut known = view
        .store
        .attempts_of(&runnable.collect(), BTreeMap::new())
        .await?;
    for part in &frontier.runnable {
        let attempts = known.remove(&view.slot(part.id)).unwrap_or_default();
        if let Some(exhausted) = Exhausted::of(plan, &attempts) {
            out.exhausted.get_or_insert((part.id, exhausted));
        }
        out.failures.extend(failures(part.id, &attempts));
        let mut state = state(&attempts);
        if let State::Running { claim, .. } = &mut state {
            *claim = claims::liveness(view, part.id, queue).await;
        }
        out.in_flight.push((part.id, state));
    }
    for waiting in frontier.waiting {
        out.in_flight
            .push((waiting.part.id, State::Waiting(waiting.missing)));
    }
    out.in_flight.sort_by_key(|(id, _)| *id);
    Ok(out)
}

/// Progress of supervised training in iteration 0.
async fn fitted(view: &RunView, progress: &Progress) -> Result<Option<Fitted>> {
    let part = |part| PartId {
        iteration: 0,
        stage: Stage::Sft,
        part,
    };
    if !view.plan.config.sft.validates() {
        return Ok(None);
    }
    let parts = view.plan.sft_parts(0);
    // Parts are committed in order.
    let done = (0..parts).rev().map(part).find(|id| progress.contains(id));
    let Some(done) = done else {
        return Ok(None);
    };
    let Some(manifest) = view.manifest(done).await? else {
        return Ok(None);
    };
    let Some(Metrics::Sft(of)) = Metrics::of(&view.store, done, &manifest).await? else {
        return Ok(None);
    };
    Ok(finite(of.loss).map(|loss| Fitted {
        step: of.steps.1,
        loss,
        validation_loss: of.validation.and_then(|of| of.validation_loss),
    }))
}

async fn pace(view: &RunView, latest: Option<u32>) -> Result<Option<TimeLeft>> {
    let Some(latest) = latest else {
        return Ok(None);
    };
    let ended = async |n| {
        let work = view.manifest(policy_of(&view.plan, n)).await?;
        let work = work.and_then(|manifest| manifest.work);
        Ok::<_, Error>(work.map(|work| (n, work.started_unix_s as f64 + work.wall_s)))
    };
    let all = estimate::wanted(&view.plan, latest).map(ended);
    let all = futures::future::try_join_all(all).await?;
    let ends: Vec<(u32, f64)> = all.into_iter().flatten().collect();
    Ok(estimate(&view.plan, &ends, text::unix_now_s() as f64))
}

fn state(attempts: &[AttemptRecord]) -> State {
    match attempts.last() {
        Some(last) if last.end.is_none() => State::Running {
            attempt: last.number,
            worker: last.start.worker.clone(),
            since_unix_s: last.start.started_unix_s,
            claim: Liveness::unasked(),
        },
        _ => State::Runnable,
    }
}

fn failures(part: PartId, attempts: &[AttemptRecord]) -> Vec<Failure> {
    let message = |record: &AttemptRecord| match (&record.damage, &record.end) {
        (Some(damage), _) => Some(format!("its record is damaged: {damage}")),
        (None, Some(end)) if end.outcome == AttemptOutcome::Failed => Some(end.message.clone()),
        (None, _) => None,
    };
    let failure = |record: &AttemptRecord| {
        message(record).map(|message| Failure {
            part,
            attempt: record.number,
            message,
        })
    };
    attempts.iter().filter_map(failure).collect()
}

/// Workers named one by one.
const TROUBLED_SHOWN: usize = 8;

/// A line about each of the first workers that have stepped back or are silent.
pub(crate) fn troubled_lines(troubled: &[(String, Trouble)], now_unix_s: u64) -> Vec<String> {
    let line = |(worker, trouble): &(String, Trouble)| {
        let lasted = now_unix_s.saturating_sub(trouble.since_unix_s) as f64;
        format!(
            "worker {} takes no part, since {} ago: {}",
            visible_name(worker),
            text::seconds(lasted),
            visible_name(&trouble.why)
        )
    };
    let mut lines: Vec<String> = troubled.iter().take(TROUBLED_SHOWN).map(line).collect();
    if let more @ 1.. = troubled.len().saturating_sub(TROUBLED_SHOWN) {
        lines.push(format!(
            "and {more} more workers; `status --json` names them"
        ));
    }
    lines
}

impl Status {
    /// Why the run will not continue by itself, if so, and what has to be fixed.
    pub(crate) fn stopped(&self) -> Option<(String, Cause)> {
        if self.on_hold {
            return Some(("it is on hold (jobs.hold)".to_owned(), Cause::Hold));
        }
        if let Some(message) = &self.paused {
            return Some((message.clone(), Cause::Part));
        }
        let (part, exhausted) = self.exhausted?;
        let last = self.failures.iter().rev().find(|f| f.part == part);
        let last = last.map_or("", |f| f.message.as_str());
        Some((exhausted.message(part, last), Cause::Part))
    }

    /// Its state in a word or two.
    pub fn state(&self) -> &'static str {
        let runs = |(_, state): &(PartId, State)| matches!(state, State::Running { claim, .. } if *claim != Liveness::Free);
        match () {
            () if self.finished => "finished",
            () if self.on_hold => "on hold",
            () if self.paused.is_some() => "paused",
            () if self.exhausted.is_some() => "stopped",
            () if self.in_flight.iter().any(runs) => "running",
            () => "waiting",
        }
    }

    /// One line on what the run waits for.
    pub fn waiting_line(&self) -> String {
        if self.finished {
            return format!(
                "finished: every part is committed; `agentgym-submit view {}` shows it",
                self.arguments
            );
        }
        if self.on_hold {
            return format!(
                "waiting: for you, the run is on hold; `agentgym-submit resume {}` carries on",
                self.arguments
            );
        }
        if let Some(message) = &self.paused {
            return format!("waiting: for you, {message}");
        }
        if let Some((part, exhausted)) = self.exhausted {
            return format!(
                "waiting: for you, {part} {exhausted}; `agentgym-submit resume {}` tries again",
                self.arguments
            );
        }
        let blocking = |s: &&(PartId, State)| s.0.stage.facts().blocks;
        let of = |keep: &dyn Fn(&State) -> bool| -> Vec<PartId> {
            let mut ids: Vec<_> = self
                .in_flight
                .iter()
                .filter(blocking)
                .filter(|(_, s)| keep(s))
                .map(|(id, _)| *id)
                .collect();
            if ids.is_empty() {
                ids = self
                    .in_flight
                    .iter()
                    .filter(|(_, s)| keep(s))
                    .map(|(id, _)| *id)
                    .collect();
            }
            ids
        };
        let lost = |s: &State| {
            matches!(
                s,
                State::Running {
                    claim: Liveness::Free,
                    ..
                }
            )
        };
        let running = of(&|s| matches!(s, State::Running { .. }) && !lost(s));
        let runnable = of(&|s| matches!(s, State::Runnable) || lost(s));
        let next = self
            .in_flight
            .iter()
            .find(|(_, s)| matches!(s, State::Waiting(_)));
        let then = next.map_or_else(String::new, |(id, _)| {
            format!("; then {}/{}", id.iteration, id.stage)
        });
        match (running.as_slice(), runnable.as_slice()) {
            ([], []) => "waiting: for commits to be listed; ask again".into(),
            ([], _) => format!(
                "waiting: for a worker to take {}{then}; where none is alive, `{}` starts one",
                grouped(&runnable),
                self.start
            ),
            _ => format!("waiting: for {} to finish{then}", grouped(&running)),
        }
    }

    /// The status as text.
    pub fn render(&self, now_unix_s: u64) -> String {
        let at = match self.latest {
            None => "no policy yet".to_owned(),
            Some(n) => format!("iteration {n} of {} done", self.iterations),
        };
        let mut out = format!(
            "run {}  revision {}  {at}  {} of {} parts committed\n",
            self.run, self.revision, self.committed, self.parts
        );
        let mut rows = Vec::new();
        let mut waiting: BTreeMap<(u32, Stage), (usize, BTreeSet<PartId>)> = BTreeMap::new();
        for (id, state) in &self.in_flight {
            match state {
                State::Running {
                    attempt,
                    worker,
                    since_unix_s,
                    claim,
                } => {
                    let age = now_unix_s.saturating_sub(*since_unix_s) as f64;
                    // 0: the start record is damaged.
                    let begun = match since_unix_s {
                        0 => "begun nobody knows when".to_owned(),
                        _ => format!("begun {} ago", text::seconds(age)),
                    };
                    let then = match claim {
                        Liveness::Free => ", which has vanished; the next worker takes it up",
                        Liveness::Held | Liveness::Unknown(_) => "",
                    };
                    let state = claim.state();
                    rows.push(format!(
                        "  {id}  {state}  attempt {attempt} by {}, {begun}{then}",
                        visible_name(worker)
                    ));
                }
                State::Runnable => {
                    rows.push(format!("  {id}  runnable  waits for a worker"));
                }
                State::Waiting(missing) => {
                    let entry = waiting.entry((id.iteration, id.stage)).or_default();
                    entry.0 += 1;
                    entry.1.extend(missing);
                }
            }
        }
        for ((iteration, stage), (count, missing)) in waiting {
            let parts = if count == 1 {
                String::new()
            } else {
                format!(" ({count} parts)")
            };
            rows.push(format!(
                "  {iteration}/{stage}{parts}  waits for {}",
                grouped(&missing)
            ));
        }
        for line in troubled_lines(&self.troubled, now_unix_s) {
            rows.push(format!("  {line}"));
        }
        for failure in &self.failures {
            rows.push(format!(
                "  {}  failed  attempt {}: {}",
                failure.part, failure.attempt, failure.message
            ));
        }
        for row in rows {
            out += &row;
            out.push('\n');
        }
        if let Some(pace) = self.pace {
            out += &format!(
                "pace: {} an iteration, about {} left\n",
                text::seconds(pace.iteration_s),
                text::seconds(pace.left_s)
            );
        }
        if let Some(fitted) = self.fitted {
            let held_out = fitted.validation_loss;
            out += &format!(
                "sft: {} optimizer steps, loss {:.4}{}\n",
                fitted.step,
                fitted.loss,
                held_out.map_or_else(String::new, |loss| format!(
                    ", on what is held out {loss:.4}"
                ))
            );
        }
        out + &warning_lines(&self.warnings) + &self.waiting_line() + "\n"
    }
}

/// `3/rollout/0, 3/rollout/1` or, for many, `4 parts of 3/rollout`.
fn grouped<'a>(ids: impl IntoIterator<Item = &'a PartId>) -> String {
    const NAMED_MAX: usize = 3;
    let mut stages: BTreeMap<(u32, Stage), Vec<PartId>> = BTreeMap::new();
    for id in ids {
        stages
            .entry((id.iteration, id.stage))
            .or_default()
            .push(*id);
    }
    let texts: Vec<String> = stages
        .into_iter()
        .map(|((iteration, stage), ids)| {
            if ids.len() > NAMED_MAX {
                format!("{} parts of {iteration}/{stage}", ids.len())
            } else {
                ids.iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", ")
            }
        })
        .collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(iteration: u32, stage: Stage, part: u32) -> PartId {
        PartId {
            iteration,
            stage,
            part,
        }
    }

    fn sample() -> Status {
        let running = State::Running {
            attempt: 2,
            worker: "host:1:ab".into(),
            since_unix_s: 1000,
            claim: Liveness::Held,
        };
        Status {
            run: "quick-1a2b".into(),
            arguments: "quick-1a2b --store s3://b/p".into(),
            start: "agentgym-submit resume quick-1a2b --store s3://b/p".into(),
            revision: 1,
            iterations: 20,
            latest: Some(2),
            committed: 31,
            parts: 250,
            in_flight: vec![
                (id(3, Stage::Rollout, 0), running),
                (id(3, Stage::Rollout, 1), State::Runnable),
                (
                    id(3, Stage::LogProbs, 0),
                    State::Waiting(vec![id(3, Stage::Rollout, 0)]),
                ),
                (
                    id(3, Stage::LogProbs, 1),
                    State::Waiting(vec![id(3, Stage::Rollout, 1)]),
                ),
            ],
            failures: vec![Failure {
                part: id(3, Stage::Rollout, 0),
                attempt: 1,
                message: "environment textcraft at http://h:1 does not answer".into(),
            }],
            exhausted: None,
            troubled: Vec::new(),
            on_hold: false,
            paused: None,
            warnings: Vec::new(),
            pace: Some(TimeLeft {
                iteration_s: 31.0,
                left_s: 558.0,
            }),
            fitted: None,
            finished: false,
        }
    }

    #[test]
    fn a_fleet_in_trouble_is_a_few_lines() {
        let why = "the disk is full".to_owned();
        let trouble = Trouble {
            since_unix_s: 5,
            why,
        };
        let of = |count: usize| -> Vec<_> {
            let names = (0..count).map(|n| format!("w{n}"));
            names.map(|name| (name, trouble.clone())).collect()
        };
        let lines = troubled_lines(&of(2), 50);
        assert_eq!(
            lines[1],
            "worker w1 takes no part, since 45 s ago: the disk is full"
        );
        let lines = troubled_lines(&of(11), 50);
        assert_eq!(
            (lines.len(), lines[8].as_str()),
            (9, "and 3 more workers; `status --json` names them")
        );
    }

    #[test]
    fn what_waits_for_what() {
        insta::assert_snapshot!(sample().render(1125), @"
            run quick-1a2b  revision 1  iteration 2 of 20 done  31 of 250 parts committed
              3/rollout/0  running  attempt 2 by host:1:ab, begun 2 min 05 s ago
              3/rollout/1  runnable  waits for a worker
              3/log_probs (2 parts)  waits for 3/rollout/0, 3/rollout/1
              3/rollout/0  failed  attempt 1: environment textcraft at http://h:1 does not answer
            pace: 31 s an iteration, about 9 min 18 s left
            waiting: for 3/rollout/0 to finish; then 3/log_probs
        ");
    }

    #[test]
    fn a_part_without_its_worker_waits_for_another() {
        let mut status = sample();
        if let State::Running { claim, .. } = &mut status.in_flight[0].1 {
            *claim = Liveness::Free;
        }
        insta::assert_snapshot!(status.render(1125), @r"
            run quick-1a2b  revision 1  iteration 2 of 20 done  31 of 250 parts committed
              3/rollout/0  lost  attempt 2 by host:1:ab, begun 2 min 05 s ago, which has vanished; the next worker takes it up
              3/rollout/1  runnable  waits for a worker
              3/log_probs (2 parts)  waits for 3/rollout/0, 3/rollout/1
              3/rollout/0  failed  attempt 1: environment textcraft at http://h:1 does not answer
            pace: 31 s an iteration, about 9 min 18 s left
            waiting: for a worker to take 3/rollout/0, 3/rollout/1; then 3/log_probs; where none is alive, `agentgym-submit resume quick-1a2b --store s3://b/p` starts one
        ");
        let json = serde_json::json!(status.document());
        assert_eq!(json["in_flight"][0]["state"], "lost");
        assert_eq!(json["in_flight"][0]["worker_alive"], false);
    }

    #[test]
    fn the_line_names_the_cause() {
        let mut status = sample();
        status.in_flight.remove(0);
        insta::assert_snapshot!(status.waiting_line(), @"waiting: for a worker to take 3/rollout/1; then 3/log_probs; where none is alive, `agentgym-submit resume quick-1a2b --store s3://b/p` starts one");
        status.exhausted = Some((id(3, Stage::Rollout, 0), Exhausted::Failed(3)));
        insta::assert_snapshot!(status.waiting_line(), @"waiting: for you, 3/rollout/0 failed 3 times; `agentgym-submit resume quick-1a2b --store s3://b/p` tries again");
        status.on_hold = true;
        insta::assert_snapshot!(status.waiting_line(), @"waiting: for you, the run is on hold; `agentgym-submit resume quick-1a2b --store s3://b/p` carries on");
        status.finished = true;
        insta::assert_snapshot!(status.waiting_line(), @"finished: every part is committed; `agentgym-submit view quick-1a2b --store s3://b/p` shows it");
    }
}
