//! Shared by the training stages: the source of the optimizer's state, how a model and that state
//! become artifacts, and the weight of a token in a minibatch.

pub(super) mod step;
pub(super) mod units;

use crate::memory;
use crate::policies::{ADAPTER, CRITIC, POLICY, Policies};
use crate::{Beat, Error, Result, StageContext};
use agentgym_algorithms::batches::minibatches;
use agentgym_algorithms::losses::{ActorLoss, ActorTokens, Aggregation, Denominator};
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{Batch, BatchEpisode, BatchSequence};
use agentgym_model::{AdamW, ComputeOptions, Critic, Policy, Trainer};
use agentgym_storage::{Artifact, LocalFolder, Outputs};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Folder of the optimizer's state among the artifacts.
pub(super) const OPTIMIZER: &str = "optimizer";

/// AdamW's ε: torch's default.
pub(super) const ADAM_EPS: f64 = 1e-8;

/// The optimizer state of the step that made the input policy, if the stage `from` made it and the
/// state was kept. A new phase starts with a fresh optimizer.
pub(super) async fn optimizer_folder(
    context: &StageContext,
    from: Stage,
) -> Result<Option<LocalFolder>> {
    optimizer_of(context, POLICY, from).await
}

/// [`optimizer_folder`] for the model of any input.
pub(super) async fn optimizer_of(
    context: &StageContext,
    model: &str,
    from: Stage,
) -> Result<Option<LocalFolder>> {
    let made_by = context
        .part
        .inputs
        .iter()
        .find(|input| input.name == model)
        .map(|input| input.from.stage);
    // A fork may not have copied it.
    let kept = |name: &str| name.split('/').next() == Some(OPTIMIZER);
    let artifacts = context.inputs.artifacts(model)?;
    if made_by != Some(from) || !artifacts.iter().any(|a| kept(&a.name)) {
        return Ok(None);
    }
    Ok(Some(context.inputs.folder(model, OPTIMIZER).await?))
}

/// What a training stage takes along to the thread that computes.
pub(super) struct Workbench {
    pub(super) threads: usize,
    pub(super) beat: Beat,
    pub(super) scratch: PathBuf,
    cancel: CancellationToken,
}

impl Workbench {
    pub(super) fn of(context: &StageContext) -> Self {
        Self {
            threads: context.resources.threads,
            beat: context.beat.clone(),
            scratch: context.scratch.clone(),
            cancel: context.cancel.clone(),
        }
    }

    /// # Errors
    /// The worker drains.
    pub(super) fn check_cancelled(&self) -> Result<()> {
        match self.cancel.is_cancelled() {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }
}

/// The config keys of the learning rate and of the gradient clipping.
#[derive(Debug, Clone, Copy)]
pub(super) struct Brakes {
    pub(super) lr: &'static str,
    pub(super) grad_clip: &'static str,
}

impl Brakes {
    /// Turns an error about non-finite numbers into [`Error::Diverged`], with the step and the keys
    /// to lower.
    pub(super) fn failed(self, place: impl FnOnce() -> String) -> impl FnOnce(Error) -> Error {
        use agentgym_algorithms::Error as Algorithm;
        use agentgym_model::Error as Model;
        move |error| {
            let found = match &error {
                Error::Model(e) if matches!(**e, Model::NotFinite { .. }) => e.to_string(),
                // The previous step produced a model whose numbers are out of range.
                Error::Algorithm(Algorithm::NotFinite { what, value, .. }) => {
                    format!("{what}: {value}")
                }
                _ => return error,
            };
            Error::Diverged {
                place: place(),
                found,
                lr: self.lr,
                grad_clip: self.grad_clip,
            }
        }
    }
}

/// Writes the trained policy, or its adapter, and the optimizer's state into local folders.
pub(super) fn save(trainer: &mut Trainer, scratch: &Path) -> Result<()> {
    let policy = trainer.model()?;
    match policy.adapter() {
        Some(adapter) => adapter.save(&scratch.join(ADAPTER))?,
        None => policy.save(&scratch.join(POLICY))?,
    }
    trainer.save_optimizer(&scratch.join(OPTIMIZER))?;
    Ok(())
}

/// Uploads the folders of [`save`] and keeps the policy in memory.
pub(super) async fn upload(
    context: &StageContext,
    outputs: &mut Outputs,
    policy: Policy,
) -> Result<()> {
    let (policies, adapted) = (&context.resources.policies, policy.adapter().is_some());
    let policy = Arc::new(policy);
    if context.plan.generates_by_server() {
        let before = super::artifacts::policy(context, POLICY).await?;
        super::probes::write(context, outputs, &policy, Some(before)).await?;
    }
    if adapted {
        let base = context
            .inputs
            .artifacts(super::artifacts::base_of(context, POLICY))?;
        upload_adapter(policies, outputs, base, &context.scratch, policy).await?;
    } else {
        let files = upload_policy(outputs, &context.scratch.join(POLICY)).await?;
        policies.insert(&files, policy).await;
    }
    outputs
        .folder(OPTIMIZER, "optimizer", &context.scratch.join(OPTIMIZER))
        .await?;
    Ok(())
}

/// Uploads the adapter in `scratch` and keeps its policy in memory.
pub(super) async fn upload_adapter(
    policies: &Policies,
    outputs: &mut Outputs,
    base: &[Artifact],
    scratch: &Path,
    policy: Arc<Policy>,
) -> Result<()> {
    let files = upload_model(outputs, ADAPTER, &scratch.join(ADAPTER)).await?;
    policies.insert_adapted(base, &files, policy).await;
    Ok(())
}

/// Uploads a policy's folder; returns its artifacts.
pub(super) async fn upload_policy(outputs: &mut Outputs, folder: &Path) -> Result<Vec<Artifact>> {
    upload_model(outputs, POLICY, folder).await
}

/// Uploads a critic's folder and keeps the critic in memory.
pub(super) async fn upload_critic(
    context: &StageContext,
    outputs: &mut Outputs,
    critic: Critic,
) -> Result<()> {
    let files = upload_model(outputs, CRITIC, &context.scratch.join(CRITIC)).await?;
    context
        .resources
        .critics
        .insert(&files, Arc::new(critic))
        .await;
    Ok(())
}

async fn upload_model(outputs: &mut Outputs, kind: &str, folder: &Path) -> Result<Vec<Artifact>> {
    let failed = |source| Error::Io {
        what: format!("reading the folder {}", folder.display()),
        source,
    };
    let mut files = Vec::new();
    let mut entries = tokio::fs::read_dir(folder).await.map_err(failed)?;
    while let Some(entry) = entries.next_entry().await.map_err(failed)? {
        let name = format!("{kind}/{}", entry.file_name().to_string_lossy());
        files.push(outputs.file(&name, kind, &entry.path()).await?.clone());
    }
    Ok(files)
}

/// Compute options of a training stage; `checkpointed` is its model's
/// `enable_gradient_checkpointing`.
pub(super) fn options<'a>(
    plan: &Plan,
    threads: usize,
    checkpointed: bool,
    beat: &'a (dyn Fn() + Sync),
) -> ComputeOptions<'a> {
    ComputeOptions {
        threads,
        pack_tokens: plan.config.jobs.pack_tokens,
        checkpointed,
        memory: memory::machine_bytes(),
        beat,
    }
}

