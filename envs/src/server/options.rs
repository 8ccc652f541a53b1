//! How a server is run.

/// Limits of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// A session that is not used for so long is closed, in seconds.
    pub session_ttl_s: u64,
    /// Sessions open at a time; a further create is refused with status 503.
    pub sessions_max: usize,
    /// Number of the first session. The originals begin with 0 whenever they start; a program
    /// that may be started again under the same address should not.
    pub first_id: u64,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            session_ttl_s: 3600,
            sessions_max: 10_000,
            first_id: 0,
        }
    }
}
