//! Limits of the client.

/// Limits of the client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientOptions {
    /// For a whole call, connecting and reading included, in seconds.
    pub call_timeout_s: f64,
    /// For connecting, in seconds.
    pub connect_timeout_s: f64,
    /// Largest reply body in bytes. A step of WebArena carries a picture and the page.
    pub body_max_bytes: usize,
    /// How often a call that may be repeated is tried.
    pub attempts_max: u32,
    /// Pause before the second attempt, in seconds; it doubles from there.
    pub backoff_first_s: f64,
    /// Longest pause, in seconds.
    pub backoff_max_s: f64,
    /// Most sessions that are open at one server at a time, those that are being closed
    /// included; none: as many as are asked for.
    pub sessions_max: Option<usize>,
    /// A server that failed to open a session gets no further ones for so long while another
    /// one answers, in seconds.
    pub avoid_s: f64,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            call_timeout_s: 300.0,
            connect_timeout_s: 10.0,
            body_max_bytes: 32 << 20,
            attempts_max: 5,
            backoff_first_s: 0.25,
            backoff_max_s: 8.0,
            sessions_max: None,
            avoid_s: 30.0,
        }
    }
}