/// [`options`] for the policy.
pub(super) fn policy_options<'a>(
    plan: &Plan,
    threads: usize,
    beat: &'a (dyn Fn() + Sync),
) -> ComputeOptions<'a> {
    let model = &plan.config.actor_rollout_ref.model;
    options(plan, threads, model.enable_gradient_checkpointing, beat)
}

/// A trainer with the given optimizer state, or a fresh one.
pub(super) fn resume(
    policy: &Arc<Policy>,
    adamw: AdamW,
    optimizer: Option<&Path>,
) -> Result<Trainer> {
    Ok(Trainer::resume(Policy::clone(policy), adamw, optimizer)?)
}

/// Converts a stream to the `f64` of the algorithms.
pub(super) fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|value| f64::from(*value)).collect()
}

/// The denominator of each slot, given the loss tokens of each slot's sequences: the whole
/// minibatch, or with `micro` slots per micro-batch the slot's own micro-batch.
pub(super) fn denominators(loss_tokens: &[Vec<usize>], micro: Option<usize>) -> Vec<Denominator> {
    let Some(micro) = micro else {
        return vec![Denominator::of(loss_tokens.concat()); loss_tokens.len()];
    };
    let chunks: Vec<Vec<usize>> = loss_tokens.chunks(micro).map(|c| c.concat()).collect();
    let all = Denominator::of_micro_batches(&chunks);
    (0..loss_tokens.len())
        .map(|slot| all[slot / micro])
        .collect()
}

/// The loss tokens of each sequence, by slot.
pub(super) fn loss_tokens(batch: &[Option<BatchEpisode>], slots: Range<usize>) -> Vec<Vec<usize>> {
    let of = |slot: usize| {
        let episode = batch.get(slot).and_then(Option::as_ref);
        let sequences = episode.map_or(&[][..], |e| e.sequences.as_slice());
        sequences.iter().map(|s| s.sequence.loss_tokens()).collect()
    };
    slots.map(of).collect()
}

/// The slots of each minibatch of so many tasks.
pub(super) fn minibatch_slots(plan: &Plan, tasks: usize) -> Result<Vec<Range<usize>>> {
    let n = plan.config.actor_rollout_ref.rollout.n as usize;
    let draws = minibatches(plan.config.data.train_batch_size, tasks)?;
    let slots = draws.into_iter().map(|d| d.start * n..d.end * n);
    Ok(slots.collect())
}

/// Slots of a micro-batch, where these weigh.
pub(super) fn micro_batch_size(by: Aggregation, configured: Option<usize>) -> Option<usize> {
    configured.filter(|_| by == Aggregation::MicroBatchMean)
}

