//! Carries out an `expire` job. The retention rule itself is pure
//! ([`crate::stages::expire::retained`]); this file collects its inputs and passes the deletion to
//! the store, which writes a tombstone first.

use crate::Result;
use crate::run_state::RunState;
use crate::stages::expire::{examined, retained};
use crate::states;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::pipeline::{BASE_PART, PartId, Stage, critic_of, policy_of, reference_of};
use agentgym_jobs::plan::Plan;
use agentgym_record::metrics::Metrics;
use agentgym_storage::{Key, Manifest, Store};
use std::collections::BTreeSet;

/// Applies the retention rules after the update of iteration `latest`.
pub(crate) async fn expire(store: &Store, state: &mut RunState, latest: u32) -> Result<()> {
    let pipeline = state.plan.config.run.pipeline;
    if !matches!(pipeline, Pipeline::Rl | Pipeline::AgentEvol) {
        return Ok(());
    }
    let evaluated = evaluated(store, state, latest).await?;
    let mut manifests = Vec::new();
    let plan = std::sync::Arc::clone(&state.plan);
    let policies = |plan: &Plan, n| Some(policy_of(plan, n)).filter(|id| id.stage == Stage::Update);
    let policies = states::stored(store, state, latest, policies).await?;
    let critics = states::stored(store, state, latest, critic_of).await?;
    let looked_at: BTreeSet<u32> = examined(&plan, latest)
        .chain(policies.older)
        .chain(critics.older)
        .collect();
    for iteration in looked_at.iter().copied() {
        let last = policy_of(&state.plan, iteration);
        let parts = state.parts(iteration).into_iter().map(|part| part.id);
        let gradients: Vec<PartId> = parts.filter(|id| id.stage == Stage::Gradient).collect();
        let critic = critic_of(&state.plan, iteration);
        // Where a warm start begins, if it does not begin there.
        let init = (iteration == 0 && last != BASE_PART).then_some(BASE_PART);
        for maker in makers(&plan, iteration)
            .chain(critic)
            .chain(gradients)
            .chain(init)
        {
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
    let init_is_read = init_is_read(state);
    let keep = |manifest: &Manifest, name: &str| {
        let last = policy_of(&plan, manifest.iteration);
        let is_superfluous = match manifest.iteration == 0 && manifest.stage == Stage::Init.name() {
            true => manifest.part == BASE_PART.part && !init_is_read,
            false => manifest.stage == last.stage.name() && manifest.part != last.part,
        };
        // What training began with, its state too.
        if manifest.iteration == 0 && !is_superfluous {
            return true;
        }
        // A state that is not stored is made again from the newest one that is; newer ones may be on
        // their way into the store.
        let stored = [(Stage::Update, policies), (Stage::CriticUpdate, critics)]
            .into_iter()
            .find(|(stage, _)| stage.name() == manifest.stage);
        if let Some((_, stored)) = stored
            && (manifest.iteration == stored.newest
                || manifest.iteration > stored.newest && name.starts_with("optimizer/"))
        {
            return true;
        }
        // Only the last part's policy is the iteration's policy; those of other parts are expired
        // like optimizer states.
        let name = match name.split_once('/') {
            Some(("policy" | "adapter", rest)) if is_superfluous => &format!("optimizer/{rest}"),
            _ => name,
        };
        retained(
            &plan,
            manifest.iteration,
            name,
            latest,
            evaluated.best,
            pending.contains(&manifest.iteration)
                || evaluated.unknown.contains(&manifest.iteration),
        )
    };
    // A policy that stays may be read from ones that do not, which are older.
    let outputs = manifests
        .iter()
        .flat_map(|m| m.outputs.iter().map(move |a| (m, a)));
    let surplus = outputs.filter(|(m, a)| !keep(m, &a.name));
    let oldest = surplus
        .flat_map(|(_, a)| a.keys())
        .filter_map(|key| match key {
            Key::File { slot, .. } => Some(slot.iteration),
            _ => None,
        });
    let oldest = oldest.min().unwrap_or(latest);
    for iteration in (oldest..=latest).filter(|n| !looked_at.contains(n)) {
        let unknown = evaluated.unknown.contains(&iteration);
        if !retained(&plan, iteration, "policy/", latest, evaluated.best, unknown) {
            continue;
        }
        for maker in makers(&plan, iteration) {
            if let Some(manifest) = state.manifest(maker).await? {
                // What does not stay was named at its time.
                let outputs = manifest.outputs.iter().filter(|a| keep(&manifest, &a.name));
                manifests.push(Manifest {
                    outputs: outputs.cloned().collect(),
                    ..(*manifest).clone()
                });
            }
        }
    }
    store
        .expire(&state.plan.run, latest, |m, a| keep(m, &a.name), &manifests)
        .await?;
    Ok(())
}

/// The parts of an iteration that make policies: in a supervised stage of several parts each does.
fn makers(plan: &Plan, iteration: u32) -> impl Iterator<Item = PartId> + use<> {
    let last = policy_of(plan, iteration);
    (0..=last.part).map(move |part| PartId { part, ..last })
}

/// Whether some part reads the policy that the run begins with, or may yet do so.
fn init_is_read(state: &RunState) -> bool {
    let plan = &state.plan;
    let is_used = plan.has_adapter()
        || plan.config.run.pipeline == Pipeline::AgentEvol
        || [reference_of(plan), policy_of(plan, 0)].contains(&BASE_PART);
    let start = state.parts(0);
    is_used || start.iter().any(|part| !state.progress.contains(&part.id))
}

fn evaluation_pending(state: &RunState, iteration: u32) -> bool {
    state
        .parts(iteration)
        .iter()
        .filter(|p| p.id.stage == Stage::Evaluate)
        .any(|p| !state.progress.contains(&p.id))
}

/// What evaluations say of policies.
#[derive(Debug, Default, PartialEq, Eq)]
struct Evaluated {
    /// The iteration with the highest mean success over all sets; the earliest one on a tie.
    best: Option<u32>,
    /// Iterations whose success cannot be read: any of them may be the best.
    unknown: BTreeSet<u32>,
}

impl Evaluated {
    /// Of iterations in order, each with the success on its sets.
    fn of(scores: Vec<(u32, Option<Vec<f64>>)>) -> Self {
        let mut found = Self::default();
        let mut highest = None;
        for (iteration, sets) in scores {
            match sets {
                None => {
                    found.unknown.insert(iteration);
                }
                // A fork has no evaluations of the iterations before it.
                Some(sets) if sets.is_empty() => {}
                Some(sets) => {
                    let sum: f64 = sets.iter().sum();
                    if highest.is_none_or(|highest| sum > highest) {
                        (highest, found.best) = (Some(sum), Some(iteration));
                    }
                }
            }
        }
        found
    }
}

async fn evaluated(store: &Store, state: &mut RunState, latest: u32) -> Result<Evaluated> {
    let mut scores = Vec::new();
    let sets = state.plan.config.evaluation.sets.len() as u32;
    for iteration in 1..=latest {
        if !state.plan.evaluates(iteration) || evaluation_pending(state, iteration) {
            continue;
        }
        let mut found = Some(Vec::new());
        for part in 0..sets {
            let id = PartId {
                iteration,
                stage: Stage::Evaluate,
                part,
            };
            let Some(manifest) = state.manifest(id).await? else {
                continue;
            };
            found = match Metrics::of(store, id, &manifest).await {
                Ok(Some(Metrics::Evaluation(of))) => found.map(|mut all| {
                    all.push(of.success);
                    all
                }),
                Ok(_) => None,
                Err(unreadable @ agentgym_record::Error::Unreadable { .. }) => {
                    tracing::warn!("its policy is kept: {unreadable}");
                    None
                }
                Err(e) => return Err(e.into()),
            };
        }
        scores.push((iteration, found));
    }
    Ok(Evaluated::of(scores))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_the_earliest_of_the_highest_and_what_is_unknown_is_named() {
        let scores = vec![
            (10, Some(vec![0.2, 0.2])),
            (20, Some(vec![0.1, 0.6])),
            (30, None),
            (40, Some(vec![])),
            (50, Some(vec![0.35, 0.35])),
        ];
        let found = Evaluated::of(scores);
        assert_eq!(
            (found.best, found.unknown),
            (Some(20), BTreeSet::from([30]))
        );
        assert_eq!(Evaluated::of(vec![(1, Some(vec![]))]), Evaluated::default());
        // A success of 0 is one too.
        assert_eq!(Evaluated::of(vec![(1, Some(vec![0.0]))]).best, Some(1));
    }
}
