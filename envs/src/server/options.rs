//! Options of a server.

/// Limits of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// A session that is unused for this many seconds is closed.
    pub session_ttl_s: u64,
    /// Most open sessions; a further create is refused with status 503.
    pub sessions_max: usize,
    /// Number of the first session. The original servers start at 0 after every restart; a program
    /// that may be restarted under the same address should not.
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
