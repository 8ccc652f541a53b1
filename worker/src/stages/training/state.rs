//! The optimizer's state before and after a training stage: in memory where this process made it, else
//! in files.

use super::workbench::{Workbench, others_go_on};
use crate::held_states::stays_in_memory;
use crate::policies::{ADAPTER, OPTIMIZER, POLICY};
use crate::{Result, StageContext};
use agentgym_jobs::pipeline::Stage;
use agentgym_model::{AdamW, OptimizerState, Policy, Trainer};
use agentgym_storage::{Digesting, LocalFolder, Outputs};
use std::sync::Arc;

/// The state that a stage goes on with.
pub(in crate::stages) enum Found {
    InFolder(LocalFolder),
    InMemory(Box<OptimizerState>),
}

/// The optimizer state of the step that made the input policy, if the stage `from` made it and the
/// state was kept. A new phase starts with a fresh optimizer.
pub(in crate::stages) async fn optimizer(
    context: &StageContext,
    from: Stage,
) -> Result<Option<Found>> {
    optimizer_of(context, POLICY, from).await
}

/// [`optimizer`] for the model of any input.
pub(in crate::stages) async fn optimizer_of(
    context: &StageContext,
    model: &str,
    from: Stage,
) -> Result<Option<Found>> {
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
    if let Some(state) = context.resources.states.take(artifacts).await {
        return Ok(Some(Found::InMemory(Box::new(state))));
    }
    let folder = context.inputs.folder(model, OPTIMIZER).await?;
    Ok(Some(Found::InFolder(folder)))
}

/// A trainer with the given optimizer state, or a fresh one.
pub(in crate::stages) fn resume(
    policy: &Arc<Policy>,
    adamw: AdamW,
    optimizer: Option<Found>,
) -> Result<Trainer> {
    let policy = Policy::clone(policy);
    Ok(match optimizer {
        None => Trainer::new(policy, adamw),
        Some(Found::InFolder(folder)) => Trainer::resume(policy, adamw, Some(folder.path()))?,
        Some(Found::InMemory(state)) => Trainer::go_on(policy, adamw, *state)?,
    })
}

/// The state that a stage leaves.
pub(in crate::stages) enum Left {
    /// In the attempt's folder of that name.
    InFolder,
    /// With the digests of the files that it would be.
    InMemory(Box<OptimizerState>, Vec<(&'static str, Digesting)>),
}

impl Workbench {
    /// Leaves a state in memory, unless it is large or others read it next.
    pub(in crate::stages) fn leave(&self, state: OptimizerState) -> Result<Left> {
        if self.others_go_on || !stays_in_memory(state.bytes() as u64) {
            state.save(&self.scratch.join(OPTIMIZER))?;
            return Ok(Left::InFolder);
        }
        let mut files: Vec<(&'static str, Digesting)> = Vec::new();
        state.each_piece(|name, piece| {
            if files.last().is_none_or(|(last, _)| *last != name) {
                files.push((name, Digesting::default()));
            }
            let last = files.last_mut();
            last.expect("it was just pushed").1.take(piece);
        })?;
        Ok(Left::InMemory(Box::new(state), files))
    }
}

/// Ends training: the policy, or its adapter, lies in a local folder, and the state where
/// [`Workbench::leave`] has it.
pub(in crate::stages) fn finish(trainer: Trainer, work: &Workbench) -> Result<(Policy, Left)> {
    let (policy, state) = trainer.into_parts()?;
    match policy.adapter() {
        Some(adapter) => adapter.save(&work.scratch.join(ADAPTER))?,
        None => policy.save(&work.scratch.join(POLICY))?,
    }
    Ok((policy, work.leave(state)?))
}

/// Names the optimizer's state, which is written after the commit. Where many parts make a step, the next
/// is soon made by others, who read it.
pub(in crate::stages) async fn upload_state(
    context: &mut StageContext,
    outputs: &mut Outputs,
    left: Left,
) -> Result<()> {
    let folder = context.scratch.join(OPTIMIZER);
    match left {
        Left::InMemory(state, files) => {
            for (file, digests) in files {
                let name = format!("{OPTIMIZER}/{file}");
                outputs.name_after_commit(&name, OPTIMIZER, digests).await?;
            }
            context.left = Some(*state);
        }
        Left::InFolder if others_go_on(context) => {
            outputs.folder(OPTIMIZER, OPTIMIZER, &folder).await?;
        }
        Left::InFolder => {
            (outputs.folder_after_commit(OPTIMIZER, OPTIMIZER, &folder)).await?;
        }
    }
    Ok(())
}
