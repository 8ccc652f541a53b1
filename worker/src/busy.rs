//! Where the time of an attempt goes: the policy computes or an environment is called, the store is
//! asked, or somebody waits for the store with nothing else to do. Calls and requests overlap, so each
//! is the time during which at least one was running. The rest is the overhead of this project's own
//! code.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Cheap to clone; clones share one count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    inner: Arc<Mutex<Inner>>,
}

/// Time of an attempt, and the bytes that it moved.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent {
    /// At least one call was running.
    pub(crate) busy: Duration,
    /// At least one request to the store was open.
    pub(crate) store: Duration,
    /// Of that, without a call.
    pub(crate) waited: Duration,
    /// Bytes written into the store.
    pub(crate) put: u64,
    /// Bytes read out of it.
    pub(crate) got: u64,
}

#[derive(Debug)]
struct Inner {
    calls: usize,
    requests: usize,
    /// Until when `spent` is right.
    counted: Instant,
    spent: Spent,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            calls: 0,
            requests: 0,
            counted: Instant::now(),
            spent: Spent::default(),
        }
    }
}

impl Inner {
    /// Counts the time since the last change.
    fn count(&mut self) {
        let now = Instant::now();
        let passed = now - std::mem::replace(&mut self.counted, now);
        if self.calls > 0 {
            self.spent.busy += passed;
        }
        if self.requests > 0 {
            self.spent.store += passed;
        }
        if self.requests > 0 && self.calls == 0 {
            self.spent.waited += passed;
        }
    }
}

/// A running call; ends when dropped.
#[derive(Debug)]
pub struct BusyCall(Busy);

/// A request to the store; ends when dropped.
pub(crate) struct StoreRequest(Busy);

impl Busy {
    pub(crate) fn call(&self) -> BusyCall {
        let mut inner = self.lock();
        inner.count();
        inner.calls += 1;
        BusyCall(self.clone())
    }

    pub(crate) fn request(&self) -> StoreRequest {
        let mut inner = self.lock();
        inner.count();
        inner.requests += 1;
        StoreRequest(self.clone())
    }

    pub(crate) fn moved(&self, put: u64, got: u64) {
        let mut inner = self.lock();
        inner.spent.put += put;
        inner.spent.got += got;
    }

    /// So far, with what is running.
    pub(crate) fn spent(&self) -> Spent {
        let mut inner = self.lock();
        inner.count();
        inner.spent
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BusyCall {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.count();
        inner.calls -= 1;
    }
}

impl Drop for StoreRequest {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.count();
        inner.requests -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    const SPAN: Duration = Duration::from_millis(40);

    #[test]
    fn calls_that_overlap_count_once_and_pauses_do_not_count() {
        let busy = Busy::default();
        let begun = Instant::now();
        let first = busy.call();
        let second = busy.clone().call();
        sleep(SPAN);
        drop(first);
        sleep(SPAN);
        drop(second);
        let most = begun.elapsed();
        let counted = busy.spent().busy;
        assert!((2 * SPAN..=most).contains(&counted));
        sleep(SPAN);
        assert_eq!(busy.spent().busy, counted, "a pause counted");
        let _third = busy.call();
        sleep(SPAN);
        assert!(busy.spent().busy >= counted + SPAN);
    }

    /// A request beside a call is time in the store, and nobody waits for it.
    #[test]
    fn only_a_request_beside_no_call_is_waited_for() {
        let busy = Busy::default();
        let call = busy.call();
        let request = busy.request();
        sleep(SPAN);
        let beside = busy.spent();
        assert!(beside.store >= SPAN && beside.busy >= beside.store);
        assert_eq!(beside.waited, Duration::ZERO);
        drop(call);
        let begun = busy.spent().busy;
        sleep(SPAN);
        let alone = busy.spent();
        assert_eq!(alone.busy, begun);
        assert!(alone.waited >= SPAN && alone.store >= beside.store + SPAN);
        drop(request);
        let over = busy.spent();
        sleep(SPAN);
        let paused = busy.spent();
        assert_eq!((paused.store, paused.waited), (over.store, over.waited));
        busy.moved(3, 5);
        busy.clone().moved(1, 0);
        assert_eq!((busy.spent().put, busy.spent().got), (4, 5));
    }
}
