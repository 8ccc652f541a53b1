//! Counters of a client, for metrics and for the check that no session is left open.

use std::sync::{Mutex, PoisonError};

use crate::error::{EnvError, FaultKind};

/// A snapshot of a client's counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientCounters {
    /// Sessions created.
    pub opened: u64,
    /// Sessions closed.
    pub closed: u64,
    /// Sessions left behind on a server: their close failed or found nothing to close, or the
    /// server has no way to close them. Only the server's own expiry, if any, ends them.
    pub leaked: u64,
    /// Episodes that took over a session from an earlier one.
    pub reused: u64,
    /// HTTP requests sent.
    pub calls: u64,
    /// Of these calls, attempts after the first.
    pub retries: u64,
    /// Steps answered without a request, because the parser refused the text.
    pub local_replies: u64,
    /// Steps whose action was changed by the parser's cleaning.
    pub normalised: u64,
    /// Characters in replies that UTF-8 cannot hold, replaced by U+FFFD.
    pub replaced: u64,
    /// Why the latest request is being repeated; `None` once one has succeeded.
    pub trouble: Option<String>,
    /// Time spent in requests, summed over concurrent ones, in seconds.
    pub call_time_s: f64,
    faults: [u64; FaultKind::ALL.len()],
}

impl ClientCounters {
    /// Errors of a kind that reached the caller.
    pub fn faults(&self, kind: FaultKind) -> u64 {
        self.faults[kind.index()]
    }

    /// Sessions that are open now.
    pub fn open(&self) -> u64 {
        self.opened.saturating_sub(self.closed + self.leaked)
    }
}

#[derive(Default)]
pub(crate) struct Counters(Mutex<ClientCounters>);

impl Counters {
    pub(crate) fn note(&self, change: impl FnOnce(&mut ClientCounters)) {
        // Counters stay consistent even if a thread panicked while it held the lock.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn fault(&self, error: &EnvError) {
        self.note(|counters| counters.faults[error.kind().index()] += 1);
    }

    pub(crate) fn snapshot(&self) -> ClientCounters {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
