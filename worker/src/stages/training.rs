//! What the stages that train have in common: where the optimizer's state
//! comes from, and how a policy and that state become artifacts.

use crate::policies::POLICY;
use crate::{Error, Result, StageContext};
use agentgym_jobs::pipeline::Stage;
use agentgym_model::{AdamW, Policy, Trainer};
use agentgym_storage::{Artifact, LocalFolder, Outputs};
use std::path::Path;
use std::sync::Arc;

/// Folder of the optimizer's state among the artifacts.
const OPTIMIZER: &str = "optimizer";

/// AdamW's ε: torch's default.
pub(super) const ADAM_EPS: f64 = 1e-8;

/// The state of the optimizer that made the input policy, if the stage
/// `from` made it and its state was kept; a new phase starts afresh.
pub(super) async fn optimizer_folder(
    context: &StageContext,
    from: Stage,
) -> Result<Option<LocalFolder>> {
    let made_by = context
        .part
        .inputs
        .iter()
        .find(|input| input.name == POLICY)
        .map(|input| input.from.stage);
    if made_by != Some(from) {
        return Ok(None);
    }
    Ok(Some(context.inputs.folder(POLICY, OPTIMIZER).await?))
}

/// Writes policy and optimizer into local folders.
pub(super) fn save(trainer: &Trainer, scratch: &Path) -> Result<()> {
    trainer.policy().save(&scratch.join(POLICY))?;
    trainer.save_optimizer(&scratch.join(OPTIMIZER))?;
    Ok(())
}

/// Uploads what [`save`] wrote and keeps the policy in memory.
pub(super) async fn upload(
    context: &StageContext,
    outputs: &mut Outputs,
    policy: Policy,
) -> Result<()> {
    let files = upload_policy(outputs, &context.scratch.join(POLICY)).await?;
    outputs
        .folder(OPTIMIZER, "optimizer", &context.scratch.join(OPTIMIZER))
        .await?;
    context
        .resources
        .policies
        .insert(&files, Arc::new(policy))
        .await;
    Ok(())
}

/// Uploads a policy's folder; returns its artifacts.
pub(super) async fn upload_policy(outputs: &mut Outputs, folder: &Path) -> Result<Vec<Artifact>> {
    let failed = |source| Error::Io {
        what: format!("reading the folder {}", folder.display()),
        source,
    };
    let mut files = Vec::new();
    let mut entries = tokio::fs::read_dir(folder).await.map_err(failed)?;
    while let Some(entry) = entries.next_entry().await.map_err(failed)? {
        let name = format!("{POLICY}/{}", entry.file_name().to_string_lossy());
        files.push(outputs.file(&name, "policy", &entry.path()).await?.clone());
    }
    Ok(files)
}

/// A trainer with the given optimizer state, or a fresh one.
pub(super) fn resume(
    policy: &Arc<Policy>,
    adamw: AdamW,
    optimizer: Option<&Path>,
) -> Result<Trainer> {
    let policy = Policy::clone(policy);
    Ok(match optimizer {
        Some(folder) => Trainer::with_state(policy, adamw, folder)?,
        None => Trainer::new(policy, adamw),
    })
}

/// The streams as the algorithms read them.
pub(super) fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|value| f64::from(*value)).collect()
}
