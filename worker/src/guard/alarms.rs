//! The watchdog's rules: what a run's figures say is wrong with it. Each is a function of the plan
//! and of committed figures alone, so every process says the same of a run, at any time.
//!
//! The thresholds lie far outside of what sound runs show: a warning is for a run that is broken,
//! not for one that learns badly. `docs/algorithms.md` has the reason of each.

use super::figures::{Figures, Window, size};
use super::warning::Warning;
use agentgym_jobs::config::{Alarm, Pipeline};
use agentgym_jobs::episode::Outcome;
use agentgym_jobs::pipeline::{Stage, policy_of};
use agentgym_record::metrics::EvaluationMetrics;
use std::collections::BTreeMap;

/// Mean difference of a token's log-prob before and after an update, nats.
const KL_MAX: f64 = 0.3;
/// Change of one token's probability in an update, as a factor.
const RATIO_MAX: f64 = 1e6;
/// The same in a step that moves something.
const RATIO_MIN: f64 = 1.0001;
/// A learning rate that no weight of a usual size feels.
const LR_MIN: f64 = 1e-10;
/// Norm of a gradient before clipping.
const GRAD_NORM_MAX: f64 = 100.0;
/// Entropy per token, nats; above is a choice among more than fifty equally likely tokens.
const ENTROPY_MIN: f64 = 0.003;
const ENTROPY_MAX: f64 = 4.0;
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
const ROWS: [(Alarm, At, Shows, Says); 16] = [
    (Alarm::Kl, At::Update, |_, f| above(size(f.steps.ppo_kl), KL_MAX), |w, x| (
        format!("the update moved the policy by a KL of {x:.4} nats a token, above {KL_MAX}"), lower_lr(w))),
    (Alarm::Ratio, At::Update, |_, f| above(size(f.steps.ratio_max), RATIO_MAX), |w, x| (
        format!("the update made a token {x:.2e} times as probable, above {RATIO_MAX:e}"), lower_lr(w))),
    (Alarm::GradNorm, At::Updates, |_, f| above(size(f.steps.grad_norm), GRAD_NORM_MAX), |w, x| (
        format!("the gradient's norm is {x:.1}, above {GRAD_NORM_MAX}"),
        lower_lr(w) + ", or actor_rollout_ref.actor.entropy_coeff and kl_loss_coef")),
    (Alarm::GradNorm, At::Update, |_, f| above(f.steps.non_finite.map(|steps| steps as f64), 0.0), |w, x| (
        format!("{x} steps were left out, since their gradient is not finite"), lower_lr(w))),
    (Alarm::Loss, At::Update, |_, f| above(size(f.steps.loss), LOSS_MAX), |w, x| (
        format!("the loss is {x:.3}, above {LOSS_MAX}: guessing is better"), lower_lr(w))),
    (Alarm::Entropy, At::Episodes, |_, f| below(f.entropy(), ENTROPY_MIN).filter(|_| !is_solved(f)), |w, x| (
        format!("the entropy is {x:.2e} nats a token, below {ENTROPY_MIN}: the policy always says the same"),
        if below(w.first().and_then(|f| f.entropy()), ENTROPY_MIN).is_some() { temperature(w, "raise") } else { lower_lr(w) })),
    (Alarm::Entropy, At::Episodes, |_, f| above(f.entropy(), ENTROPY_MAX), |w, x| (
        format!("the entropy is {x:.2} nats a token, above {ENTROPY_MAX}: the policy says anything"),
        if above(w.first().and_then(|f| f.entropy()), ENTROPY_MAX).is_some() { temperature(w, "lower") } else { lower_lr(w) })),
    (Alarm::Length, At::Episodes, shortened, |w, x| (
        format!("a turn has {x:.1} tokens, less than {LENGTH_SHARE_MIN} of the first iteration's, and success fell with it"), lower_lr(w))),
    (Alarm::Length, At::AllEpisodes, |_, f| above(f.share(|t| (t.turns_cut, t.turns)), HALF), |w, x| (
        format!("{} of the turns are cut off", percent(x)),
        format!("raise actor_rollout_ref.rollout.max_tokens, which is {}", w.plan.config.actor_rollout_ref.rollout.max_tokens))),
    (Alarm::NoReward, At::AllEpisodes, |_, f| f.groups(|g| g.all_zero).filter(|share| *share == 1.0), |w, _| (
        "no episode has a reward above 0".into(),
        rewarded(w, "take easier tasks (data.tasks), more rounds (algorithm.rounds_ctrl) or a warm start (sft.sources)"))),
    (Alarm::SameReward, At::AllEpisodes, |w, f| f.reward().filter(|reward| f.groups(|g| g.all_one) == Some(1.0) && (is_grouped(w) || *reward == 1.0)), |w, x| (
        format!("all episodes of a task have the same reward above 0 (mean {x:.3}): nothing is left to learn"),
        rewarded(w, "take harder tasks (data.tasks)"))),
    (Alarm::NoSignal, At::AllEpisodes, |w, f| f.groups(|g| g.mixed).filter(|mixed| *mixed == 0.0 && is_grouped(w)), |w, _| (
        "the rewards of every group are equal, and teach nothing".into(),
        rewarded(w, "raise actor_rollout_ref.rollout.n or its temperature, or take other tasks (data.tasks)"))),
    (Alarm::Unparsed, At::AllEpisodes, |_, f| above(f.share(|t| (t.turns_unparsed, t.turns)), HALF), |_, x| (
        format!("{} of the turns hold no action", percent(x)),
        "look at some (agentgym-submit episodes); a model needs its own chat template, and often a warm start (sft.sources)".into())),
    (Alarm::Context, At::AllEpisodes, |_, f| above(f.outcome(Outcome::Length), HALF), |_, x| (
        format!("{} of the episodes end because their context is full", percent(x)),
        "raise data.max_response_length and actor_rollout_ref.rollout.max_model_len".into())),
    (Alarm::SameSamples, At::AllEpisodes, |_, f| above(f.share(|t| (t.groups_identical, t.groups_compared)), HALF).filter(|_| !is_solved(f)), |w, x| (
        format!("in {} of the groups all samples are the same text", percent(x)), temperature(w, "raise"))),
    (Alarm::Unmoved, At::Updates, unmoved, |w, _| (
        "training moves nothing: its steps are too small".into(), format!("raise {}, which is {:?}", lr(w).0, lr(w).1))),
];

