//! The stop guard: pauses a run whose metrics have left the limits that the user set, instead of
//! training on. The message says from which iteration to continue.
//!
//! The verdict depends only on the committed metrics and on the `guard.*` keys, which are bindings.
//! So every process reaches the same verdict, a resumed run reaches it again, and with other limits
//! (or none) the run continues. Nothing is deleted and no result changes.

mod figures;

use crate::Result;
use crate::run_state::RunState;
use crate::stages::expire::retained;
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::{Guard, Pipeline};
use agentgym_jobs::pipeline::{PartId, Stage, policy_of};
use agentgym_jobs::plan::Plan;
use agentgym_storage::{Inputs, Store};
pub(crate) use figures::{Figures, History};
use serde_json::Value;

/// Why a run is paused.
#[derive(Debug, Clone, PartialEq)]
struct Trip {
    /// Figure, key and limit.
    reason: String,
    /// The first iteration beyond the limit.
    since: u32,
}

/// The message with which the run is paused, or `None`. A run that has trained its last iteration
/// is not paused.
///
/// # Errors
/// The store cannot be read.
pub async fn check(store: &Store, state: &mut RunState) -> Result<Option<String>> {
    let plan = std::sync::Arc::clone(&state.plan);
    let guard = &plan.config.guard;
    if !is_guarded(&plan) {
        return Ok(None);
    }
    let latest = state.progress.latest_policy(&plan).unwrap_or(0);
    if latest == plan.iterations {
        return Ok(None);
    }
    for iteration in plan.forked_at().unwrap_or(0) + 1..=latest {
        if !state.history.contains_key(&iteration) {
            let figures = read(store, state, iteration).await?;
            state.history.insert(iteration, figures);
        }
    }
    let address = store.argument();
    Ok(verdict(guard, &state.history).map(|trip| message(&plan, latest, &trip, &address)))
}

/// True if the plan sets any guard limit.
pub fn is_guarded(plan: &Plan) -> bool {
    is_on(&plan.config.guard)
}

fn is_on(guard: &Guard) -> bool {
    let limits = [
        guard.entropy_min,
        guard.entropy_max,
        guard.grad_norm_max,
        guard.success_share_min,
        guard.mismatch_max,
    ];
    limits.iter().any(Option::is_some)
}

async fn read(store: &Store, state: &RunState, iteration: u32) -> Result<Figures> {
    let metrics = async |id: PartId| {
        let Some(manifest) = store.manifest(&state.slot(id)).await? else {
            return Ok::<Value, crate::Error>(Value::Null);
        };
        let inputs = Inputs::new(
            store.clone(),
            vec![("stage".into(), manifest)],
            std::env::temp_dir(),
        );
        let bytes = inputs.bytes("stage", artifact_names::METRICS).await?;
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    };
    let of = |stage| PartId {
        iteration,
        stage,
        part: 0,
    };
    let (episodes, update) = match state.plan.config.run.pipeline {
        Pipeline::AgentEvol => (metrics(of(Stage::Filter)).await?, Value::Null),
        _ => (
            metrics(of(Stage::Advantage)).await?,
            metrics(policy_of(&state.plan, iteration)).await?,
        ),
    };
    let figure = |of: &Value, name: &str| of.get(name).and_then(Value::as_f64);
    Ok(Figures {
        entropy: figure(&episodes, "entropy"),
        success: figure(&episodes, "success"),
        mismatch: figure(&episodes, "log_prob_mismatch_max"),
        grad_norm: figure(&update, "grad_norm"),
    })
}

/// The first limit that each of the last `guard.patience` iterations violates.
fn verdict(guard: &Guard, history: &History) -> Option<Trip> {
    let patience = guard.patience.max(1) as usize;
    let recent: Vec<(u32, Figures)> = history
        .iter()
        .rev()
        .take(patience)
        .map(|(n, f)| (*n, *f))
        .collect();
    if recent.len() < patience {
        return None;
    }
    let since = recent.last().map_or(0, |(n, _)| *n);
    let latest = recent.first().map(|(_, figures)| *figures)?;
    type Pick = fn(&Figures) -> Option<f64>;
    let beyond = |key: &str, pick: Pick, limit: Option<f64>, is_floor: bool| {
        let limit = limit?;
        let all = recent.iter().all(|(_, figures)| {
            pick(figures).is_some_and(|value| match is_floor {
                true => value < limit,
                false => value > limit,
            })
        });
        let side = if is_floor { "below" } else { "above" };
        all.then(|| Trip {
            reason: format!(
                "{} {:.4} is {side} guard.{key} = {limit}",
                name(key),
                pick(&latest).unwrap_or(f64::NAN)
            ),
            since,
        })
    };
    beyond("entropy_min", |f| f.entropy, guard.entropy_min, true)
        .or_else(|| beyond("entropy_max", |f| f.entropy, guard.entropy_max, false))
        .or_else(|| beyond("grad_norm_max", |f| f.grad_norm, guard.grad_norm_max, false))
        .or_else(|| beyond("mismatch_max", |f| f.mismatch, guard.mismatch_max, false))
        .or_else(|| collapse(guard.success_share_min?, patience, history, since))
}

/// The metric that a key limits.
fn name(key: &str) -> &str {
    match key {
        "entropy_min" | "entropy_max" => "entropy",
        "grad_norm_max" => "grad_norm",
        _ => "log_prob_mismatch_max",
    }
}

