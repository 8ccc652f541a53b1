//! What serde cannot refuse: numbers out of range, arithmetic that does not
//! come out even, names that nothing declares. All of it is checked before
//! anything runs, and each message names the key.

use super::engine;
use super::keys::limits::{LISTED_MAX, TASKS_MAX};
use super::names;
use super::types::{Config, Ids, Numerics, Pipeline, SftSource};
use crate::{Error, Result};
use agentgym_envs::builtin::{RULES, other_rules};

/// What an adapter can be put on, as PEFT names it; the model crate has the same list.
pub const LORA_MODULES: [&str; 7] = [
    "down_proj",
    "gate_proj",
    "k_proj",
    "o_proj",
    "q_proj",
    "up_proj",
    "v_proj",
];

/// Choices among sources in one batch: a tenth of a second.
const DRAWS_MAX: usize = 50_000_000;

/// As `rollout.temperature`.
const COLDEST: f64 = 1e-6;

/// As `rollout.max_tokens`.
const TOKENS_MAX: usize = 100_000_000;

/// Checks the arithmetic and the names that serde cannot. Of a stored plan, whose numbers and
/// names were accepted once, only what whoever reads it relies on.
pub(super) fn check(config: &Config, stored: bool) -> Result<()> {
    combinations(config)?;
    engine::check(config)?;
    reward_function(config)?;
    adapter(config)?;
    arithmetic(config)?;
    environments(config)?;
    config.check_sft()?;
    tasks(config)?;
    evaluation(config, stored)?;
    match stored {
        true => Ok(()),
        false => rules(config).and_then(|()| names::check(config)),
    }
}

/// A new run plays by our rules; a fork goes on as its parent played.
fn rules(config: &Config) -> Result<()> {
    let rules = config.actor_rollout_ref.agentgym.rules;
    config.check_rules()?;
    match rules == RULES || config.run.fork.run.is_some() {
        true => Ok(()),
        false => Err(Error::value(
            "actor_rollout_ref.agentgym.rules",
            other_rules("a new run would play", rules),
        )),
    }
}

fn combinations(config: &Config) -> Result<()> {
    let algorithm = &config.algorithm;
    if config.trainer.state_freq > 1 && config.run.numerics == Numerics::Any {
        return Err(Error::value(
            "trainer.state_freq",
            "a state that is not stored is made again to the bit, which workers of several numeric classes cannot \
             (run.numerics=any); set it to 1, or run.numerics to exact",
        ));
    }
    if algorithm.lag > 0 && algorithm.rollout_correction.rollout_is.is_none() {
        return Err(Error::value(
            "algorithm.lag",
            "samples come from an older policy than the one that is updated, which must be corrected for: set \
             algorithm.rollout_correction.rollout_is to token or sequence",
        ));
    }
    Ok(())
}

/// A function for rewards has an address, and rewards whole episodes.
fn reward_function(config: &Config) -> Result<()> {
    let reward = &config.reward;
    let Some(function) = &reward.function else {
        return match reward.url {
            None => Ok(()),
            Some(_) => Err(Error::value(
                "reward.url",
                "is not called without reward.function, the function's name and version; give that too",
            )),
        };
    };
    if !matches!(config.run.pipeline, Pipeline::Rl | Pipeline::AgentEvol) {
        return Err(Error::value(
            "reward.function",
            "rewards the rollouts of rl and agentevol runs; this run has none, leave it out",
        ));
    }
    if config.algorithm.turn_rewards {
        return Err(Error::value(
            "algorithm.turn_rewards",
            format!("reward.function = {function} rewards whole episodes; set it to false"),
        ));
    }
    let url = reward.url.as_deref().unwrap_or_default();
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        return Err(Error::value(
            "reward.url",
            format!("must be the http:// or https:// address of {function}, found {url:?}"),
        ));
    }
    Ok(())
}

/// The keys of an adapter, under the names that users of verl know.
fn adapter(config: &Config) -> Result<()> {
    let model = &config.actor_rollout_ref.model;
    let key = |name: &str| format!("actor_rollout_ref.model.{name}");
    let mut modules = model.target_modules.iter().peekable();
    if modules.peek().is_none() {
        return Err(Error::value(
            key("target_modules"),
            "is empty; all-linear adapts all of them",
        ));
    }
    match modules.find(|name| *name != "all-linear" && !LORA_MODULES.contains(name)) {
        None => Ok(()),
        Some(unknown) => Err(Error::value(
            key("target_modules"),
            format!(
                "there is no module `{unknown}` to adapt; known are {}, and all-linear for all of them",
                LORA_MODULES.join(", ")
            ),
        )),
    }
}

