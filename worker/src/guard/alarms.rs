//! The watchdog's rules: what a run's figures say is wrong with it. Each is a function of the plan
//! and of committed figures alone, so every process says the same of a run, at any time.
//!
//! The thresholds lie far outside of what sound runs show: a warning is for a run that is broken,
//! not for one that learns badly. `docs/operations.md` has the reason of each.

use super::figures::{Figures, Metrics, Window, number, size};
use agentgym_jobs::config::{Alarm, Pipeline};
use agentgym_jobs::pipeline::{Stage, policy_of};
use serde_json::Value;

/// Mean difference of a token's log-prob before and after an update, nats.
const KL_MAX: f64 = 1.0;
/// Change of one token's probability in an update, as a factor.
const RATIO_MAX: f64 = 1e6;
/// Norm of a gradient before clipping.
const GRAD_NORM_MAX: f64 = 1e4;
/// Entropy per token, nats.
const ENTROPY_MIN: f64 = 0.003;
/// Success from which on a policy may be sure of itself.
const SOLVED: f64 = 0.9;
/// Most of the turns, groups or episodes; and the part of its best that a figure keeps.
const HALF: f64 = 0.5;
/// Tokens of a turn, as a share of the first iteration's.
const LENGTH_SHARE_MIN: f64 = 0.2;
/// Standard errors by which two rates have to differ.
const ERRORS: f64 = 3.0;
/// Supervised loss: that of guessing among as many tokens as large vocabularies have is 12.
const LOSS_MAX: f64 = 12.0;

/// A rule, and what it found.
pub(super) struct Found {
    pub(super) alarm: Alarm,
    /// The first iteration of the unbroken row that shows it.
    pub(super) since: u32,
    pub(super) stage: Stage,
    /// Figure and threshold.
    pub(super) what: String,
    pub(super) cure: String,
}

/// What a rule looks at in an iteration.
#[derive(Clone, Copy, PartialEq)]
enum At {
    /// The update, once.
    Update,
    /// The episodes, once.
    Episodes,
    /// The update, in `guard.patience` iterations running.
    Updates,
    /// The episodes, in as many.
    AllEpisodes,
}

/// The figure, if it is beyond the threshold.
type Shows = fn(&Window, &Figures) -> Option<f64>;
/// Figure and threshold in words, and the cure.
type Says = fn(&Window, f64) -> (String, String);

#[rustfmt::skip]
const ROWS: [(Alarm, At, Shows, Says); 14] = [
    (Alarm::Kl, At::Update, |_, f| above(size(&f.update, "ppo_kl"), KL_MAX), |w, x| (
        format!("the update moved the policy by a KL of {x:.4} nats a token, above {KL_MAX}"), lower_lr(w))),
    (Alarm::Ratio, At::Update, |_, f| above(size(&f.update, "ratio_max"), RATIO_MAX), |w, x| (
        format!("the update made a token {x:.2e} times as probable, above {RATIO_MAX:e}"), lower_lr(w))),
    (Alarm::GradNorm, At::Update, |_, f| above(size(&f.update, "grad_norm"), GRAD_NORM_MAX), |w, x| (
        format!("the gradient's norm is {x:.2e}, above {GRAD_NORM_MAX:e}"), lower_lr(w))),
    (Alarm::Loss, At::Update, |_, f| above(size(&f.update, "loss"), LOSS_MAX), |w, x| (
        format!("the loss is {x:.3}, above {LOSS_MAX}: guessing is better"), lower_lr(w))),
    (Alarm::Entropy, At::Episodes, |_, f| below(f.of("entropy"), ENTROPY_MIN).filter(|_| !is_solved(f)), |w, x| (
        format!("the entropy is {x:.2e} nats a token, below {ENTROPY_MIN}: the policy always says the same"),
        if below(w.first().and_then(|f| f.of("entropy")), ENTROPY_MIN).is_some() { warmer(w) } else { lower_lr(w) })),
    (Alarm::Length, At::Episodes, shortened, |w, x| (
        format!("a turn has {x:.1} tokens, less than {LENGTH_SHARE_MIN} of the first iteration's, and success fell with it"), lower_lr(w))),
    (Alarm::Length, At::AllEpisodes, |_, f| above(f.share("turns_cut", "turns"), HALF), |w, x| (
        format!("{} of the turns are cut off", percent(x)),
        format!("raise actor_rollout_ref.rollout.max_tokens, which is {}", w.plan.config.actor_rollout_ref.rollout.max_tokens))),
    (Alarm::NoReward, At::AllEpisodes, |_, f| f.groups("groups_all_zero").filter(|share| *share == 1.0), |w, _| (
        "no episode has a reward above 0".into(),
        rewarded(w, "take easier tasks (data.tasks), more rounds (algorithm.rounds_ctrl) or a warm start (sft.sources)"))),
    (Alarm::SameReward, At::AllEpisodes, |w, f| f.of("reward").filter(|reward| f.groups("groups_all_one") == Some(1.0) && (is_grouped(w) || *reward == 1.0)), |w, x| (
        format!("all episodes of a task have the same reward above 0 (mean {x:.3}): nothing is left to learn"),
        rewarded(w, "take harder tasks (data.tasks)"))),
    (Alarm::NoSignal, At::AllEpisodes, |w, f| f.groups("groups_mixed").filter(|mixed| *mixed == 0.0 && is_grouped(w)), |w, _| (
        "the rewards of every group are equal, and teach nothing".into(),
        rewarded(w, "raise actor_rollout_ref.rollout.n or its temperature, or take other tasks (data.tasks)"))),
    (Alarm::Unparsed, At::AllEpisodes, |_, f| above(f.share("turns_unparsed", "turns"), HALF), |_, x| (
        format!("{} of the turns hold no action", percent(x)),
        "look at some (agentgym-submit episodes); a model needs its own chat template, and often a warm start (sft.sources)".into())),
    (Alarm::Context, At::AllEpisodes, |_, f| above(f.outcome("length"), HALF), |_, x| (
        format!("{} of the episodes end because their context is full", percent(x)),
        "raise data.max_response_length and actor_rollout_ref.rollout.max_model_len".into())),
    (Alarm::SameSamples, At::AllEpisodes, |_, f| above(f.share("groups_identical", "groups_compared"), HALF).filter(|_| !is_solved(f)), |w, x| (
        format!("in {} of the groups all samples are the same text", percent(x)), warmer(w))),
    (Alarm::Unmoved, At::Updates, |_, f| (f.moved == Some(false) && number(&f.update, "grad_norm") > Some(0.0)).then_some(0.0), |w, _| (
        "training changes no weight: its steps are too small".into(), format!("raise {}, which is {:e}", lr(w).0, lr(w).1))),
];