/// Success compared with its own best value. Both are means over `patience` iterations, since a
/// single iteration is mostly noise.
fn collapse(share: f64, patience: usize, history: &History, since: u32) -> Option<Trip> {
    let success: Option<Vec<f64>> = history.values().map(|f| f.success).collect();
    let means: Vec<f64> = success?
        .windows(patience)
        .map(|window| window.iter().sum::<f64>() / patience as f64)
        .collect();
    let last = *means.last()?;
    let best = means.iter().copied().fold(0.0, f64::max);
    (last < share * best).then(|| Trip {
        reason: format!(
            "success {last:.3} is below guard.success_share_min = {share} of its best {best:.3}, \
             both over {patience} iterations"
        ),
        since,
    })
}

fn message(plan: &Plan, latest: u32, trip: &Trip, url: &str) -> String {
    let kept = |n: u32, name: &str| {
        plan.forked_at() == Some(n) || retained(plan, n, name, latest, None, false)
    };
    // The newest policy before the violation that retention keeps.
    let first = plan.forked_at().unwrap_or(0);
    let sound = (first..trip.since)
        .rev()
        .find(|n| kept(*n, "policy/"))
        .unwrap_or(first);
    let run = &plan.run;
    // A start policy has no optimizer state to continue with.
    let fresh = match sound == 0 || kept(sound, "optimizer/") {
        true => "",
        false => " --fresh-optimizer",
    };
    format!(
        "paused by the guard after iteration {latest}: {} since iteration {} (guard.patience = {}). \
         Fork from iteration {sound}: `agentgym-submit fork {run} --iteration {sound}{fresh} --store {url}`, with what \
         is to be different as KEY=VALUE behind it; or go on with other limits, e.g. \
         `agentgym-submit resume {run} --store {url} guard.patience={}`; the policy of iteration {sound} is {}",
        trip.reason,
        trip.since,
        plan.config.guard.patience,
        plan.config.guard.patience + 10,
        policy_of(plan, sound)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::testing::plan;

    fn history(of: impl Fn(u32) -> Figures, iterations: u32) -> History {
        (1..=iterations).map(|n| (n, of(n))).collect()
    }

    fn sound() -> Figures {
        Figures {
            entropy: Some(1.0),
            success: Some(0.5),
            mismatch: Some(0.0),
            grad_norm: Some(0.3),
        }
    }

    fn guard(overrides: &[&str]) -> Guard {
        plan(overrides).config.guard
    }

    #[test]
    fn a_limit_must_be_left_for_as_long_as_the_patience() {
        let guard = guard(&["guard.entropy_min=0.1", "guard.patience=3"]);
        let falls = |at: u32| {
            move |n| Figures {
                entropy: Some(if n >= at { 0.05 } else { 1.0 }),
                ..sound()
            }
        };
        assert_eq!(verdict(&guard, &history(falls(9), 10)), None);
        let trip = verdict(&guard, &history(falls(8), 10)).unwrap();
        assert_eq!(trip.since, 8);
        assert!(
            trip.reason.contains("0.0500 is below guard.entropy_min"),
            "{}",
            trip.reason
        );
        // One sound iteration in between restarts the count.
        let mut spiked = history(falls(6), 10);
        spiked.insert(9, sound());
        assert_eq!(verdict(&guard, &spiked), None);
    }

    #[test]
    fn every_figure_has_its_limit() {
        let off = |change: fn(&mut Figures)| {
            let mut figures = sound();
            change(&mut figures);
            history(|_| figures, 3)
        };
        for (limit, history) in [
            ("guard.entropy_max=2", off(|f| f.entropy = Some(3.0))),
            ("guard.grad_norm_max=5", off(|f| f.grad_norm = Some(9.0))),
            ("guard.mismatch_max=0.1", off(|f| f.mismatch = Some(0.5))),
        ] {
            let guard = guard(&[limit]);
            assert!(
                is_on(&guard) && verdict(&guard, &history).is_some(),
                "{limit}"
            );
            assert_eq!(verdict(&guard, &off(|_| ())), None, "{limit}");
        }
        assert!(!is_on(&guard(&[])));
    }

    #[test]
    fn success_is_held_against_its_own_best() {
        let guard = guard(&["guard.success_share_min=0.5", "guard.patience=2"]);
        let curve = |values: &[f64]| {
            let at = |n: u32| Figures {
                success: Some(values[n as usize - 1]),
                ..sound()
            };
            history(at, values.len() as u32)
        };
        // A single bad iteration is noise.
        assert_eq!(verdict(&guard, &curve(&[0.1, 0.6, 0.6, 0.1])), None);
        let trip = verdict(&guard, &curve(&[0.1, 0.6, 0.6, 0.1, 0.1])).unwrap();
        assert_eq!(trip.since, 4);
    }

    #[test]
    fn the_message_names_a_policy_that_is_still_there() {
        let plan = plan(&[
            "trainer.total_training_steps=100",
            "trainer.save_freq=10",
            "run.id=r",
        ]);
        let trip = Trip {
            reason: "entropy".into(),
            since: 37,
        };
        let said = |latest, trip: &Trip| message(&plan, latest, trip, "s3://b/p");
        let far = said(39, &trip);
        let command = "agentgym-submit fork r --iteration 30 --fresh-optimizer --store s3://b/p`";
        assert!(far.contains(command), "{far}");
        // The last two optimizer states are kept.
        let near = Trip {
            since: 39,
            ..trip.clone()
        };
        let near = said(39, &near);
        assert!(near.contains("--iteration 38 --store"), "{near}");
        let trip = Trip { since: 3, ..trip };
        assert!(said(5, &trip).contains("--iteration 0 --store"));
    }
}