fn arithmetic(config: &Config) -> Result<()> {
    let rollout = &config.actor_rollout_ref.rollout;
    let (batch, mini) = (
        config.data.train_batch_size,
        config.actor_rollout_ref.actor.ppo_mini_batch_size,
    );
    if batch % mini != 0 {
        let below = (1..mini.min(batch)).rev().find(|n| batch % n == 0);
        let above = (mini..=batch).find(|n| batch % n == 0);
        let near: Vec<_> = [below, above]
            .into_iter()
            .flatten()
            .map(|n| n.to_string())
            .collect();
        return Err(Error::value(
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            format!(
                "{mini} does not divide data.train_batch_size = {batch}; nearest that does: {}",
                near.join(" or ")
            ),
        ));
    }
    config.check_algorithm()?;
    config.check_dpo()?;
    config.check_agentevol()?;
    if rollout.max_tokens > rollout.max_model_len {
        return Err(Error::value(
            "actor_rollout_ref.rollout.max_tokens",
            format!(
                "{} tokens per turn do not fit max_model_len = {}",
                rollout.max_tokens, rollout.max_model_len
            ),
        ));
    }
    Ok(())
}

/// Every environment that is named is declared, and its limits allow for a turn.
fn environments(config: &Config) -> Result<()> {
    let known = config.environments();
    for (name, environment) in &known {
        let limits = [
            ("max_rounds", environment.max_rounds.map(u64::from)),
            ("max_tokens", environment.max_tokens.map(|n| n as u64)),
        ];
        if let Some((key, _)) = limits.iter().find(|(_, limit)| *limit == Some(0)) {
            return Err(Error::value(
                format!("actor_rollout_ref.agentgym.envs.{name}.{key}"),
                "0 leaves no room for a turn; give 1 or more, or leave it out",
            ));
        }
        let long = environment.max_tokens.filter(|tokens| *tokens > TOKENS_MAX);
        if let Some(tokens) = long {
            return Err(Error::value(
                format!("actor_rollout_ref.agentgym.envs.{name}.max_tokens"),
                format!(
                    "must be 1 to {TOKENS_MAX}, found {tokens}; leave it out for no limit of its own"
                ),
            ));
        }
    }
    let tasks = config.data.tasks.iter().enumerate();
    let sets = config.evaluation.sets.iter().enumerate();
    let sources = config.sft.sources.iter().enumerate();
    let held_out = config.sft.validation_sources.iter().enumerate();
    let named = tasks
        .map(|(i, s)| (format!("data.tasks[{i}].env"), Some(&s.env)))
        .chain(sets.map(|(i, s)| (format!("evaluation.sets[{i}].env"), Some(&s.env))))
        .chain(sources.map(|(i, s)| (format!("sft.sources[{i}].env"), s.env.as_ref())))
        .chain(held_out.map(|(i, s)| (format!("sft.validation_sources[{i}].env"), s.env.as_ref())));
    for (key, env) in named {
        if let Some(env) = env.filter(|env| !known.contains_key(*env)) {
            let names: Vec<_> = known.keys().map(String::as_str).collect();
            return Err(Error::value(
                key,
                format!(
                    "`{env}` is not declared under actor_rollout_ref.agentgym.envs; declared: {}",
                    names.join(", ")
                ),
            ));
        }
    }
    Ok(())
}

/// Sources of demonstrations: files, or solvers of environments.
pub(super) fn demonstrations(key: &str, sources: &[SftSource]) -> Result<()> {
    let mut counted = Counted::default();
    for (index, source) in sources.iter().enumerate() {
        if source.file.is_some() == source.env.is_some() {
            return Err(Error::value(
                format!("{key}[{index}]"),
                "give either `file` or `env` with `ids`",
            ));
        }
        if source.env.is_some() != source.ids.is_some() {
            return Err(Error::value(
                format!("{key}[{index}].ids"),
                "which demonstrations? write A..B",
            ));
        }
        if let Some(ids) = &source.ids {
            counted.add(&format!("{key}[{index}].ids"), ids)?;
        }
        share(&format!("{key}[{index}].share"), source.share)?;
    }
    Ok(())
}

