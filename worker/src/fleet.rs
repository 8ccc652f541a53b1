//! What a worker knows of a run: the plan in force, the commits it has seen,
//! and from them what is worth enqueuing. Commits are immutable, so what was
//! seen once is never asked for again.

use crate::exhausted::{Exhausted, counted_failures};
use crate::{Result, guard};
use agentgym_jobs::Error as JobsError;
use agentgym_jobs::pipeline::{Part, PartId, Stage, parts};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::planner::{Frontier, Progress};
use agentgym_jobs::queue::{Job, Queue};
use agentgym_storage::{AttemptOutcome, AttemptRecord, Manifest, RunId, Slot, Store};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Requests for the commits of so many iterations run at once.
const LISTS_AT_ONCE: usize = 8;

/// A worker acts on a plan that is no older, if it looks at a plan at all.
const PLAN_AGE_MAX: Duration = Duration::from_secs(5);

/// A run as one process sees it.
pub struct RunState {
    store: Store,
    /// The newest plan revision.
    pub plan: Arc<Plan>,
    plan_read: Instant,
    /// Commits seen.
    pub progress: Progress,
    /// Everything is committed, and the worker has acted on it.
    pub(crate) is_over: bool,
    manifests: BTreeMap<PartId, Arc<Manifest>>,
    /// Parts that this process has pushed since it began.
    offered: BTreeSet<PartId>,
    /// What the stop guard has read so far.
    pub(crate) history: guard::History,
}

