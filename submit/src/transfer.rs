//! How far many bytes have been read or moved: a bar on a terminal, else a line now and then.

use crate::cli::Global;
use crate::text;
use agentgym_storage::BytesRead;
use indicatif::{ProgressBar, ProgressStyle};
use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time between updates: on a terminal, and elsewhere.
const BAR_EVERY: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(10);
/// What takes less says nothing.
const SILENT: Duration = Duration::from_secs(1);

/// Bytes that a command reads or moves, as its user sees them.
pub(crate) struct Transfer {
    command: &'static str,
    quiet: bool,
    pub(crate) bar: Option<ProgressBar>,
    pub(crate) bytes: Arc<BytesRead>,
}

impl Transfer {
    pub(crate) fn new(command: &'static str, global: &Global) -> Self {
        let template = format!("{command}  {{wide_bar}}  {{bytes}} of {{total_bytes}}");
        let style = ProgressStyle::with_template(&template).expect("the template is well formed");
        let seen = !global.quiet && std::io::stderr().is_terminal();
        Self {
            command,
            quiet: global.quiet,
            bar: seen.then(|| ProgressBar::new(0).with_style(style)),
            bytes: Arc::default(),
        }
    }

    /// Waits for some work and tells how far it is meanwhile.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let done = tokio::select! {
            done = work => done,
            never = self.follow() => match never {},
        };
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        done
    }

    async fn follow(&self) -> Infallible {
        let period = match self.bar {
            Some(_) => BAR_EVERY,
            None => LINE_EVERY,
        };
        let first = tokio::time::Instant::now() + period.min(SILENT);
        let mut tick = tokio::time::interval_at(first, period);
        loop {
            tick.tick().await;
            let done = self.bytes.done.load(Ordering::Relaxed);
            let listed = self.bytes.listed.load(Ordering::Relaxed);
            if let Some(bar) = &self.bar {
                bar.set_length(listed);
                bar.set_position(done);
            } else if !self.quiet {
                let (done, listed) = (text::bytes(done), text::bytes(listed));
                text::tell(&format!("{}: {done} of {listed}", self.command));
            }
        }
    }
}
