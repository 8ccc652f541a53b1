//! Follows a run to its end. Only commits count: events of the workers in this process make
//! progress visible sooner, and a run whose workers are elsewhere is followed in the same way.

use crate::estimate::{self, TimeLeft, estimate};
use crate::metrics::RunMetrics;
use crate::metrics::summary;
use crate::run::display::Display;
use crate::run::signals::Interrupts;
use crate::runs::{RunView, part_id};
use crate::status::{Known, status_again};
use crate::{Error, Result, text};
use agentgym_jobs::pipeline::{PartId, Stage, parts, policy_of};
use agentgym_jobs::planner::Progress;
use agentgym_storage::{Manifest, Verdict};
use agentgym_worker::{Cause, Event};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// How often commits are listed. Commits of this process's own workers are reported at once.
const LIST_EVERY: Duration = Duration::from_secs(2);
/// Every this many listings, attempts are read too: failures and waiting parts.
const ATTEMPTS_EVERY: u64 = 5;
/// A process with its own workers lists only to find commits of other processes: every this many
/// ticks.
const OTHERS_EVERY: u64 = 5;

/// How following ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Every part is committed.
    Finished,
    /// A part failed for good, or something the run needs does not answer.
    Stopped(String, Cause),
    /// A signal was received.
    Interrupted,
}

/// The workers of this process and their events.
pub(crate) struct Crew {
    /// One task per worker.
    pub(crate) workers: JoinSet<agentgym_worker::Result<()>>,
    /// Their events.
    pub(crate) events: broadcast::Receiver<Event>,
}

/// Follows one run.
pub(crate) struct Follower {
    view: RunView,
    progress: Progress,
    /// Metrics of all commits seen.
    pub(crate) book: RunMetrics,
    display: Display,
    metrics_dir: Option<PathBuf>,
    /// Lines already printed, identified by the part whose commit completed them.
    told: BTreeSet<PartId>,
    part_total: u64,
    rate: String,
    known: Known,
}

impl Follower {
    /// Reads the existing commits; they are not shown again.
    pub(crate) async fn new(
        view: RunView,
        display: Display,
        metrics_dir: Option<PathBuf>,
    ) -> Result<Self> {
        let plan = &view.plan;
        let part_total = (0..=plan.iterations)
            .map(|n| parts(plan, n).len() as u64)
            .sum();
        let mut follower = Self {
            view,
            progress: Progress::default(),
            book: RunMetrics::default(),
            display,
            metrics_dir,
            told: BTreeSet::new(),
            part_total,
            rate: String::new(),
            known: Known::default(),
        };
        let commits = follower.view.commits().await?;
        for id in &commits {
            follower.progress.insert(*id);
        }
        follower.book.absorb(&follower.view, commits).await?;
        let known: Vec<_> = follower.news().into_iter().map(|(key, _)| key).collect();
        follower.told.extend(known);
        Ok(follower)
    }

