//! The metrics of a run, gathered from its commits (from end records of attempts for commits of
//! older programs). Commits are the source, so any process can rebuild them at any time, and
//! exporting twice writes the same files.

pub(crate) mod files;
pub mod played;
pub mod plot;
pub mod summary;
pub mod tensorboard;

use crate::runs::RunView;
use crate::{Error, Result};
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::pipeline::{PartId, Stage, policy_of};
use agentgym_jobs::plan::Plan;
use agentgym_record::Stats;
use agentgym_record::metrics::{EpisodeSummary, EvaluationMetrics, Metrics};
use agentgym_storage::{Manifest, SeenCommits};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Commits read concurrently.
const READS_AT_ONCE: usize = 16;

/// One committed part.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// Name of the evaluation set, for evaluations.
    pub set: Option<String>,
    /// What the stage's `metrics.json` says; `None` if it wrote none.
    pub metrics: Option<Metrics>,
    /// The same as it is stored, for files and screens that show every figure there is.
    pub figures: Map<String, Value>,
    /// Rates and times of the attempt that committed.
    pub measured: Stats,
    /// The same as they are recorded.
    pub stats: Map<String, Value>,
    /// Start of that attempt, seconds since 1970.
    pub started_unix_s: u64,
    /// Its duration; `None` until its end is recorded.
    pub wall_s: Option<f64>,
}

impl Row {
    /// Statistics of the iteration's episodes, in the rows that have them.
    pub fn played(&self) -> Option<&EpisodeSummary> {
        match self.metrics.as_ref()? {
            Metrics::Advantage(of) => Some(&of.episodes),
            Metrics::Filter(of) => Some(&of.episodes),
            _ => None,
        }
    }

    /// What a held-out set came to.
    pub fn evaluated(&self) -> Option<&EvaluationMetrics> {
        match self.metrics.as_ref()? {
            Metrics::Evaluation(of) => Some(of),
            _ => None,
        }
    }

    /// Loss and gradient norm of the policy's steps.
    fn trained(&self) -> Option<(f64, f64)> {
        match self.metrics.as_ref()? {
            Metrics::Update(of) => Some((of.pg_loss, of.grad_norm)),
            Metrics::Sft(of) => Some((of.loss, of.grad_norm)),
            _ => None,
        }
    }

    fn set_stats(&mut self, id: PartId, stats: Map<String, Value>) -> Result<()> {
        self.measured = Stats::read(id, &stats)?;
        self.stats = stats;
        Ok(())
    }

    /// When the attempt ended, seconds since 1970 on its worker's clock.
    pub fn ended_unix_s(&self) -> f64 {
        self.started_unix_s as f64 + self.wall_s.unwrap_or(0.0)
    }
}

/// All rows of a run.
#[derive(Debug, Clone, Default)]
pub struct RunMetrics {
    rows: BTreeMap<PartId, Row>,
    seen: SeenCommits,
}

/// Metrics of one training iteration.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Training {
    /// 1-based.
    pub iteration: u32,
    /// Share of solved episodes.
    pub success: Option<f64>,
    /// Half-width of its 95 % interval, at most: as if a group had one outcome for all its samples.
    pub success_within: Option<f64>,
    /// Share of the groups whose rewards differ, which alone teach an estimator by groups.
    pub signal: Option<f64>,
    /// Entropy per sampled token, nats.
    pub entropy: Option<f64>,
    /// Mean of old − new log-prob over the update's steps.
    pub kl: Option<f64>,
    /// Policy loss of the update, or cross-entropy of an AgentEvol iteration.
    pub loss: Option<f64>,
    /// Divergence from the reference policy, where the loss or the reward uses it.
    pub ref_kl: Option<f64>,
    /// Global gradient norm before clipping.
    pub grad_norm: Option<f64>,
    /// Mean reward.
    pub reward: Option<f64>,
    /// Horizon, in rounds.
    pub horizon: u32,
    /// Mean rounds played.
    #[serde(rename = "rounds_mean")]
    pub rounds: Option<f64>,
    /// Trajectories that an AgentEvol iteration trains on.
    pub kept: Option<u64>,
    /// Sampled tokens per second of rollout time.
    pub tokens_per_s: Option<f64>,
    /// From the first attempt's start to the update's end.
    pub wall_s: f64,
}

