//! What the watchdog says of a run.

use crate::runs::RunView;
use crate::{Error, Result};
use agentgym_jobs::planner::Progress;
use agentgym_worker::{Warning, Watched};

/// State kept between repeated reads of a run: the metrics of an iteration never change, so each is
/// read once.
#[derive(Default)]
pub(crate) struct Known(Watched);

/// What is wrong with the run by its figures up to the policy of iteration `upto`.
///
/// # Errors
/// The store cannot be read.
pub(crate) async fn warnings(
    view: &RunView,
    progress: &Progress,
    known: &mut Known,
    upto: Option<u32>,
) -> Result<Vec<Warning>> {
    let of = (&*view.plan, progress);
    let found = agentgym_worker::warnings(&view.store, of, &mut known.0, upto).await;
    match found {
        // A damaged figure does not hide the rest, unless the run may be paused by it.
        Err(e) if !agentgym_worker::is_guarded(&view.plan) => {
            tracing::debug!("the run's figures cannot be read: {e}");
            Ok(Vec::new())
        }
        found => found.map_err(|e| Error::Worker(e.to_string())),
    }
}

/// A line for each warning.
pub(crate) fn warning_lines(of: &[Warning]) -> String {
    of.iter().map(|w| format!("warning: {w}\n")).collect()
}
