//! A worker's knowledge of a run: the plan in force, the commits it has seen, and the parts worth
//! enqueuing. Commits are immutable, so a commit that was seen is never checked again.

use crate::Result;
use crate::exhausted::{Exhausted, counted_failures};
use crate::guard::{Warned, Watched};
use agentgym_jobs::Error as JobsError;
use agentgym_jobs::pipeline::{Part, PartId, Stage, parts};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::planner::{Frontier, Progress};
use agentgym_queue::{Job, Queue};
use agentgym_storage::{AttemptOutcome, AttemptRecord, Manifest, PartKey, RunId, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A worker asks the queue for a newer plan when the last answer is older than this.
const PLAN_AGE_MAX: Duration = Duration::from_secs(2);

/// If the first incomplete iteration known here lags a new commit by more than this, announcements
/// were missed and the commits are listed.
const ITERATIONS_BEHIND_MAX: u32 = 4;

/// A run as one process sees it.
pub struct RunState {
    store: Store,
    /// The newest plan revision.
    pub plan: Arc<Plan>,
    plan_asked: Instant,
    /// Commits seen.
    pub progress: Progress,
    /// Everything is committed, and the worker has acted on it.
    pub(crate) is_over: bool,
    manifests: BTreeMap<PartId, Arc<Manifest>>,
    /// Parts that this process has pushed since it started.
    offered: BTreeSet<PartId>,
    /// Attempts of runnable parts, as last listed.
    attempts: BTreeMap<PartKey, Vec<AttemptRecord>>,
    /// What the watchdog has read so far.
    pub(crate) history: Watched,
    /// The warnings that it has given.
    pub(crate) warned: Warned,
}

/// The newest revision of a run's plan.
///
/// # Errors
/// [`JobsError::UnknownRun`] if the run has no plan.
pub async fn load_plan(store: &Store, run: &RunId) -> Result<Plan> {
    match store.newest_plan(run, None).await? {
        Some((revision, bytes)) => Ok(Plan::stored(run, revision, &bytes, store.url())?),
        None => {
            let known = store.runs().await?;
            let known = match known.len() {
                0 => "no runs".to_owned(),
                n => {
                    const SHOWN_MAX: usize = 10;
                    let names: Vec<_> = known
                        .iter()
                        .take(SHOWN_MAX)
                        .map(ToString::to_string)
                        .collect();
                    let more = if n > SHOWN_MAX {
                        format!(" and {} more", n - SHOWN_MAX)
                    } else {
                        String::new()
                    };
                    format!("{}{more}", names.join(", "))
                }
            };
            Err(JobsError::UnknownRun {
                run: run.to_string(),
                url: store.url().to_owned(),
                known,
            }
            .into())
        }
    }
}

impl RunState {
    /// Loads the plan and computes the frontier.
    ///
    /// # Errors
    /// An unknown run, or a store that cannot be read.
    pub async fn open(store: &Store, run: &RunId) -> Result<Self> {
        let plan = Arc::new(load_plan(store, run).await?);
        let mut state = Self {
            store: store.clone(),
            plan,
            plan_asked: Instant::now(),
            progress: Progress::default(),
            is_over: false,
            manifests: BTreeMap::new(),
            offered: BTreeSet::new(),
            attempts: BTreeMap::new(),
            history: Watched::default(),
            warned: Warned::default(),
        };
        state.refresh().await?;
        Ok(state)
    }

    /// A second view of the same run: an attempt reads and remembers manifests in its own view, so
    /// that planning continues meanwhile.
    pub fn view(&self) -> Self {
        Self {
            store: self.store.clone(),
            plan: Arc::clone(&self.plan),
            plan_asked: self.plan_asked,
            progress: self.progress.clone(),
            is_over: self.is_over,
            manifests: self.manifests.clone(),
            offered: BTreeSet::new(),
            attempts: BTreeMap::new(),
            history: Watched::default(),
            warned: Warned::default(),
        }
    }

    /// The object-store name of a part.
    pub fn slot(&self, id: PartId) -> PartKey {
        PartKey {
            run: self.plan.run.clone(),
            iteration: id.iteration,
            stage: id.stage.name().into(),
            part: id.part,
        }
    }

    /// Reads a newer plan revision, if there is one.
    pub async fn refresh_plan(&mut self) -> Result<()> {
        let known = Some(self.plan.revision);
        if let Some((revision, bytes)) = self.store.newest_plan(&self.plan.run, known).await? {
            tracing::info!(revision, "a newer plan revision is in force");
            let plan = Plan::stored(&self.plan.run, revision, &bytes, self.store.url())?;
            self.plan = Arc::new(plan);
            // Parts whose jobs were dropped while the run was on hold are offered again.
            self.offered.clear();
        }
        self.plan_asked = Instant::now();
        Ok(())
    }

    /// Reads the plan again if the queue announces a newer revision. Only the queue is asked, every
    /// few seconds: one worker at a time reads the store and announces the revision to the others.
    pub async fn heed_plan(&mut self, queue: &Queue) -> Result<()> {
        if self.plan_asked.elapsed() < PLAN_AGE_MAX {
            return Ok(());
        }
        let told = queue.plan_told(self.plan.run.as_str()).await?;
        if told.is_some_and(|revision| revision > self.plan.revision) {
            return self.refresh_plan().await;
        }
        self.plan_asked = Instant::now();
        Ok(())
    }

    /// True if no further work may begin (`jobs.hold`).
    pub fn on_hold(&self) -> bool {
        self.plan.config.jobs.hold
    }

    /// Lists the commits of all iterations in flight, and computes the frontier again.
    pub async fn refresh(&mut self) -> Result<Frontier> {
        let known = self.progress.frontier(&self.plan);
        let Some(first) = known.first_iteration() else {
            return Ok(known);
        };
        for slot in self.store.commits_from(&self.plan.run, first).await? {
            // A stage unknown to this program belongs to a newer one.
            if let Ok(stage) = Stage::from_str(&slot.stage) {
                self.progress.insert(PartId {
                    iteration: slot.iteration,
                    stage,
                    part: slot.part,
                });
            }
        }
        Ok(self.progress.frontier(&self.plan))
    }

    /// The parts that the commit of `id` enables, and whether all parts seem committed, judged by
    /// known and announced commits. An announcement is enough to push a job, which opens its inputs
    /// itself, but a part never counts as committed because of one.
    pub async fn enabled_by(
        &mut self,
        id: PartId,
        told: &BTreeSet<PartId>,
    ) -> Result<(Vec<Part>, bool)> {
        let first = self.first_iteration();
        if first.saturating_add(ITERATIONS_BEHIND_MAX) < id.iteration {
            self.refresh().await?;
        }
        let mut progress = self.progress.clone();
        for part in told {
            progress.insert(*part);
        }
        let runnable = progress.frontier(&self.plan).runnable;
        let reads = |part: &Part| part.inputs.iter().any(|input| input.from == id);
        let enabled = runnable.into_iter().filter(reads).collect();
        Ok((enabled, progress.finished(&self.plan)))
    }

    /// The first incomplete iteration, as far as this process knows.
    pub fn first_iteration(&mut self) -> u32 {
        let frontier = self.progress.frontier(&self.plan);
        frontier.first_iteration().unwrap_or(self.plan.iterations)
    }

    /// The manifest of a part, if it is committed.
    pub async fn manifest(&mut self, id: PartId) -> Result<Option<Arc<Manifest>>> {
        if let Some(manifest) = self.manifests.get(&id) {
            return Ok(Some(Arc::clone(manifest)));
        }
        let slot = self.slot(id);
        let found = match self.progress.contains(&id) {
            true => match self.store.listed_manifest(&slot).await {
                Err(agentgym_storage::Error::NotFound { .. }) => None,
                read => Some(read?),
            },
            false => self.store.manifest(&slot).await?,
        };
        let Some(manifest) = found else {
            return Ok(None);
        };
        let manifest = Arc::new(manifest);
        self.progress.insert(id);
        self.remember(id, Arc::clone(&manifest));
        Ok(Some(manifest))
    }

    /// Takes over the manifests that another view of the run has read.
    pub(crate) fn learn_from(&mut self, other: &Self) {
        for (id, manifest) in &other.manifests {
            if self.progress.insert(*id) || !self.manifests.contains_key(id) {
                self.remember(*id, Arc::clone(manifest));
            }
        }
    }

    /// Keeps the manifests of recent iterations only.
    pub fn remember(&mut self, id: PartId, manifest: Arc<Manifest>) {
        const ITERATIONS_KEPT: u32 = 4;
        self.manifests.insert(id, manifest);
        self.manifests.retain(|known, _| {
            known.iteration == 0 || known.iteration.saturating_add(ITERATIONS_KEPT) > id.iteration
        });
    }

    /// Pushes the runnable parts. `running` are parts that this process is making.
    ///
    /// A part that was started is pushed again, under the next key, if its last attempt ended
    /// without a commit, or if no live worker holds its claim. A run on hold gets no pushes.
    /// Returns a message if a part has used up its attempts.
    ///
    /// # Errors
    /// The store or the queue fails.
    pub async fn enqueue(
        &mut self,
        queue: &Queue,
        frontier: &Frontier,
        running: &BTreeSet<PartId>,
    ) -> Result<Option<String>> {
        if self.on_hold() {
            return Ok(None);
        }
        let idle = |part: &&Part| !running.contains(&part.id);
        let parts = frontier.runnable.iter().filter(idle);
        let wanted: BTreeSet<PartKey> = parts.map(|part| self.slot(part.id)).collect();
        let known = std::mem::take(&mut self.attempts);
        self.attempts = self.store.attempts_of(&wanted, known).await?;
        for part in frontier.runnable.iter().filter(idle) {
            let known = self.attempts.get(&self.slot(part.id));
            let attempts = known.map_or(&[][..], Vec::as_slice);
            if let Some(message) = self.exhausted(part.id, attempts) {
                return Ok(Some(message));
            }
            let job = self.job(part.id, attempts.len());
            let delay = match attempts.last() {
                None => Duration::ZERO,
                Some(last) if last.end.is_some() => self.backoff(attempts),
                Some(_) if queue.holder(&job).await?.is_some() => continue,
                Some(_) => Duration::ZERO,
            };
            self.push(queue, &job, delay).await?;
            self.offered.insert(part.id);
        }
        Ok(None)
    }

    /// Pushes parts that this process has not pushed yet, without reading the store: parts that a
    /// commit has just enabled have no attempts. If another worker was faster, the queue holds the
    /// same key or the claim is taken. [`Self::enqueue`] recovers from every failure here.
    ///
    /// # Errors
    /// The queue fails.
    pub async fn enqueue_new(&mut self, queue: &Queue, parts: &[Part]) -> Result<()> {
        for part in parts {
            if self.offered.insert(part.id) {
                let job = self.job(part.id, 0);
                self.push(queue, &job, Duration::ZERO).await?;
            }
        }
        // Parts of complete iterations are never pushed again.
        let first = self.first_iteration();
        self.offered.retain(|id| id.iteration >= first);
        Ok(())
    }

    /// Queues a job of this run with the run's priority.
    ///
    /// # Errors
    /// The queue fails.
    pub async fn push(&self, queue: &Queue, job: &Job, delay: Duration) -> Result<()> {
        let priority = self.plan.config.jobs.priority;
        queue.enqueue_at(&job.stage, priority, job, delay).await?;
        Ok(())
    }

    /// The job of a part that has begun `attempts` times. A further attempt or a new plan revision
    /// gives it a new key; neither number ever decreases.
    pub fn job(&self, id: PartId, attempts: usize) -> Job {
        Job {
            run: self.plan.run.to_string(),
            iteration: id.iteration,
            stage: id.stage.name().to_owned(),
            part: id.part,
            offer: (attempts as u32).saturating_add(self.plan.revision),
        }
    }

    /// Wait before the next attempt; doubles with each failed attempt.
    pub fn backoff(&self, attempts: &[AttemptRecord]) -> Duration {
        let failed = self.failed(attempts);
        if failed == 0 {
            return Duration::ZERO;
        }
        const DOUBLINGS_MAX: u32 = 6;
        let factor = f64::from(1u32 << (failed - 1).min(DOUBLINGS_MAX));
        Duration::from_secs_f64(self.plan.config.jobs.backoff_s * factor)
    }

    /// Why a part may not be tried again, if it may not.
    pub fn exhausted(&self, id: PartId, attempts: &[AttemptRecord]) -> Option<String> {
        let exhausted = Exhausted::of(&self.plan, attempts)?;
        let ends = attempts.iter().rev().filter_map(|a| a.end.as_ref());
        let last = ends
            .into_iter()
            .find(|e| e.outcome == AttemptOutcome::Failed);
        Some(exhausted.message(id, last.map_or("", |end| &end.message)))
    }

    /// Attempts that count towards `jobs.failures_max`.
    pub fn failed(&self, attempts: &[AttemptRecord]) -> u32 {
        counted_failures(&self.plan, attempts)
    }

    /// The parts of an iteration.
    pub fn parts(&self, iteration: u32) -> Vec<Part> {
        parts(&self.plan, iteration)
    }
}
