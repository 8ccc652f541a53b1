//! Errors that end an attempt, and what they mean for its job.

use agentgym_storage::Verdict;
use std::sync::Arc;
use std::time::Duration;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an attempt did not commit.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The worker drains; turns already played are journalled.
    #[error("stopped before the end; what was played is journalled")]
    Cancelled,
    /// The environment cannot be played at all.
    #[error("{0}")]
    Environment(String),
    /// The inference server cannot be used.
    #[error("{0}")]
    Server(String),
    /// The policy gave no message, for a reason that is not its own: the episode is left out.
    #[error("{0}")]
    NoMessage(String),
    /// A stage cannot work with its inputs or its config.
    #[error("{0}")]
    Stage(String),
    /// A bug in the program: a panic.
    #[error(
        "internal error: {0}. This is a fault of the program, not of the run; please report it, with \
         the lines of the log that say where it panicked"
    )]
    Internal(String),
    /// Training has produced a model that cannot be used.
    #[error(
        "{place} comes to numbers that are not finite ({found}), and would in every attempt; nothing of \
         it is kept. Lower {lr} or {grad_clip}, in a new run or in a fork from an earlier iteration \
         (`agentgym-submit fork`)"
    )]
    Diverged {
        /// The step, and what it trains.
        place: String,
        /// The tensor.
        found: String,
        /// The config key of the learning rate.
        lr: &'static str,
        /// The config key that bounds a step.
        grad_clip: &'static str,
    },
    /// Scoring gives other numbers than sampling recorded.
    #[error(
        "{place}: {recorded} was recorded while sampling, and scoring it again gives {scored}. Both are \
         the same computation in every program and on every machine of a numeric class, so one of two \
         computes or stores wrong numbers: the machine that sampled (`agentgym-submit inspect {rollout}` \
         names it) or this one. Nothing of this part is kept. If it is the first, have the iteration played \
         again by another one: `agentgym-submit fork {fork}`"
    )]
    Unequal {
        /// The token, its episode and the policy.
        place: String,
        /// The number of the rollout.
        recorded: String,
        /// The same number, scored.
        scored: String,
        /// What `inspect` is given for the rollout.
        rollout: String,
        /// What `fork` is given to play the iteration again.
        fork: String,
    },
    /// The policy could not be loaded, run or saved.
    #[error(transparent)]
    Model(Arc<agentgym_model::Error>),
    /// Numbers that an algorithm cannot use.
    #[error(transparent)]
    Algorithm(#[from] agentgym_algorithms::Error),
    /// A payload or a plan.
    #[error(transparent)]
    Jobs(#[from] agentgym_jobs::Error),
    /// The queue.
    #[error(transparent)]
    Queue(#[from] agentgym_queue::Error),
    /// The object store.
    #[error(transparent)]
    Storage(#[from] agentgym_storage::Error),
    /// A document of the run.
    #[error(transparent)]
    Record(agentgym_record::Error),
    /// A local file outside the store.
    #[error("{what}: {source}")]
    Io {
        /// The action and the file.
        what: String,
        /// The reason.
        source: std::io::Error,
    },
}

impl From<agentgym_record::Error> for Error {
    fn from(error: agentgym_record::Error) -> Self {
        match error {
            agentgym_record::Error::Storage(e) => Self::Storage(e),
            agentgym_record::Error::Jobs(e) => Self::Jobs(e),
            agentgym_record::Error::Algorithm(e) => Self::Algorithm(e),
            agentgym_record::Error::Stage(message) => Self::Stage(message),
            other => Self::Record(other),
        }
    }
}

impl Error {
    /// A stage error; `message` says what was found and what to do.
    pub fn stage(message: impl Into<String>) -> Self {
        Self::Stage(message.into())
    }

    /// What has to be fixed.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Storage(_) | Self::Jobs(agentgym_jobs::Error::Storage(_)) => Cause::Store,
            Self::Queue(_) => Cause::Queue,
            Self::Environment(_) => Cause::Environment,
            Self::Server(_) => Cause::Server,
            Self::Model(e) if matches!(**e, agentgym_model::Error::DeviceLost { .. }) => {
                Cause::Device
            }
            _ if self.is_full() => Cause::Store,
            _ => Cause::Part,
        }
    }

    /// True if the store, the queue or a disk failed this worker: the part is not the cause.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Storage(e) | Self::Jobs(agentgym_jobs::Error::Storage(e)) => e.may_pass(),
            Self::Queue(_) => true,
            _ => self.is_full(),
        }
    }

    /// True for a bug in the program.
    pub(crate) fn is_internal(&self) -> bool {
        matches!(self, Self::Internal(_))
    }

    /// True if every other attempt, on any machine, would fail in the same way.
    pub(crate) fn is_for_good(&self) -> bool {
        matches!(self, Self::Diverged { .. } | Self::Unequal { .. })
    }

    /// True if an operator has to free space first.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::Storage(e) | Self::Jobs(agentgym_jobs::Error::Storage(e)) => {
                matches!(e.verdict(), Verdict::Wait(_))
            }
            Self::Io { source, .. } => is_full(source),
            Self::Model(e) => {
                matches!(&**e, agentgym_model::Error::Io { source, .. } if is_full(source))
            }
            _ => false,
        }
    }

    /// What the failure means for the job.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Storage(e) => e.verdict(),
            Self::Environment(_) | Self::Server(_) => Verdict::Wait(Duration::from_secs(5)),
            Self::Jobs(agentgym_jobs::Error::Storage(e)) => e.verdict(),
            Self::Queue(_) | Self::Io { .. } | Self::Cancelled => Verdict::Retry,
            Self::Model(e) if e.verdict() == agentgym_model::Verdict::Retry => Verdict::Retry,
            // It may not happen again; it counts as a failure.
            Self::Internal(_) => Verdict::Retry,
            Self::Diverged { .. }
            | Self::Unequal { .. }
            | Self::NoMessage(_)
            | Self::Stage(_)
            | Self::Record(_)
            | Self::Algorithm(_)
            | Self::Model(_)
            | Self::Jobs(_) => Verdict::GiveUp,
        }
    }
}

/// Shared, since one error of a decoder ends all of its episodes.
impl From<agentgym_model::Error> for Error {
    fn from(error: agentgym_model::Error) -> Self {
        Self::Model(Arc::new(error))
    }
}

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// What has to be fixed before a stopped run can continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A part that cannot be made; its message says why.
    Part,
    /// The config, or the model that it names.
    Config,
    /// The object store, or a local disk.
    Store,
    /// An environment.
    Environment,
    /// The inference server that generates.
    Server,
    /// The queue.
    Queue,
    /// The worker's GPU, which no longer responds.
    Device,
    /// Nothing: the run was put on hold.
    Hold,
}
