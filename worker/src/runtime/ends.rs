//! What a worker does after an attempt, and when the store, the queue or its device fails.

use super::{
    LOOK_EVERY, NOT_MINE_PAUSE, TROUBLE_ASK_STORE, TROUBLE_MAX, TROUBLE_PAUSE, Worker, held,
};
use crate::attempt::Ended;
use crate::context::Event;
use crate::run_state::RunState;
use crate::{Cause, Error, Result, health, panics};
use agentgym_jobs::pipeline::{PartId, Stage};
use agentgym_queue::{Handled, PRESENCE_EVERY};
use agentgym_storage::RunId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How often a worker repeats its report of trouble.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// How long a worker takes no part of a stage whose state another one holds.
const LEFT_FOR: Duration = Duration::from_secs(2);
/// How long a worker that is asked to leave goes on writing optimizer states.
const DELIVERIES_MAX: Duration = Duration::from_secs(5);
/// How long a worker that ends waits for the queue to note it.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

impl Worker {
    /// Reports a failure outside of an attempt, and steps back: from everything if the store or the
    /// queue fails this worker, else from the run. A worker that ends with its run also stops if
    /// waiting is hopeless: a message and an exit code are more useful than a silent loop.
    pub(super) async fn in_trouble(&self, of: Option<&str>, error: Error) {
        let message = error.to_string();
        if error.is_internal() {
            tracing::error!("{message}");
        }
        match of {
            Some(run) if !matches!(error.cause(), Cause::Store | Cause::Queue) => {
                self.options.meters.in_trouble(&message);
                self.health.avoid(run);
            }
            _ => self.health.step_back(&error),
        }
        let _ = self.events.send(Event::Waiting { message });
        let Some(run) = self.options.run.as_ref() else {
            return;
        };
        let lasted = held(&self.trouble)
            .get_or_insert_with(Instant::now)
            .elapsed();
        let mut error = error;
        if error.cause() == Cause::Queue && lasted > TROUBLE_ASK_STORE {
            // A panic here would end the task that plans, for good.
            if let Err(deeper) = panics::caught(self.options.store.probe()).await {
                error = deeper;
            }
        }
        let hopeless = error.verdict() == agentgym_storage::Verdict::GiveUp || error.is_full();
        if self.options.exit_when_finished && (hopeless || lasted > TROUBLE_MAX) {
            self.stop_run(run, error.to_string(), error.cause());
        }
    }

    pub(super) fn out_of_trouble(&self) {
        if !self.health.is_sick() {
            self.options.meters.out_of_trouble();
            *held(&self.trouble) = None;
        }
    }

