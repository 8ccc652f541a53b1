//! What a run has committed about itself, as far as the watchdog needs it. A commit never changes,
//! so a process that looks again reads only what is new.

use crate::Result;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::episode::Outcome;
use agentgym_jobs::pipeline::{PartId, Stage, policy_of};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::planner::Progress;
use agentgym_record::metrics::{EpisodeSummary, EvaluationMetrics, Metrics};
use agentgym_record::{Stats, Turns};
use agentgym_storage::{Manifest, PartKey, Store};
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;

/// Iterations read at once.
const READS_AT_ONCE: usize = 16;
/// Iterations at the start of a run and at its end that are looked at, so that the cost of a look
/// does not grow with the run.
const FIRST: usize = 3;
const LAST: usize = 12;

/// One iteration.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) played: Option<Played>,
    /// What was counted in its episodes.
    pub(super) turns: Option<Turns>,
    /// The steps that made its policy.
    pub(super) steps: Steps,
}

/// Its episodes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Played {
    pub(super) all: EpisodeSummary,
    pub(super) success_by_env: BTreeMap<String, f64>,
    /// Where advantages were computed of them.
    pub(super) groups: Option<Groups>,
    pub(super) entropy: Option<f64>,
    pub(super) log_prob_mismatch_max: Option<f64>,
}

/// Groups with a member left, by their rewards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Groups {
    pub(super) mixed: usize,
    pub(super) all_zero: usize,
    pub(super) all_one: usize,
}

/// Figures of steps, where the stage that made them has such.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Steps {
    pub(super) loss: Option<f64>,
    pub(super) ppo_kl: Option<f64>,
    pub(super) ratio_max: Option<f64>,
    pub(super) grad_norm: Option<f64>,
    pub(super) lr: Option<f64>,
    pub(super) taken: Option<usize>,
    pub(super) non_finite: Option<usize>,
}

/// What has been read of a run.
#[derive(Debug, Clone, Default)]
pub struct Watched {
    iterations: BTreeMap<u32, Figures>,
    evaluations: BTreeMap<PartId, Option<EvaluationMetrics>>,
}

/// What a look at a run sees: the same for every process, whatever it has read before.
pub(super) struct Window<'a> {
    pub(super) plan: &'a Plan,
    pub(super) iterations: Vec<(u32, &'a Figures)>,
    /// By policy: the sets that count, in the order of the run.
    pub(super) evaluations: Vec<(PartId, Vec<&'a EvaluationMetrics>)>,
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
            let found = match part(store, plan, id).await? {
                Some((_, Some(Metrics::Evaluation(metrics)))) => Some(*metrics),
                _ => None,
            };
            Ok((id, found))
        };
        self.evaluations.extend(at_once(new, read).await?);

        let sets = |ids: Vec<PartId>| {
            let sets = ids.iter().filter_map(|id| self.evaluations[id].as_ref());
            (ids[0], sets.collect())
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
    /// The episodes, if any of them was sampled: a mean of nothing is 0.
    fn sampled(&self) -> Option<&Played> {
        self.played.as_ref().filter(|of| of.all.loss_tokens > 0)
    }

    pub(super) fn success(&self) -> Option<f64> {
        Some(self.sampled()?.all.success)
    }

    pub(super) fn reward(&self) -> Option<f64> {
        number(self.sampled()?.all.reward)
    }

    pub(super) fn entropy(&self) -> Option<f64> {
        number(self.sampled()?.entropy?)
    }

    /// Groups that have a member left.
    pub(super) fn groups_all(&self) -> Option<f64> {
        let of = self.played.as_ref()?.groups?;
        Some((of.mixed + of.all_zero + of.all_one) as f64).filter(|all| *all > 0.0)
    }

    /// The share of the groups of one kind.
    pub(super) fn groups(&self, kind: fn(Groups) -> usize) -> Option<f64> {
        Some(kind(self.played.as_ref()?.groups?) as f64 / self.groups_all()?)
    }

    /// Sampled tokens of a turn.
    pub(super) fn turn_tokens(&self) -> Option<f64> {
        let of = &self.sampled()?.all;
        let turns = (of.episodes - of.env_faults) as f64 * of.rounds_mean;
        (turns > 0.0).then(|| of.loss_tokens as f64 / turns)
    }

    /// The share of the episodes with an outcome.
    pub(super) fn outcome(&self, outcome: Outcome) -> Option<f64> {
        let of = &self.sampled()?.all;
        Some(*of.outcomes.get(outcome.name())? as f64 / of.episodes as f64)
    }

    /// One count as a share of another.
    pub(super) fn share(&self, of: fn(&Turns) -> (u64, u64)) -> Option<f64> {
        let (part, all) = of(self.turns.as_ref()?);
        (all > 0).then(|| part as f64 / all as f64)
    }
}

impl Played {
    pub(super) fn of(metrics: Metrics) -> Option<Self> {
        match metrics {
            Metrics::Advantage(of) => Some(Self {
                groups: Some(Groups {
                    mixed: of.groups_mixed,
                    all_zero: of.groups_all_zero,
                    all_one: of.groups_all_one,
                }),
                entropy: Some(of.entropy),
                log_prob_mismatch_max: of.log_prob_mismatch_max,
                all: of.episodes,
                success_by_env: of.success_by_env,
            }),
            Metrics::Filter(of) => Some(Self {
                groups: None,
                entropy: None,
                log_prob_mismatch_max: None,
                all: of.episodes,
                success_by_env: of.success_by_env,
            }),
            _ => None,
        }
    }
}

impl Steps {
    pub(super) fn of(metrics: &Metrics) -> Self {
        match metrics {
            Metrics::Update(of) => Self {
                ppo_kl: Some(of.ppo_kl),
                ratio_max: Some(of.ratio_max),
                grad_norm: Some(of.grad_norm),
                lr: Some(of.lr),
                taken: Some(of.optimizer_steps),
                non_finite: Some(of.non_finite_steps),
                loss: None,
            },
            Metrics::Sft(of) => Self {
                loss: Some(of.loss),
                grad_norm: Some(of.grad_norm),
                non_finite: Some(of.non_finite_steps),
                ..Self::default()
            },
            Metrics::Dpo(of) => Self {
                loss: Some(of.loss),
                grad_norm: Some(of.grad_norm),
                non_finite: of.non_finite_steps,
                ..Self::default()
            },
            _ => Self::default(),
        }
    }
}

/// A figure, if it is finite.
pub(super) fn number(of: f64) -> Option<f64> {
    of.is_finite().then_some(of)
}

/// The size of a figure; one that is not finite is larger than all.
pub(super) fn size(of: Option<f64>) -> Option<f64> {
    Some(number(of?).map_or(f64::INFINITY, f64::abs))
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
        if let Some(work) = &manifest.work {
            out.turns = Stats::read(played, &work.stats)?.turns;
        }
        out.played = metrics.and_then(Played::of);
    }
    if made.stage != Stage::Init
        && let Some((_, Some(metrics))) = part(store, plan, made).await?
    {
        out.steps = Steps::of(&metrics);
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
async fn part(
    store: &Store,
    plan: &Plan,
    id: PartId,
) -> Result<Option<(Manifest, Option<Metrics>)>> {
    let slot = PartKey {
        run: plan.run.clone(),
        iteration: id.iteration,
        stage: id.stage.name().into(),
        part: id.part,
    };
    let Some(manifest) = store.manifest(&slot).await? else {
        return Ok(None);
    };
    let metrics = Metrics::of(store, id, &manifest).await?;
    Ok(Some((manifest, metrics)))
}