/// Everything that is wrong.
pub(super) fn all(window: &Window) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for (alarm, at, shows, says) in ROWS {
        let patience = match at {
            At::Updates | At::AllEpisodes if window.newest() > 0 => window.patience(),
            _ => 1,
        };
        // The first rule of a name, and of rules about rewards the first one, says all there is.
        let rewards =
            |alarm| matches!(alarm, Alarm::NoReward | Alarm::SameReward | Alarm::NoSignal);
        let said = |f: &Found| f.alarm == alarm || (rewards(f.alarm) && rewards(alarm));
        let last = window.iterations.last().and_then(|(_, f)| shows(window, f));
        if let Some(value) = last.filter(|_| !found.iter().any(said))
            && let Some(since) = window.row(patience, |f| shows(window, f).is_some())
        {
            let (what, cure) = says(window, value);
            let stage = match at {
                At::Update | At::Updates => policy_of(window.plan, since).stage,
                At::Episodes | At::AllEpisodes => episodes_stage(window),
            };
            found.push(Found {
                alarm,
                since,
                stage,
                what,
                cure,
            });
        }
    }
    found.extend(success(window));
    found.extend(evaluation(window));
    // Where nothing has a reward, that says it.
    if !found.iter().any(|f| f.alarm == Alarm::NoReward) {
        found.extend(unsolved(window));
    }
    if window.plan.config.algorithm.scramble_advantages && window.newest() > 0 {
        found.push(Found {
            alarm: Alarm::Scrambled,
            since: 1,
            stage: Stage::Advantage,
            what: "every episode has the advantages of another one: a control, which learns nothing from rewards".into(),
            cure: "leave out algorithm.scramble_advantages".into(),
        });
    }
    found
}

/// Training success against its best.
fn success(window: &Window) -> Option<Found> {
    let (last, best, since) = best_of(window)?;
    let groups = window.iterations.last()?.1.groups_all()? * window.patience() as f64;
    let error = (2.0 * best * (1.0 - best) / groups).sqrt();
    (last < HALF * best && best - last > ERRORS * error).then(|| Found {
        alarm: Alarm::Success,
        since,
        stage: episodes_stage(window),
        what: format!("success is {last:.3}, less than half of its best {best:.3}"),
        cure: lower_lr(window),
    })
}

/// Success now and at its best, each a mean over `guard.patience` iterations, since a single one is
/// mostly noise; and the first iteration of the newest mean.
pub(super) fn best_of(window: &Window) -> Option<(f64, f64, u32)> {
    let patience = window.patience();
    let known = window.iterations.iter();
    let known: Vec<(u32, f64)> = known
        .filter_map(|(n, f)| Some((*n, f.of("success")?)))
        .collect();
    let mean = |of: &[(u32, f64)]| {
        let whole = of[patience - 1].0 - of[0].0 == patience as u32 - 1;
        whole.then(|| of.iter().map(|(_, success)| success).sum::<f64>() / patience as f64)
    };
    let means = known.windows(patience).filter_map(mean);
    let last = known.windows(patience).next_back()?;
    let is_newest = last[patience - 1].0 == window.newest();
    Some((
        mean(last).filter(|_| is_newest)?,
        means.fold(0.0, f64::max),
        last[0].0,
    ))
}

