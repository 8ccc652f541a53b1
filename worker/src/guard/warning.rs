//! A warning of the watchdog, and which ones have been given.

use super::figures::Window;
use agentgym_jobs::config::Alarm;
use agentgym_jobs::pipeline::Stage;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What is wrong with a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Warning {
    /// A name of `guard.pause`, or the key of a limit.
    pub name: String,
    /// The first iteration of the unbroken row that shows it.
    pub since: u32,
    /// The last one.
    pub iteration: u32,
    /// The stage whose figures show it.
    pub stage: Stage,
    /// Figure and threshold.
    pub what: String,
    /// What to change.
    pub cure: String,
    /// It pauses the run.
    pub pauses: bool,
}

/// The warnings that a process has given: each is given once, until it ends and begins again.
#[derive(Debug, Default)]
pub struct Warned(BTreeMap<String, u32>);

impl Warned {
    /// Whether this one has not been given.
    pub fn is_new(&mut self, of: &Warning) -> bool {
        let last = self.0.insert(of.name.clone(), of.iteration);
        last.is_none_or(|last| of.since > last + 1)
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, stage, n) = (&self.name, self.stage, self.iteration);
        match self.since == n {
            true => write!(f, "{name} in iteration {n} ({stage})"),
            false => write!(f, "{name} in iterations {} to {n} ({stage})", self.since),
        }?;
        write!(f, ": {}; {}", self.what, self.cure)
    }
}

impl Window<'_> {
    pub(super) fn warning(
        &self,
        alarm: Alarm,
        since: u32,
        stage: Stage,
        said: (String, String),
    ) -> Warning {
        Warning {
            name: alarm.name(),
            since,
            iteration: self.newest(),
            stage,
            what: said.0,
            cure: said.1,
            pauses: self.plan.config.guard.pause.contains(&alarm),
        }
    }
}
