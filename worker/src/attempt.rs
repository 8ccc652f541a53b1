//! One attempt of one job: inputs, stage, outputs, commit. However it ends, its commit or its end
//! record says so, and no other object of it can be mistaken for a commit.

use crate::bench::{AttemptContext, Making};
use crate::context::{Beat, Event, Report};
use crate::run_state::RunState;
use crate::scratch::Scratch;
use crate::states::{self, Leave};
use crate::{BUILD, Error, Result, memory, panics, retention};
use agentgym_jobs::config::Numerics;
use agentgym_jobs::pipeline::{Part, Stage};
use agentgym_record::Stats;
use agentgym_storage::{
    AttemptEnd, AttemptOutcome, AttemptStart, Committed, InputRef, Journal, Manifest, Outputs,
    Store, Work,
};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Instrument as _;

/// How an attempt ended.
pub(crate) enum Ended {
    /// This attempt's commit is in force.
    Committed(Arc<Manifest>),
    /// Another attempt's commit is in force.
    Superseded(Arc<Manifest>),
    /// The worker drains.
    Drained,
    /// It failed; the message is in the end record.
    Failed(Error),
    /// It did not begin, for this reason.
    Declined(String),
    /// It did not begin: another worker may hold what it needs, and has some time to take it.
    Left,
    /// It did not begin: its number is taken, so the part has an attempt unknown to the caller.
    Taken,
}

/// Makes `part`, from its inputs to its commit. `taken` is the highest known attempt number, 0 for
/// none; the attempt takes the next number or does not begin. A first attempt therefore needs no
/// other request to know that there is no commit, and a later one never begins on an outdated
/// listing.
///
/// # Errors
/// Only failures before the attempt is on record.
pub(crate) async fn run(
    bench: &AttemptContext<'_>,
    state: &mut RunState,
    part: Part,
    taken: u32,
) -> Result<(u32, Ended)> {
    let id = part.id;
    let slot = state.slot(id);
    let own_class = bench.resources.device.numeric_class();
    let mut inputs = Vec::new();
    let mut references = Vec::new();
    for input in &part.inputs {
        let Some(manifest) = state.manifest(input.from).await? else {
            return Ok((
                0,
                Ended::Declined(format!("{} waits for {}", part.id, input.from)),
            ));
        };
        if state.plan.config.run.numerics == Numerics::Exact && manifest.numeric_class != own_class
        {
            return Ok((
                0,
                Ended::Declined(format!(
                    "{} was made by numeric class {}, this worker has {own_class}; run.numerics=any would mix them",
                    input.from, manifest.numeric_class
                )),
            ));
        }
        references.push(InputRef {
            name: input.name.clone(),
            iteration: input.from.iteration,
            stage: input.from.stage.name().to_owned(),
            part: input.from.part,
        });
        inputs.push((input.name.clone(), (*manifest).clone()));
    }
    match states::why_leave(bench, state, &part).await? {
        None => {}
        Some(Leave::ForNow) => return Ok((0, Ended::Left)),
        Some(Leave::ToOthers(why)) => return Ok((0, Ended::Declined(why))),
    }
    let now = unix_now();
    let start = AttemptStart {
        worker: bench.worker.to_owned(),
        started_unix_s: now.as_secs(),
        started_unix_ms: u64::try_from(now.as_millis()).ok(),
        machine: bench.machine.clone(),
        code_version: BUILD.to_owned(),
        plan_revision: state.plan.revision,
    };
    let beat = Beat::new(part.id, bench.events.clone());
    let store = bench.patient_store(&beat);
    let number = Store::next_attempt(&slot, taken)?;
    // Not the patient store: once a failed store is back, this view of the part may be outdated.
    let begun = bench.store.start_attempt_as(&slot, &start, number);
    let Some(attempt) = begun.await? else {
        return Ok((0, Ended::Taken));
    };
    let _ = bench.events.send(Event::Started {
        part: id,
        attempt: attempt.number,
        worker: bench.worker.to_owned(),
    });
    let began = Instant::now();
    let span = tracing::info_span!(
        "attempt",
        run = %slot.run,
        part = %id,
        attempt = attempt.number
    );
    span.in_scope(|| tracing::info!("begins"));
    let work = |report: Report| Work {
        worker: bench.worker.to_owned(),
        started_unix_s: start.started_unix_s,
        wall_s: began.elapsed().as_secs_f64(),
        stats: report.stats.to_map(),
    };
    let mut measured = Report::default();
    let making = Making {
        part,
        inputs,
        slot: slot.clone(),
        attempt: attempt.clone(),
    };
    let making = make(
        bench,
        state,
        (making, references),
        (&store, beat),
        work,
        &mut measured,
    );
    let made = panics::caught(making.instrument(span.clone())).await;
    let wall_s = began.elapsed().as_secs_f64();
    let (outcome, message, stats, ended) = match made {
        Ok((Committed::Won, manifest)) => {
            // The commit also serves as this attempt's end record.
            let _ = bench.events.send(Event::Committed {
                part: id,
                manifest: Arc::clone(&manifest),
            });
            span.in_scope(|| tracing::info!("committed after {wall_s:.2} s"));
            let none = serde_json::Map::new();
            let stats = manifest.work.as_ref().map_or(&none, |work| &work.stats);
            let meters = &bench.resources.meters;
            meters.ended(&slot.stage, AttemptOutcome::Committed, wall_s, stats);
            return Ok((attempt.number, Ended::Committed(manifest)));
        }
        Ok((Committed::Superseded(first), own)) => (
            AttemptOutcome::Superseded,
            String::new(),
            own.work.as_ref().map(|w| w.stats.clone()),
            Ended::Superseded(Arc::new(*first)),
        ),
        Err(Error::Cancelled) => (AttemptOutcome::Drained, String::new(), None, Ended::Drained),
        // An attempt does not wait for the store while the worker drains.
        Err(e) if bench.drain.is_cancelled() && e.is_outage() => {
            (AttemptOutcome::Drained, e.to_string(), None, Ended::Drained)
        }
        Err(e) => {
            if e.is_full() {
                agentgym_storage::make_room(&bench.folders.models).await;
            }
            (
                AttemptOutcome::Failed,
                e.to_string(),
                None,
                Ended::Failed(e),
            )
        }
    };
    let end = AttemptEnd {
        outcome,
        message,
        wall_s,
        stats: stats.unwrap_or_else(|| measured.stats.to_map()),
        excused: matches!(&ended, Ended::Failed(e) if e.is_outage()),
        for_good: matches!(&ended, Ended::Failed(e) if e.is_for_good()),
    };
    (bench.resources.meters).ended(&slot.stage, outcome, wall_s, &end.stats);
    let recorded = store.end_attempt(&slot, attempt.number, &end).await;
    bench.health.answered();
    span.in_scope(|| {
        match outcome {
            AttemptOutcome::Superseded => tracing::info!("another attempt committed first"),
            AttemptOutcome::Drained => tracing::info!("handed back after {wall_s:.2} s"),
            // The runtime logs these, with the attempts left.
            AttemptOutcome::Committed | AttemptOutcome::Failed | AttemptOutcome::Cancelled => {}
        }
        // A lost end record loses a line of history, never work.
        if let Err(e) = recorded {
            tracing::warn!("the end of the attempt could not be recorded: {e}");
        }
    });
    Ok((attempt.number, ended))
}

