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
    /// Most attempts of a call that may be repeated.
    pub attempts_max: u32,
    /// Pause before the second attempt, in seconds; it doubles with each further attempt.
    pub backoff_first_s: f64,
    /// Longest pause between attempts, in seconds.
    pub backoff_max_s: f64,
    /// Most sessions open at one server at a time, including those being closed. `None`: no limit.
    pub sessions_max: Option<usize>,
    /// Whether a server is asked which environment it is, at first and when it comes back.
    pub checks_servers: bool,
    /// Whether a reply that names just one action on offer is read as that action.
    pub lenient_actions: bool,
    /// After a server failed to open a session it gets no new ones for this many seconds, as long
    /// as another server answers.
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
            checks_servers: false,
            lenient_actions: false,
            avoid_s: 30.0,
        }
    }
}
