//! Ports for servers that a test ends and starts again in the same place.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that systems give to outgoing connections: one of those may
/// take the place of a server while it is away, and it could not come back.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// A port of this machine on which nobody listens; the next call gives another.
///
/// # Panics
/// If every port is taken.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Processes that test side by side begin at different places.
    let own = (std::process::id().wrapping_mul(7_919) % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let next = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (own + next) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("every port from {FIRST} to {} is taken", FIRST + COUNT - 1);
}
