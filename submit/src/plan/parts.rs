//! Number of parts of a plan, by stage.

use crate::text::count;
use agentgym_jobs::pipeline::{Stage, adopted, parts};
use agentgym_jobs::plan::Plan;
use std::collections::BTreeMap;

/// Number of parts by stage.
pub(crate) type Stages = BTreeMap<Stage, u64>;

/// Part counts of a plan.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) all: u64,
    /// Parts of iteration 0, by stage.
    pub(crate) start: Stages,
    /// For the later iterations, by stage: the most parts in one iteration, and the number of
    /// iterations that have any.
    pub(crate) each: BTreeMap<Stage, (u64, u64)>,
}

impl Counted {
    /// Counts all parts: the total, those of iteration 0, and those of later iterations.
    pub(crate) fn of(plan: &Plan) -> Self {
        let stages = |n: u32| {
            let mut stages = Stages::new();
            for part in parts(plan, n) {
                *stages.entry(part.id.stage).or_default() += 1;
            }
            stages
        };
        let mut counted = Self::default();
        // Taken-over parts of a fork are counted directly: they are few.
        let taken_over: u64 = adopted(plan).len() as u64;
        let first = plan.forked_at().map_or(0, |last| last.saturating_add(1));
        counted.all = taken_over;
        // Iterations of the same kind (iteration 0 or not, trained, evaluated) have the same parts.
        let mut kinds: BTreeMap<_, (Stages, u64)> = BTreeMap::new();
        for n in first..=plan.iterations {
            let kind = (n == 0, plan.update_steps(n) > 0, plan.evaluates(n));
            let (of, iterations) = kinds.entry(kind).or_insert_with(|| (stages(n), 0));
            counted.all += of.values().sum::<u64>();
            *iterations += 1;
        }
        for ((is_start, ..), (stages, iterations)) in kinds {
            if is_start {
                counted.start = stages;
                continue;
            }
            for (stage, parts) in stages {
                let (most, having) = counted.each.entry(stage).or_default();
                *most = (*most).max(parts);
                *having += iterations;
            }
        }
        counted
    }

    /// Whether the plan has a part of this stage.
    pub(crate) fn has(&self, stage: Stage) -> bool {
        self.start.contains_key(&stage) || self.each.contains_key(&stage)
    }

    /// Text that lists every stage of the run.
    pub(crate) fn text(&self, plan: &Plan) -> String {
        let counted = self;
        let mut text = format!("{} jobs in all", count(counted.all));
        let start: Vec<String> = counted
            .start
            .iter()
            .map(|(stage, parts)| format!("{} {stage}", count(*parts)))
            .collect();
        if !start.is_empty() {
            text += &format!("; at the start {}", start.join(", "));
        }
        let first = plan
            .forked_at()
            .map_or(1, |last| last.saturating_add(1).max(1));
        let iterations = u64::from(plan.iterations.saturating_add(1).saturating_sub(first));
        let each: Vec<String> = counted
            .each
            .iter()
            .map(|(stage, (parts, having))| {
                let often = match having < &iterations {
                    true => "≤ ",
                    false => "",
                };
                let tasks = match stage {
                    Stage::Rollout => {
                        let (size, all) = (
                            plan.config.jobs.rollout_part_tasks,
                            plan.config.data.train_batch_size,
                        );
                        format!(" ({} tasks each)", size.min(all))
                    }
                    _ => String::new(),
                };
                format!("{often}{} {stage}{tasks}", count(*parts))
            })
            .collect();
        if !each.is_empty() {
            text += &format!("; each iteration {}", each.join(", "));
        }
        text
    }
}