/// Everything that is wrong.
pub(super) fn all(window: &Window) -> Vec<Warning> {
    let mut found: Vec<Warning> = Vec::new();
    // The first rule of a name, and of rules about rewards the first one, says all there is.
    let kind = |name: &str| match name {
        "no_reward" | "same_reward" | "no_signal" => "rewards".to_owned(),
        name => name.to_owned(),
    };
    for (alarm, at, shows, says) in ROWS {
        let patience = match at {
            At::Updates | At::AllEpisodes if window.newest() > 0 => window.patience(),
            _ => 1,
        };
        // One that pauses is not left out for one that does not.
        let pauses = window.plan.config.guard.pause.contains(&alarm);
        let is_said = !pauses && found.iter().any(|w| kind(&w.name) == kind(&alarm.name()));
        let last = window.iterations.last().and_then(|(_, f)| shows(window, f));
        if let Some(value) = last.filter(|_| !is_said)
            && let Some(since) = window.row(patience, |f| shows(window, f).is_some())
        {
            let stage = match at {
                At::Update | At::Updates => policy_of(window.plan, since).stage,
                At::Episodes | At::AllEpisodes => episodes_stage(window),
            };
            found.push(window.warning(alarm, since, stage, says(window, value)));
        }
    }
    found.extend(success(window));
    found.extend(evaluation(window));
    // Where nothing has a reward, that says it.
    if !found.iter().any(|w| w.name == Alarm::NoReward.name()) {
        found.extend(unsolved(window));
    }
    if window.plan.config.algorithm.scramble_advantages && window.newest() > 0 {
        let what = "every episode has the advantages of another one: a control, which learns nothing from rewards";
        let cure = "leave out algorithm.scramble_advantages";
        let said = (what.to_owned(), cure.to_owned());
        found.push(window.warning(Alarm::Scrambled, 1, Stage::Advantage, said));
    }
    found
}

/// Training success against its best.
fn success(window: &Window) -> Option<Warning> {
    let (last, best, since) = best_of(window)?;
    let groups = window.iterations.last()?.1.groups_all()? * window.patience() as f64;
    let error = (2.0 * best * (1.0 - best) / groups).sqrt();
    let what = format!("success is {last:.3}, less than half of its best {best:.3}");
    let said = (what, lower_lr(window));
    let is_far = last < HALF * best && best - last > ERRORS * error;
    is_far.then(|| window.warning(Alarm::Success, since, episodes_stage(window), said))
}

