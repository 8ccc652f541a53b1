//! What an attempt works with: its store, which waits where results are in hand, its scratch folder,
//! and the context of its stage function.

use crate::Folders;
use crate::context::{Beat, Event, Report, Resources, StageContext};
use crate::health::Health;
use crate::scratch::Scratch;
use crate::stages::StageFunctions;
use agentgym_jobs::pipeline::Part;
use agentgym_jobs::plan::Plan;
use agentgym_storage::{
    AttemptId, Inputs, Journal, MachineFacts, Manifest, PartKey, Patience, Store,
};
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

/// What an attempt needs from the worker.
pub(crate) struct AttemptContext<'a> {
    pub(crate) store: &'a Store,
    pub(crate) resources: &'a Arc<Resources>,
    pub(crate) functions: &'a dyn StageFunctions,
    pub(crate) worker: &'a str,
    pub(crate) machine: &'a MachineFacts,
    pub(crate) folders: &'a Folders,
    pub(crate) events: &'a broadcast::Sender<Event>,
    pub(crate) drain: &'a CancellationToken,
    /// Learns how the store deals with this worker.
    pub(crate) health: &'a Arc<Health>,
    /// How long an attempt waits for a store that does not answer; it does not wait for a full one.
    /// `None`: it waits for either without limit.
    pub(crate) outage_max: Option<Duration>,
}

impl AttemptContext<'_> {
    /// The store for use within an attempt. It retries during an outage, so that computed results
    /// are not lost.
    pub(crate) fn patient_store(&self, beat: &Beat) -> Store {
        self.store.patient(WithResultsInHand {
            beat: beat.clone(),
            drain: self.drain.clone(),
            health: Arc::clone(self.health),
            outage_max: self.outage_max,
        })
    }
}

struct WithResultsInHand {
    beat: Beat,
    drain: CancellationToken,
    health: Arc<Health>,
    outage_max: Option<Duration>,
}

impl Patience for WithResultsInHand {
    fn waits(&self, error: &agentgym_storage::Error, lasted: Duration) -> bool {
        use agentgym_storage::Error::{Full, NoBucket, NoPermission};
        self.beat.tick();
        self.beat.waiting(error.to_string());
        self.health.waits(error, lasted);
        let is_hopeless = matches!(error, Full { .. } | NoPermission { .. } | NoBucket { .. });
        let waits = |most| !is_hopeless && lasted < most;
        !self.drain.is_cancelled() && self.outage_max.is_none_or(waits)
    }

    fn answered(&self) {
        self.health.answered();
    }

    fn asking(&self) -> Box<dyn Any + Send + Sync> {
        Box::new(self.beat.asking())
    }

    fn moved(&self, put: u64, got: u64) {
        self.beat.moved(put, got);
    }
}

/// The size limit of the machine's models.
pub(crate) fn cache_bytes(plan: &Plan) -> u64 {
    (plan.config.jobs.cache_gb * 1e9) as u64
}

/// A part to be made: as planned, its inputs' commits by name, and the attempt at it.
pub(crate) struct Making {
    pub(crate) part: Part,
    pub(crate) inputs: Vec<(String, Manifest)>,
    pub(crate) slot: PartKey,
    pub(crate) attempt: AttemptId,
}

impl AttemptContext<'_> {
    /// What the stage function of a part sees. It replays no journal.
    pub(crate) fn context(
        &self,
        plan: &Arc<Plan>,
        making: Making,
        (store, beat, scratch): (&Store, &Beat, &Scratch),
    ) -> StageContext {
        StageContext {
            plan: Arc::clone(plan),
            part: making.part,
            inputs: Inputs::new(store.clone(), making.inputs, &self.folders.models)
                .with_cache_max(cache_bytes(plan)),
            beat: beat.clone(),
            cancel: self.drain.child_token(),
            resources: Arc::clone(self.resources),
            journal: Journal::open(store.clone(), making.slot, making.attempt),
            replayed: Vec::new(),
            scratch: scratch.path.clone(),
            left: None,
            measured: Report::default(),
        }
    }
}
