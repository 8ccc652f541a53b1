//! What a run has committed about itself, as far as the watchdog needs it. A commit never changes,
//! so a process that looks again reads only what is new.

use crate::Result;
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::pipeline::{PartId, Stage, policy_of};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::planner::Progress;
use agentgym_storage::{Artifact, Inputs, Manifest, PartKey, Store};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Iterations read at once.
const READS_AT_ONCE: usize = 16;
/// Iterations at the start of a run and at its end that are looked at, so that the cost of a look
/// does not grow with the run.
const FIRST: usize = 3;
const LAST: usize = 12;

pub(super) type Metrics = Map<String, Value>;

/// One iteration.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    /// Metrics of its episodes.
    pub(super) episodes: Metrics,
    /// Stats of the part that wrote them.
    pub(super) stats: Metrics,
    /// Metrics of the part that made its policy.
    pub(super) update: Metrics,
}

/// What has been read of a run.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    iterations: BTreeMap<u32, Figures>,
    evaluations: BTreeMap<PartId, Metrics>,
}

/// What a look at a run sees: the same for every process, whatever it has read before.
pub(super) struct Window<'a> {
    pub(super) plan: &'a Plan,
    pub(super) iterations: Vec<(u32, &'a Figures)>,
    /// By policy: the sets that count, in the order of the run.
    pub(super) evaluations: Vec<(PartId, Vec<&'a Metrics>)>,
}

impl Watched {
    /// Reads what is missing up to the policy of iteration `latest`.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn window<'a>(
        &'a mut self,
        store: &Store,
        plan: &'a Plan,
        progress: &Progress,
        latest: u32,
    ) -> Result<Window<'a>> {
        // A fork's own figures begin after the iteration that it took over.
        let first = plan.forked_at().map_or(0, |n| n + 1);
        let mut iterations: Vec<u32> = (first..=latest).collect();
        // The best success is asked of the whole run where a limit says so.
        if plan.config.guard.success_share_min.is_none() {
            thin(&mut iterations, plan.config.guard.patience as usize);
        }
        let new = iterations.iter().copied();
        let new = new.filter(|n| !self.iterations.contains_key(n)).collect();
        let read = |n| async move { Ok((n, figures(store, plan, n).await?)) };
        self.iterations.extend(at_once(new, read).await?);

        let sets = &plan.config.evaluation.sets;
        let counted = |n, stage| {
            let parts = (0..sets.len()).filter(|at| !sets[*at].apart);
            parts.map(move |at| id(n, stage, at as u32)).collect()
        };
        let stages = [Stage::EvaluateInit, Stage::Evaluate];
        let mut policies: Vec<Vec<PartId>> = (first..=latest)
            .flat_map(|n| stages.map(|stage| counted(n, stage)))
            .filter(|ids: &Vec<PartId>| {
                !ids.is_empty() && ids.iter().all(|id| progress.contains(id))
            })
            .collect();
        thin(&mut policies, 0);
        let new = policies.iter().flatten().copied();
        let new = new
            .filter(|id| !self.evaluations.contains_key(id))
            .collect();
        let read = |id| async move {
            let found = part(store, plan, id).await?;
            Ok((id, found.map(|(_, metrics)| metrics).unwrap_or_default()))
        };
        self.evaluations.extend(at_once(new, read).await?);

        let sets = |ids: Vec<PartId>| {
            let sets = ids.iter().map(|id| &self.evaluations[id]).collect();
            (ids[0], sets)
        };
        Ok(Window {
            plan,
            iterations: iterations
                .iter()
                .map(|n| (*n, &self.iterations[n]))
                .collect(),
            evaluations: policies.into_iter().map(sets).collect(),
        })
    }
}

impl Window<'_> {
    pub(super) fn patience(&self) -> usize {
        self.plan.config.guard.patience.max(1) as usize
    }

    /// The newest iteration.
    pub(super) fn newest(&self) -> u32 {
        self.iterations.last().map_or(0, |(n, _)| *n)
    }

    /// The iteration that the run's training begins with.
    pub(super) fn first(&self) -> Option<&Figures> {
        let trained = self.iterations.iter().find(|(n, _)| *n > 0);
        trained.map(|(_, figures)| *figures)
    }

    /// Where the newest iterations that all show it begin, if they are at least as many.
    pub(super) fn row(&self, wanted: usize, shows: impl Fn(&Figures) -> bool) -> Option<u32> {
        let mut row: Vec<u32> = Vec::new();
        for (n, figures) in self.iterations.iter().rev() {
            if row.last().is_some_and(|after| n + 1 != *after) || !shows(figures) {
                break;
            }
            row.push(*n);
        }
        row.last().copied().filter(|_| row.len() >= wanted)
    }
}

