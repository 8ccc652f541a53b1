//! How a queue behaves.

use crate::error::{Error, Result};

/// How a queue behaves. All processes of a fleet should agree on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// A worker that was silent for so long is dead and its jobs go to others.
    pub lease_ttl_s: u64,
    /// How often a worker says that it lives; at most half a lease.
    pub heartbeat_s: u64,
    /// Jobs of one run that may wait in a class. Redis under apalis breaks for good near
    /// 8 000, and a planner refills a short queue anyway.
    pub length_max: usize,
    /// How often to look for jobs that another process pushed; 0 for what
    /// suits the backend (SQLite 20 ms; Redis 200 ms, since a push is also
    /// published there).
    pub poll_ms: u64,
    /// Comes before every name, so that fleets can share a server.
    pub name_prefix: String,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            lease_ttl_s: 60,
            heartbeat_s: 20,
            length_max: 1000,
            poll_ms: 0,
            name_prefix: "agentgym".into(),
        }
    }
}

impl QueueOptions {
    /// The defaults with a lease of so many seconds, and a heartbeat that goes
    /// with it.
    pub fn leasing(lease_ttl_s: u64) -> Self {
        Self {
            lease_ttl_s,
            heartbeat_s: (lease_ttl_s / 3).max(1),
            ..Self::default()
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.heartbeat_s == 0 || self.lease_ttl_s < 2 * self.heartbeat_s {
            return Err(Error::Options(format!(
                "jobs.lease_ttl_s (a worker's --lease-ttl-s) is {} and a heartbeat {} s: the lease \
                 must be at least two heartbeats of a second or more, or one late heartbeat hands \
                 running jobs to others",
                self.lease_ttl_s, self.heartbeat_s
            )));
        }
        Ok(())
    }
}
