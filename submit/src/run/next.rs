//! The next command, in words that can be pasted: where a run resumes, what can be done with a
//! finished one, and which command does what a refused one asked for. A `fork` is named only after
//! it was tried without writing.

use crate::runs::{RunView, newest_plan};
use crate::{Error, Result, fork, text};
use agentgym_jobs::Error as Jobs;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::pipeline::parts;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::planner::Progress;
use agentgym_storage::Store;
use std::sync::Arc;

/// The first line of a run: a new one, or where it resumes.
pub(super) fn header(view: &RunView, progress: &mut Progress) -> String {
    let (plan, store) = (&view.plan, view.store.url());
    let (run, committed) = (&plan.run, progress.len());
    if committed == 0 {
        let iterations = text::many(u64::from(plan.iterations), "iteration");
        return format!(
            "run {run}  revision {}  {iterations}  store {store}",
            plan.revision
        );
    }
    if progress.finished(plan) {
        return format!(
            "run {run} is finished: its {committed} parts are committed  store {store}"
        );
    }
    let all: usize = (0..=plan.iterations).map(|n| parts(plan, n).len()).sum();
    let done = match progress.latest_policy(plan) {
        None => "no policy yet".to_owned(),
        Some(n) => format!("iteration {n} of {} done", plan.iterations),
    };
    let frontier = progress.frontier(plan);
    let next = frontier.runnable.first().map_or_else(String::new, |part| {
        format!("  next {}/{}", part.id.iteration, part.id.stage)
    });
    format!("run {run} resumes  {done}  {committed} of {all} parts committed{next}  store {store}")
}

/// What can be done with a finished run, a command a line.
pub(super) async fn after(view: &RunView) -> String {
    let (plan, run) = (&view.plan, view.arguments());
    let mut lines = format!("next    agentgym-submit view {run}  # curves, episodes, credit\n");
    lines +=
        &format!("        agentgym-submit view {run} --bundle pages  # the same as one file\n");
    if plan.config.run.pipeline != Pipeline::Eval {
        lines += &format!("        agentgym-submit serve {run}  # its policy behind an API\n");
    }
    let more = plan.iterations.saturating_mul(2);
    let more = [format!("trainer.total_training_steps={more}")];
    if let Some(command) = fork::instead(view, &more).await {
        lines += &format!("        {command}  # more iterations\n");
    }
    lines
}

/// The error of a run that exists under other keys, with the commands for what may be meant.
/// `typed`: the overrides of a command that read no config.
pub(super) async fn refusal(error: Jobs, view: &RunView, typed: Option<&[String]>) -> Error {
    let Jobs::Identity { changed, .. } = &error else {
        return error.into();
    };
    let fork = fork::instead(view, typed.unwrap_or(changed)).await;
    let fork = fork.map_or_else(String::new, |command| {
        format!(" To continue it under these keys, as a run of its own: `{command}`.")
    });
    let back = match typed {
        Some(_) => "Leave these keys out to resume it",
        None => "Change these keys back to resume it",
    };
    Error::Identity {
        remedy: format!("{back}.{fork} To begin from nothing: the config with another run.id"),
        source: error,
    }
}

/// A new run is sometimes meant as a longer one: the `fork` that continues the longest run of the
/// same config that ends earlier.
pub(super) async fn continues(store: &Store, plan: &Plan) -> Result<Option<String>> {
    const LENGTH: [&str; 2] = ["trainer.total_training_steps", "trainer.total_epochs"];
    let Some(stem) = plan.run.as_str().strip_suffix(&plan.identity[..8]) else {
        return Ok(None);
    };
    let mut longest: Option<RunView> = None;
    for run in store.runs().await? {
        if !run.as_str().starts_with(stem) {
            continue;
        }
        // One that cannot be read hides no other.
        let Ok(Some(other)) = newest_plan(store, &run).await else {
            continue;
        };
        let known = longest.as_ref().map_or(0, |view| view.plan.iterations);
        let differs = other.differences(plan);
        if (known + 1..plan.iterations).contains(&other.iterations)
            && differs.iter().all(|(key, ..)| LENGTH.contains(key))
        {
            longest = Some(RunView {
                store: store.clone(),
                plan: Arc::new(other),
                queue: None,
            });
        }
    }
    let Some(shorter) = longest else {
        return Ok(None);
    };
    let more = format!("trainer.total_training_steps={}", plan.iterations);
    let command = fork::instead(&shorter, &[more]).await;
    Ok(command.map(|command| {
        format!(
            "this is a new run, from nothing; run {} is the same with {}. To continue that one: `{command}`",
            shorter.plan.run,
            text::many(u64::from(shorter.plan.iterations), "iteration")
        )
    }))
}
