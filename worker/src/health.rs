//! A worker's own health. Where the store, the queue or a disk fails this worker, it steps back: it
//! takes no job and no planning turn until they answer again. Others may be well, and must not wait
//! for it.

use crate::meters::Meters;
use crate::{Error, Result};
use agentgym_queue::{Gate, Queue, Trouble};
use agentgym_storage::Store;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// First and longest pause before this worker tests the store and the queue again.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest first pause of a worker that steps back again and again without a commit.
const SETBACK_MAX: Duration = Duration::from_secs(64);

/// A worker whose store refuses it gives its claim back after this time, and one whose store does
/// not answer too, if others commit meanwhile.
const REFUSED_MAX: Duration = Duration::from_secs(5);
/// A worker whose store does not answer gives its claim back after this time in any case.
const UNANSWERED_MAX: Duration = Duration::from_secs(30);
/// Shorter trouble is not reported: every network has its moments.
const REPORTED_AFTER: Duration = Duration::from_secs(5);
/// What a worker writes to find out whether its disk takes anything.
const SCRATCH_BYTES: usize = 64 << 10;

/// The state of one worker.
pub(crate) struct Health {
    gate: Gate,
    meters: Arc<Meters>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// An attempt waits for the store, and asks it again and again.
    waiting: Option<Waiting>,
    /// This worker has stepped back.
    back: Option<Back>,
    /// Steps back since the last commit.
    setbacks: u32,
    /// Jobs of a run that could not begin here since the last that did.
    avoided: BTreeMap<String, u32>,
}

struct Waiting {
    since: Instant,
    since_unix_s: u64,
    refused: bool,
    why: String,
}

struct Back {
    since: Instant,
    since_unix_s: u64,
    why: String,
    pause: Duration,
    next: Instant,
}

impl Health {
    pub(crate) fn new(gate: Gate, meters: Arc<Meters>) -> Arc<Self> {
        Arc::new(Self {
            gate,
            meters,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request of an attempt has been failing for `lasted`; it is repeated.
    pub(crate) fn waits(&self, error: &agentgym_storage::Error, lasted: Duration) {
        let why = error.to_string();
        self.meters.in_trouble(&why);
        let since = Instant::now().checked_sub(lasted);
        let since = since.unwrap_or_else(Instant::now);
        let mut state = self.state();
        if state.waiting.is_none() {
            tracing::warn!("waits with what it has computed: {why}");
        }
        let began = state.waiting.as_ref().map(|w| (w.since, w.since_unix_s));
        let (since, since_unix_s) =
            began.unwrap_or_else(|| (since, unix_s().saturating_sub(lasted.as_secs())));
        state.waiting = Some(Waiting {
            since,
            since_unix_s,
            refused: !matches!(error, agentgym_storage::Error::Unavailable { .. }),
            why,
        });
    }

    /// The store answers a request of an attempt.
    pub(crate) fn answered(&self) {
        let mut state = self.state();
        if state.waiting.take().is_some() && state.back.is_none() {
            self.meters.out_of_trouble();
        }
    }

    /// Whether the claim of the attempt in progress is to be given back; `others_commit` if the
    /// queue has told of commits since the trouble began.
    pub(crate) fn gives_claim_back(&self, others_commit: bool) -> bool {
        self.state().waiting.as_ref().is_some_and(|waiting| {
            let most = match waiting.refused || others_commit {
                true => REFUSED_MAX,
                false => UNANSWERED_MAX,
            };
            waiting.since.elapsed() >= most
        })
    }

    /// True while an attempt waits for the store.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state().waiting.is_some()
    }

    /// True while this worker should take no job and no planning turn.
    pub(crate) fn is_sick(&self) -> bool {
        let state = self.state();
        state.back.is_some() || state.waiting.is_some()
    }

    /// Steps back, with a pause that grows.
    pub(crate) fn step_back(&self, error: &Error) {
        let why = error.to_string();
        self.meters.in_trouble(&why);
        let mut state = self.state();
        let now = Instant::now();
        let ((since, since_unix_s), pause) = match &state.back {
            Some(back) if back.next > now => return,
            Some(back) => (
                (back.since, back.since_unix_s),
                (back.pause * 2).min(PAUSE_MAX.max(back.pause)),
            ),
            None => {
                let pause = PAUSE_MIN * (1 << state.setbacks.min(5));
                state.setbacks += 1;
                tracing::warn!("steps back and takes no part for now: {why}");
                ((now, unix_s()), pause.min(SETBACK_MAX))
            }
        };
        state.back = Some(Back {
            since,
            since_unix_s,
            why,
            pause,
            next: now + pause,
        });
        self.gate.pause(true);
    }

    /// True if it is time to test the store and the queue again.
    pub(crate) fn is_due(&self) -> bool {
        let due = |back: &Back| back.next <= Instant::now();
        self.state().back.as_ref().is_some_and(due)
    }

    /// Store and queue answer again.
    pub(crate) fn recovered(&self) {
        let mut state = self.state();
        if let Some(back) = state.back.take() {
            let lasted_s = back.since.elapsed().as_secs();
            tracing::info!("store and queue answer again after {lasted_s} s; takes parts again");
        }
        if state.waiting.is_none() {
            self.meters.out_of_trouble();
        }
        self.gate.pause(false);
    }

    /// A part was committed by this worker.
    pub(crate) fn committed(&self) {
        self.state().setbacks = 0;
    }

    /// Leaves the jobs of a run to others for a while that grows: one could not begin here.
    pub(crate) fn avoid(&self, run: &str) {
        let mut state = self.state();
        let times = state.avoided.entry(run.to_owned()).or_default();
        self.gate
            .avoid(run, (PAUSE_MIN / 2) * (1 << (*times).min(6)));
        *times += 1;
    }

    /// Whether the jobs of a run are left to others now.
    pub(crate) fn avoids(&self, run: &str) -> bool {
        self.gate.avoids(run)
    }

    /// An attempt of a run has begun here.
    pub(crate) fn begins(&self, run: &str) {
        self.state().avoided.remove(run);
    }

    /// What to report to the fleet.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let state = self.state();
        let back = (state.back.as_ref()).map(|back| (back.since, back.since_unix_s, &back.why));
        let waiting = (state.waiting.as_ref()).map(|w| (w.since, w.since_unix_s, &w.why));
        let (since, since_unix_s, why) = waiting.or(back)?;
        (since.elapsed() >= REPORTED_AFTER).then(|| Trouble {
            since_unix_s,
            why: why.clone(),
        })
    }
}

fn unix_s() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs()
}

/// Tests everything that this worker needs to make a part.
pub(crate) async fn probe(
    worker: &str,
    (store, queue, scratch_dir): (&Store, &Queue, &Path),
) -> Result<()> {
    store.probe().await?;
    queue.probe(worker).await?;
    let io = |source| Error::Io {
        what: format!("cannot write into {}", scratch_dir.display()),
        source,
    };
    std::fs::create_dir_all(scratch_dir).map_err(io)?;
    let file = scratch_dir.join("probe");
    let written = std::fs::write(&file, vec![0; SCRATCH_BYTES]);
    let _ = std::fs::remove_file(&file);
    written.map_err(io)
}