    /// Follows until the run ends or a signal comes. Draining waits for the
    /// workers of this process.
    pub(crate) async fn follow(&mut self, mut crew: Crew, interrupts: &Interrupts) -> Result<End> {
        let mut tick = tokio::time::interval(LIST_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticks = 0u64;
        let mut stopped = None;
        let mut draining = false;
        let embedded = !crew.workers.is_empty();
        let end = loop {
            tokio::select! {
                () = interrupts.abort.cancelled() => break End::Interrupted,
                () = interrupts.drain.cancelled(), if !draining => {
                    draining = true;
                    if crew.workers.is_empty() {
                        break End::Interrupted;
                    }
                    self.display.line("draining: finished work is committed or journalled; Ctrl-C again leaves at once");
                }
                event = crew.events.recv(), if embedded => match event {
                    Ok(event) => {
                        self.display.event(&event);
                        match event {
                            Event::Committed { part, manifest } => {
                                let heard = self.heard(part, &manifest).await;
                                self.if_it_answers(heard)?;
                            }
                            Event::RunFinished { .. } => self.look_if_it_answers().await?,
                            Event::RunStopped { message, cause, .. } => stopped = Some((message, cause)),
                            _ => {}
                        }
                    }
                    Err(RecvError::Lagged(_)) => {}
                    // The workers hold the senders, so the workers are about to end and be joined.
                    Err(RecvError::Closed) => tokio::time::sleep(Duration::from_millis(20)).await,
                },
                Some(ended) = crew.workers.join_next() => {
                    match ended {
                        Ok(Ok(())) => {}
                        Ok(Err(e)) => return Err(worker_error(e)),
                        Err(e) => return Err(Error::Worker(e.to_string())),
                    }
                    if crew.workers.is_empty() {
                        while let Ok(event) = crew.events.try_recv() {
                            if let Event::RunStopped { message, cause, .. } = event {
                                stopped = Some((message, cause));
                            }
                        }
                        // The cause of the stop may also make listing fail.
                        if let Some((message, cause)) = stopped.take() {
                            let looked = self.look().await;
                            if looked.is_ok() && self.finished() {
                                break End::Finished;
                            }
                            break End::Stopped(message, cause);
                        }
                        self.look().await?;
                        if self.finished() {
                            break End::Finished;
                        }
                        if draining {
                            break End::Interrupted;
                        }
                    }
                }
                _ = tick.tick() => {
                    ticks += 1;
                    if crew.workers.is_empty() || ticks.is_multiple_of(OTHERS_EVERY) {
                        self.look_if_it_answers().await?;
                    }
                    if self.finished() && crew.workers.is_empty() {
                        // Workers elsewhere give their warnings to the store alone.
                        let asked = self.ask_why().await;
                        self.if_it_answers(asked.map(|_| ()))?;
                        break End::Finished;
                    }
                    if crew.workers.is_empty() && ticks.is_multiple_of(ATTEMPTS_EVERY) {
                        let asked = self.ask_why().await;
                        if let Ok(Some((message, cause))) = asked {
                            break End::Stopped(message, cause);
                        }
                        self.if_it_answers(asked.map(|_| ()))?;
                    }
                }
            }
        };
        self.display.close();
        Ok(end)
    }

    /// Shows what the run waits for, or returns why it has stopped.
    async fn ask_why(&mut self) -> Result<Option<(String, Cause)>> {
        let run = self.view.plan.run.to_string();
        let newest = RunView::open(&self.view.store, &run).await?;
        let newest = newest.with_queue(self.view.queue.clone());
        let status = status_again(&newest, &mut self.known, None).await?;
        for warning in &status.warnings {
            self.display.event(&Event::Warned(warning.clone()));
        }
        let stopped = status.stopped();
        if stopped.is_none() && !self.finished() {
            let line = status.waiting_line();
            let message = line.trim_start_matches("waiting: ").to_owned();
            self.display.event(&Event::Waiting { message });
        }
        Ok(stopped)
    }

    /// A store that fails temporarily does not end following: workers retry, and so does the next
    /// listing.
    async fn look_if_it_answers(&mut self) -> Result<()> {
        let looked = self.look().await;
        self.if_it_answers(looked)
    }

    fn if_it_answers(&mut self, looked: Result<()>) -> Result<()> {
        match looked {
            Err(Error::Storage(e)) if matches!(e.verdict(), Verdict::Retry | Verdict::Wait(_)) => {
                let message = e.to_string();
                self.display.event(&Event::Waiting { message });
                Ok(())
            }
            other => other,
        }
    }

    pub(crate) fn finished(&mut self) -> bool {
        self.progress.finished(&self.view.plan)
    }

    /// A worker of this process has committed a part.
    async fn heard(&mut self, id: PartId, manifest: &Manifest) -> Result<()> {
        // In this order: if reading the metrics fails now, the part is still new to the next
        // listing.
        self.book.add(&self.view, id, manifest).await?;
        if self.progress.insert(id) {
            self.tell()?;
        }
        Ok(())
    }

    /// Lists the iterations in flight and shows what is new.
    pub(crate) async fn look(&mut self) -> Result<()> {
        let frontier = self.progress.frontier(&self.view.plan);
        let Some(first) = frontier.first_iteration() else {
            return Ok(());
        };
        let run = &self.view.plan.run;
        let listed = self.view.store.commits_from(run, first).await?;
        let new = listed.iter().filter_map(part_id);
        let new: Vec<PartId> = new.filter(|id| !self.progress.contains(id)).collect();
        if new.is_empty() {
            return Ok(());
        }
        self.book.absorb(&self.view, new.iter().copied()).await?;
        for id in new {
            self.progress.insert(id);
        }
        self.tell()
    }

    fn tell(&mut self) -> Result<()> {
        let news = self.news();
        if !news.is_empty() {
            self.write_metrics()?;
        }
        // Of several iterations at once, the last one says what is left.
        let left = self.left().filter(|estimate| estimate.left_s > 0.0);
        let latest = self.progress.latest_policy(&self.view.plan);
        let latest = latest.map(|n| policy_of(&self.view.plan, n));
        for (key, mut line) in news {
            if let (Some(left), true) = (left, latest == Some(key)) {
                line += &format!("  about {} left", text::seconds(left.left_s));
            }
            self.told.insert(key);
            self.display.line(&line);
        }
        self.show_bars();
        Ok(())
    }

    /// Lines about iterations and evaluations that are complete and not yet shown.
    fn news(&self) -> Vec<(PartId, String)> {
        let plan = &self.view.plan;
        let mut out = Vec::new();
        let id = |iteration, stage, part| PartId {
            iteration,
            stage,
            part,
        };
        for part in 0..plan.sft_parts(0) {
            let key = id(0, Stage::Sft, part);
            if !self.told.contains(&key)
                && let Some(row) = self.book.row(key)
            {
                out.push((key, summary::sft_line(row, plan, part)));
            }
        }
        let latest = self.progress.latest_policy(plan).unwrap_or(0);
        for n in 1..=latest {
            let key = policy_of(plan, n);
            if self.told.contains(&key) || !self.progress.contains(&policy_of(plan, n)) {
                continue;
            }
            if let Some(training) = self.book.training(plan, n) {
                out.push((key, summary::training_line(&training, plan.iterations)));
            }
        }
        let width = self.display.width();
        for evaluated in self.book.evaluations(plan) {
            let before = evaluated.iteration == 0 && evaluated.before_warm_start;
            let stage = if before {
                Stage::EvaluateInit
            } else {
                Stage::Evaluate
            };
            let key = id(evaluated.iteration, stage, 0);
            if evaluated.sets.iter().all(Option::is_some) && !self.told.contains(&key) {
                out.push((key, summary::evaluation_line(&evaluated, plan, width)));
            }
        }
        out
    }

    fn show_bars(&mut self) {
        let plan = &self.view.plan;
        let frontier = self.progress.frontier(plan);
        let current = frontier.first_iteration().unwrap_or(plan.iterations);
        let all = parts(plan, current);
        let done = all.iter().filter(|p| self.progress.contains(&p.id)).count() as u64;
        let latest = self.progress.latest_policy(plan).unwrap_or(0);
        if let Some(rate) = self
            .book
            .training(plan, latest)
            .and_then(|t| t.tokens_per_s)
        {
            self.rate = format!("{} tokens/s", text::count(rate.round() as u64));
        }
        let left_s = self.left().map(|estimate| estimate.left_s);
        self.display.progress(
            (self.progress.len() as u64, self.part_total),
            (current, done, all.len() as u64),
            &self.rate,
            left_s,
        );
    }

    /// How long the run still takes.
    fn left(&self) -> Option<TimeLeft> {
        let plan = &self.view.plan;
        let latest = self.progress.latest_policy(plan)?;
        let ended = |n| {
            let row = self.book.row(policy_of(plan, n))?;
            row.wall_s.map(|_| (n, row.ended_unix_s()))
        };
        let ended: Vec<_> = estimate::wanted(plan, latest).filter_map(ended).collect();
        estimate(plan, &ended, text::unix_now_s() as f64)
    }

    /// Writes the metrics so far.
    pub(crate) fn write_metrics(&self) -> Result<Vec<PathBuf>> {
        match &self.metrics_dir {
            Some(dir) => self.book.write(dir, &self.view.plan.config.trainer),
            None => Ok(Vec::new()),
        }
    }
}

pub(crate) fn worker_error(e: agentgym_worker::Error) -> Error {
    match e {
        agentgym_worker::Error::Jobs(e) => Error::Jobs(e),
        agentgym_worker::Error::Storage(e) => Error::Storage(e),
        agentgym_worker::Error::Queue(e) => Error::Queue(e),
        lost if lost.cause() == Cause::Device => Error::Device(lost.to_string()),
        other => Error::Worker(other.to_string()),
    }
}
