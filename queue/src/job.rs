//! Jobs, and the results of pushing and handling them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One part of one stage of one iteration of one run. Everything else about the part is in the
/// object store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
    /// The run id.
    pub run: String,
    /// The iteration; 0 comes before the first training iteration.
    pub iteration: u32,
    /// The stage.
    pub stage: String,
    /// The part of the stage.
    pub part: u32,
    /// Grows with each attempt of the part and each plan revision. A greater number makes a new
    /// key, which the queue has never seen.
    pub offer: u32,
}

impl Job {
    /// `run/iteration/stage/part`: the same for every attempt.
    pub fn key(&self) -> String {
        format!(
            "{}/{}/{}/{}",
            self.run, self.iteration, self.stage, self.part
        )
    }

    /// `key#offer`: the key under which the queue holds at most one job at a time.
    pub fn idempotency_key(&self) -> String {
        format!("{}#{}", self.key(), self.offer)
    }
}

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is queued.
    Pushed,
    /// Its key already waits or runs, or ended less than a lease ago.
    Duplicate,
    /// The lane holds [`crate::QueueOptions::length_max`] waiting jobs; plan again later.
    Full,
}

/// A handler's result for its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// The work is done or no longer needed: the queue drops the job.
    Done,
    /// The job is for another worker; it is available again after this time.
    PutBack(Duration),
    /// The job is for another worker, which may take it at once. This one takes no job of its class and
    /// run for this time.
    Leave(Duration),
}

impl From<()> for Handled {
    fn from((): ()) -> Self {
        Self::Done
    }
}