/// `work` describes the attempt in its commit; what a failed one measured goes to `measured`.
async fn make(
    bench: &AttemptContext<'_>,
    state: &mut RunState,
    (making, references): (Making, Vec<InputRef>),
    (store, beat): (&Store, Beat),
    work: impl FnOnce(Report) -> Work,
    measured: &mut Report,
) -> Result<(Committed, Arc<Manifest>)> {
    let (slot, attempt) = (making.slot.clone(), making.attempt.clone());
    let (plan, id) = (Arc::clone(&state.plan), making.part.id);
    let scratch = Scratch::new(
        &bench.folders.scratch,
        &format!("{}-{}", slot.stage, attempt.nonce),
    )?;
    memory::give_back();
    memory::forget_peak();
    let files = (making.inputs.iter()).flat_map(|(_, manifest)| &manifest.outputs);
    let bytes = files.map(|file| file.size).sum();
    let _keep = trains_a_large_model(id.stage, bytes).then(memory::Keep::new);
    let mut context = bench.context(&plan, making, (store, &beat, &scratch));
    // A first attempt has no earlier journal.
    if attempt.number > 1 {
        context.replayed = Journal::replay(store, &slot).await?;
    }
    let mut outputs = Outputs::new(store.clone(), slot.clone(), attempt.clone());
    let watch = watch(
        beat.clone(),
        Duration::from_secs(plan.config.jobs.beat_timeout_s),
    );
    let opening = Instant::now();
    let remade = states::open(bench, state, &context, store).await?;
    let remade_s = opening.elapsed().as_secs_f64();
    let made = bench.functions.run(id.stage, &mut context, &mut outputs);
    let made = made.await;
    drop(watch);
    *measured = std::mem::take(&mut context.measured);
    let ahead = bench.resources.read_ahead.swap(0, Ordering::Relaxed);
    let spent = beat.spent();
    let tell = |stats: &mut Stats| {
        stats.busy_s = Some(spent.busy.as_secs_f64());
        stats.store_s = Some(spent.store.as_secs_f64());
        stats.store_waited_s = Some(spent.waited.as_secs_f64());
        (stats.put_bytes, stats.got_bytes) = (Some(spent.put), Some(spent.got));
        stats.got_ahead_bytes = (ahead > 0).then_some(ahead);
        stats.peak_memory_bytes = Some(memory::peak_bytes());
        stats.updates_made_again = (remade > 0).then_some(remade.into());
        stats.made_again_s = (remade > 0).then_some(remade_s);
    };
    tell(&mut measured.stats);
    let mut report = made?;
    tell(&mut report.stats);
    let is_stored = states::is_stored_after(&plan, id);
    if is_stored {
        let after = outputs.artifacts().filter(|a| a.after_commit);
        let after: u64 = after.map(|a| a.size).sum();
        report.stats.put_after_bytes = (after > 0).then_some(after);
    }
    if id.stage == Stage::Expire {
        retention::expire(store, state, id.iteration).await?;
    }
    let kept = outputs.adopt_later(&context.inputs).await;
    let manifest = Manifest {
        inputs: references,
        seed: plan.config.run.seed,
        numeric_class: bench.resources.device.numeric_class().to_owned(),
        code_version: BUILD.to_owned(),
        plan_revision: plan.revision,
        work: Some(work(report)),
        ..Manifest::new(slot, attempt, outputs.into_artifacts())
    };
    let committed = store.commit(&manifest).await?;
    if committed == Committed::Won {
        states::follow(bench, context, &manifest, (kept, is_stored)).await;
    }
    Ok((committed, Arc::new(manifest)))
}

