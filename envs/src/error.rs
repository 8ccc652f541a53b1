//! All errors between the trainer and an environment, classified by what the caller can do about
//! them.
//!
//! An environment failure is never reported as a reward of zero. Each failure has its own kind: the
//! episode loop turns the kind into an outcome, [`EnvError::verdict`] tells the job whether a retry
//! can help, and the message names the URL, the call, what was found and what to do.

use std::net::SocketAddr;
use std::path::PathBuf;

/// What an error means for the work that hit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The same work may succeed later, in a fresh session.
    Retry,
    /// A retry fails again until the configuration or the server is changed.
    GiveUp,
}

/// The kinds of fault that are counted and reported: one for each way a call can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// No connection could be made.
    Unreachable,
    /// Connected, but no complete reply within the limit.
    TimedOut,
    /// The connection ended before a complete reply was read.
    Dropped,
    /// A status other than 200.
    Refused,
    /// Status 200 with a body that does not have the declared shape.
    Protocol,
    /// The environment answered `{"error": …}`.
    Faulted,
    /// A step after the end of the episode.
    Finished,
    /// A body above the limit.
    TooLarge,
    /// A session id that the server also gave to another open session.
    SharedSession,
    /// Not from a call: an invalid address, recipe, socket or specification.
    Setup,
}

impl FaultKind {
    /// Every kind, in the order of `FaultKind::index`.
    pub const ALL: [Self; 10] = [
        Self::Unreachable,
        Self::TimedOut,
        Self::Dropped,
        Self::Refused,
        Self::Protocol,
        Self::Faulted,
        Self::Finished,
        Self::TooLarge,
        Self::SharedSession,
        Self::Setup,
    ];

