//! How a command fails: one clear message and one stable exit code. Scripts branch on the exit
//! codes, so they are defined in one place and never renumbered.

use crate::documents::versioned;
use agentgym_worker::Cause;
use serde::Serialize;
use serde_json::Value;
use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Exit codes of `agentgym-submit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command did what was asked.
    Done = 0,
    /// The run stopped because a part failed too often.
    Stopped = 1,
    /// Bad usage, or a config that cannot be run.
    Config = 2,
    /// The object store refused, is damaged, or a local file could not be written.
    Store = 3,
    /// The run does not exist, or the id belongs to a different run.
    Run = 4,
    /// An environment or the queue does not answer.
    Unreachable = 5,
    /// The GPU is lost.
    Device = 6,
    /// Interrupted; drained and resumable.
    Interrupted = 130,
}

/// What ends a command.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Failure {
    /// `stopped`, `config`, `store`, `run`, `unreachable`, `device` or `interrupted`.
    kind: &'static str,
    exit: u8,
    message: String,
}

/// Any command that ends with another code than 0, as one line on standard error.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ErrorDocument {
    error: Failure,
}

/// Everything that ends a command early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Error of the queue.
    #[error(transparent)]
    Queue(agentgym_queue::Error),
    /// Error in a config, plan or payload.
    #[error(transparent)]
    Jobs(#[from] agentgym_jobs::Error),
    /// Error of the object store.
    #[error(transparent)]
    Storage(#[from] agentgym_storage::Error),
    /// A committed document that cannot be read.
    #[error(transparent)]
    Record(agentgym_record::Error),
    /// A worker in this process ended.
    #[error("a worker in this process ended: {0}")]
    Worker(String),
    /// The GPU of a worker in this process is lost.
    #[error("{0}")]
    Device(String),
    /// The run exists under other identity keys.
    #[error("{source}. {remedy}")]
    Identity {
        /// Which keys differ.
        source: agentgym_jobs::Error,
        /// The commands for what may be meant.
        remedy: String,
    },
    /// A run that was begun could not be followed to its end.
    #[error("{source}\nNothing that is committed is lost. When the cause is gone: {resume}")]
    Broken {
        /// Why.
        source: Box<Error>,
        /// The command that resumes the run.
        resume: String,
    },
    /// The command line or a config value asks for something impossible.
    #[error("{0}")]
    Usage(String),
    /// The run has no such iteration, stage or part.
    #[error("{0}")]
    Missing(String),
    /// Something that the run needs does not answer.
    #[error("{what} at {url} cannot be reached: {found}. {remedy}")]
    Unreachable {
        /// `environment textcraft`, `queue`.
        what: String,
        /// The address.
        url: String,
        /// What happened.
        found: String,
        /// What to do.
        remedy: String,
    },
    /// An environment that answers, and cannot be played.
    #[error("environment `{name}`: {found}")]
    Environment {
        /// Its name in the config.
        name: String,
        /// What happened, and what to do.
        found: String,
    },
    /// An object of a run is not as it was committed.
    #[error(
        "run {run} is not whole: {faults}; what each of them needs is said above. Nothing was changed"
    )]
    NotWhole {
        /// The run.
        run: String,
        /// Number of faults by kind.
        faults: String,
    },
    /// The run stopped by itself.
    #[error(
        "run {run} stopped: {message}\nNothing that is committed is lost. {}: {resume}",
        when(*.cause)
    )]
    Stopped {
        /// The run.
        run: String,
        /// Which part failed, and why.
        message: String,
        /// What has to be fixed first.
        cause: Cause,
        /// The command that resumes the run.
        resume: String,
    },
    /// Ctrl-C or SIGTERM.
    #[error(
        "run {run} was interrupted; nothing that is committed is lost. Carry on with: {resume}"
    )]
    Interrupted {
        /// The run.
        run: String,
        /// The command that resumes the run.
        resume: String,
    },
    /// Ctrl-C or SIGTERM while following workers elsewhere.
    #[error("run {run} is no longer followed; its workers go on. Follow it again with: {watch}")]
    Detached {
        /// The run.
        run: String,
        /// The command that follows it again.
        watch: String,
    },
    /// A failure on standard output.
    #[error(
        "cannot write standard output: {0}. Nothing else was changed by that; write it to another place"
    )]
    Output(String),
    /// A failure on a local file or folder.
    #[error("cannot write {path}: {source}. Check the folder and the space left")]
    Local {
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl From<agentgym_record::Error> for Error {
    fn from(error: agentgym_record::Error) -> Self {
        match error {
            agentgym_record::Error::Storage(e) => Self::Storage(e),
            agentgym_record::Error::Jobs(e) => Self::Jobs(e),
            other => Self::Record(other),
        }
    }
}

/// What has to happen before the run is resumed.
fn when(cause: Cause) -> &'static str {
    match cause {
        Cause::Part => "When the cause is gone",
        Cause::Hold => "To go on",
        Cause::Config => "When the files are in order",
        Cause::Store => "When the store is in order",
        // A function for rewards is one too.
        Cause::Environment => "When what is named here answers",
        Cause::Server => "When the inference server answers as it should",
        Cause::Queue => "When the queue answers",
        Cause::Device => "When the GPU answers",
    }
}

impl Exit {
    /// Its name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Config => "config",
            Self::Store => "store",
            Self::Run => "run",
            Self::Unreachable => "unreachable",
            Self::Device => "device",
            Self::Interrupted => "interrupted",
        }
    }

    /// What `--json` prints, on standard error, for a command that ends so.
    pub fn document(self, message: &str) -> Value {
        versioned(&ErrorDocument {
            error: Failure {
                kind: self.name(),
                exit: self as u8,
                message: message.to_owned(),
            },
        })
    }
}

impl Error {
    /// The exit code of the process.
    pub fn exit(&self) -> Exit {
        use agentgym_jobs::Error as Jobs;
        match self {
            Self::Jobs(Jobs::Identity { .. } | Jobs::UnknownRun { .. })
            | Self::Identity { .. }
            | Self::Missing(_) => Exit::Run,
            Self::Broken { source, .. } => source.exit(),
            Self::Queue(_) | Self::Unreachable { .. } | Self::Environment { .. } => {
                Exit::Unreachable
            }
            Self::Jobs(Jobs::Storage(_) | Jobs::Payload { .. })
            | Self::Storage(_)
            | Self::Record(_)
            | Self::NotWhole { .. }
            | Self::Local { .. }
            | Self::Output(_) => Exit::Store,
            Self::Jobs(_) | Self::Usage(_) => Exit::Config,
            Self::Stopped { cause, .. } => match cause {
                Cause::Part | Cause::Hold => Exit::Stopped,
                Cause::Config => Exit::Config,
                Cause::Store => Exit::Store,
                Cause::Environment | Cause::Server | Cause::Queue => Exit::Unreachable,
                Cause::Device => Exit::Device,
            },
            Self::Worker(_) => Exit::Stopped,
            Self::Device(_) => Exit::Device,
            Self::Interrupted { .. } | Self::Detached { .. } => Exit::Interrupted,
        }
    }

    /// Wraps an I/O error with its path.
    pub fn local(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Local { path, source }
    }
}
