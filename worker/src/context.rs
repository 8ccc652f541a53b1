//! Everything that a stage function may see (I3): its inputs and outputs by name, a beat, a
//! cancellation token, resident resources and its journal. No key, store, queue or clock.

use crate::Cause;
use crate::busy::{Busy, BusyCall, Spent, StoreRequest};
use crate::deliveries::Deliveries;
use crate::environments::Environments;
use crate::gateway::AgentGateway;
use crate::held_states::HeldStates;
use crate::meters::Meters;
use crate::policies::{Critics, KeptForeign, Policies};
use agentgym_jobs::pipeline::{Part, PartId};
use agentgym_jobs::plan::Plan;
use agentgym_model::OptimizerState;
use agentgym_record::Stats;
use agentgym_storage::{Inputs, Journal, Manifest};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// The inputs of a stage function, besides its outputs.
pub struct StageContext {
    /// The plan in force.
    pub plan: Arc<Plan>,
    /// The part to make.
    pub part: Part,
    /// Verified readers of the inputs, by name.
    pub inputs: Inputs,
    /// Must be ticked at least every `jobs.beat_timeout_s`.
    pub beat: Beat,
    /// Fires when the worker drains.
    pub cancel: CancellationToken,
    /// Resources that the worker keeps between attempts.
    pub resources: Arc<Resources>,
    /// Where unfinished work is recorded.
    pub journal: Journal,
    /// The journal of earlier attempts of this part.
    pub replayed: Vec<Bytes>,
    /// A local folder of this attempt, removed after it.
    pub scratch: PathBuf,
    /// The optimizer state that the stage leaves, where its outputs name no folder with it.
    pub(crate) left: Option<OptimizerState>,
    /// Measurements for the end record of an attempt without a result.
    pub measured: Report,
}

/// Resources that a worker process keeps between attempts.
pub struct Resources {
    /// Compute threads.
    pub threads: usize,
    /// The device of the policy.
    pub device: agentgym_model::Device,
    /// Policies in memory, by digest.
    pub policies: Policies,
    /// The model that candle evaluates, in memory.
    pub foreign: KeptForeign,
    /// Critics in memory, by digest.
    pub critics: Critics,
    /// Environment clients and built-in servers.
    pub environments: Environments,
    /// Where agents behind a harness ask for messages.
    pub gateway: Arc<AgentGateway>,
    /// What was done so far, for operators.
    pub meters: Arc<Meters>,
    /// Bytes of policies that the process has read ahead of their parts since an attempt last ended.
    pub read_ahead: Arc<AtomicU64>,
    /// Optimizer states in memory.
    pub states: HeldStates,
    /// Optimizer states that are yet to be written into stores.
    pub deliveries: Arc<Deliveries>,
    /// How long a drain waits for turns in progress.
    pub drain_grace: Duration,
}

impl Resources {
    /// Nothing is in memory yet.
    pub(crate) fn new(threads: usize, device: agentgym_model::Device) -> Self {
        Self {
            threads,
            device,
            policies: Policies::default(),
            foreign: KeptForeign::default(),
            critics: Critics::default(),
            environments: Environments::default(),
            gateway: Arc::default(),
            meters: Arc::default(),
            read_ahead: Arc::default(),
            states: HeldStates::default(),
            deliveries: Arc::default(),
            drain_grace: crate::DRAIN_GRACE,
        }
    }
}

/// Measurements of an attempt: rates and times, which stay out of artifacts.
#[derive(Debug, Default)]
pub struct Report {
    /// Goes into the work record of the commit.
    pub stats: Stats,
}