    /// Name in metrics and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::Dropped => "dropped",
            Self::Refused => "refused",
            Self::Protocol => "protocol",
            Self::Faulted => "faulted",
            Self::Finished => "finished",
            Self::TooLarge => "too_large",
            Self::SharedSession => "shared_session",
            Self::Setup => "setup",
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// Which server and which call an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Base URL of the environment.
    pub url: String,
    /// Endpoint, such as `/step`.
    pub endpoint: &'static str,
    /// The proxy that the call goes through, in words, or nothing.
    pub via: String,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}{}", self.url, self.endpoint, self.via)
    }
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// No connection was made, so the call has not run.
    #[error(
        "cannot reach the environment: {call} gave {found} ({attempts} attempts); start the \
         server there or correct the environment address"
    )]
    Unreachable {
        /// The call.
        call: Call,
        /// The cause as the operating system reports it.
        found: String,
        /// Number of attempts.
        attempts: u32,
    },
    /// No complete reply in time. A step that failed this way may have run.
    #[error(
        "no reply from {call} within {limit_s} s; raise the call timeout or look at the load of \
         the environment server"
    )]
    TimedOut {
        /// The call.
        call: Call,
        /// The limit, in seconds.
        limit_s: f64,
    },
    /// The connection ended early. A step that failed this way may have run.
    #[error(
        "the connection to {call} ended before a whole reply ({found}); look at the log of the \
         environment server"
    )]
    Dropped {
        /// The call.
        call: Call,
        /// What was seen.
        found: String,
    },
    /// A status other than 200.
    #[error("{call} answered HTTP {status}: {body}; {}", refusal_hint(*status))]
    Refused {
        /// The call.
        call: Call,
        /// HTTP status.
        status: u16,
        /// Start of the body.
        body: String,
    },
    /// A reply that does not have the declared shape.
    #[error(
        "{call} answered something the specification does not expect: {found}; check that the \
         address belongs to this kind of environment"
    )]
    Protocol {
        /// The call.
        call: Call,
        /// What was missing or wrong, with the start of the body.
        found: String,
    },
    /// The server is another environment.
    #[error(
        "{url} is {found} and not `{expected}`: {how}. Correct the environment's address or its name \
         (task_name); actor_rollout_ref.agentgym.check_servers=false takes the server for what the config says"
    )]
    Another {
        /// Base URL of the server.
        url: String,
        /// The environments that it may be.
        found: String,
        /// The environment of the config.
        expected: &'static str,
        /// What shows it.
        how: String,
    },
    /// The environment reported an error of its own.
    #[error("{call} answered with an error: {text:?}; the session cannot go on")]
    Faulted {
        /// The call.
        call: Call,
        /// The environment's text.
        text: String,
    },
    /// A step after the end.
    #[error("{call}: the episode is over; open a new session")]
    Finished {
        /// The call.
        call: Call,
    },
    /// A body above the limit.
    #[error(
        "{call} answered more than {limit_bytes} bytes; raise the body limit if the environment's \
         observations are that large"
    )]
    TooLarge {
        /// The call.
        call: Call,
        /// The limit in bytes.
        limit_bytes: usize,
    },
    /// The server reused the id of this open session for another session.
    #[error(
        "{call}: session {id} was open when the server gave its id to another one, so that a step would \
         reach another episode's game. Has the server been started again? See its log, and whether it \
         counts its sessions"
    )]
    SharedSession {
        /// The call.
        call: Call,
        /// The session's id.
        id: String,
    },
    /// No specification has this name.
    #[error("no environment is called {name:?}; known: {known}")]
    UnknownSpec {
        /// The name asked for.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// An environment address that cannot be read.
    #[error("environment address {address:?}: {problem}")]
    Address {
        /// The address as given.
        address: String,
        /// What is wrong and what is accepted.
        problem: String,
    },
    /// A recipe file or folder that cannot be read.
    #[error("recipes: {path}: {problem}", path = path.display())]
    Recipes {
        /// File or folder.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A list of words that cannot be read.
    #[error("words: {path}: {problem}", path = path.display())]
    Words {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A simulator in a process of its own that cannot be started.
    #[error("simulator: {problem}")]
    Simulator {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A person's file of questions that cannot be played.
    #[error("{path}: {problem}", path = path.display())]
    Questions {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A corpus, its index or a file of questions that cannot be read.
    #[error("corpus: {path}: {problem}", path = path.display())]
    Corpus {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Options of generated worlds that cannot be met.
    #[error("worlds: {0}")]
    Worlds(String),
    /// The server could not listen.
    #[error("cannot listen on {addr}: {why}; choose another port")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// What the system says.
        why: std::io::Error,
    },
    /// The HTTP client could not be built.
    #[error("cannot set up the HTTP client: {0}")]
    Client(String),
}

fn refusal_hint(status: u16) -> &'static str {
    match status {
        500..=599 | 408 | 429 => "the environment server failed or is overloaded; see its log",
        300..=399 => "redirects are not followed; correct the environment address",
        _ => "the request does not fit this server; correct the address or the environment's name",
    }
}

impl EnvError {
    /// Whether trying again can help.
    pub fn verdict(&self) -> Verdict {
        match self {
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Dropped { .. }
            | Self::SharedSession { .. }
            | Self::Faulted { .. } => Verdict::Retry,
            Self::Refused { status, .. } if *status >= 500 || matches!(status, 408 | 429) => {
                Verdict::Retry
            }
            _ => Verdict::GiveUp,
        }
    }

    /// The kind under which the error is counted.
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Unreachable { .. } => FaultKind::Unreachable,
            Self::TimedOut { .. } => FaultKind::TimedOut,
            Self::Dropped { .. } => FaultKind::Dropped,
            Self::Refused { .. } => FaultKind::Refused,
            Self::Protocol { .. } | Self::Another { .. } => FaultKind::Protocol,
            Self::Faulted { .. } => FaultKind::Faulted,
            Self::Finished { .. } => FaultKind::Finished,
            Self::TooLarge { .. } => FaultKind::TooLarge,
            Self::SharedSession { .. } => FaultKind::SharedSession,
            Self::UnknownSpec { .. }
            | Self::Address { .. }
            | Self::Recipes { .. }
            | Self::Words { .. }
            | Self::Simulator { .. }
            | Self::Corpus { .. }
            | Self::Questions { .. }
            | Self::Worlds(_)
            | Self::Bind { .. }
            | Self::Client(_) => FaultKind::Setup,
        }
    }
}