/// One evaluated policy: a row per set.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluated {
    /// `before training`, `after warm start`, `iteration 10`, …
    pub label: String,
    /// The iteration that made the policy.
    pub iteration: u32,
    /// True for the policy that a warm start starts from.
    pub before_warm_start: bool,
    /// By set, in the plan's order; `None` where not committed yet.
    pub sets: Vec<Option<SetScore>>,
    /// By set: whether it is excluded from the overall result.
    pub apart: Vec<bool>,
}

/// Success on one set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SetScore {
    /// Share of solved episodes at `evaluation.temperature`.
    pub success: f64,
    /// Share of tasks that the greedy episode solves.
    #[serde(rename = "success_greedy")]
    pub greedy: Option<f64>,
    /// Tasks of the set.
    pub tasks: f64,
}

/// A loss on held-out data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Validated {
    /// Optimizer steps before it.
    pub step: u32,
    /// Passes over the training rows before it, if the run trains by epochs.
    pub epoch: Option<f64>,
    /// Nats per reply token.
    pub loss: f64,
}

impl Row {
    /// The losses on held-out data that an sft part measured.
    pub fn validations(&self) -> impl Iterator<Item = Validated> {
        let measured = match &self.metrics {
            Some(Metrics::Sft(of)) => of.validation.as_ref(),
            _ => None,
        };
        let points = measured.into_iter().flat_map(|of| &of.validation);
        points.filter_map(|point| {
            Some(Validated {
                step: point.step,
                epoch: point.epoch,
                loss: finite(point.validation_loss)?,
            })
        })
    }
}

impl Evaluated {
    /// The result over all sets that are not excluded, weighted by tasks; `None` until all are
    /// committed.
    pub fn overall(&self) -> Option<SetScore> {
        let counted = self
            .sets
            .iter()
            .zip(&self.apart)
            .filter(|(_, apart)| !**apart);
        let sets: Option<Vec<SetScore>> = counted.map(|(score, _)| *score).collect();
        let sets = sets.filter(|s| !s.is_empty())?;
        let tasks: f64 = sets.iter().map(|s| s.tasks).sum();
        let mean = |f: &dyn Fn(&SetScore) -> Option<f64>| {
            let sum: Option<f64> = sets.iter().map(|s| f(s).map(|v| v * s.tasks)).sum();
            sum.map(|s| s / tasks.max(1.0))
        };
        Some(SetScore {
            success: mean(&|s| Some(s.success))?,
            greedy: mean(&|s| s.greedy),
            tasks,
        })
    }
}

/// Reads the metrics of a commit.
pub async fn read_row(view: &RunView, id: PartId, manifest: &Manifest) -> Result<Row> {
    let mut row = Row::default();
    if has_output(manifest, artifact_names::METRICS) {
        let bytes = view.bytes(manifest, artifact_names::METRICS).await?;
        row.metrics = match Metrics::parse(id, &bytes) {
            // Older programs wrote some in stages that write none today.
            Err(agentgym_record::Error::NoSuch { .. }) => None,
            metrics => Some(metrics?),
        };
        row.figures = serde_json::from_slice(&bytes).unwrap_or_default();
    }
    if id.stage.facts().evaluates {
        let sets = &view.plan.config.evaluation.sets;
        row.set = sets.get(id.part as usize).map(|s| s.name.clone());
    }
    if let Some(work) = &manifest.work {
        row.started_unix_s = work.started_unix_s;
        row.wall_s = Some(work.wall_s);
        row.set_stats(id, work.stats.clone())?;
        return Ok(row);
    }
    // Commits of older programs have an end record instead.
    let attempts = view.store.attempts(&view.slot(id)).await?;
    if let Some(attempt) = attempts.into_iter().find(|a| a.number == manifest.attempt) {
        row.started_unix_s = attempt.start.started_unix_s;
        if let Some(end) = attempt.end {
            row.wall_s = Some(end.wall_s);
            row.set_stats(id, end.stats)?;
        }
    }
    Ok(row)
}

/// A number that stands as null in the document is none.
pub(crate) fn finite(number: f64) -> Option<f64> {
    Some(number).filter(|number| number.is_finite())
}

fn has_output(manifest: &Manifest, name: &str) -> bool {
    manifest.outputs.iter().any(|o| o.name == name)
}

