//! Carries out an `expire` job. The retention rule itself is pure
//! ([`crate::stages::expire::retained`]); this file collects its inputs and passes the deletion to
//! the store, which writes a tombstone first.

use crate::Result;
use crate::run_state::RunState;
use crate::stages::expire::{examined, retained};
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::pipeline::{PartId, Stage, critic_of, policy_of};
use agentgym_storage::{Inputs, Manifest, Store};

/// Applies the retention rules after the update of iteration `latest`.
pub(crate) async fn expire(store: &Store, state: &mut RunState, latest: u32) -> Result<()> {
    let pipeline = state.plan.config.run.pipeline;
    if !matches!(pipeline, Pipeline::Rl | Pipeline::AgentEvol) {
        return Ok(());
    }
    let best = best_evaluated(store, state, latest).await?;
    let mut manifests = Vec::new();
    let plan = std::sync::Arc::clone(&state.plan);
    for iteration in examined(&plan, latest) {
        let last = policy_of(&state.plan, iteration);
        // In a supervised stage of several parts each part has a policy.
        let makers = (0..=last.part).map(|part| PartId { part, ..last });
        let parts = state.parts(iteration).into_iter().map(|part| part.id);
        let gradients: Vec<PartId> = parts.filter(|id| id.stage == Stage::Gradient).collect();
        let critic = critic_of(&state.plan, iteration);
        for maker in makers.chain(critic).chain(gradients) {
            if let Some(manifest) = state.manifest(maker).await? {
                manifests.push((*manifest).clone());
            }
        }
    }
    let pending: Vec<u32> = manifests
        .iter()
        .map(|m| m.iteration)
        .filter(|n| evaluation_pending(state, *n))
        .collect();
    let keep = |manifest: &Manifest, name: &str| {
        let last = policy_of(&plan, manifest.iteration);
        let unfinished = manifest.stage == last.stage.name() && manifest.part != last.part;
        // Only the last part's policy is the iteration's policy; those of other parts are expired
        // like optimizer states.
        let name = match (unfinished, name.split_once('/')) {
            (true, Some((_, rest))) => &format!("optimizer/{rest}"),
            _ => name,
        };
        retained(
            &plan,
            manifest.iteration,
            name,
            latest,
            best,
            pending.contains(&manifest.iteration),
        )
    };
    store
        .expire(&state.plan.run, latest, |m, a| keep(m, &a.name), &manifests)
        .await?;
    Ok(())
}

fn evaluation_pending(state: &RunState, iteration: u32) -> bool {
    state
        .parts(iteration)
        .iter()
        .filter(|p| p.id.stage == Stage::Evaluate)
        .any(|p| !state.progress.contains(&p.id))
}

/// The iteration with the highest mean success over all sets; the earliest one on a tie.
async fn best_evaluated(store: &Store, state: &mut RunState, latest: u32) -> Result<Option<u32>> {
    let mut best: Option<(f64, u32)> = None;
    let sets = state.plan.config.evaluation.sets.len() as u32;
    for iteration in 1..=latest {
        if !state.plan.evaluates(iteration) || evaluation_pending(state, iteration) {
            continue;
        }
        let (mut sum, mut found) = (0.0, false);
        for part in 0..sets {
            let id = PartId {
                iteration,
                stage: Stage::Evaluate,
                part,
            };
            let Some(manifest) = state.manifest(id).await? else {
                continue;
            };
            found = true;
            let inputs = Inputs::new(
                store.clone(),
                vec![("evaluate".into(), (*manifest).clone())],
                std::env::temp_dir(),
            );
            let bytes = inputs.bytes("evaluate", artifact_names::METRICS).await?;
            let metrics: serde_json::Value = serde_json::from_slice(&bytes).unwrap_or_default();
            sum += metrics
                .get("success")
                .and_then(serde_json::Value::as_f64)
                .unwrap_or(0.0);
        }
        // A fork has no evaluations of the iterations before it.
        if found && best.is_none_or(|(b, _)| sum > b) {
            best = Some((sum, iteration));
        }
    }
    Ok(best.map(|(_, iteration)| iteration))
}
