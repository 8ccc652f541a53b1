//! The workers that `agentgym-submit` starts in its own process, and what it says to those that run
//! elsewhere.

use crate::Result;
use crate::cli::Global;
use crate::run::follow::{Crew, worker_error};
use crate::run::signals::Interrupts;
use agentgym_jobs::plan::Plan;
use agentgym_queue::Queue;
use agentgym_storage::Store;
use agentgym_worker::{ScratchFolder, WorkerOptions, run_worker};
use std::sync::Arc;
use tokio::sync::broadcast;
use tokio::task::JoinSet;

/// Events kept for a slow follower; newer events displace the oldest.
const EVENTS_KEPT: usize = 4096;

/// Starts `jobs.workers` workers.
pub(super) fn start_workers(
    store: &Store,
    plan: &Arc<Plan>,
    queue: &Queue,
    (scratch, global): (&ScratchFolder, &Global),
    interrupts: &Interrupts,
) -> Crew {
    let (events, receiver) = broadcast::channel(EVENTS_KEPT);
    let mut workers = JoinSet::new();
    for index in 0..plan.config.jobs.workers {
        let options = WorkerOptions {
            gateway: Default::default(),
            store: store.clone(),
            queue: queue.clone(),
            name: agentgym_worker::worker_name(index),
            stages: Vec::new(),
            functions: Arc::new(agentgym_worker::stages::Stages),
            threads: plan
                .config
                .jobs
                .threads
                .unwrap_or_else(agentgym_worker::cores),
            device: global.device.clone(),
            dtype: global.dtype,
            run: Some(plan.run.clone()),
            exit_when_finished: true,
            folders: scratch.folders().clone(),
            prefetch: true,
            drain_grace: agentgym_worker::DRAIN_GRACE,
            meters: Default::default(),
            machine: Default::default(),
        };
        workers.spawn(run_worker(
            options,
            events.clone(),
            interrupts.drain.clone(),
        ));
    }
    Crew {
        workers,
        events: receiver,
    }
}

/// Announces the plan in force to workers elsewhere and pushes all runnable jobs, so that they
/// start without delay.
pub(super) async fn announce(store: &Store, plan: &Plan, queue: &Queue) -> Result<()> {
    let mut state = agentgym_worker::RunState::open(store, &plan.run)
        .await
        .map_err(worker_error)?;
    let told = queue.tell_plan(plan.run.as_str(), state.plan.revision);
    told.await.map_err(|e| worker_error(e.into()))?;
    let frontier = state.refresh().await.map_err(worker_error)?;
    let running = std::collections::BTreeSet::new();
    state
        .enqueue(queue, &frontier, &running)
        .await
        .map_err(worker_error)?;
    Ok(())
}
