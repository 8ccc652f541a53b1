//! The worker: takes a job, opens its inputs, runs its stage, writes and commits its outputs, and
//! plans the next parts.
//!
//! The runtime owns every side effect on shared state. A stage function sees only a
//! [`StageContext`], so a stage can be read, tested and rerun as a function from artifacts to
//! artifacts.

mod attempt;
mod behind;
mod bench;
mod blocking;
mod build;
mod busy;
mod candle_engine;
mod context;
mod decoder;
mod deliveries;
mod demonstrations;
mod endpoint;
mod environments;
mod episode;
mod error;
mod exhausted;
mod gateway;
mod guard;
mod health;
mod held_states;
#[cfg(feature = "hub")]
pub mod hub;
mod inference;
mod memory;
mod meters;
mod metrics;
mod model_folder;
mod offered_tools;
mod pairs;
mod panics;
mod policies;
mod policy_sync;
mod preemption;
mod probe;
mod process;
mod retention;
mod run_state;
mod runtime;
mod scratch;
pub mod stages;
mod states;
mod turn_engine;
pub mod turn_journal;

pub use build::{BUILD, features};
pub use busy::BusyCall;
pub use context::{Beat, Event, Report, Resources, StageContext};
pub use decoder::PREFILL_CHUNK_TOKENS;
pub use deliveries::Deliveries;
pub use endpoint::serve_metrics;
pub use error::{Cause, Error, Result};
pub use exhausted::{Exhausted, counted_failures};
pub use gateway::{AgentGateway, GatewayOptions};
pub use guard::{Warned, Warning, Watched, is_guarded, pause, warnings};
pub use held_states::{HeldStates, stays_in_memory};
pub use inference::http::KEY_VARIABLE as SERVER_KEY_VARIABLE;
pub use memory::machine_bytes;
pub use meters::Meters;
pub use model_folder::{MADE, Made, class_made_in, model_folder};
pub use offered_tools::{offering, template_settings};
pub use policies::RESIDENT_POLICIES;
pub use policy_sync::{SyncOptions, sync_policies};
pub use preemption::{Cloud, drain_on_notice};
pub use process::{
    DRAIN_GRACE, before_threads, cores, default_queue_url, drain_on_signal, grace_of, out_of_time,
    wait_for_signal, worker_name,
};
pub use run_state::{RunState, load_plan};
pub use runtime::{WorkerOptions, run_worker};
pub use scratch::{Folders, ScratchFolder};

#[cfg(test)]
mod damaged;
#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;

/// Tests of readers of untrusted bytes also measure how much memory they allocate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
