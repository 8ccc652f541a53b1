//! What a worker does after an attempt, and when the store, the queue or its device fails.

use super::{TROUBLE_ASK_STORE, TROUBLE_MAX, TROUBLE_PAUSE, Worker, held};
use crate::attempt::Ended;
use crate::context::Event;
use crate::run_state::RunState;
use crate::{Cause, Error, Result};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_storage::RunId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

impl Worker {
    /// Reports a failure. A worker that ends with its run also stops if waiting is hopeless: a
    /// message and an exit code are more useful than a silent loop.
    pub(super) async fn in_trouble(&self, error: Error) {
        let message = error.to_string();
        if error.is_internal() {
            tracing::error!("{message}");
        }
        self.options.meters.in_trouble(&message);
        let _ = self.events.send(Event::Waiting { message });
        let Some(run) = self.options.run.as_ref() else {
            return;
        };
        let lasted = held(&self.trouble)
            .get_or_insert_with(Instant::now)
            .elapsed();
        let mut error = error;
        if error.cause() == Cause::Queue
            && lasted > TROUBLE_ASK_STORE
            && let Err(deeper) = self.options.store.probe().await
        {
            error = deeper.into();
        }
        let hopeless = error.verdict() == agentgym_storage::Verdict::GiveUp || error.is_full();
        if self.options.exit_when_finished && (hopeless || lasted > TROUBLE_MAX) {
            self.stop_run(run, error.to_string(), error.cause());
        }
    }

    pub(super) fn out_of_trouble(&self) {
        self.options.meters.out_of_trouble();
        *held(&self.trouble) = None;
    }

    pub(super) async fn after(
        &self,
        run: &RunId,
        shared: &Arc<Mutex<RunState>>,
        id: PartId,
        attempt: u32,
        ended: Ended,
    ) -> Result<()> {
        match ended {
            Ended::Committed(manifest) | Ended::Superseded(manifest) => {
                if manifest.attempt != attempt {
                    let _ = self.events.send(Event::Superseded { part: id });
                }
                let mut state = shared.lock().await;
                state.progress.insert(id);
                state.remember(id, manifest);
                drop(state);
                self.plan_after(shared, id).await
            }
            Ended::Drained => {
                let state = shared.lock().await;
                if state.on_hold() {
                    return Ok(());
                }
                // Attempt numbers have no gaps, so the number is the count of attempts.
                let job = state.job(id, attempt as usize);
                state.push(&self.options.queue, &job, Duration::ZERO).await
            }
            Ended::Taken => Ok(()),
            Ended::Declined(reason) => {
                let _ = self.events.send(Event::Waiting { message: reason });
                Ok(())
            }
            Ended::Failed(error) => {
                let state = shared.lock().await;
                let attempts = self.options.store.attempts(&state.slot(id)).await?;
                let failed = state.failed(&attempts);
                // The attempt has waited for the store as long as this worker may. A worker that
                // does not end with its run keeps waiting.
                let hopeless = error.verdict() == agentgym_storage::Verdict::GiveUp
                    || (self.options.exit_when_finished && error.is_outage());
                let left = if hopeless {
                    0
                } else {
                    state.plan.config.jobs.failures_max.saturating_sub(failed)
                };
                let message = error.to_string();
                tracing::warn!(%run, part = %id, attempt, attempts_left = left, "{message}");
                let _ = self.events.send(Event::Failed {
                    part: id,
                    message: message.clone(),
                    attempts_left: left,
                });
                if left == 0 {
                    drop(state);
                    // Everything that `init` reads is named in the config.
                    let cause = match error.cause() {
                        Cause::Part if id.stage == Stage::Init && !error.is_internal() => {
                            Cause::Config
                        }
                        other => other,
                    };
                    self.stop_run(run, format!("{id} cannot be made: {message}"), cause);
                    self.leave_if_lost(error);
                    return Ok(());
                }
                let (job, mut delay) = (state.job(id, attempts.len()), state.backoff(&attempts));
                if error.is_outage() {
                    delay = delay.max(TROUBLE_PAUSE);
                }
                let pushed = state.push(&self.options.queue, &job, delay).await;
                drop(state);
                self.leave_if_lost(error);
                pushed
            }
        }
    }

    /// Ends this worker if its device is lost and it can do no more work. Other workers, or a
    /// restart of this program, continue.
    pub(super) fn leave_if_lost(&self, error: Error) {
        if error.cause() != Cause::Device {
            return;
        }
        held(&self.lost).get_or_insert(error);
        self.stop.cancel();
    }

    pub(super) fn stop_run(&self, run: &RunId, message: String, cause: Cause) {
        let known = held(&self.stopped).insert(run.clone(), message.clone());
        match (known.as_ref() == Some(&message), cause) {
            (true, _) => {}
            (false, Cause::Hold) => tracing::info!(%run, "{message}"),
            (false, _) => tracing::error!(%run, "{message}"),
        }
        let _ = self.events.send(Event::RunStopped {
            run: run.to_string(),
            message,
            cause,
        });
        self.leave();
    }

    pub(super) fn leave(&self) {
        if self.options.exit_when_finished {
            self.stop.cancel();
        }
    }
}
