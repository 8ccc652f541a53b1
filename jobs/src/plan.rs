//! The plan: a run config, resolved, frozen and hashed. Workers read plans, not configs; a plan
//! never contains a secret, a store URL or a queue URL.

mod counts;
mod sizes;
mod stored;

use crate::config::{Config, Files, Pipeline, ResolvedConfig, keys};
use crate::tasks::{TaskPool, read_train_items};
use crate::{Error, Result};
use agentgym_algorithms::HorizonSchedule;
use agentgym_storage::RunId;
use agentgym_text::{has_secrets, without_secrets};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use std::str::FromStr;

/// The format of new plans. Plans of older formats stay readable, and their runs keep writing the
/// same bytes:
///
/// - 1: saved models repeat the dtype of the folder they came from, and episodes do not store the
///   probability mass that top_k and top_p kept.
/// - 1 and 2: of the ids that end a reply the template's own counts only where the folder names it,
///   and nothing follows another one; what is said next is encoded as a text of its own.
const FORMAT: u32 = 3;

/// A frozen plan and values derived from it.
#[derive(Debug)]
pub struct Plan {
    /// The run.
    pub run: RunId,
    /// 0 for the first; bindings may change with each revision.
    pub revision: u32,
    /// Training iterations; iteration 0 is not counted.
    pub iterations: u32,
    /// Format of the artifacts that the run writes; see `FORMAT`. Revisions and forks keep it, so
    /// that they reproduce existing bytes.
    pub format: u32,
    /// BLAKE3 (hex) over the identity keys.
    pub identity: String,
    /// The resolved config.
    pub config: Config,
    /// Rounds per iteration.
    pub horizon: HorizonSchedule,
    /// Tasks per iteration.
    pub tasks: TaskPool,
    tree: Value,
}

/// A model that iteration 0 writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitRole {
    /// The initial policy: part 0.
    Policy,
    /// A separate reference policy.
    Reference,
    /// The critic before its first update.
    Critic,
}

/// The wire form.
#[derive(Serialize, Deserialize)]
struct PlanFile {
    version: u32,
    run: String,
    revision: u32,
    identity: String,
    iterations: u32,
    code_version: String,
    config: Value,
}

impl Plan {
    /// Freezes a config. Files of task ids are read now, so that the plan alone determines the
    /// tasks of every iteration.
    ///
    /// # Errors
    /// Everything that makes the run impossible, with the key.
    pub fn new(mut config: ResolvedConfig, base: &Path) -> Result<Self> {
        absorb_files(&mut config, base)?;
        refuse_secrets(&config.tree, None)?;
        let identity = identity(&config.tree);
        let run = match &config.config.run.id {
            Some(id) => id.clone(),
            None => format!("{}-{}", slug(&config.stem), &identity[..8]),
        };
        let run = RunId::from_str(&run).map_err(|e| Error::value("run.id", e.to_string()))?;
        Self::build((run, 0), FORMAT, identity, config.tree, config.config)
    }

    /// Sets the format; a fork keeps its parent's.
    #[must_use]
    pub fn of_format(self, format: u32) -> Self {
        Self { format, ..self }
    }

    fn build(
        (run, revision): (RunId, u32),
        format: u32,
        identity: String,
        tree: Value,
        mut config: Config,
    ) -> Result<Self> {
        if config.run.pipeline == Pipeline::Eval {
            // Nothing is trained, so no demonstrations are needed.
            config.sft.sources.clear();
            config.sft.validation_sources.clear();
        }
        let horizon = horizon(&config)?;
        sizes::check_parts(&config)?;
        let tasks = TaskPool::new(&config.data)?;
        let iterations = match (config.run.pipeline, config.trainer.total_training_steps) {
            (Pipeline::Sft | Pipeline::Dpo | Pipeline::Eval, _) => 0,
            (Pipeline::Rl | Pipeline::AgentEvol, _) if tasks.is_empty() => {
                return Err(Error::value(
                    "data.tasks",
                    match config.evaluation.sets.is_empty() {
                        true => {
                            "the run plays tasks and there are none: give data.tasks or data.train_file"
                        }
                        false => {
                            "the run plays tasks and there are none: give data.tasks or data.train_file; to evaluate \
                                  alone, type `agentgym-submit eval` and the config"
                        }
                    },
                ));
            }
            (Pipeline::Rl | Pipeline::AgentEvol, Some(steps)) => steps,
            (Pipeline::Rl | Pipeline::AgentEvol, None) => tasks
                .iterations_per_pass()
                .saturating_mul(config.trainer.total_epochs),
        };
        sizes::check_iterations(&config, iterations)?;
        Ok(Self {
            run,
            revision,
            iterations,
            format,
            identity,
            config,
            horizon,
            tasks,
            tree,
        })
    }

