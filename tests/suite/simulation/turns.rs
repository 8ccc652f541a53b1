//! The order of requests that begin at the same simulated time. Work on other threads delays some of
//! them by a real time that no seed determines, so they are put in the order of what they are.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

/// When a request goes on, what it is, and its number among its like.
type Ticket = (Instant, String, u64);

/// The requests of a world that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    waiting: Mutex<BTreeSet<Ticket>>,
    left: Notify,
}

impl Turns {
    /// Waits a millisecond, in which all requests of this moment arrive: the clock stands while other
    /// threads work. Then they go on one by one. A task of its own waits, since the caller may be polled
    /// only after another request.
    pub(super) async fn take(self: &Arc<Self>, label: String) {
        let ticket = self.enter(Instant::now() + Duration::from_millis(1), label);
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

    fn enter(&self, at: Instant, label: String) -> Ticket {
        let mut waiting = self.waiting();
        let is_like = |ticket: &&Ticket| ticket.0 == at && ticket.1 == label;
        let last = waiting
            .iter()
            .filter(is_like)
            .map(|ticket| ticket.2)
            .next_back();
        let ticket = (at, label, last.map_or(0, |last| last + 1));
        waiting.insert(ticket.clone());
        ticket
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
