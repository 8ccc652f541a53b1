//! Ctrl-C and SIGTERM: the first drains, the second aborts at once. Either way the program returns
//! through `main`, and the run can be resumed.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What the signals received so far request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupts {
    /// Finish or journal running work, then exit.
    pub(crate) drain: CancellationToken,
    /// Exit now.
    pub(crate) abort: CancellationToken,
}

impl Interrupts {
    /// Starts listening.
    pub(crate) fn listen() -> Self {
        let interrupts = Self::default();
        let heard = interrupts.clone();
        tokio::spawn(async move {
            wait().await;
            heard.drain.cancel();
            wait().await;
            heard.abort.cancel();
        });
        interrupts
    }
}

async fn wait() {
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => {
                terminate.recv().await;
            }
            Err(e) => {
                tracing::warn!("SIGTERM will end the process without draining: {e}");
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = terminated => {}
        Ok(()) = tokio::signal::ctrl_c() => {}
    }
}