impl Figures {
    /// A figure of the episodes, if any of them was sampled: a mean of nothing is 0.
    pub(super) fn of(&self, name: &str) -> Option<f64> {
        let sampled = number(&self.episodes, "loss_tokens").is_none_or(|tokens| tokens > 0.0);
        number(&self.episodes, name).filter(|_| sampled)
    }

    /// Groups that have a member left.
    pub(super) fn groups_all(&self) -> Option<f64> {
        let names = ["groups_mixed", "groups_all_zero", "groups_all_one"];
        let all: Option<f64> = names.iter().map(|name| number(&self.episodes, name)).sum();
        all.filter(|all| *all > 0.0)
    }

    /// The share of the groups of one kind.
    pub(super) fn groups(&self, name: &str) -> Option<f64> {
        Some(number(&self.episodes, name)? / self.groups_all()?)
    }

    /// Sampled tokens of a turn.
    pub(super) fn turn_tokens(&self) -> Option<f64> {
        let played = self.of("episodes")? - self.of("env_faults")?;
        let turns = Some(played * self.of("rounds_mean")?).filter(|turns| *turns > 0.0)?;
        Some(self.of("loss_tokens")? / turns)
    }

    /// The share of the episodes with an outcome.
    pub(super) fn outcome(&self, name: &str) -> Option<f64> {
        Some(self.episodes.get("outcomes")?.get(name)?.as_f64()? / self.of("episodes")?)
    }

    /// One count of the stats as a share of another.
    pub(super) fn share(&self, part: &str, all: &str) -> Option<f64> {
        let all = number(&self.stats, all).filter(|all| *all > 0.0)?;
        Some(number(&self.stats, part)? / all)
    }
}

pub(super) fn number(of: &Metrics, name: &str) -> Option<f64> {
    of.get(name)?.as_f64()
}

/// The size of a figure; one that is not finite is written as null.
pub(super) fn size(of: &Metrics, name: &str) -> Option<f64> {
    Some(of.get(name)?.as_f64().map_or(f64::INFINITY, f64::abs))
}

/// Leaves out what is neither among the first nor among the last.
pub(super) fn thin<T>(all: &mut Vec<T>, last: usize) {
    let end = all.len().saturating_sub(LAST.max(last));
    if end > FIRST {
        all.drain(FIRST..end);
    }
}

async fn at_once<K, T, F>(all: Vec<K>, read: impl Fn(K) -> F) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>>,
{
    let found = stream::iter(all).map(read).buffer_unordered(READS_AT_ONCE);
    found.try_collect().await
}

async fn figures(store: &Store, plan: &Plan, iteration: u32) -> Result<Figures> {
    let evolves = plan.config.run.pipeline == Pipeline::AgentEvol;
    let made = policy_of(plan, iteration);
    let played = match evolves {
        true => id(iteration, Stage::Filter, 0),
        false => id(iteration, Stage::Advantage, 0),
    };
    let mut out = Figures::default();
    if iteration > 0
        && let Some((manifest, metrics)) = part(store, plan, played).await?
    {
        out.stats = manifest.work.map(|work| work.stats).unwrap_or_default();
        out.episodes = metrics;
    }
    if made.stage != Stage::Init
        && let Some((_, metrics)) = part(store, plan, made).await?
    {
        out.update = metrics;
    }
    Ok(out)
}

fn id(iteration: u32, stage: Stage, part: u32) -> PartId {
    PartId {
        iteration,
        stage,
        part,
    }
}

/// The commit of a part, and its metrics.
async fn part(store: &Store, plan: &Plan, id: PartId) -> Result<Option<(Manifest, Metrics)>> {
    let slot = PartKey {
        run: plan.run.clone(),
        iteration: id.iteration,
        stage: id.stage.name().into(),
        part: id.part,
    };
    let Some(manifest) = store.manifest(&slot).await? else {
        return Ok(None);
    };
    let is_metrics = |artifact: &Artifact| artifact.name == artifact_names::METRICS;
    if !manifest.outputs.iter().any(is_metrics) {
        return Ok(Some((manifest, Metrics::new())));
    }
    let inputs = vec![("part".to_owned(), manifest.clone())];
    let inputs = Inputs::new(store.clone(), inputs, std::env::temp_dir());
    let bytes = inputs.bytes("part", artifact_names::METRICS).await?;
    let metrics = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok(Some((manifest, metrics)))
}
