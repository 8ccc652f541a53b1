//! Shared by the training stages: their options, and how a model becomes artifacts.

pub(super) mod state;
pub(super) mod step;
pub(super) mod units;
pub(super) mod workbench;

use crate::memory;
use crate::policies::{ADAPTER, CRITIC, POLICY, Policies};
use crate::{Error, Result, StageContext};
use agentgym_jobs::plan::Plan;
use agentgym_model::{ComputeOptions, Critic, Policy};
use agentgym_storage::{Artifact, Outputs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use state::{Left, upload_state};

/// AdamW's ε: torch's default.
pub(super) const ADAM_EPS: f64 = 1e-8;

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

/// Uploads what [`state::finish`] left and keeps the policy in memory.
pub(super) async fn upload(
    context: &mut StageContext,
    outputs: &mut Outputs,
    (policy, left): (Policy, Left),
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
        let width = policy.weights().dtype().bytes();
        let files = upload_policy_near(context, outputs, width).await?;
        policies.insert(&files, policy).await;
    }
    upload_state(context, outputs, left).await
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

/// Uploads a policy's folder, whose files nobody needs afterwards; returns its artifacts.
pub(super) async fn upload_policy(outputs: &mut Outputs, folder: &Path) -> Result<Vec<Artifact>> {
    upload_model(outputs, POLICY, folder).await
}

/// Who has none of the policies before reads at most so many tenths of a whole one, but for a first
/// difference that takes more alone.
const READ_TENTHS: u64 = 13;

/// [`upload_policy`] of the attempt's own, whose numbers have so many bytes, as its difference from the
/// input policy where the run asks for that, or nothing was learned. The folder stays in this process's cache.
async fn upload_policy_near(
    context: &StageContext,
    outputs: &mut Outputs,
    width: usize,
) -> Result<Vec<Artifact>> {
    let folder = context.scratch.join(POLICY);
    let rhythm = context.plan.config.trainer.full_policy_freq as usize;
    let before = context.inputs.artifacts(POLICY)?;
    let is_near = |base: &Artifact| {
        // The next difference is taken to be as large as the last one.
        let next = base.delta.as_ref().map_or(0, |_| base.stored_size());
        let read = base.links().map(Artifact::stored_size).sum::<u64>() + next;
        base.links().count() < rhythm && read <= base.size / 10 * READ_TENTHS
    };
    let names = names_in(&folder, POLICY).await?;
    let mut bases = BTreeMap::new();
    for (name, path) in &names {
        let base = before.iter().find(|artifact| artifact.name == *name);
        let Some(base) = base.filter(|_| name.ends_with(".safetensors")) else {
            continue;
        };
        if base.is_at(path).await {
            // Nothing was learned: the difference takes hardly a byte, and no link is added to one like it.
            let equal = base.links().filter(|link| link.digest == base.digest);
            bases.insert(name, equal.last().unwrap_or(base));
        } else if is_near(base) {
            bases.insert(name, base);
        }
    }
    let mut files = Vec::new();
    for (name, path) in &names {
        let written = match bases.get(name) {
            Some(base) => {
                (outputs.differing(name, POLICY, path, base, width, &context.inputs)).await?
            }
            // Taken over, it would be missing in the folder that stays.
            None if !bases.is_empty() => outputs.file(name, POLICY, path).await?,
            None => outputs.take(name, POLICY, path).await?,
        };
        files.push(written.clone());
    }
    context.inputs.adopt(POLICY, &files, &folder).await;
    Ok(files)
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
    let mut files = Vec::new();
    for (name, path) in names_in(folder, kind).await? {
        files.push(outputs.take(&name, kind, &path).await?.clone());
    }
    Ok(files)
}

/// The files of a folder, by the names of their artifacts.
async fn names_in(folder: &Path, kind: &str) -> Result<Vec<(String, PathBuf)>> {
    let failed = |source| Error::Io {
        what: format!("reading the folder {}", folder.display()),
        source,
    };
    let mut files = Vec::new();
    let mut entries = tokio::fs::read_dir(folder).await.map_err(failed)?;
    while let Some(entry) = entries.next_entry().await.map_err(failed)? {
        let name = format!("{kind}/{}", entry.file_name().to_string_lossy());
        files.push((name, entry.path()));
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