/// Success now and at its best, each a mean over `guard.patience` iterations, since a single one is
/// mostly noise; and the first iteration of the newest mean.
pub(super) fn best_of(window: &Window) -> Option<(f64, f64, u32)> {
    let patience = window.patience();
    let mean = |of: &[(u32, &Figures)]| {
        let sum: Option<f64> = of.iter().map(|(_, f)| f.success()).sum();
        let (from, to) = (of[0].0, of[patience - 1].0);
        let mean = sum? / patience as f64;
        (to - from == patience as u32 - 1).then_some((mean, from, to))
    };
    let means = window.iterations.windows(patience).filter_map(mean);
    let means: Vec<(f64, u32, u32)> = means.collect();
    let best = means.iter().map(|(mean, ..)| *mean).fold(0.0, f64::max);
    let (last, from, to) = *means.last()?;
    (to == window.newest()).then_some((last, best, from))
}

/// Success on held-out tasks against its best.
fn evaluation(window: &Window) -> Option<Warning> {
    let of = |set: &&EvaluationMetrics| {
        let tasks = set.tasks as f64;
        [tasks, tasks * set.success, (tasks * set.stderr).powi(2)]
    };
    // Success on all sets that count, and its variance.
    let score = |sets: &[&EvaluationMetrics]| {
        let all: Vec<[f64; 3]> = sets.iter().map(of).collect();
        let [tasks, solved, variance] =
            [0, 1, 2].map(|n| all.iter().map(|set| set[n]).sum::<f64>());
        (tasks > 0.0).then(|| (solved / tasks, variance / (tasks * tasks)))
    };
    let scores = window.evaluations.iter();
    let scores = scores.filter_map(|(id, sets)| Some((*id, score(sets)?)));
    let scores: Vec<_> = scores.collect();
    let (id, (last, variance)) = *scores.last()?;
    let (at, (best, of)) = *scores.iter().max_by(|a, b| a.1.0.total_cmp(&b.1.0))?;
    let is_far = last < HALF * best && best - last > ERRORS * (variance + of).sqrt();
    let what = format!(
        "success on held-out tasks is {last:.3}, less than half of its best {best:.3} ({at})"
    );
    let said = (what, lower_lr(window));
    is_far.then(|| window.warning(Alarm::Evaluation, id.iteration, id.stage, said))
}

/// Environments in which no episode was solved, in training or in an evaluation.
fn unsolved(window: &Window) -> Option<Warning> {
    let trained = window.iterations.iter();
    let trained: Vec<(u32, &BTreeMap<String, f64>)> = trained
        .filter_map(|(n, f)| Some((*n, &f.played.as_ref()?.success_by_env)))
        .collect();
    let never = |env: &&String| {
        let sets = window.evaluations.iter().flat_map(|(_, sets)| sets);
        let held_out = sets.filter(|set| set.env == **env).map(|set| set.success);
        let shares = trained.iter().filter_map(|(_, by)| by.get(*env).copied());
        shares.clone().count() >= window.patience() && held_out.chain(shares).all(|s| s == 0.0)
    };
    let envs = trained.last()?.1.keys().filter(never);
    let envs: Vec<String> = envs.map(|env| format!("`{env}`")).collect();
    let (newest, envs_said) = (window.newest(), envs.join(", "));
    let what = format!("no episode of environment {envs_said} was solved");
    let cure = "take easier tasks of it, or leave it out (data.tasks)".to_owned();
    // What lies between the first iterations and the newest ones is not read.
    let tail = trained
        .iter()
        .rev()
        .zip(0..)
        .take_while(|((n, _), back)| n + back == newest);
    let since = tail.last().map_or(newest, |((n, _), _)| *n);
    let stage = episodes_stage(window);
    (!envs.is_empty()).then(|| window.warning(Alarm::Unsolved, since, stage, (what, cure)))
}

/// Turns that have become short while success fell.
fn shortened(window: &Window, f: &Figures) -> Option<f64> {
    let first = window.first()?;
    let fell = f.success()? <= HALF * first.success()?;
    below(f.turn_tokens(), LENGTH_SHARE_MIN * first.turn_tokens()?).filter(|_| fell)
}

/// An update that has a gradient and leaves the policy as it was. Of several steps the later ones
/// see what the earlier ones did; of a single step nothing is seen but its rate.
fn unmoved(_: &Window, f: &Figures) -> Option<f64> {
    let still = match f.steps.taken? > 1 {
        true => f.steps.ratio_max? < RATIO_MIN,
        false => f.steps.lr? < LR_MIN,
    };
    f.steps.grad_norm.filter(|norm| still && *norm > 0.0)
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
    format!(
        "lower {}, which is {:?}, in a fork (agentgym-submit fork)",
        lr(window).0,
        lr(window).1
    )
}

fn temperature(window: &Window, how: &str) -> String {
    let now = window.plan.config.actor_rollout_ref.rollout.temperature;
    format!("{how} actor_rollout_ref.rollout.temperature, which is {now}")
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
    f.success() >= Some(SOLVED)
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
