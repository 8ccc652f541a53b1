//! `gradient`: one shard of an optimizer step: the gradients of some of the minibatch's units,
//! summed as far as the summation tree stays within these units. The update sums the shards along
//! the same tree as if it had computed all units itself.

use super::minibatch::{Minibatch, Share};
use super::steps::{places, settings};
use crate::blocking::blocking;
use crate::policies::POLICY;
use crate::stages::artifacts::{self, read, write};
use crate::stages::training::policy_options;
use crate::{Error, Report, Result, StageContext};
use agentgym_jobs::artifact_names;
use agentgym_jobs::records::{Batch, GradientShard};
use agentgym_model::{Trainer, shard_of_units};
use agentgym_storage::Outputs;
use std::sync::Arc;
use std::time::Instant;

/// Folder of the gradients among the artifacts.
const GRADIENT: &str = "gradient";
const SUMS: &str = "gradient.bin";

pub(crate) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let (plan, id) = (Arc::clone(&context.plan), context.part.id);
    let Batch::V1(batch) = read(&context.inputs, "batch", artifact_names::BATCH).await?;
    let policy = artifacts::policy(context, POLICY).await?;
    let settings = settings(&plan, id.iteration)?;
    let shards = plan.gradient_shards(id.iteration) as usize;
    let (step, shard) = (id.part as usize / shards, id.part as usize % shards);
    let (threads, beat) = (context.resources.threads, context.beat.clone());
    let (cancel, folder) = (context.cancel.clone(), context.scratch.join(GRADIENT));
    let target = folder.clone();
    let (units, tokens, seconds) = blocking(move || {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let start = Instant::now();
        let places = places(&plan, settings.ppo_epochs)?;
        let minibatch = Minibatch::new(&batch, places[step].slots.clone(), &settings)?;
        let own = shard_of_units(minibatch.units.len(), shard, shards);
        let tick = || beat.tick();
        let call = beat.busy();
        let options = policy_options(&plan, threads, &tick);
        let share = minibatch.share(&policy, &settings, own.clone(), &options)?;
        drop(call);
        share.gradient.save(&target)?;
        let tokens = minibatch.units.size(own).tokens;
        Ok((share.units, tokens, start.elapsed().as_secs_f64()))
    })
    .await?;
    outputs.folder(GRADIENT, GRADIENT, &folder).await?;
    write(outputs, SUMS, GRADIENT, &GradientShard::V1 { units }).await?;
    let mut report = Report::default();
    report.stats.trained(tokens as u64, seconds);
    Ok(report)
}

/// The shards of this part's step, in order.
pub(super) async fn shares(
    context: &StageContext,
    trainer: &Trainer,
    shards: u32,
) -> Result<Vec<Share>> {
    let mut shares = Vec::new();
    for shard in 0..shards {
        let input = format!("gradient.{shard}");
        let folder = context.inputs.folder(&input, GRADIENT).await?;
        let GradientShard::V1 { units } = read(&context.inputs, &input, SUMS).await?;
        shares.push(Share {
            gradient: trainer.read_partial(folder.path())?,
            units,
        });
    }
    Ok(shares)
}
