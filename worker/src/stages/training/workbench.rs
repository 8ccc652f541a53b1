//! What a training stage takes along to the thread that computes.

use crate::{Beat, Error, Result, StageContext};
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;

/// What a training stage takes along to the thread that computes.
pub(in crate::stages) struct Workbench {
    pub(in crate::stages) threads: usize,
    pub(in crate::stages) beat: Beat,
    pub(in crate::stages) scratch: PathBuf,
    /// Other workers go on with the optimizer's state.
    pub(super) others_go_on: bool,
    cancel: CancellationToken,
}

impl Workbench {
    pub(in crate::stages) fn of(context: &StageContext) -> Self {
        Self {
            threads: context.resources.threads,
            beat: context.beat.clone(),
            scratch: context.scratch.clone(),
            others_go_on: others_go_on(context),
            cancel: context.cancel.clone(),
        }
    }

    /// # Errors
    /// The worker drains.
    pub(in crate::stages) fn check_cancelled(&self) -> Result<()> {
        match self.cancel.is_cancelled() {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }
}

/// Whether the next step is soon made by other workers, who read the state from the store.
pub(super) fn others_go_on(context: &StageContext) -> bool {
    context.plan.gradient_shards(context.part.id.iteration) > 0
}
