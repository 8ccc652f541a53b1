//! The queue: a hint at which jobs can run, over SQLite or Redis.
//!
//! Nothing here is the truth. What is done is decided by commits in the object
//! store, so the queue may lose jobs, deliver them twice or vanish as a whole,
//! and a run still ends with the same digest. What it does promise: a job that
//! is queued under a key is not queued twice while it waits or runs; a job
//! whose worker died is delivered again after the lease; a pushed job starts
//! within milliseconds; nothing found in it stops a worker; jobs of a higher
//! priority are taken first, and runs of the same priority take turns.
//!
//! Only this crate knows apalis. Of apalis it uses the worker loop, the
//! heartbeats and the redelivery of a dead worker's jobs; it does not use its
//! retries, priorities and counts. Handlers always count as successful, and
//! who wants another attempt enqueues the next idempotency key.

mod backends;
mod codec;
mod driver;
mod error;
mod gate;
mod holder;
mod job;
mod lanes;
mod names;
mod options;
mod queue;
mod work;

pub use driver::{BOARD_RANKS, Driver, Started, Worker};
pub use error::{Error, Result, Source};
pub use gate::Gate;
pub use holder::process_name;
pub use job::{Enqueued, Handled, Job};
pub use options::QueueOptions;
pub use queue::{Claim, ClaimGuard, Queue};
pub use tokio_util::sync::CancellationToken;
