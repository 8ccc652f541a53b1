//! A run that somebody looks at: its commits, each read once, and what was computed from them.

use super::reading::Reading;
use crate::Result;
use crate::claims;
use crate::cli::Global;
use crate::credit::{Compared, compare, played};
use crate::inspect::screen::Pieces;
use crate::metrics::{Row, RunMetrics, read_row};
use crate::runs::{RunView, newest_plan, unknown};
use crate::status::{self, Status, status_again};
use agentgym_jobs::pipeline::PartId;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::planner::Progress;
use agentgym_queue::Queue;
use agentgym_record::credit::PlayedIteration;
use agentgym_storage::{AttemptRecord, Manifest, PartKey};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Commits read concurrently.
const READS_AT_ONCE: usize = 48;
/// How long a listing is good for.
const FRESH: Duration = Duration::from_millis(900);

/// The same for the attempts of a finished run.
const FINISHED: Duration = Duration::from_secs(60);

/// Attempts by part.
type Attempts = BTreeMap<PartKey, Vec<AttemptRecord>>;

/// What is known of a run.
pub(super) struct Known {
    state: Mutex<State>,
    /// Held by the one that lists.
    refreshing: Mutex<()>,
    /// Says where the queue is, if that is not beside the store.
    global: Global,
    /// Opened by the first question for who is alive.
    queue: OnceCell<Option<Queue>>,
    /// What the watchdog has read.
    figures: Mutex<status::Known>,
    pieces: Mutex<Option<Arc<Pieces>>>,
    credit: Mutex<Option<(u32, Arc<PlayedIteration>, Compared)>>,
    attempts: Mutex<Option<(Instant, Arc<Attempts>)>>,
    /// What is being read, for somebody who waits.
    pub(super) reading: Reading,
}

/// The plan and the commits.
pub(super) struct State {
    pub(super) view: RunView,
    pub(super) manifests: BTreeMap<PartId, Arc<Manifest>>,
    pub(super) book: RunMetrics,
    listed: Option<Instant>,
}

impl Known {
    pub(super) fn new(view: RunView, global: &Global) -> Self {
        Self {
            global: global.clone(),
            queue: OnceCell::new(),
            figures: Mutex::default(),
            refreshing: Mutex::default(),
            state: Mutex::new(State {
                view,
                manifests: BTreeMap::new(),
                book: RunMetrics::default(),
                listed: None,
            }),
            pieces: Mutex::default(),
            credit: Mutex::default(),
            attempts: Mutex::default(),
            reading: Reading::default(),
        }
    }

    /// How long ago the commits were listed; `None` if they never were.
    pub(super) async fn age(&self) -> Option<Duration> {
        let state = self.state.lock().await;
        state.listed.map(|at| at.elapsed())
    }

    /// Lists the commits and reads the new ones, unless that was just done. What is known already
    /// can be asked meanwhile.
    pub(super) async fn refresh(&self) -> Result<()> {
        let _only_one = self.refreshing.lock().await;
        if self.age().await.is_some_and(|age| age < FRESH) {
            return Ok(());
        }
        let mut view = self.view().await;
        let run = view.plan.run.clone();
        let Some(plan) = newest_plan(&view.store, &run).await? else {
            return Err(unknown(&view.store, run.as_str()).await?);
        };
        if plan.revision != view.plan.revision {
            view.plan = Arc::new(plan);
        }
        let mut new = view.commits().await?;
        {
            let state = self.state.lock().await;
            new.retain(|id| !state.manifests.contains_key(id));
        }
        let reading = self.reading.begin("commits", new.len());
        let read = |id: PartId| {
            let (view, reading) = (&view, &reading);
            async move {
                let manifest = view.committed(id).await?;
                // Metrics that cannot be read do not hide the rest: the part's page says why.
                let row = match id.stage.facts().is_measured {
                    true => read_row(view, id, &manifest).await.ok(),
                    false => None,
                };
                reading.step();
                Ok::<_, crate::Error>((id, manifest, row))
            }
        };
        let found = stream::iter(new).map(read).buffer_unordered(READS_AT_ONCE);
        let found: Vec<(PartId, Manifest, Option<Row>)> = found.try_collect().await?;
        let mut state = self.state.lock().await;
        for (id, manifest, row) in found {
            state.manifests.insert(id, Arc::new(manifest));
            if let Some(row) = row {
                state.book.insert(id, row);
            }
        }
        state.view = view;
        state.listed = Some(Instant::now());
        Ok(())
    }

