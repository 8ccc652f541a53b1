//! When a job may start, and when a worker may fetch one from the queue.
//!
//! A [`Gate`] counts the slots of a device and closes permanently when its process drains. Several
//! lanes share it, which causes two problems. apalis asks whether a service is ready, then fetches,
//! then calls, so two lanes that saw the same free slot would both take a job off the queue, and
//! one would hold its job for hours without running it. And a service that turns from ready to
//! pending during a fetch leaves a write transaction open, which blocks every process on an SQLite
//! file.
//!
//! Therefore each fetch needs a grant. Each lane has a [`Turn`]; the loop in `work` puts a reserved
//! [`Permit`] into it when the lane has a due job, and [`Gated`] lets apalis fetch exactly once per
//! grant. The turn is also the waker of that fetch: a fetch that has begun is polled to its end,
//! and without a grant nothing is fetched. Heartbeats and acks are not gated.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use apalis_core::{
    backend::{Backend, BackendConfig, WireFormatBackend},
    worker::context::WorkerContext,
};
use futures::task::AtomicWaker;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::Instant,
};

/// The slots of one device. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    slots: Arc<Semaphore>,
    state: watch::Sender<State>,
    /// Runs and lanes whose jobs are left to other workers, until when.
    avoided: Arc<Mutex<BTreeMap<String, Instant>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    in_flight: usize,
    closed: bool,
    paused: bool,
}

impl Gate {
    /// A gate with room for `slots` concurrent jobs, at least one.
    pub fn new(slots: usize) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(slots.clamp(1, Semaphore::MAX_PERMITS))),
            state: watch::Sender::new(State::default()),
            avoided: Arc::default(),
        }
    }

    /// Lets no further job start while `paused`. Jobs in flight and heartbeats continue.
    pub fn pause(&self, paused: bool) {
        self.state.send_modify(|state| state.paused = paused);
    }

    /// Leaves the jobs of a run, or of one lane, to other workers for a while.
    pub fn avoid(&self, of: &str, span: Duration) {
        let mut avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        avoided.retain(|_, until| *until > Instant::now());
        avoided.insert(of.to_owned(), Instant::now() + span);
    }

    /// Whether the jobs of a run, or of one lane, are left to other workers now.
    pub fn avoids(&self, of: &str) -> bool {
        let avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        avoided.get(of).is_some_and(|until| *until > Instant::now())
    }

    /// Lets no further job start. Jobs in flight and heartbeats continue. A gate cannot be
    /// reopened.
    pub fn close(&self) {
        self.state.send_modify(|state| state.closed = true);
    }

    /// Whether [`Gate::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.state.borrow().closed
    }

    /// Handlers that are running.
    pub fn in_flight(&self) -> usize {
        self.state.borrow().in_flight
    }

    /// Waits until no handler runs. Only a closed gate stays idle.
    pub async fn idle(&self) {
        let mut state = self.state.subscribe();
        // Fails only if all senders are dropped, and this gate holds one.
        let _ = state.wait_for(|state| state.in_flight == 0).await;
    }

    /// Whether a job could start now.
    pub(crate) fn has_room(&self) -> bool {
        self.is_open() && self.slots.available_permits() > 0
    }

    fn is_open(&self) -> bool {
        let state = self.state.borrow();
        !state.closed && !state.paused
    }

    /// Reserves a slot, unless all are taken or the gate is closed or paused.
    pub(crate) fn reserve(&self) -> Option<Permit> {
        if !self.is_open() {
            return None;
        }
        let permit = Arc::clone(&self.slots).try_acquire_owned().ok()?;
        Some(Permit {
            gate: self.clone(),
            begun: false,
            permit: Some(permit),
        })
    }

    /// Yields whenever a slot may have become free.
    pub(crate) fn changes(&self) -> Changes {
        Changes(self.state.subscribe())
    }
}

/// See [`Gate::changes`].
pub(crate) struct Changes(watch::Receiver<State>);

impl Changes {
    pub(crate) async fn next(&mut self) {
        // Cannot fail: the loop that waits here holds the gate, hence a sender.
        let _ = self.0.changed().await;
    }
}

/// A reserved slot; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Gate,
    begun: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Permit {
    /// Counts the job as in flight. False if the gate has closed or paused meanwhile. Checking and
    /// counting are one step, otherwise a drain could miss a job.
    pub(crate) fn begin(&mut self) -> bool {
        self.begun = self.gate.state.send_if_modified(|state| {
            let open = !state.closed && !state.paused;
            state.in_flight += usize::from(open);
            open
        });
        self.begun
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        // Release the permit first: a notified waiter must find the slot free.
        self.permit = None;
        let ended = usize::from(self.begun);
        self.gate
            .state
            .send_modify(|state| state.in_flight -= ended);
    }
}

/// One lane's right to fetch, granted one slot at a time.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// True while a worker polls this turn; without a worker a granted slot would stay unused.
    attached: AtomicBool,
    /// The backend may be polled: a slot was granted, or the fetch in progress was woken.
    woken: AtomicBool,
    worker: AtomicWaker,
    grant: Mutex<Option<(Permit, Instant)>>,
}

