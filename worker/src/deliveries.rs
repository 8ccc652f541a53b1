//! Optimizer states on their way into the store, after the commits that name them.

use crate::{Result, panics};
use agentgym_storage::{Artifact, LocalFolder, PartKey, Store};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a worker leaves a part to the one that holds its state, before it makes that state again.
const LEFT_TO_HOLDER: Duration = Duration::from_secs(20);
/// Between two tries to write a state into a store that does not answer.
const PAUSE: Duration = Duration::from_secs(5);
/// How often the end of the last one is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A state to be written into the store.
pub(crate) struct Delivery {
    pub(crate) store: Store,
    pub(crate) artifacts: Vec<Artifact>,
    /// The files, which stay as long as this lives.
    pub(crate) folder: LocalFolder,
}

/// The states that this process has yet to write into stores, one after the other. Of a stage of a
/// run the newest alone is of use.
#[derive(Default)]
pub struct Deliveries {
    todo: Mutex<Todo>,
    pushed: Notify,
}

#[derive(Default)]
struct Todo {
    waiting: BTreeMap<(String, String), Delivery>,
    is_busy: bool,
    /// How many states are being written into the cache first.
    writing: usize,
    /// The process ends: a store that does not answer is not waited for.
    is_ending: bool,
    /// When this process first left a part to the holder of its state.
    left: BTreeMap<PartKey, Instant>,
}

impl Deliveries {
    fn todo(&self) -> MutexGuard<'_, Todo> {
        self.todo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, slot: &PartKey, delivery: Delivery) {
        let of = (slot.run.to_string(), slot.stage.clone());
        self.todo().waiting.insert(of, delivery);
        self.pushed.notify_one();
    }

    /// Writes a state into the cache beside everything else.
    pub(crate) fn beside(
        self: &Arc<Self>,
        writing: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        self.todo().writing += 1;
        let own = Arc::clone(self);
        tokio::spawn(async move {
            let written = panics::caught(writing).await;
            own.todo().writing -= 1;
            if let Err(e) = written {
                tracing::warn!("an optimizer state is in memory alone; it can be made again: {e}");
            }
        });
    }

    /// Writes what is pushed, until it is aborted.
    pub(crate) async fn carry_out(self: Arc<Self>) {
        loop {
            let next = {
                let mut todo = self.todo();
                let next = todo.waiting.pop_first();
                todo.is_busy = next.is_some();
                next
            };
            let Some((_, delivery)) = next else {
                self.pushed.notified().await;
                continue;
            };
            if let Err(e) = panics::caught(self.carry(&delivery)).await {
                tracing::warn!(
                    "an optimizer state stays out of the store; it can be made again: {e}"
                );
            }
        }
    }

    async fn carry(&self, delivery: &Delivery) -> Result<()> {
        for artifact in &delivery.artifacts {
            let (_, file) = artifact.name.split_once('/').unwrap_or_default();
            let path = delivery.folder.path().join(file);
            while let Err(e) = delivery.store.deliver(artifact, &path).await {
                if !e.may_pass() || self.todo().is_ending {
                    return Err(e.into());
                }
                tracing::info!("an optimizer state waits for the store: {e}");
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    /// Waits until everything is written or given up.
    pub(crate) async fn finish(&self) {
        self.todo().is_ending = true;
        loop {
            let is_done = {
                let todo = self.todo();
                todo.waiting.is_empty() && !todo.is_busy && todo.writing == 0
            };
            if is_done {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Whether this process still leaves a part to the holder of its state.
    pub(crate) fn leaves(&self, slot: PartKey) -> bool {
        let now = Instant::now();
        let mut todo = self.todo();
        todo.left
            .retain(|_, since| since.elapsed() < 10 * LEFT_TO_HOLDER);
        let since = todo.left.entry(slot).or_insert(now);
        since.elapsed() < LEFT_TO_HOLDER
    }
}