/// An event that a worker sends to its subscribers.
#[derive(Debug, Clone)]
pub enum Event {
    /// The figures of the run show something wrong.
    Warned(crate::Warning),
    /// An attempt began.
    Started {
        /// The part.
        part: PartId,
        /// Its attempt.
        attempt: u32,
        /// The worker.
        worker: String,
    },
    /// An attempt made progress.
    Progress {
        /// The part.
        part: PartId,
        /// Units done.
        done: u64,
        /// Total units; 0 if unknown.
        total: u64,
        /// What the units are.
        note: String,
        /// Measurements so far, by name: `loss`, `tokens/s`.
        figures: Vec<(&'static str, f64)>,
    },
    /// A part is committed.
    Committed {
        /// The part.
        part: PartId,
        /// Its commit, which includes the attempt's measurements.
        manifest: Arc<Manifest>,
    },
    /// Another attempt committed first.
    Superseded {
        /// The part.
        part: PartId,
    },
    /// An attempt failed.
    Failed {
        /// The part.
        part: PartId,
        /// The reason.
        message: String,
        /// Remaining attempts.
        attempts_left: u32,
    },
    /// The worker is waiting for something that an operator should know about.
    Waiting {
        /// What it waits for.
        message: String,
    },
    /// Every part is committed.
    RunFinished {
        /// The run.
        run: String,
    },
    /// The run cannot continue without an operator.
    RunStopped {
        /// The run.
        run: String,
        /// The reason, and what to do.
        message: String,
        /// What has to be fixed.
        cause: Cause,
    },
}

/// A stage's liveness signal. Cheap to clone, and to tick from any thread.
#[derive(Clone)]
pub struct Beat {
    inner: Arc<BeatInner>,
}

struct BeatInner {
    born: Instant,
    last_ms: AtomicU64,
    told_ms: AtomicU64,
    busy: Busy,
    part: PartId,
    events: broadcast::Sender<Event>,
}

impl Beat {
    /// A beat that reports to `events`.
    pub fn new(part: PartId, events: broadcast::Sender<Event>) -> Self {
        let inner = BeatInner {
            born: Instant::now(),
            last_ms: AtomicU64::new(0),
            told_ms: AtomicU64::new(0),
            busy: Busy::default(),
            part,
            events,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Records that the stage is alive.
    pub fn tick(&self) {
        self.inner.last_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Ticks, and notifies subscribers at most five times a second.
    pub fn progress(&self, done: u64, total: u64, note: &str) {
        self.progress_with(done, total, note, Vec::new);
    }

    /// [`Beat::progress`] with measurements.
    pub fn progress_with(
        &self,
        done: u64,
        total: u64,
        note: &str,
        figures: impl FnOnce() -> Vec<(&'static str, f64)>,
    ) {
        const EVERY_MS: u64 = 200;
        self.tick();
        let (now, told) = (self.now_ms(), self.inner.told_ms.load(Ordering::Relaxed));
        let due = now >= told + EVERY_MS || done == total;
        if due
            && self
                .inner
                .told_ms
                .compare_exchange(told, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            let event = Event::Progress {
                part: self.inner.part,
                done,
                total,
                note: note.to_owned(),
                figures: figures(),
            };
            let _ = self.inner.events.send(event);
        }
    }

    /// Notifies subscribers of what the stage is waiting for.
    pub fn waiting(&self, message: String) {
        let _ = self.inner.events.send(Event::Waiting { message });
    }

    /// Counts as time in the policy or in an environment call, until the returned value is dropped.
    pub fn busy(&self) -> BusyCall {
        self.inner.busy.call()
    }

    /// Counts as time in the store, until the returned value is dropped.
    pub(crate) fn asking(&self) -> StoreRequest {
        self.inner.busy.request()
    }

    /// Bytes went into the store, or came out of it.
    pub(crate) fn moved(&self, put: u64, got: u64) {
        self.inner.busy.moved(put, got);
    }

    /// Where the time of the attempt went so far, and the bytes that it moved.
    pub(crate) fn spent(&self) -> Spent {
        self.inner.busy.spent()
    }

    /// Time since the last tick.
    pub fn silence(&self) -> Duration {
        Duration::from_millis(
            self.now_ms()
                .saturating_sub(self.inner.last_ms.load(Ordering::Relaxed)),
        )
    }

    fn now_ms(&self) -> u64 {
        self.inner.born.elapsed().as_millis() as u64
    }
}
