//! The stages, one file each. A stage is a function from named inputs to named outputs: same
//! inputs, same bytes, on any worker and any number of threads. It has no key, store or queue, and
//! no clock that could affect an artifact (I3); its measurements go into its [`Report`].

mod advantage;
mod artifacts;
mod critic_update;
mod dpo;
mod evaluate;
pub mod expire;
pub mod export;
mod filter;
mod init;
mod log_probs;
mod play;
mod probes;
mod reward;
mod rollout;
mod select;
mod sft;
mod spoiled;
mod training;
mod update;

pub use dpo::{Margin, margin};
pub use play::EPISODES_PER_ROW;

use crate::{Report, Result, StageContext};
use agentgym_jobs::pipeline::Stage;
use agentgym_storage::Outputs;
use futures::future::{BoxFuture, FutureExt};

/// The table of stage functions. The simulation replaces it by one that only hashes; the code
/// around the table is the same everywhere.
pub trait StageFunctions: Send + Sync {
    /// Runs a stage.
    ///
    /// # Errors
    /// Any reason why the stage cannot produce its outputs; nothing is committed then.
    fn run<'a>(
        &'a self,
        stage: Stage,
        context: &'a mut StageContext,
        outputs: &'a mut Outputs,
    ) -> BoxFuture<'a, Result<Report>>;
}

/// The stage functions of this program.
#[derive(Debug, Clone, Copy)]
pub struct Stages;

impl StageFunctions for Stages {
    fn run<'a>(
        &'a self,
        stage: Stage,
        context: &'a mut StageContext,
        outputs: &'a mut Outputs,
    ) -> BoxFuture<'a, Result<Report>> {
        run(stage, context, outputs).boxed()
    }
}

/// Runs a stage.
///
/// # Errors
/// Any reason why the stage cannot produce its outputs; nothing is committed then.
pub async fn run(
    stage: Stage,
    context: &mut StageContext,
    outputs: &mut Outputs,
) -> Result<Report> {
    match stage {
        Stage::Init => init::run(context, outputs).await,
        Stage::Dpo => dpo::run(context, outputs).await,
        Stage::Sft => sft::run(context, outputs).await,
        Stage::Rollout => rollout::run(context, outputs).await,
        Stage::Reward => reward::run(context, outputs).await,
        Stage::Select => select::run(context, outputs).await,
        Stage::Filter => filter::run(context, outputs).await,
        Stage::LogProbs => log_probs::run(context, outputs).await,
        Stage::Advantage => advantage::run(context, outputs).await,
        Stage::Gradient => update::gradient::run(context, outputs).await,
        Stage::Update => update::run(context, outputs).await,
        Stage::CriticUpdate => critic_update::run(context, outputs).await,
        Stage::Evaluate | Stage::EvaluateInit => evaluate::run(context, outputs).await,
        Stage::Expire => Ok(Report::default()),
    }
}

#[cfg(test)]
mod random_keys;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