impl RunMetrics {
    /// Reads the metrics of commits that have not been read yet.
    pub async fn absorb(
        &mut self,
        view: &RunView,
        ids: impl IntoIterator<Item = PartId>,
    ) -> Result<()> {
        let new: Vec<PartId> = ids
            .into_iter()
            .filter(|id| id.stage.facts().is_measured)
            .filter(|id| !self.rows.contains_key(id))
            .collect();
        let read = |id| async move {
            let manifest = view.store.listed_manifest(&view.slot(id)).await?;
            let row = read_row(view, id, &manifest).await?;
            Ok::<_, Error>((id, row, manifest))
        };
        let rows: Vec<(PartId, Row, Manifest)> = stream::iter(new)
            .map(read)
            .buffer_unordered(READS_AT_ONCE)
            .try_collect()
            .await?;
        for (id, row, manifest) in rows {
            self.rows.insert(id, row);
            self.seen.add(&manifest);
        }
        Ok(())
    }

    /// Adds the metrics of a manifest that the caller has: read from the store, or just committed.
    pub async fn add(&mut self, view: &RunView, id: PartId, manifest: &Manifest) -> Result<()> {
        self.seen.add(manifest);
        if id.stage.facts().is_measured && !self.rows.contains_key(&id) {
            let row = read_row(view, id, manifest).await?;
            self.rows.insert(id, row);
        }
        Ok(())
    }

    /// The commits seen so far, for the digest of the run.
    pub fn seen(&self) -> &SeenCommits {
        &self.seen
    }

    /// All losses on held-out data, in the order of the run.
    pub fn validations(&self) -> impl Iterator<Item = (PartId, Validated)> {
        let parts = self.rows.iter().filter(|(id, _)| id.stage == Stage::Sft);
        parts.flat_map(|(id, row)| row.validations().map(|point| (*id, point)))
    }

    /// All rows, in the order of the run.
    pub fn rows(&self) -> impl Iterator<Item = (&PartId, &Row)> {
        self.rows.iter()
    }

    /// Adds a row, for metrics that do not come from a store.
    pub fn insert(&mut self, id: PartId, row: Row) {
        self.rows.insert(id, row);
    }

    /// The row of a part.
    pub fn row(&self, id: PartId) -> Option<&Row> {
        self.rows.get(&id)
    }

    fn of(&self, iteration: u32, stage: Stage) -> impl Iterator<Item = &Row> {
        let id = |part| PartId {
            iteration,
            stage,
            part,
        };
        self.rows
            .range(id(0)..=id(u32::MAX))
            .filter(move |(id, _)| id.stage == stage && id.iteration == iteration)
            .map(|(_, row)| row)
    }

    /// The metrics of a training iteration whose update is committed.
    pub fn training(&self, plan: &agentgym_jobs::plan::Plan, iteration: u32) -> Option<Training> {
        if plan.forked_at().is_some_and(|last| iteration <= last) {
            return None;
        }
        let evolves = plan.config.run.pipeline == Pipeline::AgentEvol;
        let (summary, last) = match evolves {
            true => (Stage::Filter, Stage::Sft),
            false => (Stage::Advantage, Stage::Update),
        };
        let episodes = self.of(iteration, summary).next()?;
        let parts = policy_of(plan, iteration).part as usize + 1;
        if self.of(iteration, last).count() < parts {
            return None;
        }
        let rollouts: Vec<&Row> = self.of(iteration, Stage::Rollout).collect();
        let sampled = rollouts.iter().map(|row| row.measured.sampled_tokens);
        let sampled: Option<u64> = sampled.sum();
        let kl = |row: &Row| match row.metrics.as_ref()? {
            Metrics::Update(of) => finite(of.ppo_kl),
            _ => None,
        };
        let trained = self.of(iteration, last).last().and_then(Row::trained);
        let played = episodes.played();
        let (advantage, kept) = match &episodes.metrics {
            Some(Metrics::Advantage(of)) => (Some(of), None),
            Some(Metrics::Filter(of)) => (None, Some(of.counts.kept as u64)),
            _ => (None, None),
        };
        let groups = advantage.map(|of| {
            let all = of.groups_mixed + of.groups_all_zero + of.groups_all_one;
            (of.groups_mixed as f64, all as f64)
        });
        let groups = groups.filter(|(_, all)| *all > 0.0);
        let success = played.map(|of| of.success);
        let rollout_s: Option<f64> = rollouts.iter().map(|r| r.wall_s).sum();
        let blocking = Stage::ALL.into_iter().filter(|s| s.facts().blocks);
        let rows = || (blocking.clone()).flat_map(|s| self.of(iteration, s));
        let start = rows().map(|r| r.started_unix_s).min().unwrap_or(0) as f64;
        let end = rows().map(Row::ended_unix_s).fold(0.0, f64::max);
        Some(Training {
            iteration,
            success,
            success_within: success
                .zip(groups)
                .map(|(success, (_, all))| 1.96 * (success * (1.0 - success) / all).sqrt()),
            signal: groups.map(|(mixed, all)| mixed / all),
            entropy: advantage.and_then(|of| finite(of.entropy)),
            kl: self.of(iteration, Stage::Update).next().and_then(kl),
            loss: trained.and_then(|(loss, _)| finite(loss)),
            ref_kl: advantage.and_then(|of| of.ref_kl),
            grad_norm: trained.and_then(|(_, norm)| finite(norm)),
            reward: played.and_then(|of| finite(of.reward)),
            horizon: plan.rounds_max(iteration),
            rounds: played.map(|of| of.rounds_mean),
            kept,
            tokens_per_s: sampled
                .zip(rollout_s)
                .map(|(tokens, s)| tokens as f64 / s.max(1e-9)),
            wall_s: (end - start).max(0.0),
        })
    }

