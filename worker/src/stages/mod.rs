//! One file per stage. A stage is a function from named inputs to named
//! outputs: same inputs, same bytes, on any worker and any number of threads.
//! It sees no key, no store, no queue and no clock that could reach an
//! artifact (I3); what it measures goes into its [`Report`].

mod advantage;
mod critic_update;
mod dpo;
mod evaluate;
pub mod expire;
pub mod export;
mod filter;
mod init;
mod log_probs;
mod play;
mod rollout;
mod select;
mod sft;
mod training;
mod update;

use crate::{Error, Report, Result, StageContext};
use agentgym_jobs::codec::{Payload, decode, encode};
use agentgym_jobs::pipeline::Stage;
use agentgym_model::{Critic, Policy};
use agentgym_storage::{Inputs, Outputs};
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use std::sync::Arc;

/// The table of stage functions. The simulation has one of its own, as cheap as
/// hashing; everything around the table is what runs everywhere.
pub trait StageFunctions: Send + Sync {
    /// Runs a stage.
    ///
    /// # Errors
    /// Whatever keeps the stage from its outputs; nothing is committed then.
    fn run<'a>(
        &'a self,
        stage: Stage,
        context: &'a mut StageContext,
        outputs: &'a mut Outputs,
    ) -> BoxFuture<'a, Result<Report>>;
}

/// The stages of this program.
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
/// Whatever keeps the stage from its outputs; nothing is committed then.
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

/// Runs compute off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::Cancelled),
    }
}

/// The policy in an input, from memory if it is there; where the run trains an
/// adapter, with it.
async fn policy(context: &StageContext, input: &str) -> Result<Arc<Policy>> {
    if !context.plan.has_adapter() {
        return plain_policy(context, input).await;
    }
    let resources = &context.resources;
    let names = (base_of(context, input), input);
    resources
        .policies
        .adapted(&resources.device, &context.inputs, names)
        .await
}

/// The input that holds what stays below the adapter of another one: `init`
/// commits both.
fn base_of<'a>(context: &StageContext, input: &'a str) -> &'a str {
    const BASE: &str = "base";
    match context.inputs.names().any(|name| name == BASE) {
        true => BASE,
        false => input,
    }
}

/// The policy in an input without an adapter: the reference.
async fn plain_policy(context: &StageContext, input: &str) -> Result<Arc<Policy>> {
    context
        .resources
        .policies
        .get(&context.resources.device, &context.inputs, input)
        .await
}

/// The critic in an input, from memory if it is there.
async fn critic(context: &StageContext, input: &str) -> Result<Arc<Critic>> {
    context
        .resources
        .critics
        .get(&context.resources.device, &context.inputs, input)
        .await
}

/// Reads a payload of an input.
async fn read<T: Payload>(inputs: &Inputs, input: &str, artifact: &str) -> Result<T> {
    let bytes = inputs.bytes(input, artifact).await?;
    Ok(decode(&bytes)?)
}

/// Writes a payload.
async fn write<T: Payload>(outputs: &mut Outputs, name: &str, kind: &str, value: &T) -> Result<()> {
    outputs
        .bytes(name, kind, Bytes::from(encode(value)?))
        .await?;
    Ok(())
}

/// The first 64 bits of a stream.
fn head(stream: &[u8; 32]) -> u64 {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&stream[..8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod random_keys;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