/// Success on held-out tasks against its best.
fn evaluation(window: &Window) -> Option<Found> {
    // Success on all sets that count, and its variance.
    let score = |sets: &[&Metrics]| {
        let sum = |of: fn(&Metrics, f64) -> Option<f64>| -> Option<f64> {
            sets.iter().map(|set| of(set, number(set, "tasks")?)).sum()
        };
        let tasks = sum(|_, tasks| Some(tasks)).filter(|tasks| *tasks > 0.0)?;
        let success = sum(|set, tasks| Some(tasks * number(set, "success")?))?;
        let variance = sum(|set, tasks| Some((tasks * number(set, "stderr")?).powi(2)))?;
        Some((success / tasks, variance / (tasks * tasks)))
    };
    let scores = window
        .evaluations
        .iter()
        .filter_map(|(id, sets)| Some((*id, score(sets)?)));
    let scores: Vec<_> = scores.collect();
    let (id, (last, variance)) = *scores.last()?;
    let (at, (best, of)) = *scores.iter().max_by(|a, b| a.1.0.total_cmp(&b.1.0))?;
    (last < HALF * best && best - last > ERRORS * (variance + of).sqrt()).then(|| Found {
        alarm: Alarm::Evaluation,
        since: id.iteration,
        stage: id.stage,
        what: format!(
            "success on held-out tasks is {last:.3}, less than half of its best {best:.3} ({at})"
        ),
        cure: lower_lr(window),
    })
}

/// Environments in which no episode was solved, in training or in an evaluation.
fn unsolved(window: &Window) -> Option<Found> {
    let trained = window.iterations.iter().filter(|(n, _)| *n > 0);
    let all = trained
        .clone()
        .filter_map(|(_, f)| f.episodes.get("success_by_env"));
    let of = |env: &str| -> Vec<f64> {
        let shares = all.clone().filter_map(|by| by.get(env)?.as_f64());
        shares.collect()
    };
    let sets = window.evaluations.iter().flat_map(|(_, sets)| sets);
    let never = |env: &&String| {
        let sets = sets
            .clone()
            .filter(|set| set.get("env").and_then(Value::as_str) == Some(env));
        let held_out = sets.filter_map(|set| number(set, "success"));
        let trained = of(env);
        trained.len() >= window.patience() && held_out.chain(trained).sum::<f64>() == 0.0
    };
    let envs = all.clone().next_back()?.as_object()?.keys().filter(never);
    let envs: Vec<String> = envs.map(|env| format!("`{env}`")).collect();
    (!envs.is_empty()).then(|| Found {
        alarm: Alarm::Unsolved,
        since: trained.clone().next().map_or(0, |(n, _)| *n),
        stage: episodes_stage(window),
        what: format!("no episode of environment {} was solved", envs.join(", ")),
        cure: "take easier tasks of it, or leave it out (data.tasks)".into(),
    })
}

/// Turns that have become short while success fell.
fn shortened(window: &Window, f: &Figures) -> Option<f64> {
    let first = window.first()?;
    let fell = f.of("success")? <= HALF * first.of("success")?;
    below(f.turn_tokens(), LENGTH_SHARE_MIN * first.turn_tokens()?).filter(|_| fell)
}

fn episodes_stage(window: &Window) -> Stage {
    match window.plan.config.run.pipeline {
        Pipeline::AgentEvol => Stage::Filter,
        _ => Stage::Advantage,
    }
}

/// The learning rate of the newest policy: its key and value.
fn lr(window: &Window) -> (&'static str, f64) {
    let config = &window.plan.config;
    match policy_of(window.plan, window.newest()).stage {
        Stage::Sft => ("sft.lr", config.sft.lr),
        Stage::Dpo => ("dpo.lr", config.dpo.lr),
        _ => (
            "actor_rollout_ref.actor.optim.lr",
            config.actor_rollout_ref.actor.optim.lr,
        ),
    }
}

fn lower_lr(window: &Window) -> String {
    format!("lower {}, which is {:e}", lr(window).0, lr(window).1)
}

fn warmer(window: &Window) -> String {
    let now = window.plan.config.actor_rollout_ref.rollout.temperature;
    format!("raise actor_rollout_ref.rollout.temperature, which is {now}")
}

/// The cure where rewards are a function's.
fn rewarded(window: &Window, otherwise: &str) -> String {
    match &window.plan.config.reward.function {
        Some(function) => {
            format!("check what the reward function `{function}` answers at reward.url")
        }
        None => otherwise.to_owned(),
    }
}

fn is_grouped(window: &Window) -> bool {
    window.plan.config.algorithm.adv_estimator.needs_groups()
}

fn is_solved(f: &Figures) -> bool {
    f.of("success") >= Some(SOLVED)
}

fn above(value: Option<f64>, limit: f64) -> Option<f64> {
    value.filter(|value| *value > limit)
}

fn below(value: Option<f64>, limit: f64) -> Option<f64> {
    value.filter(|value| *value < limit)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}
