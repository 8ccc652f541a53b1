//! What serde cannot refuse: numbers out of range, arithmetic that does not
//! come out even, names that nothing declares. All of it is checked before
//! anything runs, and each message names the key.

use super::types::{Config, Pipeline};
use crate::{Error, Result};

/// Longest time that a key may give, seconds: about thirty years. More cannot
/// be added to a clock.
const SECONDS_MAX: f64 = 1e9;

/// Largest size that a key may give, gigabytes: an exabyte. It is counted in bytes.
const GIGABYTES_MAX: f64 = 1e9;

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

/// Checks the arithmetic and the names that serde cannot.
pub(super) fn check(config: &Config) -> Result<()> {
    numbers(config)?;
    ranges(config)?;
    adapter(config)?;
    arithmetic(config)?;
    environments(config)?;
    demonstrations(config)?;
    tasks(config)?;
    evaluation(config)
}

fn numbers(config: &Config) -> Result<()> {
    let (data, jobs) = (&config.data, &config.jobs);
    let (actor, rollout) = (
        &config.actor_rollout_ref.actor,
        &config.actor_rollout_ref.rollout,
    );
    for (key, value) in [
        ("data.train_batch_size", data.train_batch_size as f64),
        ("data.max_prompt_length", data.max_prompt_length as f64),
        ("data.max_response_length", data.max_response_length as f64),
        ("actor_rollout_ref.rollout.n", f64::from(rollout.n)),
        ("actor_rollout_ref.rollout.temperature", rollout.temperature),
        ("actor_rollout_ref.rollout.top_p", rollout.top_p),
        (
            "actor_rollout_ref.rollout.max_tokens",
            rollout.max_tokens as f64,
        ),
        (
            "actor_rollout_ref.rollout.max_model_len",
            rollout.max_model_len as f64,
        ),
        (
            "actor_rollout_ref.actor.ppo_mini_batch_size",
            actor.ppo_mini_batch_size as f64,
        ),
        (
            "actor_rollout_ref.actor.ppo_epochs",
            f64::from(actor.ppo_epochs),
        ),
        (
            "actor_rollout_ref.actor.clip_ratio_low",
            actor.clip_ratio_low,
        ),
        (
            "actor_rollout_ref.actor.clip_ratio_high",
            actor.clip_ratio_high,
        ),
        ("actor_rollout_ref.actor.grad_clip", actor.grad_clip),
        ("actor_rollout_ref.actor.optim.lr", actor.optim.lr),
        ("jobs.rollout_part_tasks", jobs.rollout_part_tasks as f64),
        ("jobs.unit_tokens", jobs.unit_tokens as f64),
        ("jobs.update_shards", f64::from(jobs.update_shards)),
        ("jobs.pack_tokens", jobs.pack_tokens as f64),
        ("jobs.decode_rows", jobs.decode_rows as f64),
        ("jobs.sft_part_steps", f64::from(jobs.sft_part_steps)),
        ("jobs.failures_max", f64::from(jobs.failures_max)),
        ("jobs.vanished_max", f64::from(jobs.vanished_max)),
        ("jobs.length_max", jobs.length_max as f64),
        ("sft.batch_size", config.sft.batch_size as f64),
        ("sft.lr", config.sft.lr),
        ("guard.patience", f64::from(config.guard.patience)),
        ("evaluation.samples", f64::from(config.evaluation.samples)),
        (
            "evaluation.max_rounds",
            f64::from(config.evaluation.max_rounds),
        ),
        (
            "trainer.total_epochs",
            f64::from(config.trainer.total_epochs),
        ),
    ] {
        if !(value > 0.0 && value.is_finite()) {
            return Err(Error::value(
                key,
                format!("must be positive, found {value}"),
            ));
        }
    }
    if config.actor_rollout_ref.agentgym.context_turns == Some(0) {
        return Err(Error::value(
            "actor_rollout_ref.agentgym.context_turns",
            "must be at least 1, or null for all turns",
        ));
    }
    let algorithm = &config.algorithm;
    if algorithm.lag > 0 && algorithm.rollout_correction.rollout_is.is_none() {
        return Err(Error::value(
            "algorithm.lag",
            "samples come from an older policy than the one that is updated, which must be corrected for: set \
             algorithm.rollout_correction.rollout_is to token or sequence",
        ));
    }
    if jobs.threads == Some(0) {
        return Err(Error::value(
            "jobs.threads",
            "must be at least 1; leave it out for all cores",
        ));
    }
    Ok(())
}

