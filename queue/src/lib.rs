//! The queue of runnable jobs, over SQLite or Redis. It is only a hint.
//!
//! Commits in the object store decide which jobs are done. The queue may therefore lose jobs,
//! deliver them twice or be wiped, and a run still ends with the same digest. The queue guarantees:
//! a job queued under a key is not queued again while it waits or runs; a job whose worker died is
//! delivered again after the lease; a pushed job starts within milliseconds; no content of the
//! queue stops a worker; jobs of a higher priority are taken first, and runs of equal priority take
//! turns.
//!
//! Only this crate uses apalis: its worker loop, its heartbeats and its redelivery of a dead
//! worker's jobs, but not its retries, priorities and counts. Handlers always count as successful;
//! another attempt is a push with the next idempotency key.

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
mod trouble;
mod work;

pub use driver::{BOARD_RANKS, Driver, Started, Worker};
pub use error::{Error, Result, Source};
pub use gate::Gate;
pub use holder::{is_gone, process_name};
pub use job::{Enqueued, Handled, Job};
pub use options::QueueOptions;
pub use queue::{Claim, ClaimGuard, Queue};
pub use tokio_util::sync::CancellationToken;
pub use trouble::{PRESENCE_EVERY, Trouble};