    /// Finds out when this worker's trouble is over.
    pub(super) async fn mind_health(self: Arc<Self>) {
        let (store, queue) = (&self.options.store, &self.options.queue);
        let name = &self.options.name;
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY / 5) => {}
            }
            if self.health.is_due() {
                let probing = health::probe(name, (store, queue, &self.options.folders.scratch));
                match panics::caught(probing).await {
                    Ok(()) => self.health.recovered(),
                    Err(e) => self.in_trouble(None, e).await,
                }
            }
        }
    }

    /// Says to the fleet that this worker is alive, and what its trouble is. Beside
    /// [`Self::mind_health`], whose question to a store that hangs takes longer than a worker may
    /// be silent.
    pub(super) async fn tell_fleet(self: Arc<Self>) {
        let (queue, name) = (&self.options.queue, &self.options.name);
        let mut reported: Option<Instant> = None;
        let mut present: Option<Instant> = None;
        loop {
            if present.is_none_or(|at| at.elapsed() >= PRESENCE_EVERY) {
                present = Some(Instant::now());
                // A queue that refuses it is noticed elsewhere.
                let _ = panics::caught(queue.note_presence(name, true)).await;
            }
            tokio::time::sleep(LOOK_EVERY / 5).await;
            let trouble = self.health.trouble();
            match (&trouble, reported) {
                (Some(_), Some(at)) if at.elapsed() < REPORT_EVERY => continue,
                (None, None) => continue,
                (now, _) => reported = now.as_ref().map(|_| Instant::now()),
            }
            // A panic here would leave this worker unheard for good.
            let reporting = panics::caught(async {
                match &trouble {
                    Some(trouble) => queue.report_trouble(name, trouble).await,
                    None => queue.trouble_is_over(name).await,
                }
            });
            if let Err(e) = reporting.await {
                tracing::debug!("the fleet does not know of the trouble: {e}");
            }
        }
    }

    /// Waits until the optimizer states made here are stored; a worker that is asked to leave has little
    /// time for it.
    pub(super) async fn finish_deliveries(&self) {
        let finishing = self.resources.deliveries.finish();
        let most = match self.drain.is_cancelled() {
            true => DELIVERIES_MAX,
            false => Duration::MAX,
        };
        if tokio::time::timeout(most, finishing).await.is_err() {
            tracing::warn!("leaves before an optimizer state is stored; it can be made again");
        }
    }

    /// Says that this worker ends: otherwise its silence would be named.
    pub(super) async fn say_goodbye(&self) {
        let goodbye = self.options.queue.note_presence(&self.options.name, false);
        let _ = tokio::time::timeout(GOODBYE_MAX, goodbye).await;
    }

    pub(super) async fn after(
        &self,
        run: &RunId,
        shared: &Arc<Mutex<RunState>>,
        id: PartId,
        attempt: u32,
        ended: Ended,
    ) -> Result<Handled> {
        if !matches!(ended, Ended::Taken | Ended::Declined(_)) {
            self.health.begins(run.as_str());
        }
        match ended {
            Ended::Committed(manifest) | Ended::Superseded(manifest) => {
                match manifest.attempt == attempt {
                    true => self.health.committed(),
                    false => _ = self.events.send(Event::Superseded { part: id }),
                }
                let mut state = shared.lock().await;
                state.progress.insert(id);
                state.remember(id, manifest);
                drop(state);
                self.plan_after(shared, id).await?;
            }
            Ended::Drained => {
                let state = shared.lock().await;
                if state.on_hold() {
                    return Ok(Handled::Done);
                }
                // Attempt numbers have no gaps, so the number is the count of attempts.
                let job = state.job(id, attempt as usize);
                state
                    .push(&self.options.queue, &job, Duration::ZERO)
                    .await?;
            }
            Ended::Taken => {}
            Ended::Left => return Ok(Handled::Leave(LEFT_FOR)),
            Ended::Declined(reason) => {
                let _ = self.events.send(Event::Waiting { message: reason });
                self.health.avoid(run.as_str());
                return Ok(Handled::PutBack(NOT_MINE_PAUSE));
            }
            Ended::Failed(error) => {
                if matches!(error.cause(), Cause::Store | Cause::Queue) {
                    self.health.step_back(&error);
                }
                let state = shared.lock().await;
                let attempts = self.options.store.attempts(&state.slot(id)).await?;
                let failed = state.failed(&attempts);
                // The attempt has waited for the store as long as this worker may. A worker that
                // does not end with its run leaves the part to others, who may be better off.
                let is_over = error.verdict() == agentgym_storage::Verdict::GiveUp;
                let hopeless = error.is_for_good()
                    || (self.options.exit_when_finished && (is_over || error.is_outage()));
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
                    return Ok(Handled::Done);
                }
                let (job, mut delay) = (state.job(id, attempts.len()), state.backoff(&attempts));
                if error.is_outage() {
                    delay = delay.max(TROUBLE_PAUSE);
                }
                let pushed = state.push(&self.options.queue, &job, delay).await;
                drop(state);
                self.leave_if_lost(error);
                pushed?;
            }
        }
        Ok(Handled::Done)
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