/// The newest revision of a run's plan.
///
/// # Errors
/// [`JobsError::UnknownRun`] if nobody has planned the run.
pub async fn load_plan(store: &Store, run: &RunId) -> Result<Plan> {
    match store.newest_plan(run, None).await? {
        Some((_, bytes)) => Ok(Plan::from_bytes(&bytes)?),
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
    /// Loads the plan and finds the frontier.
    ///
    /// # Errors
    /// Unknown run, or a store that cannot be read.
    pub async fn open(store: &Store, run: &RunId) -> Result<Self> {
        let plan = Arc::new(load_plan(store, run).await?);
        let mut state = Self {
            store: store.clone(),
            plan,
            plan_read: Instant::now(),
            progress: Progress::default(),
            is_over: false,
            manifests: BTreeMap::new(),
            offered: BTreeSet::new(),
            history: guard::History::new(),
        };
        state.catch_up().await?;
        Ok(state)
    }

    /// A second view of the same run: an attempt reads and remembers manifests
    /// in its own, so that planning goes on beside it.
    pub fn view(&self) -> Self {
        Self {
            store: self.store.clone(),
            plan: Arc::clone(&self.plan),
            plan_read: self.plan_read,
            progress: self.progress.clone(),
            is_over: self.is_over,
            manifests: self.manifests.clone(),
            offered: BTreeSet::new(),
            history: guard::History::new(),
        }
    }

    /// The object-store name of a part.
    pub fn slot(&self, id: PartId) -> Slot {
        Slot {
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
            self.plan = Arc::new(Plan::from_bytes(&bytes)?);
            // What was dropped while the run was on hold is offered again.
            self.offered.clear();
        }
        self.plan_read = Instant::now();
        Ok(())
    }

    /// Reads the plan again unless that was done a moment ago: a busy worker, too, hears of a
    /// hold, for a request every few seconds.
    pub async fn refresh_old_plan(&mut self) -> Result<()> {
        if self.plan_read.elapsed() < PLAN_AGE_MAX {
            return Ok(());
        }
        self.refresh_plan().await
    }

    /// True if nothing more may begin (`jobs.hold`).
    pub fn on_hold(&self) -> bool {
        self.plan.config.jobs.hold
    }

    /// Lists the commits of every iteration from the first incomplete one up.
    async fn catch_up(&mut self) -> Result<()> {
        let mut next = self
            .progress
            .frontier(&self.plan)
            .first_iteration()
            .unwrap_or(0);
        while next <= self.plan.iterations {
            let batch: Vec<u32> = (next..=self.plan.iterations).take(LISTS_AT_ONCE).collect();
            next += batch.len() as u32;
            if self.list(batch).await? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Lists the commits of the iterations in flight, each once, and plans anew.
    pub async fn refresh(&mut self) -> Result<Frontier> {
        let mut listed = BTreeSet::new();
        loop {
            let frontier = self.progress.frontier(&self.plan);
            let new: Vec<u32> = frontier.iterations.difference(&listed).copied().collect();
            if new.is_empty() {
                return Ok(frontier);
            }
            listed.extend(&new);
            self.list(new).await?;
        }
    }

    /// Returns the number of commits that were new.
    async fn list(&mut self, iterations: Vec<u32>) -> Result<usize> {
        let (store, run) = (&self.store, &self.plan.run);
        let slots: Vec<Vec<Slot>> = stream::iter(iterations)
            .map(|iteration| store.commits(run, iteration))
            .buffered(LISTS_AT_ONCE)
            .try_collect()
            .await?;
        let mut new = 0;
        for slot in slots.into_iter().flatten() {
            // A stage that this program does not know belongs to a newer one.
            if let Ok(stage) = Stage::from_str(&slot.stage) {
                let id = PartId {
                    iteration: slot.iteration,
                    stage,
                    part: slot.part,
                };
                new += usize::from(self.progress.insert(id));
            }
        }
        Ok(new)
    }

    /// The manifest of a part, if it is committed.
    pub async fn manifest(&mut self, id: PartId) -> Result<Option<Arc<Manifest>>> {
        if let Some(manifest) = self.manifests.get(&id) {
            return Ok(Some(Arc::clone(manifest)));
        }
        let Some(manifest) = self.store.manifest(&self.slot(id)).await? else {
            return Ok(None);
        };
        let manifest = Arc::new(manifest);
        self.progress.insert(id);
        self.remember(id, Arc::clone(&manifest));
        Ok(Some(manifest))
    }

    /// Keeps the manifests of recent iterations only.
    pub fn remember(&mut self, id: PartId, manifest: Arc<Manifest>) {
        const ITERATIONS_KEPT: u32 = 4;
        self.manifests.insert(id, manifest);
        self.manifests.retain(|known, _| {
            known.iteration == 0 || known.iteration + ITERATIONS_KEPT > id.iteration
        });
    }

    /// Pushes what can run. `running` are parts this process is making.
    ///
    /// A part that was started is pushed again, under the next key, if its last
    /// attempt ended without a commit, or if nobody alive holds its claim any
    /// more. Of a run on hold nothing is pushed.
    ///
    /// # Errors
    /// The first part that has used up its attempts, by name.
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
        let wanted: BTreeSet<Slot> = parts.map(|part| self.slot(part.id)).collect();
        let mut known = self.store.attempts_of(&wanted).await?;
        for part in frontier.runnable.iter().filter(idle) {
            let attempts = known.remove(&self.slot(part.id)).unwrap_or_default();
            if let Some(message) = self.exhausted(part.id, &attempts) {
                return Ok(Some(message));
            }
            let job = self.job(part.id, attempts.len());
            let delay = match attempts.last() {
                None => Duration::ZERO,
                Some(last) if last.end.is_some() => self.backoff(&attempts),
                Some(_) if queue.holder(&job).await?.is_some() => continue,
                Some(_) => Duration::ZERO,
            };
            queue.enqueue(part.id.stage.name(), &job, delay).await?;
            self.offered.insert(part.id);
        }
        Ok(None)
    }

    /// Pushes what this process has not pushed yet, without a look at the store: what a commit
    /// has just made possible has no attempts. Where another worker was quicker, the queue
    /// holds the same key or the claim is taken. Whatever goes wrong, [`Self::enqueue`] heals.
    ///
    /// # Errors
    /// The queue fails.
    pub async fn enqueue_new(&mut self, queue: &Queue, frontier: &Frontier) -> Result<()> {
        let runnable: &[Part] = if self.on_hold() {
            &[]
        } else {
            &frontier.runnable
        };
        for part in runnable {
            if self.offered.insert(part.id) {
                let job = self.job(part.id, 0);
                queue
                    .enqueue(part.id.stage.name(), &job, Duration::ZERO)
                    .await?;
            }
        }
        // What is committed is never asked for again.
        let first = frontier.iterations.first().copied().unwrap_or(0);
        self.offered.retain(|id| id.iteration >= first);
        Ok(())
    }

    /// The queue's view of a part that has begun so often. Whatever gives it another chance, an
    /// attempt or a new plan revision, gives it another key; neither number ever falls.
    pub fn job(&self, id: PartId, attempts: usize) -> Job {
        Job {
            run: self.plan.run.to_string(),
            iteration: id.iteration,
            stage: id.stage.name().to_owned(),
            part: id.part,
            offer: attempts as u32 + self.plan.revision,
        }
    }

    /// Wait before the next attempt: doubles with each failed one.
    pub fn backoff(&self, attempts: &[AttemptRecord]) -> Duration {
        let failed = self.failed(attempts);
        if failed == 0 {
            return Duration::ZERO;
        }
        const DOUBLINGS_MAX: u32 = 6;
        let factor = f64::from(1u32 << (failed - 1).min(DOUBLINGS_MAX));
        Duration::from_secs_f64(self.plan.config.jobs.backoff_s * factor)
    }

    /// Why a part may not be tried again, if so.
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
