//! Ctrl-C and SIGTERM: the first drains, the second aborts at once. Either way the program returns
//! through `main`, and the run can be resumed.

use agentgym_worker::wait_for_signal;
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
            wait_for_signal().await;
            heard.drain.cancel();
            wait_for_signal().await;
            heard.abort.cancel();
        });
        interrupts
    }
}
