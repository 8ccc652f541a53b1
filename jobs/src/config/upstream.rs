//! Differences between AgentGym-RL's configs and scripts and ours: values that mean "off" there,
//! keys of absent features that would change what is learnt, the keys of its evaluation, and the
//! task file that replaces a config's own list. Facts about AgentGym-RL refer to its commit
//! 82402a9; see docs/from-agentgym-rl.md.

use super::keys::{self, KeySpec};
use super::tree::{get, remove, set, shown, yaml};
use super::{Config, Pipeline};
use crate::{Error, Result};
use agentgym_algorithms::Aggregation;
use serde_json::{Value, json};

/// (key, value there, value here) with the same meaning.
const OFF: [(&str, &str, &str); 5] = [
    ("data.tasks", "null", "[]"),
    ("trainer.test_freq", "-1", "0"),
    ("trainer.save_freq", "-1", "0"),
    // AgentGym-RL never reads these.
    ("actor_rollout_ref.actor.optim.min_lr_ratio", "null", "0.0"),
    ("critic.optim.min_lr_ratio", "null", "0.0"),
];

/// Keys of verl under which something else, or nothing, is read here.
const ELSEWHERE: [(&str, &str); 1] = [(
    "data.train_files",
    "Parquet files are not read; data.train_file is a JSON list of item ids, data.tasks names ids directly",
)];

/// What is read in place of a key that is not in the table.
pub(super) fn elsewhere(path: &str) -> Option<&'static str> {
    let found = ELSEWHERE.iter().find(|(key, _)| *key == path);
    found.map(|(_, instead)| *instead)
}

/// Loggers that `trainer.logger` supports here.
const LOGGERS: [&str; 3] = ["console", "jsonl", "tensorboard"];

/// Replaces AgentGym-RL's values for "off" by ours.
pub(super) fn normalise(tree: &mut Value) -> Result<()> {
    let plain = |text: &str| yaml(text).expect("a constant of this file is YAML");
    for (path, there, here) in OFF {
        if get(tree, path) == Some(&plain(there)) {
            set(tree, path, plain(here))?;
        }
    }
    // A single logger or a list.
    if let Some(name @ Value::String(_)) = get(tree, "trainer.logger").cloned() {
        set(tree, "trainer.logger", json!([name]))?;
    }
    Ok(())
}

/// Refuses a value of an unused key that would change what is learnt.
pub(super) fn check_unused(key: &KeySpec, value: &Value, whole: &Value) -> Result<()> {
    if key.only.is_empty() {
        return Ok(());
    }
    // A reference to a key that is not set counts as null.
    const DEPTH_MAX: usize = 16;
    let mut value = value;
    for _ in 0..DEPTH_MAX {
        let text = value.as_str().and_then(|text| text.strip_prefix("${"));
        match text.and_then(|text| text.strip_suffix('}')) {
            Some(path) => value = get(whole, path).unwrap_or(&Value::Null),
            None => break,
        }
    }
    let only = yaml(key.only).expect("the key table holds YAML");
    if only.as_array().is_some_and(|known| known.contains(value)) {
        return Ok(());
    }
    Err(Error::value(
        key.path,
        format!(
            "{} would change what is learnt, and it has no counterpart here: {}. Leave it out; accepted are {}",
            shown(value),
            key.doc,
            key.only
        ),
    ))
}

/// A task file on the command line replaces the config's own list of tasks, and a list replaces the
/// config's file.
pub(super) fn one_source_of_tasks(tree: &mut Value, by_hand: &Value) -> Result<()> {
    const FILE: &str = "data.train_file";
    const TASKS: &str = "data.tasks";
    let given = |path: &str| {
        let value = get(by_hand, path);
        value.is_some_and(|v| !v.is_null() && v.as_array().is_none_or(|list| !list.is_empty()))
    };
    match (given(FILE), given(TASKS)) {
        (true, true) => Err(Error::value(
            TASKS,
            "give either data.tasks or data.train_file, not both",
        )),
        (true, false) => {
            remove(tree, TASKS);
            Ok(())
        }
        (false, true) => {
            remove(tree, FILE);
            Ok(())
        }
        (false, false) => Ok(()),
    }
}

/// Overrides translated to our keys.
pub(super) struct Overrides {
    pub(super) given: Vec<(String, Value)>,
    /// Keys of upstream's evaluation that have no effect here.
    pub(super) unused: Vec<String>,
}

