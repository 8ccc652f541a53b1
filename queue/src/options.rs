//! The options of a queue.

use crate::error::{Error, Result};

/// The options of a queue. All processes of a fleet should use the same ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// A worker without a heartbeat for this long is dead and its jobs go to others.
    pub lease_ttl_s: u64,
    /// The interval of a worker's heartbeats; at most half a lease.
    pub heartbeat_s: u64,
    /// Jobs that may wait in one lane. apalis on Redis breaks permanently near 8 000, and a planner
    /// refills a short queue anyway.
    pub length_max: usize,
    /// How often to look for jobs pushed by another process; 0 for the backend's default (SQLite 20
    /// ms; Redis 200 ms, since Redis also publishes pushes).
    pub poll_ms: u64,
    /// Prefix of every name, so that fleets can share a server.
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
    /// The defaults with a lease of `lease_ttl_s` and a heartbeat that fits it.
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