    /// The stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut config = self.tree.clone();
        for section in ["storage", "queue"] {
            config.as_object_mut().map(|map| map.remove(section));
        }
        let file = PlanFile {
            version: self.format,
            run: self.run.to_string(),
            revision: self.revision,
            identity: self.identity.clone(),
            iterations: self.iterations,
            code_version: code_version().to_owned(),
            config,
        };
        let mut bytes = serde_json::to_vec_pretty(&file).expect("a plan is plain JSON");
        bytes.push(b'\n');
        bytes
    }

    /// The same run with the bindings of `newer`; changed identity keys are refused.
    ///
    /// # Errors
    /// [`Error::Identity`], which names each changed key with both values.
    pub fn revised(&self, newer: ResolvedConfig, base: &Path) -> Result<Self> {
        let mut newer = newer;
        absorb_files(&mut newer, base)?;
        refuse_secrets(&newer.tree, Some(&self.tree))?;
        let differences = self.identity_differences(&newer.tree);
        if !differences.is_empty() {
            let keys = (differences.iter())
                .map(|(k, a, b)| format!("{k} (was {}, now {})", shown(a), shown(b)))
                .collect::<Vec<_>>();
            let changed = differences.iter().map(|(k, _, b)| format!("{k}={b}"));
            return Err(Error::Identity {
                run: self.run.to_string(),
                keys: keys.join("; "),
                changed: changed.collect(),
            });
        }
        let revision = self.revision.checked_add(1).ok_or_else(|| Error::Payload {
            what: format!("plan of run {}", self.run),
            message: format!(
                "revision {} has none after it; start a run of its own",
                self.revision
            ),
        })?;
        Self::build(
            (self.run.clone(), revision),
            self.format,
            self.identity.clone(),
            newer.tree,
            newer.config,
        )
    }

    /// True if both plans have the same bindings.
    pub fn same_bindings(&self, other: &Self) -> bool {
        let stored = |plan: &Self| {
            ResolvedConfig::leaves(&plan.tree, keys::Kind::Binding)
                .into_iter()
                .filter(|(path, _)| {
                    !path.starts_with("storage.")
                        && !path.starts_with("queue.")
                        && *path != "run.id"
                })
                .collect::<Vec<_>>()
        };
        stored(self) == stored(other)
    }

    /// Identity keys in which another plan differs, with both values.
    pub fn differences(&self, other: &Self) -> Vec<(&'static str, Value, Value)> {
        self.identity_differences(&other.tree)
    }

    fn identity_differences(&self, other: &Value) -> Vec<(&'static str, Value, Value)> {
        let mine = ResolvedConfig::leaves(&self.tree, keys::Kind::Identity);
        let theirs = ResolvedConfig::leaves(other, keys::Kind::Identity);
        // A key may be an identity key in one of them alone.
        let other = |key: &str| theirs.iter().find(|(path, _)| *path == key);
        mine.into_iter()
            .map(|(k, a)| (k, a, other(k).map_or(Value::Null, |(_, b)| b.clone())))
            .filter(|(_, a, b)| a != b)
            .collect()
    }
}

/// Version of the program, as recorded in plans: it says which program can read them. It names no
/// commit, because freezing a plan again must give the same bytes.
fn code_version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// BLAKE3 over the identity leaves, one `path=json` line each, sorted. Keys added later count only
/// if they differ from their default.
fn identity(tree: &Value) -> String {
    let mut hasher = blake3::Hasher::new();
    for (path, value) in ResolvedConfig::hashed(tree) {
        hasher.update(format!("{path}={}\n", canonical(&value)).as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// JSON with sorted keys: the order of a map in the config has no meaning.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(k, _)| k.as_str());
            let inner: Vec<_> = pairs
                .into_iter()
                .map(|(k, v)| format!("{k:?}:{}", canonical(v)))
                .collect();
            format!("{{{}}}", inner.join(","))
        }
        Value::Array(list) => format!(
            "[{}]",
            list.iter().map(canonical).collect::<Vec<_>>().join(",")
        ),
        other => other.to_string(),
    }
}

