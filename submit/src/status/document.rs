//! The status of a run as a document.

use super::{Fitted, State, Status};
use agentgym_jobs::pipeline::PartId;
use agentgym_worker::Warning;
use serde::Serialize;

/// A warning, and its line.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WarningDocument {
    name: String,
    since: u32,
    iteration: u32,
    stage: &'static str,
    what: String,
    cure: String,
    pauses: bool,
    line: String,
}

impl From<&Warning> for WarningDocument {
    fn from(of: &Warning) -> Self {
        Self {
            name: of.name.clone(),
            since: of.since,
            iteration: of.iteration,
            stage: of.stage.name(),
            what: of.what.clone(),
            cure: of.cure.clone(),
            pauses: of.pauses,
            line: of.to_string(),
        }
    }
}

/// A part that is not committed.
#[derive(Debug, Clone, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct InFlight {
    part: String,
    /// `running`, `lost`, `runnable` or `waiting`.
    state: &'static str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    attempt: Option<OpenAttempt>,
    /// The missing inputs.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    missing: Option<Vec<String>>,
}

#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct OpenAttempt {
    attempt: u32,
    worker: String,
    since_unix_s: u64,
    /// None where no queue says it.
    worker_alive: Option<bool>,
}

impl InFlight {
    fn of((id, state): &(PartId, State)) -> Self {
        let part = id.to_string();
        match state {
            State::Running {
                attempt,
                worker,
                since_unix_s,
                claim,
            } => Self {
                part,
                state: claim.state(),
                attempt: Some(OpenAttempt {
                    attempt: *attempt,
                    worker: worker.clone(),
                    since_unix_s: *since_unix_s,
                    worker_alive: claim.is_alive(),
                }),
                missing: None,
            },
            State::Runnable => Self {
                part,
                state: "runnable",
                ..Self::default()
            },
            State::Waiting(missing) => Self {
                part,
                state: "waiting",
                missing: Some(missing.iter().map(ToString::to_string).collect()),
                ..Self::default()
            },
        }
    }
}

#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FailedAttempt {
    part: String,
    attempt: u32,
    message: String,
}

/// A worker of the queue that has stepped back.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct TroubledWorker {
    worker: String,
    since_unix_s: u64,
    why: String,
}

/// `status RUN`; a line of `watch RUN`.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StatusDocument {
    warnings: Vec<WarningDocument>,
    run: String,
    /// `finished`, `on hold`, `paused`, `stopped`, `running` or `waiting`.
    state: &'static str,
    revision: u32,
    iterations: u32,
    latest: Option<u32>,
    committed: usize,
    parts: usize,
    finished: bool,
    stopped: bool,
    on_hold: bool,
    paused: Option<String>,
    sft: Option<Fitted>,
    iteration_s: Option<f64>,
    left_s: Option<f64>,
    in_flight: Vec<InFlight>,
    failures: Vec<FailedAttempt>,
    troubled: Vec<TroubledWorker>,
    waiting: String,
}

impl Status {
    /// The status as a document.
    pub fn document(&self) -> StatusDocument {
        let failures = self.failures.iter().map(|f| FailedAttempt {
            part: f.part.to_string(),
            attempt: f.attempt,
            message: f.message.clone(),
        });
        let troubled = self.troubled.iter().map(|(worker, t)| TroubledWorker {
            worker: worker.clone(),
            since_unix_s: t.since_unix_s,
            why: t.why.clone(),
        });
        let waiting = self.waiting_line();
        StatusDocument {
            warnings: self.warnings.iter().map(Into::into).collect(),
            run: self.run.clone(),
            state: self.state(),
            revision: self.revision,
            iterations: self.iterations,
            latest: self.latest,
            committed: self.committed,
            parts: self.parts,
            finished: self.finished,
            stopped: self.exhausted.is_some(),
            on_hold: self.on_hold,
            paused: self.paused.clone(),
            sft: self.fitted,
            iteration_s: self.pace.map(|p| p.iteration_s),
            left_s: self.pace.map(|p| p.left_s),
            in_flight: self.in_flight.iter().map(InFlight::of).collect(),
            failures: failures.collect(),
            troubled: troubled.collect(),
            waiting: waiting.trim_start_matches("waiting: ").to_owned(),
        }
    }
}
