//! Planning inside a worker: after every commit what has become possible, and now
//! and then everything, which heals lost pushes, flushed queues and vanished workers.

use super::Worker;
use crate::context::{Cause, Event};
use crate::fleet::RunState;
use crate::{Result, guard};
use agentgym_storage::RunId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// How often an idle worker plans, at most, per fleet and run.
const PLAN_EVERY: Duration = Duration::from_secs(2);

/// How much of what can run a worker looks at.
#[derive(Clone, Copy)]
pub(super) enum Look {
    /// What has become possible: after every commit.
    New,
    /// Everything, with its attempts: now and then, since pushes, claims and workers get lost.
    All,
}

impl Worker {
    /// Lists what is new, pushes what can run, ends the worker when all is done.
    pub(super) async fn plan(&self, shared: &Arc<Mutex<RunState>>, look: Look) -> Result<()> {
        let mut state = shared.lock().await;
        let frontier = state.refresh().await?;
        let run = state.plan.run.clone();
        let plan = Arc::clone(&state.plan);
        if state.progress.finished(&plan) {
            state.is_over = true;
            drop(state);
            let _ = self.events.send(Event::RunFinished {
                run: run.to_string(),
            });
            self.leave();
            return Ok(());
        }
        state.refresh_old_plan().await?;
        if state.on_hold() {
            drop(state);
            self.stop_run(&run, "it is on hold (jobs.hold)".to_owned(), Cause::Hold);
            return Ok(());
        }
        if let Some(message) = guard::check(&self.options.store, &mut state).await? {
            drop(state);
            self.stop_run(&run, message, Cause::Part);
            return Ok(());
        }
        let queue = &self.options.queue;
        match look {
            Look::New => state.enqueue_new(queue, &frontier).await?,
            Look::All => {
                let running = self.running().clone();
                if let Some(message) = state.enqueue(queue, &frontier, &running).await? {
                    drop(state);
                    self.stop_run(&run, message, Cause::Part);
                }
            }
        }
        self.out_of_trouble();
        Ok(())
    }

    /// Idle planning: heals lost pushes, flushed queues and vanished workers.
    pub(super) async fn plan_now_and_then(self: Arc<Self>) {
        let mut first = true;
        loop {
            if let Err(e) = self.plan_all(std::mem::take(&mut first)).await {
                tracing::debug!("planning: {e}");
                self.in_trouble(e).await;
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(PLAN_EVERY) => {}
            }
        }
    }

    async fn plan_all(&self, at_once: bool) -> Result<()> {
        let runs = match &self.options.run {
            Some(run) => vec![run.clone()],
            // One idle worker looks for all of them.
            None if !at_once && !self.options.queue.planning_turn("*", PLAN_EVERY).await? => {
                return Ok(());
            }
            None => self.options.store.runs().await?,
        };
        // A run that cannot be read keeps no other one waiting.
        let mut failed = None;
        for run in runs {
            if let Err(e) = self.plan_run(&run, at_once).await {
                failed.get_or_insert(e);
            }
        }
        failed.map_or(Ok(()), Err)
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
        shared.lock().await.refresh_plan().await?;
        self.plan(&shared, Look::All).await
    }
}
