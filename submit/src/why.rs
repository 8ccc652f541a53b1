//! `why RUN [PART]`: the planner's reason in words. For a waiting part it follows the dependencies
//! to their end, so that the last lines name what can be done. The answer follows from the plan,
//! the commits and the attempt records; the queue only adds which worker holds a part and how many
//! jobs wait, and is optional.

use crate::claims::{self, Liveness};
use crate::cli::Global;
use crate::runs::RunView;
use crate::status::{status, troubled_lines};
use crate::{Error, Result, text};
use agentgym_jobs::pipeline::{Part, PartId, parts, policy_of};
use agentgym_jobs::planner::Progress;
use agentgym_queue::Queue;
use agentgym_storage::{AttemptOutcome, AttemptRecord};
use agentgym_text::visible_name;
use agentgym_worker::{Exhausted, counted_failures};
use serde::Serialize;
use std::collections::{BTreeSet, VecDeque};

/// Parts reported individually; the others are only counted.
const PARTS_MAX: usize = 8;

/// The answer, one reason a line.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WhyDocument {
    run: String,
    part: Option<String>,
    because: Vec<String>,
}

/// `why RUN [ITERATION/STAGE/PART]`.
///
/// # Errors
/// A part that the plan does not have, or a store that cannot be read.
pub(crate) async fn why(view: &RunView, part: Option<PartId>, global: &Global) -> Result<()> {
    let lines = because(view, part, claims::queue(view, global).await).await?;
    if global.json {
        text::emit_json(&WhyDocument {
            run: view.plan.run.to_string(),
            part: part.map(|p| p.to_string()),
            because: lines,
        });
    } else {
        text::emit(&lines.join("\n"));
    }
    Ok(())
}

/// The reasons, one line each.
///
/// # Errors
/// As the command.
pub async fn because(
    view: &RunView,
    part: Option<PartId>,
    queue: Option<Queue>,
) -> Result<Vec<String>> {
    let mut teller = Teller {
        view,
        progress: view.progress().await?,
        queue,
        lines: Vec::new(),
    };
    match part {
        Some(part) => teller.part(part).await?,
        None => teller.run().await?,
    }
    Ok(teller.lines)
}

struct Teller<'a> {
    view: &'a RunView,
    progress: Progress,
    queue: Option<Queue>,
    lines: Vec<String>,
}

