//! The watchdog: says what a run's figures show to be wrong, and pauses the run where the user asked
//! for that, instead of training on.
//!
//! What it says depends only on the plan and on committed figures; `guard.*` are bindings. So every
//! process says the same, of old runs too, a resumed run comes to it again, and with other limits
//! (or none) a paused run continues. Nothing is deleted and no result changes.

mod alarms;
mod figures;
mod warning;

use crate::Result;
use crate::run_state::RunState;
use crate::stages::expire::retained;
use agentgym_jobs::config::Guard;
use agentgym_jobs::pipeline::{Stage, policy_of};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::planner::Progress;
use agentgym_storage::Store;
pub use figures::Watched;
use figures::{Figures, Window, number};
pub use warning::{Warned, Warning};

/// What is wrong with a run after its newest iteration, or after an earlier one.
///
/// # Errors
/// The store cannot be read.
pub async fn warnings(
    store: &Store,
    (plan, progress): (&Plan, &Progress),
    history: &mut Watched,
    upto: Option<u32>,
) -> Result<Vec<Warning>> {
    let Some(latest) = progress.latest_policy(plan) else {
        return Ok(Vec::new());
    };
    let latest = latest.min(upto.unwrap_or(latest));
    let window = history.window(store, plan, progress, latest).await?;
    Ok(verdicts(&window))
}

fn verdicts(window: &Window) -> Vec<Warning> {
    limits(window)
        .into_iter()
        .chain(alarms::all(window))
        .collect()
}

/// The message with which the run is paused, or `None`. A run that has trained its last iteration
/// is not paused.
///
/// # Errors
/// The store cannot be read.
pub(crate) async fn check(store: &Store, state: &mut RunState) -> Result<Option<String>> {
    let plan = std::sync::Arc::clone(&state.plan);
    if !is_guarded(&plan) {
        return Ok(None);
    }
    let of = (&*plan, &state.progress);
    let found = warnings(store, of, &mut state.history, None).await?;
    Ok(pause(of, &found, &store.argument()))
}

/// The same, of warnings that are known.
pub fn pause((plan, progress): (&Plan, &Progress), found: &[Warning], url: &str) -> Option<String> {
    let latest = progress.latest_policy(plan)?;
    let first = found.iter().find(|warning| warning.pauses)?;
    (latest < plan.iterations).then(|| message(plan, latest, first, url))
}

/// True if anything may pause the run.
pub fn is_guarded(plan: &Plan) -> bool {
    let guard = &plan.config.guard;
    !guard.pause.is_empty()
        || guard.success_share_min.is_some()
        || figure_limits(guard).iter().any(|of| of.limit.is_some())
}

type Pick = fn(&Figures) -> Option<f64>;

/// A limit of one figure.
struct FigureLimit {
    /// Its key below `guard`.
    key: &'static str,
    limit: Option<f64>,
    /// The figure in metrics, by name.
    name: &'static str,
    figure: Pick,
    stage: Stage,
}

fn figure_limits(of: &Guard) -> [FigureLimit; 4] {
    let entropy: Pick = |f| number(f.played.as_ref()?.entropy?);
    let (norm, at): (Pick, _) = (|f| number(f.steps.grad_norm?), Stage::Advantage);
    let mismatch: Pick = |f| number(f.played.as_ref()?.log_prob_mismatch_max?);
    let row = |key, limit, (name, figure, stage)| FigureLimit {
        key,
        limit,
        name,
        figure,
        stage,
    };
    let mismatch_name = "log_prob_mismatch_max";
    [
        row("entropy_min", of.entropy_min, ("entropy", entropy, at)),
        row("entropy_max", of.entropy_max, ("entropy", entropy, at)),
        row(
            "grad_norm_max",
            of.grad_norm_max,
            ("grad_norm", norm, Stage::Update),
        ),
        row(
            "mismatch_max",
            of.mismatch_max,
            (mismatch_name, mismatch, at),
        ),
    ]
}

/// The limits that each of the last `guard.patience` iterations violates.
fn limits(window: &Window) -> Vec<Warning> {
    let guard = &window.plan.config.guard;
    let found = |key: &str, since, stage, what| Warning {
        name: format!("guard.{key}"),
        since,
        iteration: window.newest(),
        stage,
        what,
        cure: format!("see why (agentgym-submit view), or set another guard.{key}"),
        pauses: true,
    };
    let figures = figure_limits(guard).into_iter();
    let mut out: Vec<Warning> = figures
        .filter_map(|of| {
            let (key, name, pick, limit) = (of.key, of.name, of.figure, of.limit?);
            let is_floor = key.ends_with("_min");
            let beyond = |value: f64| value != limit && (value < limit) == is_floor;
            let since = window.row(window.patience(), |f| pick(f).is_some_and(beyond))?;
            let value = pick(window.iterations.last()?.1)?;
            let side = if is_floor { "below" } else { "above" };
            let what = format!("{name} {value:.4} is {side} guard.{key} = {limit}");
            Some(found(key, since, of.stage, what))
        })
        .collect();
    if let Some(share) = guard.success_share_min
        && let Some((last, best, since)) = alarms::best_of(window)
        && last < share * best
    {
        let what = format!(
            "success {last:.3} is below guard.success_share_min = {share} of its best {best:.3}, \
             both over {} iterations",
            guard.patience
        );
        out.push(found("success_share_min", since, Stage::Advantage, what));
    }
    out
}

fn message(plan: &Plan, latest: u32, of: &Warning, url: &str) -> String {
    let kept = |n: u32, name: &str| {
        plan.forked_at() == Some(n) || retained(plan, n, name, latest, None, false)
    };
    // The newest policy from before it that retention keeps.
    let first = plan.forked_at().unwrap_or(0);
    let mut before = (first..of.since).rev();
    let sound = before.find(|n| kept(*n, "policy/")).unwrap_or(first);
    // A start policy has no optimizer state to continue with.
    let fresh = match sound == 0 || kept(sound, "optimizer/") {
        true => "",
        false => " --fresh-optimizer",
    };
    let (run, patience) = (&plan.run, plan.config.guard.patience);
    let others = plan.config.guard.pause.iter().map(|alarm| alarm.name());
    let others: Vec<String> = others.filter(|name| *name != of.name).collect();
    let (what, other) = match of.name.starts_with("guard.") {
        true => (of.what.clone(), format!("guard.patience={}", patience + 10)),
        false => (
            format!("{}: {}", of.name, of.what),
            format!("'guard.pause=[{}]'", others.join(",")),
        ),
    };
    let cure = &of.cure;
    format!(
        "paused by the guard after iteration {latest}: {what} since iteration {} (guard.patience = {patience}); {cure}. \
         Fork from iteration {sound}: `agentgym-submit fork {run} --iteration {sound}{fresh} --store {url}`, with what \
         is to be different as KEY=VALUE behind it; or go on with other limits, e.g. \
         `agentgym-submit resume {run} --store {url} {other}`; the policy of iteration {sound} is {}",
        of.since,
        policy_of(plan, sound)
    )
}

#[cfg(test)]
mod tests;