/// Task ids can be read, and shares are given to all sources or to none.
fn tasks(config: &Config) -> Result<()> {
    let tasks = &config.data.tasks;
    let mut counted = Counted::default();
    for (index, source) in tasks.iter().enumerate() {
        counted.add(&format!("data.tasks[{index}].ids"), &source.ids)?;
        if source.share.is_some() != tasks[0].share.is_some() {
            return Err(Error::value(
                format!("data.tasks[{index}].share"),
                "give a share to every source or to none",
            ));
        }
        share(&format!("data.tasks[{index}].share"), source.share)?;
    }
    let curriculum = match config.run.pipeline {
        _ if config.data.curriculum.solved.is_none() => None,
        Pipeline::AgentEvol => {
            Some("rl alone has one; it cannot be given under run.pipeline=agentevol")
        }
        Pipeline::Rl if tasks.len() < 2 => Some(
            "sources of data.tasks enter one by one, and there is one; list the easy ones first",
        ),
        _ => None,
    };
    if let Some(why) = curriculum {
        return Err(Error::value("data.curriculum.solved", why));
    }
    // Each draw of a batch looks at every source.
    let draws = config.data.train_batch_size.saturating_mul(tasks.len());
    if draws > DRAWS_MAX {
        return Err(Error::value(
            "data.tasks",
            format!(
                "{} sources for a batch of {} tasks (data.train_batch_size) are {draws} choices, at most {DRAWS_MAX} \
                 are made; put ids of one environment into one source",
                tasks.len(),
                config.data.train_batch_size
            ),
        ));
    }
    Ok(())
}

/// A share is a weight among others.
fn share(key: &str, share: Option<f64>) -> Result<()> {
    const MOST: f64 = 1e9;
    match share {
        Some(share) if !(share > 0.0 && share <= MOST) => Err(Error::value(
            key,
            format!("must be above 0 and at most {MOST}, found {share}"),
        )),
        _ => Ok(()),
    }
}

/// Ids of several lists and ranges, together no more than a program can hold.
#[derive(Default)]
struct Counted {
    all: usize,
    listed: usize,
}

impl Counted {
    fn add(&mut self, key: &str, ids: &Ids) -> Result<usize> {
        let count = ids.count(key)?;
        self.all += count;
        if matches!(ids, Ids::List(_)) {
            self.listed += count;
        }
        for (found, most, what) in [
            (self.all, TASKS_MAX, "are drawn from"),
            (self.listed, LISTED_MAX, "are named one by one"),
        ] {
            if found > most {
                return Err(Error::value(
                    key,
                    format!("with it {found} tasks {what}, at most {most} can be; give fewer"),
                ));
            }
        }
        Ok(count)
    }
}

/// Every set says what is played, once, and the numbers of samples go together.
fn evaluation(config: &Config, stored: bool) -> Result<()> {
    let evaluation = &config.evaluation;
    let mut counted = Counted::default();
    for (index, set) in evaluation.sets.iter().enumerate() {
        let key = format!("evaluation.sets[{index}]");
        let given = counted.add(&format!("{key}.ids"), &set.ids)? > 0;
        if given == set.file.is_some() {
            return Err(Error::value(
                key,
                "which items? give either `file` or `ids` (A..B, or a list)",
            ));
        }
        for (name, ids) in set.categories.iter().flatten() {
            counted.add(&format!("{key}.categories.{name}"), ids)?;
        }
    }
    let (temperature, samples) = (evaluation.temperature, evaluation.samples);
    if temperature > 0.0 && temperature < COLDEST && !stored {
        return Err(Error::value(
            "evaluation.temperature",
            format!("must be 0, which is greedy, or at least {COLDEST:e}, found {temperature:e}"),
        ));
    }
    if temperature == 0.0 && samples != 1 {
        return Err(Error::value(
            "evaluation.samples",
            format!(
                "at temperature 0 all samples of a task are the same, found {samples}; set it to 1"
            ),
        ));
    }
    if let Some(k) = evaluation
        .ks()
        .into_iter()
        .find(|k| !(1..=samples as usize).contains(k))
    {
        return Err(Error::value(
            "evaluation.k",
            format!(
                "pass@{k} cannot be estimated from evaluation.samples = {samples}; give numbers of 1 to {samples}"
            ),
        ));
    }
    if config.run.pipeline == Pipeline::Eval && evaluation.sets.is_empty() {
        return Err(Error::value(
            "evaluation.sets",
            "an eval run needs at least one set: {name, env, ids} or {name, env, file}",
        ));
    }
    Ok(())
}
