//! Ports for servers that a test stops and restarts at the same address.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range of ephemeral ports: an outgoing connection could take such a port while the
/// server is down, and the server could not restart.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// A free port of this machine; each call returns another one.
///
/// # Panics
/// If every port is taken.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Concurrent test processes begin at different ports.
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