/// The denominator of each slot's tokens, over the minibatches of the actor.
fn slot_denominators(plan: &Plan, batch: &[Option<BatchEpisode>]) -> Result<Vec<Denominator>> {
    let actor = &plan.config.actor_rollout_ref.actor;
    let aggregation = plan.config.actor_loss()?.aggregation;
    let micro = micro_batch_size(aggregation, actor.ppo_micro_batch_size);
    let minibatches = minibatch_slots(plan, actor.ppo_mini_batch_size)?.into_iter();
    let sizes = minibatches.flat_map(|slots| denominators(&loss_tokens(batch, slots), micro));
    Ok(sizes.collect())
}

/// What each token of each sequence of a slot weighs in the policy's loss, by `loss_agg_mode`.
///
/// # Errors
/// A config that the stage refuses too.
pub fn token_weights(plan: &Plan, batch: &Batch) -> Result<Vec<Vec<f64>>> {
    let Batch::V1(batch) = batch;
    let aggregation = plan.config.actor_loss()?.aggregation;
    let sizes = slot_denominators(plan, batch)?;
    let counts = loss_tokens(batch, 0..sizes.len());
    let weigh = |(counts, size): (&Vec<usize>, Denominator)| {
        let weights = counts.iter().map(|n| aggregation.token_weight(size, *n));
        weights.collect()
    };
    Ok(counts.iter().zip(sizes).map(weigh).collect())
}

/// The derivative of the loss with respect to each token's log-prob, by slot and sequence, where the
/// policy is still the old one: what the first step back-propagates. The entropy's own derivative is
/// not in it.
///
/// # Errors
/// A config or a batch that the stage refuses too.
pub fn log_prob_slopes(plan: &Plan, batch: &Batch) -> Result<Vec<Vec<Vec<f64>>>> {
    let Batch::V1(batch) = batch;
    let loss = plan.config.actor_loss()?;
    let sizes = slot_denominators(plan, batch)?;
    batch
        .iter()
        .zip(sizes)
        .map(|(episode, size)| {
            let sequences = episode.iter().flat_map(|episode| &episode.sequences);
            sequences.map(|s| slopes(&loss, s, size)).collect()
        })
        .collect()
}

fn slopes(loss: &ActorLoss, sequence: &BatchSequence, size: Denominator) -> Result<Vec<f64>> {
    let old = wide(&sequence.old_log_probs);
    let reference = sequence.ref_log_probs.as_deref().map(wide);
    let tokens = ActorTokens {
        log_probs: &old,
        // Their values change no derivative by a log-prob.
        entropies: &vec![0.0; old.len()],
        old_log_probs: &old,
        ref_log_probs: reference.as_deref(),
        advantages: &sequence.advantages,
        loss_mask: &sequence.sequence.loss_mask,
    };
    Ok(loss.evaluate(&tokens, size)?.coefficients.log_probs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_algorithms::kl::KlEstimator;
    use agentgym_algorithms::losses::KlLoss;
    use agentgym_jobs::episode::Sequence;

    #[test]
    fn slots_weigh_by_minibatch_or_by_their_micro_batch() {
        let tokens = [vec![3], vec![], vec![1, 1], vec![5]];
        let whole = denominators(&tokens, None);
        assert!(
            whole
                .iter()
                .all(|d| (d.loss_tokens, d.sequences) == (10, 4))
        );
        let micro = denominators(&tokens, Some(2));
        let counts: Vec<_> = micro
            .iter()
            .map(|d| (d.loss_tokens, d.micro_batches))
            .collect();
        assert_eq!(counts, [(3, 2), (3, 2), (7, 2), (7, 2)]);
    }

    /// Two sequences of 2 and 1 loss tokens: each token of the first weighs 1 / (2 · 2). By hand:
    /// −A · weight, and coef · weight · (log p − reference) of the k2 estimator.
    #[test]
    fn a_slope_is_what_the_first_step_back_propagates() {
        let sequence = BatchSequence {
            sequence: Sequence {
                token_ids: vec![7, 8, 9],
                loss_mask: vec![false, true, true],
                sampled_log_probs: vec![0.0, -1.0, -0.5],
                log_kept_mass: None,
                entropies: None,
            },
            old_log_probs: vec![0.0, -1.0, -0.5],
            ref_log_probs: Some(vec![0.0, -1.25, -0.5]),
            advantages: vec![0.0, 2.0, -2.0],
        };
        let mut loss = ActorLoss {
            aggregation: Aggregation::SeqMeanTokenMean,
            ..ActorLoss::default()
        };
        let size = Denominator::of([2, 1]);
        let near = |found: Vec<f64>, wanted: [f64; 3]| {
            let apart = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f64::max) < 1e-12, "{found:?} {wanted:?}");
        };
        near(slopes(&loss, &sequence, size).unwrap(), [0.0, -0.5, 0.5]);
        loss.kl = Some(KlLoss {
            estimator: KlEstimator::K2,
            coef: 0.5,
        });
        let with_kl = [0.0, -0.5 + 0.5 * 0.25 * 0.25, 0.5];
        near(slopes(&loss, &sequence, size).unwrap(), with_kl);
    }
}
