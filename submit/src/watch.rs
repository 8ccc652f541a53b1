//! `watch RUN`: the screen of `status`, kept up to date. A terminal is redrawn in place; elsewhere
//! a new screen (or, with `--json`, a one-line document) is printed on every change.

use crate::cli::Global;
use crate::runs::RunView;
use crate::status::{Known, Status, status_again};
use crate::{Error, Result, claims, text};
use agentgym_storage::Store;
use agentgym_text::visible;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(2);

/// Watches until the run is finished, stopped or on hold.
///
/// # Errors
/// The store cannot be read; a run that stopped gives the same error as `run`.
pub(crate) async fn watch(store: &Store, run: &str, global: &Global) -> Result<()> {
    let screen = console::Term::stdout();
    let mut drawn = 0;
    let mut last = None;
    let mut known = Known::default();
    let (mut queue, mut told) = (None, false);
    loop {
        let view = RunView::open(store, run).await?;
        if queue.is_none() {
            match claims::try_queue(&view, global).await {
                Ok(found) => queue = found,
                Err(e) if told => tracing::debug!("{e}"),
                Err(e) => {
                    text::tell(&format!("the queue cannot say who is alive: {e}"));
                    told = true;
                }
            }
        }
        let status = status_again(&view, &mut known, queue.as_ref()).await?;
        let changed = last.as_ref() != Some(&status);
        if global.json {
            if changed {
                text::emit_json_line(&status.document());
            }
        } else if screen.is_term() {
            let width = usize::from(screen.size().1);
            let fitted = text::fit(&visible(&status.render(crate::text::unix_now_s())), width);
            // A terminal may have been closed; that is not an error.
            let _ = screen.clear_last_lines(drawn);
            drawn = fitted.lines().count();
            text::emit(&fitted);
        } else if changed {
            text::emit(&status.render(crate::text::unix_now_s()));
        }
        text::emitted()?;
        if let Some(end) = end(&status) {
            return end;
        }
        last = Some(status);
        tokio::time::sleep(EVERY).await;
    }
}

fn end(status: &Status) -> Option<Result<()>> {
    if status.finished {
        return Some(Ok(()));
    }
    let (message, cause) = status.stopped()?;
    Some(Err(Error::Stopped {
        run: status.run.clone(),
        message,
        cause,
        resume: format!("agentgym-submit resume {}", status.arguments),
    }))
}