/// Translates the keys of upstream's `main_generation` for a run that only evaluates; other keys
/// pass unchanged.
pub(super) fn of_evaluation(given: Vec<(String, Value)>, tree: &Value) -> Result<Overrides> {
    const TASK: &str = "actor_rollout_ref.agentgym.task_name";
    let mut out = Overrides {
        given: Vec::new(),
        unused: Vec::new(),
    };
    let mut folder = None;
    for (key, value) in given {
        let below = |head: &str| key.strip_prefix(head).map(str::to_owned);
        match key.as_str() {
            "data.path" => folder = Some(value),
            "data.n_samples" => out.given.push(("evaluation.samples".into(), value)),
            "rollout.temperature" => out.given.push(("evaluation.temperature".into(), value)),
            "agentgym.max_rounds" => out.given.push(("evaluation.max_rounds".into(), value)),
            "data.batch_size" | "data.output_path" => out.unused.push(key),
            "rollout.n" if value != json!(1) && !value.is_null() => {
                return Err(Error::value(
                    key,
                    format!(
                        "an item is played as often as data.n_samples says, found {}; give 1",
                        shown(&value)
                    ),
                ));
            }
            "rollout.n" => out.unused.push(key),
            // Upstream builds an optimizer there but never steps it.
            _ if below("actor.").is_some() => {
                match keys::find(&format!("actor_rollout_ref.{key}")) {
                    Some(_) => out.unused.push(key),
                    None => out.given.push((key, value)),
                }
            }
            _ if ["model.", "rollout.", "agentgym."]
                .iter()
                .any(|h| key.starts_with(h)) =>
            {
                out.given.push((format!("actor_rollout_ref.{key}"), value));
            }
            _ => out.given.push((key, value)),
        }
    }
    let Some(folder) = folder.filter(|folder| !folder.is_null()) else {
        return Ok(out);
    };
    if out.given.iter().any(|(key, _)| key == "evaluation.sets") {
        return Err(Error::value(
            "data.path",
            "give either data.path or evaluation.sets, not both",
        ));
    }
    let by_hand = out.given.iter().rev().find(|(key, _)| key == TASK);
    let task = by_hand.map(|(_, value)| value).or_else(|| get(tree, TASK));
    let default = keys::find(TASK).map_or("", |key| key.default);
    let task = task.and_then(Value::as_str).unwrap_or(default).to_owned();
    let Some(folder) = folder.as_str() else {
        return Err(Error::value(
            "data.path",
            format!(
                "is the folder of {task}_test.json, found {}",
                shown(&folder)
            ),
        ));
    };
    let file = format!("{}/{task}_test.json", folder.trim_end_matches('/'));
    out.given.push((
        "evaluation.sets".into(),
        json!([{"name": task, "env": task, "file": file}]),
    ));
    Ok(out)
}

/// Notes on what an AgentGym-RL config may expect and does not get here, one line each.
pub(super) fn notes(given: &Value, config: &Config, unused: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    let loggers = config.trainer.logger.iter().map(String::as_str);
    let strangers: Vec<&str> = loggers.filter(|name| !LOGGERS.contains(name)).collect();
    if !strangers.is_empty() {
        let wandb = match strangers.contains(&"wandb") {
            true => "; `python -m agentgym_rl log RUN --to wandb` sends a run to Weights & Biases",
            false => "",
        };
        out.push(format!(
            "trainer.logger: nothing is sent to {}; files are written by jsonl and tensorboard{wandb}",
            strangers.join(", ")
        ));
    }
    if get(given, "actor_rollout_ref.rollout.rollout_log_dir").is_some_and(|v| !v.is_null()) {
        out.push(
            "rollout_log_dir: nothing is written there; `agentgym-submit export RUN --trajectories FILE` writes the \
             episodes, from the store"
                .into(),
        );
    }
    if get(given, "trainer.resume_mode") == Some(&json!("disable")) {
        out.push("resume_mode: a run that exists is carried on; a new run.id begins anew".into());
    }
    let trainer = &config.trainer;
    if unused.is_empty() || config.run.pipeline != Pipeline::Rl {
        return out;
    }
    if trainer.names_its_folder() {
        out.push(format!(
            "project {} and experiment {} name TensorBoard's folder; the run's name is run.id",
            trainer.project_name, trainer.experiment_name
        ));
    }
    let actor = &config.actor_rollout_ref.actor;
    if actor.ppo_epochs > 1 {
        out.push(format!(
            "ppo_epochs: {} passes over each batch; AgentGym-RL makes one, whatever the key says",
            actor.ppo_epochs
        ));
    }
    const SECTION: &str = "actor_rollout_ref.actor";
    let micro = ["ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu"];
    let mut micro = micro
        .iter()
        .filter_map(|name| get(given, &format!("{SECTION}.{name}"))?.as_u64());
    if actor.loss_agg_mode.value == Aggregation::TokenMean
        && let Some(size) = micro.next()
    {
        out.push(format!(
            "loss_agg_mode: every token of a minibatch weighs the same; AgentGym-RL's mean of micro-batches is \
             {SECTION}.loss_agg_mode=micro_batch_mean with ppo_micro_batch_size={size}"
        ));
    }
    out
}

#[cfg(test)]
mod tests;