impl Teller<'_> {
    fn say(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    async fn run(&mut self) -> Result<()> {
        let status = status(self.view, self.queue.as_ref()).await?;
        let plan = &self.view.plan;
        if status.finished {
            self.say(format!(
                "run {} is finished: every part is committed",
                plan.run
            ));
            return Ok(());
        }
        for line in troubled_lines(&status.troubled, text::unix_now_s()) {
            self.say(line);
        }
        if status.stopped().is_some() {
            self.say(
                status
                    .waiting_line()
                    .trim_start_matches("waiting: for you, "),
            );
        }
        let next = status.latest.map_or(0, |n| n + 1);
        if next > plan.iterations {
            self.say("every policy is committed; what is left holds nothing up");
            let left = self.progress.frontier(plan).runnable;
            return self.roots(left.into_iter().map(|part| part.id)).await;
        }
        let target = policy_of(plan, next);
        self.say(format!(
            "the policy of iteration {next} is made by {target}"
        ));
        self.part(target).await
    }

    async fn part(&mut self, id: PartId) -> Result<()> {
        let part = self.find(id)?;
        if self.progress.contains(&id) {
            return self.committed(id).await;
        }
        let missing = self.missing(&part);
        if missing.is_empty() {
            return self.roots([id]).await;
        }
        for (name, from) in &missing {
            self.say(format!("{id} waits for {from} (its input `{name}`)"));
        }
        let mut roots = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut open: VecDeque<PartId> = missing.into_iter().map(|(_, from)| from).collect();
        while let Some(next) = open.pop_front() {
            if !seen.insert(next) {
                continue;
            }
            let missing = self.missing(&self.find(next)?);
            if missing.is_empty() {
                roots.insert(next);
            }
            open.extend(missing.into_iter().map(|(_, from)| from));
        }
        self.roots(roots).await
    }

    fn find(&self, id: PartId) -> Result<Part> {
        self.view.iteration_parts(id.iteration)?;
        let all = parts(&self.view.plan, id.iteration);
        all.into_iter().find(|part| part.id == id).ok_or_else(|| {
            let of_stage = self.view.stage_parts(id.iteration, id.stage);
            of_stage.map_or_else(
                |e| e,
                |ids| {
                    Error::Missing(format!(
                        "{}/{} has parts 0 to {}, not {}",
                        id.iteration,
                        id.stage,
                        ids.len() - 1,
                        id.part
                    ))
                },
            )
        })
    }

    /// Inputs without a commit, with the names under which the stage opens them.
    fn missing(&self, part: &Part) -> Vec<(String, PartId)> {
        let missing = part
            .inputs
            .iter()
            .filter(|i| !self.progress.contains(&i.from));
        missing.map(|i| (i.name.clone(), i.from)).collect()
    }

    async fn committed(&mut self, id: PartId) -> Result<()> {
        let manifest = self.view.committed(id).await?;
        let attempts = self.view.store.attempts(&self.view.slot(id)).await?;
        let how = manifest.work.map_or_else(String::new, |work| {
            format!(
                " by {} in {}",
                visible_name(&work.worker),
                text::seconds(work.wall_s)
            )
        });
        self.say(format!(
            "{id} is committed: attempt {} of {}{how}",
            manifest.attempt,
            attempts.len()
        ));
        Ok(())
    }

    /// Reports parts that have all their inputs.
    async fn roots(&mut self, ids: impl IntoIterator<Item = PartId>) -> Result<()> {
        let ids: Vec<PartId> = ids.into_iter().collect();
        for id in ids.iter().take(PARTS_MAX) {
            let line = self.root(*id).await?;
            self.say(format!("{id} {line}"));
        }
        if ids.len() > PARTS_MAX {
            self.say(format!(
                "and {} more parts that have all they need",
                ids.len() - PARTS_MAX
            ));
        }
        Ok(())
    }

    async fn root(&self, id: PartId) -> Result<String> {
        let plan = &self.view.plan;
        let attempts = self.view.store.attempts(&self.view.slot(id)).await?;
        let Some(last) = attempts.last() else {
            return Ok(format!(
                "has all it needs and nobody has begun it: {}{}",
                self.idle(id).await,
                self.again(id).await?
            ));
        };
        let exhausted = Exhausted::of(plan, &attempts);
        if let Some(vanished @ Exhausted::Vanished(_)) = exhausted {
            return Ok(format!(
                "{vanished}. When the cause is gone: `agentgym-submit retry {}`",
                self.view.arguments()
            ));
        }
        let Some(end) = &last.end else {
            return Ok(self.begun(id, last).await);
        };
        let failed = counted_failures(plan, &attempts);
        let most = plan.config.jobs.failures_max;
        Ok(match end.outcome {
            AttemptOutcome::Failed if exhausted == Some(Exhausted::FailedForGood) => {
                format!("cannot be made: {}", end.message)
            }
            AttemptOutcome::Failed if exhausted.is_some() => format!(
                "failed {failed} times, the most that jobs.failures_max allows; the last time: {}. When the cause is \
                 gone: `agentgym-submit retry {}`",
                end.message,
                self.view.arguments()
            ),
            AttemptOutcome::Failed if end.excused => format!(
                "could not be made, which does not count as a failure, and is tried again: {}",
                end.message
            ),
            AttemptOutcome::Failed => format!(
                "failed {failed} of {most} times and is tried again; the last time: {}",
                end.message
            ),
            AttemptOutcome::Drained | AttemptOutcome::Cancelled => format!(
                "was handed back by {}, which drained; what it had played is journalled. {}",
                visible_name(&last.start.worker),
                self.idle(id).await
            ),
            AttemptOutcome::Committed | AttemptOutcome::Superseded => {
                "is committed since this moment".to_owned()
            }
        })
    }

    /// What a worker has to make first that does not hold the optimizer state that a part goes on with.
    async fn again(&self, id: PartId) -> Result<String> {
        let (mut missing, mut at) = (0, self.find(id)?);
        let mut class = String::new();
        while let Some(from) = at.state_input().map(|input| input.from) {
            let manifest = self.view.committed(from).await?;
            let files: Vec<_> = manifest.written_later().collect();
            if files.is_empty() || self.view.store.holds(&files).await? {
                break;
            }
            missing += 1;
            class = manifest.numeric_class;
            at = self.find(from)?;
        }
        Ok(match missing {
            0 => String::new(),
            n => format!(
                ". The optimizer's state is not stored: a worker that does not hold it makes {} again first, and must be \
                 of numeric class {class}",
                text::many(n, "update")
            ),
        })
    }

    /// An attempt without an end: running, or its worker vanished.
    async fn begun(&self, id: PartId, last: &AttemptRecord) -> String {
        if let Some(damage) = &last.damage {
            return format!(
                "was begun (attempt {}), and whether it is at work nobody knows: its record is damaged ({damage}). \
                 Once its claim is free, the next worker takes the part up",
                last.number
            );
        }
        let ago = crate::text::unix_now_s().saturating_sub(last.start.started_unix_s) as f64;
        let (worker, ago) = (visible_name(&last.start.worker), text::seconds(ago));
        let began = format!("attempt {} by {worker}, begun {ago} ago", last.number);
        match claims::liveness(self.view, id, self.queue.as_ref()).await {
            Liveness::Held => format!("is at work: {began}"),
            Liveness::Free => format!(
                "has lost its worker ({began}): its claim is free, and the next worker takes the part up; `{}` starts one",
                self.view.start()
            ),
            Liveness::Unknown(why) => {
                format!("is at work ({began}), unless its worker has vanished: {why}")
            }
        }
    }

    /// Why no worker takes a runnable part.
    async fn idle(&self, id: PartId) -> String {
        let plan = &self.view.plan;
        if plan.config.jobs.hold {
            return "the run is on hold (jobs.hold)".to_owned();
        }
        let Some(queue) = &self.queue else {
            return "no queue answers; give --queue URL".to_owned();
        };
        let stage = id.stage.name();
        match queue.depth().await {
            Err(e) => e.to_string(),
            Ok(depth) => {
                let waiting = depth.iter().find(|(class, _)| class == stage);
                match waiting.map_or(0, |(_, n)| *n) {
                    0 => format!(
                        "no {stage} job is in the queue; any worker's next look, every five seconds, puts it there. \
                         If nothing happens, no worker that is well is alive: `{}` starts one",
                        self.view.start()
                    ),
                    n => format!(
                        "{} in the queue; every worker that takes {stage} (--stages) is busy, or there is none: \
                         `{}` starts one",
                        text::many(n as u64, &format!("{stage} job")),
                        self.view.start()
                    ),
                }
            }
        }
    }
}
