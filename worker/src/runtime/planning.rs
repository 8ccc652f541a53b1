//! Planning inside a worker: after every commit the parts it enables, and periodically everything,
//! which recovers from lost pushes, flushed queues and vanished workers.

use super::Worker;
use crate::Cause;
use crate::context::Event;
use crate::run_state::RunState;
use crate::{Error, Result, guard, panics};
use agentgym_jobs::pipeline::{PartId, policy_of};
use agentgym_storage::RunId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Shortest interval between looks at the store, per fleet and run: two listings each time.
const PLAN_EVERY: Duration = Duration::from_secs(5);
/// How often the store is searched for runs that were not announced.
const RUNS_EVERY: Duration = Duration::from_secs(20);
/// How often a worker asks for the planning turn. The turn is a lease in the queue, so a wiped
/// queue is noticed and refilled within this time.
const TURN_EVERY: Duration = Duration::from_secs(1);

impl Worker {
    /// After a commit: announces it, and pushes the parts that it enables. Makes no request to the
    /// store, unless this was the last part, this process has missed many announcements, or there
    /// are new figures to watch.
    pub(super) async fn plan_after(&self, shared: &Arc<Mutex<RunState>>, id: PartId) -> Result<()> {
        let mut state = shared.lock().await;
        let queue = &self.options.queue;
        let run = state.plan.run.clone();
        let (first, name) = (state.first_iteration(), id.to_string());
        let told = queue
            .tell(run.as_str(), (id.iteration, &name), first)
            .await?;
        let told = told.iter().filter_map(|part| part.parse().ok()).collect();
        let (enabled, seems_over) = state.enabled_by(id, &told).await?;
        if seems_over {
            state.refresh().await?;
        }
        if id == policy_of(&state.plan, id.iteration) || id.stage.facts().evaluates {
            self.warn(&mut state).await;
        }
        state.heed_plan(queue).await?;
        if self.is_over(&mut state) || self.is_held_up(&mut state).await? {
            return Ok(());
        }
        state.enqueue_new(queue, &enabled).await?;
        self.out_of_trouble();
        Ok(())
    }

    /// Periodically: reads the plan, lists commits and attempts, and pushes everything that can
    /// run, since pushes, claims and workers get lost.
    async fn plan(&self, shared: &Arc<Mutex<RunState>>) -> Result<()> {
        let mut state = shared.lock().await;
        let queue = &self.options.queue;
        state.refresh_plan().await?;
        let run = state.plan.run.clone();
        queue.tell_plan(run.as_str(), state.plan.revision).await?;
        let frontier = state.refresh().await?;
        if self.is_over(&mut state) || self.is_held_up(&mut state).await? {
            return Ok(());
        }
        let running = self.running().clone();
        if let Some(message) = state.enqueue(queue, &frontier, &running).await? {
            self.stop_run(&run, message, Cause::Part);
        }
        self.out_of_trouble();
        Ok(())
    }

    /// Says what is wrong with the run by its newest figures; each thing once.
    async fn warn(&self, state: &mut RunState) {
        let plan = Arc::clone(&state.plan);
        let of = (&*plan, &state.progress);
        let found = guard::warnings(&self.options.store, of, &mut state.history, None).await;
        // Whoever asks for the status hears of it too, so nothing waits for a store that fails now.
        let found = found.unwrap_or_else(|e| {
            tracing::debug!("the run's figures cannot be read: {e}");
            Vec::new()
        });
        for warning in found {
            if state.warned.is_new(&warning) {
                tracing::warn!(run = %plan.run, "{warning}");
                self.options.meters.warning(&warning.name);
                let _ = self.events.send(Event::Warned(warning));
            }
        }
    }

    /// True if every part is committed; this is then reported.
    fn is_over(&self, state: &mut RunState) -> bool {
        let plan = Arc::clone(&state.plan);
        if !state.progress.finished(&plan) {
            return false;
        }
        state.is_over = true;
        self.resources.states.forget(plan.run.as_str());
        let _ = self.events.send(Event::RunFinished {
            run: plan.run.to_string(),
        });
        self.leave();
        true
    }

    /// True if an operator has to act before the run can continue; this is then reported.
    async fn is_held_up(&self, state: &mut RunState) -> Result<bool> {
        let run = state.plan.run.clone();
        if state.on_hold() {
            self.stop_run(&run, "it is on hold (jobs.hold)".to_owned(), Cause::Hold);
            return Ok(true);
        }
        let message = match guard::check(&self.options.store, state).await {
            // A guard that cannot read its figures does not let the run go on.
            Err(Error::Record(unreadable)) => Some(unreadable.to_string()),
            other => other?,
        };
        if let Some(message) = message {
            self.stop_run(&run, message, Cause::Part);
            return Ok(true);
        }
        Ok(false)
    }

    /// Periodic planning: recovers from lost pushes, flushed queues and vanished workers.
    pub(super) async fn plan_now_and_then(self: Arc<Self>) {
        let mut first = true;
        loop {
            if !self.health.is_sick() {
                self.plan_all(std::mem::take(&mut first)).await;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(TURN_EVERY) => {}
            }
        }
    }

    async fn plan_all(&self, at_once: bool) {
        let runs = match &self.options.run {
            Some(run) => vec![run.clone()],
            None => match panics::caught(self.runs(at_once)).await {
                Ok(runs) => runs,
                Err(e) => return self.cannot_plan("*", e).await,
            },
        };
        // A run that cannot be read does not hold up the others.
        for run in runs {
            if self.health.avoids(run.as_str()) {
                continue;
            }
            if let Err(e) = panics::caught(self.plan_run(&run, at_once)).await {
                self.cannot_plan(run.as_str(), e).await;
            }
        }
    }

    /// Gives the turn back: whoever is well takes it at once.
    async fn cannot_plan(&self, turn: &str, error: Error) {
        tracing::debug!(turn, "planning: {error}");
        if let Err(e) = panics::caught(self.options.queue.give_back_turn(turn)).await {
            tracing::debug!(turn, "the planning turn was not given back: {e}");
        }
        self.in_trouble(Some(turn), error).await;
    }

    /// The runs to look at: the known ones, and periodically all runs in the store.
    async fn runs(&self, at_once: bool) -> Result<Vec<RunId>> {
        let queue = &self.options.queue;
        if at_once || queue.planning_turn("*", RUNS_EVERY).await? {
            return Ok(self.options.store.runs().await?);
        }
        Ok(self.runs.lock().await.keys().cloned().collect())
    }

    async fn plan_run(&self, run: &RunId, at_once: bool) -> Result<()> {
        let shared = self.state(run).await?;
        if shared.lock().await.is_over {
            return Ok(());
        }
        let queue = &self.options.queue;
        if !at_once && !queue.planning_turn(run.as_str(), PLAN_EVERY).await? {
            return Ok(());
        }
        self.plan(&shared).await
    }
}
