//! Process-level helpers of both binaries: names, a signal handler, the number of cores and the
//! queue next to a folder store.

use crate::{Error, Result};
use agentgym_storage::Store;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long a drain waits for turns in progress. Kubernetes kills a process 30 s after its SIGTERM.
pub const DRAIN_GRACE: Duration = Duration::from_secs(20);

/// [`DRAIN_GRACE`], shortened for a process that is killed `notice` after a drain begins: it needs
/// time to journal the turns already played.
pub fn grace_of(notice: Option<Duration>) -> Duration {
    const TO_JOURNAL: Duration = Duration::from_secs(5);
    notice.map_or(DRAIN_GRACE, |notice| {
        let left = notice.saturating_sub(TO_JOURNAL).max(notice / 2);
        left.min(DRAIN_GRACE)
    })
}

/// What a program sets before anything else.
///
/// # Safety
/// No other thread may have begun, since they could read the environment meanwhile.
pub unsafe fn before_threads() {
    // Candle asks at every product how many threads it has, and reads the system's list of processors
    // each time unless this is set; a worker gives it one thread for each conversation.
    if std::env::var_os("CANDLE_CPU_MASK").is_none() {
        // SAFETY: the caller's promise.
        unsafe { std::env::set_var("CANDLE_CPU_MASK", "0") };
    }
}

/// A name for the `index`th worker of this process.
pub fn worker_name(index: usize) -> String {
    format!("{}/{index}", agentgym_queue::process_name())
}

/// Cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The SQLite queue next to a folder store.
///
/// # Errors
/// Another kind of store, which needs a separate queue.
pub fn default_queue_url(store: &Store) -> Result<String> {
    match store.local_root() {
        Some(root) => Ok(format!("sqlite:{}", root.join("queue.sqlite").display())),
        None if store.url().starts_with("memory:") => Ok("memory:".to_owned()),
        None => Err(Error::stage(format!(
            "the store {} needs a queue that all its workers reach: set queue.url (--queue), e.g. redis://host:6379",
            store.url()
        ))),
    }
}

/// Cancels `drain` on the first SIGTERM or Ctrl-C and aborts on the second.
pub async fn drain_on_signal(drain: CancellationToken) {
    wait_for_signal().await;
    tracing::info!("draining: finished work is being committed or journalled; once more to abort");
    drain.cancel();
    wait_for_signal().await;
    tracing::warn!("aborted; committed parts are safe");
    std::process::abort();
}

/// Returns once a drain has taken `limit`; never without a limit. The machine is
/// taken away at that time anyway, so the process ends itself.
pub async fn out_of_time(drain: &CancellationToken, limit: Option<Duration>) {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    drain.cancelled().await;
    tokio::time::sleep(limit).await;
    tracing::warn!(
        "not drained after {} s (--preemption-notice-s): leaving; what is committed or journalled is safe",
        limit.as_secs()
    );
}

/// Waits for SIGTERM or Ctrl-C.
pub async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => _ = terminate.recv().await,
            Err(e) => {
                tracing::warn!("SIGTERM will end the process without draining: {e}");
                std::future::pending().await
            }
        }
    };
    tokio::select! {
        () = terminated => {}
        Ok(()) = tokio::signal::ctrl_c() => {}
    }
}