impl Turn {
    fn grant_lock(&self) -> std::sync::MutexGuard<'_, Option<(Permit, Instant)>> {
        self.grant
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.attached.load(Acquire)
    }

    /// The age of the current grant.
    pub(crate) fn granted_for(&self) -> Option<Duration> {
        self.grant_lock().as_ref().map(|(_, since)| since.elapsed())
    }

    /// Lets the worker fetch once.
    pub(crate) fn grant(self: &Arc<Self>, slot: Permit) {
        *self.grant_lock() = Some((slot, Instant::now()));
        self.wake_by_ref();
    }

    /// Lets the worker fetch once more under its existing grant: another process took the job for
    /// which it was granted, and there is a new one.
    pub(crate) fn renew(self: &Arc<Self>) {
        if let Some((_, since)) = self.grant_lock().as_mut() {
            *since = Instant::now();
        }
        self.wake_by_ref();
    }

    /// Takes the slot out, to run the fetched job or to return the slot.
    pub(crate) fn take(&self) -> Option<Permit> {
        self.grant_lock().take().map(|(slot, _)| slot)
    }

    /// Waits for a grant, as the only worker of the lane.
    pub(crate) async fn granted(&self) {
        std::future::poll_fn(|cx| match self.poll_woken(cx) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Whether there is a reason to poll the backend; if not, `cx` is woken when there is.
    fn poll_woken(&self, cx: &Context<'_>) -> bool {
        self.worker.register(cx.waker());
        self.attached.store(true, Release);
        self.woken.swap(false, AcqRel)
    }

    /// Called when the worker is gone; the next one starts without a grant.
    pub(crate) fn detach(&self) {
        self.attached.store(false, Release);
        self.woken.store(false, Release);
        self.take();
    }
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Release);
        self.worker.wake();
    }
}

/// A backend that fetches only when its [`Turn`] allows it.
pub(crate) struct Gated<B> {
    inner: B,
    turn: Arc<Turn>,
}

impl<B> Gated<B> {
    pub(crate) fn new(inner: B, turn: Arc<Turn>) -> Self {
        Self { inner, turn }
    }
}

impl<B: Backend> Backend for Gated<B> {
    type Task = B::Task;
    type Error = B::Error;

    fn poll_ready(
        &mut self,
        cx: &mut Context<'_>,
        worker: &WorkerContext,
    ) -> Poll<Result<(), B::Error>> {
        self.inner.poll_ready(cx, worker)
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        worker: &WorkerContext,
    ) -> Poll<Option<Result<B::Task, B::Error>>> {
        if !self.turn.poll_woken(cx) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(&self.turn));
        self.inner
            .poll_next(&mut Context::from_waker(&waker), worker)
    }

    fn poll_close(
        &mut self,
        cx: &mut Context<'_>,
        worker: &WorkerContext,
    ) -> Poll<Result<(), B::Error>> {
        self.inner.poll_close(cx, worker)
    }
}

impl<B: BackendConfig> BackendConfig for Gated<B> {
    type Args = B::Args;
    type Id = B::Id;
    type Kind = B::Kind;
    type Config = B::Config;
    type Layer = B::Layer;

    fn config(&self) -> &B::Config {
        self.inner.config()
    }

    fn middleware(&mut self, worker: &mut WorkerContext) -> B::Layer {
        self.inner.middleware(worker)
    }
}

impl<B: WireFormatBackend> WireFormatBackend for Gated<B> {
    type Codec = B::Codec;
    type Compact = B::Compact;

    fn codec(&self) -> &B::Codec {
        self.inner.codec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_and_come_back() {
        let gate = Gate::new(2);
        let mut first = gate.reserve().unwrap();
        let second = gate.reserve().unwrap();
        assert!(gate.reserve().is_none());
        assert_eq!(gate.in_flight(), 0, "reserved is not running");
        assert!(first.begin());
        assert_eq!(gate.in_flight(), 1);
        drop((first, second));
        assert_eq!(gate.in_flight(), 0);
        assert!(gate.has_room());
    }

    #[test]
    fn nothing_begins_behind_a_closed_gate() {
        let gate = Gate::new(1);
        let mut reserved = gate.reserve().unwrap();
        gate.close();
        assert!(!reserved.begin());
        drop(reserved);
        assert_eq!(gate.in_flight(), 0);
        assert!(gate.reserve().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_gate_opens_again_and_an_avoided_run_comes_back() {
        let gate = Gate::new(1);
        let mut reserved = gate.reserve().unwrap();
        gate.pause(true);
        assert!(!reserved.begin() && !gate.has_room());
        drop(reserved);
        assert!(gate.reserve().is_none());
        gate.pause(false);
        assert!(gate.reserve().unwrap().begin());
        gate.avoid("maze", Duration::from_secs(2));
        assert!(gate.avoids("maze") && !gate.avoids("other"));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!gate.avoids("maze"));
    }

    #[tokio::test]
    async fn idle_waits_for_the_last_job() {
        let gate = Gate::new(1);
        let mut slot = gate.reserve().unwrap();
        assert!(slot.begin());
        gate.close();
        let waited = tokio::time::timeout(Duration::from_millis(20), gate.idle());
        assert!(waited.await.is_err());
        drop(slot);
        gate.idle().await;
    }

    #[test]
    fn a_turn_that_loses_its_worker_gives_the_slot_back() {
        let gate = Gate::new(1);
        let turn = Arc::new(Turn::default());
        turn.grant(gate.reserve().unwrap());
        assert!(!gate.has_room());
        turn.detach();
        assert!(gate.has_room());
        assert!(turn.granted_for().is_none());
    }
}
