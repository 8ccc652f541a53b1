//! How long an attempt spent in the policy or waiting for an environment. Calls overlap, so this is
//! the time during which at least one call was running. The rest of an attempt is the overhead of
//! this project's own code.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Cheap to clone; clones share one count.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    calls: usize,
    since: Option<Instant>,
    total: Duration,
}

/// A running call; ends when dropped.
#[derive(Debug)]
pub struct BusyCall {
    busy: Busy,
}

impl Busy {
    pub(crate) fn call(&self) -> BusyCall {
        let mut inner = self.lock();
        inner.calls += 1;
        if inner.since.is_none() {
            inner.since = Some(Instant::now());
        }
        BusyCall { busy: self.clone() }
    }

    /// Seconds during which a call was running, the current one included.
    pub(crate) fn seconds(&self) -> f64 {
        let inner = self.lock();
        let open = inner.since.map_or(Duration::ZERO, |since| since.elapsed());
        (inner.total + open).as_secs_f64()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BusyCall {
    fn drop(&mut self) {
        let mut inner = self.busy.lock();
        inner.calls -= 1;
        if inner.calls == 0
            && let Some(since) = inner.since.take()
        {
            inner.total += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    #[test]
    fn calls_that_overlap_count_once_and_pauses_do_not_count() {
        const SPAN: Duration = Duration::from_millis(40);
        let busy = Busy::default();
        let begun = Instant::now();
        let first = busy.call();
        let second = busy.clone().call();
        sleep(SPAN);
        drop(first);
        sleep(SPAN);
        drop(second);
        let most = begun.elapsed().as_secs_f64();
        let counted = busy.seconds();
        assert!((2.0 * SPAN.as_secs_f64()..=most).contains(&counted));
        sleep(SPAN);
        assert_eq!(busy.seconds(), counted, "a pause counted");
        let _third = busy.call();
        sleep(SPAN);
        assert!(busy.seconds() >= counted + SPAN.as_secs_f64());
    }
}