/// Times and sizes that a machine can have.
fn ranges(config: &Config) -> Result<()> {
    let (jobs, rollout) = (&config.jobs, &config.actor_rollout_ref.rollout);
    for (key, value, least) in [
        (
            "actor_rollout_ref.rollout.episode_deadline_s",
            rollout.episode_deadline_s,
            0.001,
        ),
        (
            "actor_rollout_ref.agentgym.timeout",
            config.actor_rollout_ref.agentgym.timeout,
            0.001,
        ),
        ("jobs.journal_interval_s", jobs.journal_interval_s, 0.001),
        ("jobs.beat_timeout_s", jobs.beat_timeout_s as f64, 1.0),
        ("jobs.lease_ttl_s", jobs.lease_ttl_s as f64, 1.0),
        ("jobs.backoff_s", jobs.backoff_s, 0.0),
    ] {
        if !(least..=SECONDS_MAX).contains(&value) {
            return Err(Error::value(
                key,
                format!("is a time of {least} to {SECONDS_MAX} seconds, found {value}"),
            ));
        }
    }
    if !(0.0..=GIGABYTES_MAX).contains(&jobs.cache_gb) {
        let found = jobs.cache_gb;
        return Err(Error::value(
            "jobs.cache_gb",
            format!("is a size of 0 to {GIGABYTES_MAX} gigabytes, found {found}"),
        ));
    }
    Ok(())
}

/// The keys of an adapter, under the names that users of verl know.
fn adapter(config: &Config) -> Result<()> {
    let model = &config.actor_rollout_ref.model;
    let key = |name: &str| format!("actor_rollout_ref.model.{name}");
    if model.lora_rank < 0 {
        return Err(Error::value(
            key("lora_rank"),
            format!(
                "is the rank of an adapter, at least 1, or 0 for none; found {}",
                model.lora_rank
            ),
        ));
    }
    if !(model.lora_alpha > 0.0 && model.lora_alpha.is_finite()) {
        return Err(Error::value(
            key("lora_alpha"),
            format!("must be positive, found {}", model.lora_alpha),
        ));
    }
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
    }
    let tasks = config.data.tasks.iter().enumerate();
    let sets = config.evaluation.sets.iter().enumerate();
    let sources = config.sft.sources.iter().enumerate();
    let named = tasks
        .map(|(i, s)| (format!("data.tasks[{i}].env"), Some(&s.env)))
        .chain(sets.map(|(i, s)| (format!("evaluation.sets[{i}].env"), Some(&s.env))))
        .chain(sources.map(|(i, s)| (format!("sft.sources[{i}].env"), s.env.as_ref())));
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

fn demonstrations(config: &Config) -> Result<()> {
    let sft = &config.sft;
    for (index, source) in sft.sources.iter().enumerate() {
        if source.file.is_some() == source.env.is_some() {
            return Err(Error::value(
                format!("sft.sources[{index}]"),
                "give either `file` or `env` with `ids`",
            ));
        }
        if source.env.is_some() != source.ids.is_some() {
            return Err(Error::value(
                format!("sft.sources[{index}].ids"),
                "which demonstrations? write A..B",
            ));
        }
    }
    if sft.steps > 0 && sft.sources.is_empty() {
        return Err(Error::value(
            "sft.sources",
            "sft.steps is set, but there is nothing to learn from",
        ));
    }
    if config.run.pipeline == Pipeline::Sft && sft.steps == 0 {
        return Err(Error::value(
            "sft.steps",
            "an sft run needs at least one step",
        ));
    }
    Ok(())
}

/// Task ids can be read, and shares are given to all sources or to none.
fn tasks(config: &Config) -> Result<()> {
    let tasks = &config.data.tasks;
    for (index, source) in tasks.iter().enumerate() {
        source.ids.resolve(&format!("data.tasks[{index}].ids"))?;
        if source.share.is_some() != tasks[0].share.is_some() {
            return Err(Error::value(
                format!("data.tasks[{index}].share"),
                "give a share to every source or to none",
            ));
        }
    }
    Ok(())
}

/// Every set says what is played, once, and the numbers of samples go together.
fn evaluation(config: &Config) -> Result<()> {
    let evaluation = &config.evaluation;
    for (index, set) in evaluation.sets.iter().enumerate() {
        let key = format!("evaluation.sets[{index}]");
        let given = !set.ids.resolve(&format!("{key}.ids"))?.is_empty();
        if given == set.file.is_some() {
            return Err(Error::value(
                key,
                "which items? give either `file` or `ids` (A..B, or a list)",
            ));
        }
        set.categories_of(&key)?;
    }
    let (temperature, samples) = (evaluation.temperature, evaluation.samples);
    if !(temperature >= 0.0 && temperature.is_finite()) {
        return Err(Error::value(
            "evaluation.temperature",
            format!("must be at least 0, found {temperature}"),
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