/// Whether each step of a stage with so many bytes of inputs takes long enough for the allocator to
/// give memory back between two. Small models, and stages that generate, would only hold what other
/// sizes left behind.
fn trains_a_large_model(stage: Stage, input_bytes: u64) -> bool {
    const LARGE: u64 = 512 << 20;
    let generates = matches!(
        stage,
        Stage::Rollout | Stage::Evaluate | Stage::EvaluateInit
    );
    !generates && input_bytes >= LARGE
}

/// A silent stage cannot be stopped, since a compute thread cannot be killed: the process aborts,
/// and the job is made again. While the process itself stands still (stopped by a signal, its machine
/// paused) nobody could report progress, so that time does not count.
fn watch(beat: Beat, limit: Duration) -> impl Drop {
    struct Watch(tokio::task::JoinHandle<()>);
    impl Drop for Watch {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    const LOOKS_MISSED: u32 = 3;
    Watch(tokio::spawn(async move {
        let pause = Duration::from_secs(1).min(limit / LOOKS_MISSED);
        loop {
            let begun = Instant::now();
            tokio::time::sleep(pause).await;
            if begun.elapsed() > pause * LOOKS_MISSED {
                beat.tick();
            }
            if beat.silence() > limit {
                // The log is off unless asked for, and this must not happen without a word.
                let _ = writeln!(
                    std::io::stderr(),
                    "error: no progress for {} s (jobs.beat_timeout_s): the process ends now; its job will be made again",
                    limit.as_secs()
                );
                std::process::abort();
            }
        }
    }))
}

/// Time since 1970: for people only, never compared with another machine's clock.
fn unix_now() -> Duration {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the sizes of a 0.5B model in f32, and of models/reader.
    #[test]
    fn freed_memory_is_kept_where_a_large_model_trains_or_scores() {
        let (large, small) = (1_976_000_000, 3_946_120);
        for stage in [Stage::Update, Stage::LogProbs, Stage::Sft] {
            assert!(trains_a_large_model(stage, large), "{stage}");
            assert!(!trains_a_large_model(stage, small), "{stage}");
        }
        for stage in [Stage::Rollout, Stage::Evaluate, Stage::EvaluateInit] {
            assert!(!trains_a_large_model(stage, large), "{stage}");
        }
    }
}