/// A value of a plan for a message, with secrets removed: older plans may contain passwords.
fn shown(value: &Value) -> Value {
    match value {
        Value::String(text) if text.contains("://") => Value::from(without_secrets(text)),
        Value::Object(map) => {
            let all = map.iter().map(|(key, value)| (key.clone(), shown(value)));
            Value::Object(all.collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(shown).collect()),
        other => other.clone(),
    }
}

/// Plans are stored permanently and shown to people, so an address in a plan must not contain a
/// password. A value that `before`, an older plan, already contains is accepted.
fn refuse_secrets(tree: &Value, before: Option<&Value>) -> Result<()> {
    for section in tree.as_object().into_iter().flatten() {
        // Neither section is written into a plan.
        if !matches!(section.0.as_str(), "storage" | "queue") {
            refuse_secrets_in(section.0, section.1, before.map(|tree| &tree[section.0]))?;
        }
    }
    Ok(())
}

fn refuse_secrets_in(path: &str, value: &Value, before: Option<&Value>) -> Result<()> {
    match value {
        Value::String(text) => {
            let is_address = text.contains("://") && !text.contains(char::is_whitespace);
            let is_address = is_address || path.ends_with(".env_addr");
            if is_address && has_secrets(text) && before.and_then(Value::as_str) != Some(text) {
                return Err(Error::value(
                    path,
                    format!(
                        "`{}` carries a user name, a password or a token, which would be written into the plan \
                         for good; leave it out. A server that asks for one is reached through a proxy beside the \
                         worker that adds it (http://127.0.0.1:PORT)",
                        without_secrets(text)
                    ),
                ));
            }
            Ok(())
        }
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            let before = before.and_then(|tree| tree.get(key));
            refuse_secrets_in(&format!("{path}.{key}"), value, before)
        }),
        Value::Array(list) => list.iter().enumerate().try_for_each(|(index, value)| {
            let before = before.and_then(|tree| tree.get(index));
            refuse_secrets_in(&format!("{path}[{index}]"), value, before)
        }),
        _ => Ok(()),
    }
}

/// Replaces files that the config names by their contents.
fn absorb_files(config: &mut ResolvedConfig, base: &Path) -> Result<()> {
    crate::specs::absorb(config, base)?;
    absorb_item_files(config, base)?;
    crate::datasets::absorb(config, base)?;
    crate::demonstration_files::absorb(config, base)?;
    crate::agenteval::absorb(config, base)?;
    crate::prompts::absorb(config, base)?;
    crate::opening::absorb(config, base)
}

fn absorb_item_files(config: &mut ResolvedConfig, base: &Path) -> Result<()> {
    let Some(files) = config.config.data.train_file.clone() else {
        return Ok(());
    };
    if !config.config.data.tasks.is_empty() {
        return Err(Error::value(
            "data.tasks",
            "give either data.tasks or data.train_file, not both",
        ));
    }
    let env = config.config.actor_rollout_ref.agentgym.task_name.clone();
    let known = config.config.environments();
    let sources = files
        .iter()
        .map(|file| read_train_items(&base.join(file), &env, &known))
        .collect::<Result<Vec<_>>>()?
        .concat();
    config.tree["data"]["tasks"] =
        serde_json::to_value(&sources).expect("task sources are plain JSON");
    config.tree["data"]["train_file"] = Value::Null;
    config.config.data.tasks = sources;
    config.config.data.train_file = None::<Files>;
    Ok(())
}

fn horizon(config: &Config) -> Result<HorizonSchedule> {
    use crate::config::{Rounds, RoundsCtrlType};
    use RoundsCtrlType::{Fixed, ScalingInterStepwise};
    let control = &config.algorithm.rounds_ctrl;
    let schedule = match (control.kind, &control.rounds) {
        (Fixed, Rounds::One(rounds)) => HorizonSchedule::fixed(*rounds),
        (ScalingInterStepwise, Rounds::Stages(rounds)) => {
            HorizonSchedule::scaling_inter_stepwise(rounds.clone(), control.steps_scaling_inter)
        }
        (Fixed, Rounds::Stages(_)) => {
            return Err(Error::value(
                "algorithm.rounds_ctrl.rounds",
                "`fixed` takes one number; a list needs type: scaling_inter_stepwise",
            ));
        }
        (ScalingInterStepwise, Rounds::One(_)) => {
            return Err(Error::value(
                "algorithm.rounds_ctrl.rounds",
                "`scaling_inter_stepwise` takes a list, e.g. [4, 6, 8]",
            ));
        }
    };
    schedule.map_err(|e| Error::value("algorithm.rounds_ctrl", e.to_string()))
}

/// A run id from a file stem: lower-case letters, digits and dashes.
fn slug(stem: &str) -> String {
    let text: String = stem
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    let text = text.trim_matches('-');
    if text.is_empty() {
        "run".into()
    } else {
        text.chars().take(60).collect()
    }
}

#[cfg(test)]
mod tests;
