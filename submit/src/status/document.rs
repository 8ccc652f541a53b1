//! The status of a run as a JSON document.

use super::{State, Status};
use agentgym_worker::Warning;
use serde_json::{Value, json};

/// A warning, and its line.
pub(crate) fn warning_json(of: &Warning) -> Value {
    let mut document = json!(of);
    document["line"] = of.to_string().into();
    document
}

impl Status {
    /// The status as JSON.
    pub fn to_json(&self) -> Value {
        let in_flight: Vec<Value> = self
            .in_flight
            .iter()
            .map(|(id, state)| match state {
                State::Running {
                    attempt,
                    worker,
                    since_unix_s,
                    claim,
                } => json!({"part": id.to_string(), "state": claim.state(), "attempt": attempt, "worker": worker,
                    "since_unix_s": since_unix_s, "worker_alive": claim.is_alive()}),
                State::Runnable => json!({"part": id.to_string(), "state": "runnable"}),
                State::Waiting(missing) => {
                    let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
                    json!({"part": id.to_string(), "state": "waiting", "for": missing})
                }
            })
            .collect();
        let failures: Vec<Value> = self
            .failures
            .iter()
            .map(
                |f| json!({"part": f.part.to_string(), "attempt": f.attempt, "message": f.message}),
            )
            .collect();
        let troubled: Vec<Value> = self
            .troubled
            .iter()
            .map(|(worker, t)| json!({"worker": worker, "since_unix_s": t.since_unix_s, "why": t.why}))
            .collect();
        let warnings: Vec<Value> = self.warnings.iter().map(warning_json).collect();
        json!({
            "warnings": warnings,
            "run": self.run, "state": self.state(), "revision": self.revision, "iterations": self.iterations, "latest": self.latest,
            "committed": self.committed, "parts": self.parts, "finished": self.finished,
            "stopped": self.exhausted.is_some(), "on_hold": self.on_hold, "paused": self.paused,
            "sft": self.fitted.map(|f| json!({"step": f.step, "loss": f.loss, "validation_loss": f.validation_loss})),
            "iteration_s": self.pace.map(|p| p.iteration_s), "left_s": self.pace.map(|p| p.left_s), "in_flight": in_flight, "failures": failures,
            "troubled": troubled,
            "waiting": self.waiting_line().trim_start_matches("waiting: "),
        })
    }
}
