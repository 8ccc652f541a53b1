//! What is queued, and what becomes of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One part of one stage of one iteration of one run. Everything else about
/// it is in the object store.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
    /// The run id.
    pub run: String,
    /// The iteration, 0 for what comes before the first.
    pub iteration: u32,
    /// The stage.
    pub stage: String,
    /// The part of the stage.
    pub part: u32,
    /// How often the part has got a chance, as the planner saw it: a greater
    /// number is a new key, which the queue has never seen.
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

    /// `key#offer`: what may be queued once at a time.
    pub fn idempotency_key(&self) -> String {
        format!("{}#{}", self.key(), self.offer)
    }
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is queued.
    Pushed,
    /// Its key waits or runs already, or ended less than a lease ago.
    Duplicate,
    /// The class holds [`crate::QueueOptions::length_max`] jobs of this run; plan again later.
    Full,
}

/// What a handler says of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// Its work is done, or not worth doing: the queue forgets it.
    Done,
    /// It is for somebody else, who finds it again after this time.
    PutBack(Duration),
}

impl From<()> for Handled {
    fn from((): ()) -> Self {
        Self::Done
    }
}
