//! The order of requests that begin at the same simulated time. Work on other threads delays some of
//! them by a real time that no seed determines, so they are put in the order of what they are.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

/// When a request goes on, what it is, and its number.
type Ticket = (Instant, String, u64);

/// The requests of a world that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    next: AtomicU64,
    waiting: Mutex<BTreeSet<Ticket>>,
    left: Notify,
}

impl Turns {
    /// Waits a millisecond, in which all requests of this moment arrive: the clock stands while other
    /// threads work. Then they go on one by one. A task of its own waits, since the caller may be polled
    /// only after another request.
    pub(super) async fn take(self: &Arc<Self>, label: String) {
        let at = Instant::now() + Duration::from_millis(1);
        let ticket = (at, label, self.next.fetch_add(1, Relaxed));
        self.waiting().insert(ticket.clone());
        let (go, gone) = oneshot::channel();
        let turns = Arc::clone(self);
        tokio::spawn(async move {
            turns.comes(&ticket).await;
            let _ = go.send(());
            turns.waiting().remove(&ticket);
            turns.left.notify_waiters();
        });
        let _ = gone.await;
    }

    async fn comes(&self, ticket: &Ticket) {
        sleep_until(ticket.0).await;
        loop {
            let left = self.left.notified();
            if self.waiting().first() == Some(ticket) {
                return;
            }
            left.await;
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeSet<Ticket>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