    pub(super) async fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().await
    }

    pub(super) async fn view(&self) -> RunView {
        self.state.lock().await.view.clone()
    }

    pub(super) async fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.state.lock().await.view.plan)
    }

    /// The commits so far, in the order of the run.
    pub(super) async fn manifests(&self) -> Vec<(PartId, Arc<Manifest>)> {
        let state = self.state.lock().await;
        let all = state.manifests.iter();
        all.map(|(id, manifest)| (*id, Arc::clone(manifest)))
            .collect()
    }

    /// The commit of a part.
    pub(super) async fn committed(&self, id: PartId) -> Result<Arc<Manifest>> {
        let state = self.state.lock().await;
        if let Some(manifest) = state.manifests.get(&id) {
            return Ok(Arc::clone(manifest));
        }
        Ok(Arc::new(state.view.committed(id).await?))
    }

    /// The state of the run.
    pub(super) async fn status(&self) -> Result<Status> {
        let view = self.view().await;
        let open = || claims::queue(&view, &self.global);
        let queue = self.queue.get_or_init(open).await;
        let mut figures = self.figures.lock().await;
        status_again(&view, &mut figures, queue.as_ref()).await
    }

    /// The tokenizer, which training never changes.
    pub(super) async fn pieces(&self) -> Result<Arc<Pieces>> {
        let view = self.view().await;
        let mut pieces = self.pieces.lock().await;
        if let Some(pieces) = &*pieces {
            return Ok(Arc::clone(pieces));
        }
        // An expired policy leaves the ids.
        let read = Pieces::of(&view).await.unwrap_or_else(|_| Pieces::none());
        Ok(Arc::clone(pieces.insert(Arc::new(read))))
    }

    /// The credit of an iteration's episodes; the last iteration asked for is kept.
    pub(super) async fn credit(&self, n: u32) -> Result<(Arc<PlayedIteration>, Compared)> {
        let view = self.view().await;
        let mut kept = self.credit.lock().await;
        if let Some((known, played, compared)) = &*kept
            && *known == n
            && *compared != Compared::NotYet
        {
            return Ok((Arc::clone(played), compared.clone()));
        }
        let found = Arc::new(played(&view, n).await?);
        let compared = compare(&view, n, &found).await?;
        *kept = Some((n, Arc::clone(&found), compared.clone()));
        Ok((found, compared))
    }

    /// Every attempt; records that were read before are not read again.
    pub(super) async fn attempts(&self) -> Result<Arc<Attempts>> {
        let view = self.view().await;
        let mut kept = self.attempts.lock().await;
        // A page asks for bars and costs at once; and a run with every commit gets no more attempts.
        let patience = match self.is_finished().await {
            true => FINISHED,
            false => FRESH,
        };
        if let Some((listed, known)) = &*kept
            && listed.elapsed() < patience
        {
            return Ok(Arc::clone(known));
        }
        let known = kept.take().map(|(_, known)| Arc::unwrap_or_clone(known));
        let known = known.unwrap_or_default();
        let found = view
            .store
            .all_attempts_beside(&view.plan.run, known)
            .await?;
        let found = Arc::new(found);
        *kept = Some((Instant::now(), Arc::clone(&found)));
        Ok(found)
    }

    async fn is_finished(&self) -> bool {
        let state = self.state.lock().await;
        let mut progress = Progress::default();
        for id in state.manifests.keys() {
            progress.insert(*id);
        }
        progress.finished(&state.view.plan)
    }

    /// Changes with every commit, and with every attempt at a part that can run.
    pub(super) async fn pulse(&self) -> Result<String> {
        let (view, commits, slots) = {
            let state = self.state.lock().await;
            let mut progress = Progress::default();
            for id in state.manifests.keys() {
                progress.insert(*id);
            }
            let frontier = progress.frontier(&state.view.plan);
            let slots = frontier
                .runnable
                .iter()
                .map(|part| state.view.slot(part.id));
            (state.view.clone(), progress.len(), slots.collect())
        };
        let attempts = view.store.attempts_of(&slots, BTreeMap::new()).await?;
        let all = || attempts.values().flatten();
        let ended = all().filter(|a| a.end.is_some()).count();
        Ok(format!(
            "revision {}, {commits} commits, {} attempts under way, {ended} ended",
            view.plan.revision,
            all().count()
        ))
    }
}