    /// Parts of `log_probs` whose numbers are those recorded while sampling, and how many of them
    /// were scored again as a check.
    pub fn recorded_parts(&self, plan: &agentgym_jobs::plan::Plan) -> (usize, usize) {
        let all = self
            .rows
            .iter()
            .filter(|(id, _)| id.stage == Stage::LogProbs);
        match plan.samples_are_scores() {
            false => (0, 0),
            true => {
                let checked =
                    (all.clone()).filter(|(_, row)| row.measured.log_prob_mismatch_max.is_some());
                (all.count(), checked.count())
            }
        }
    }

    /// Every policy with at least one evaluated set, in order.
    pub fn evaluations(&self, plan: &agentgym_jobs::plan::Plan) -> Vec<Evaluated> {
        let mut seen: BTreeMap<(u32, bool), Vec<Option<SetScore>>> = BTreeMap::new();
        let sets = &plan.config.evaluation.sets;
        for (id, row) in &self.rows {
            if !id.stage.facts().evaluates {
                continue;
            }
            let after = id.stage != Stage::EvaluateInit;
            let scores = seen
                .entry((id.iteration, after))
                .or_insert_with(|| vec![None; sets.len()]);
            if let (Some(cell), Some(of)) = (scores.get_mut(id.part as usize), row.evaluated()) {
                *cell = Some(SetScore {
                    success: of.success,
                    greedy: of.success_greedy,
                    tasks: of.tasks as f64,
                });
            }
        }
        let warm = plan.warms_up();
        let label = |iteration: u32, after: bool| match (iteration, after && warm) {
            (0, true) if plan.dpo_parts() > 0 => "after training".to_owned(),
            (0, true) => "after warm start".to_owned(),
            (0, false) if is_all(plan) => "policy".to_owned(),
            (0, false) => "before training".to_owned(),
            (n, _) if n == plan.iterations => format!("end (iteration {n})"),
            (n, _) => format!("iteration {n}"),
        };
        let apart: Vec<bool> = sets.iter().map(|set| set.apart).collect();
        seen.into_iter()
            .map(|((iteration, after), sets)| Evaluated {
                apart: apart.clone(),
                label: label(iteration, after),
                iteration,
                before_warm_start: !after,
                sets,
            })
            .collect()
    }
}

/// True if the run only evaluates.
pub fn is_all(plan: &Plan) -> bool {
    plan.config.run.pipeline == Pipeline::Eval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_count_by_their_tasks() {
        let score = |success, tasks| {
            Some(SetScore {
                success,
                greedy: None,
                tasks,
            })
        };
        let mut evaluated = Evaluated {
            label: "x".into(),
            iteration: 1,
            before_warm_start: false,
            sets: vec![score(1.0, 10.0), score(0.0, 30.0), score(1.0, 50.0)],
            apart: vec![false, false, true],
        };
        assert_eq!(evaluated.overall().unwrap().success, 0.25);
        assert_eq!(evaluated.overall().unwrap().greedy, None);
        evaluated.sets[1] = None;
        assert_eq!(evaluated.overall(), None, "not while a set is missing");
    }
}
