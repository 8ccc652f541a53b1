//! The resolved config, typed. Field names are the key names of
//! [`super::keys::KEYS`], where each is explained.
#![allow(
    missing_docs,
    reason = "every field is documented once, in the key table"
)]

use super::algorithm::{Algorithm, Critic};
use super::keys::limits::TASKS_MAX;
use super::{AgentEvol, Dpo};
use crate::{Error, Result};
use agentgym_algorithms::LearningRateStyle;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    pub run: Run,
    pub storage: Storage,
    pub queue: QueueSection,
    pub jobs: Jobs,
    pub data: Data,
    pub actor_rollout_ref: ActorRolloutRef,
    pub critic: Critic,
    pub algorithm: Algorithm,
    pub sft: Sft,
    pub dpo: Dpo,
    pub agentevol: AgentEvol,
    pub evaluation: Evaluation,
    pub guard: Guard,
    pub trainer: Trainer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pipeline {
    Rl,
    Sft,
    Dpo,
    #[serde(rename = "agentevol")]
    AgentEvol,
    Eval,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numerics {
    Exact,
    Any,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub id: Option<String>,
    pub pipeline: Pipeline,
    pub seed: u64,
    pub numerics: Numerics,
    pub fork: Fork,
}

/// Where a forked run goes on from; `agentgym-submit fork` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    pub run: Option<String>,
    pub identity: Option<String>,
    pub iteration: u32,
    pub fresh_optimizer: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Storage {
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueSection {
    pub url: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Jobs {
    pub workers: usize,
    pub threads: Option<usize>,
    pub hold: bool,
    pub priority: i32,
    pub rollout_part_tasks: usize,
    pub unit_tokens: usize,
    pub update_shards: u32,
    pub sft_part_steps: u32,
    pub dpo_part_steps: u32,
    pub pack_tokens: usize,
    pub decode_rows: usize,
    pub cache_tokens: usize,
    pub journal_interval_s: f64,
    pub beat_timeout_s: u64,
    pub lease_ttl_s: u64,
    pub failures_max: u32,
    pub vanished_max: u32,
    pub backoff_s: f64,
    pub length_max: usize,
    pub cache_gb: f64,
}

/// One file or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Files {
    One(String),
    Many(Vec<String>),
}

impl Files {
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        match self {
            Self::One(file) => std::slice::from_ref(file),
            Self::Many(files) => files.as_slice(),
        }
        .iter()
        .map(String::as_str)
    }
}

/// Task ids: `A..B`, `A..B:STEP` (end excluded), or a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ids {
    Range(String),
    List(Vec<i64>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSource {
    pub env: String,
    pub ids: Ids,
    /// Share of every batch; all sources give one or none does.
    #[serde(default)]
    pub share: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Data {
    pub train_file: Option<Files>,
    pub tasks: Vec<TaskSource>,
    pub train_batch_size: usize,
    pub max_prompt_length: usize,
    pub max_response_length: usize,
    pub shuffle: bool,
    pub seed: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActorRolloutRef {
    pub model: Model,
    pub actor: Actor,
    #[serde(rename = "ref")]
    pub reference: Reference,
    pub rollout: Rollout,
    pub agentgym: AgentGym,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    pub path: String,
    pub lora_rank: i64,
    pub lora_alpha: f64,
    pub target_modules: Files,
    pub lora_adapter_path: Option<String>,
    pub enable_gradient_checkpointing: bool,
}

impl Model {
    /// True if an adapter is trained instead of the model's own weights.
    pub fn has_adapter(&self) -> bool {
        self.lora_rank > 0 || self.lora_adapter_path.is_some()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reference {
    pub model: ReferenceModel,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReferenceModel {
    pub path: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Actor {
    pub ppo_mini_batch_size: usize,
    pub ppo_micro_batch_size: Option<usize>,
    pub ppo_epochs: u32,
    pub clip_ratio: f64,
    pub clip_ratio_low: f64,
    pub clip_ratio_high: f64,
    pub clip_ratio_c: Option<f64>,
    pub entropy_coeff: f64,
    pub use_kl_loss: bool,
    pub kl_loss_coef: f64,
    pub kl_loss_type: String,
    pub loss_agg_mode: String,
    pub grad_clip: f64,
    pub optim: Optim,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmupStyle {
    Constant,
    Cosine,
}

impl From<WarmupStyle> for LearningRateStyle {
    fn from(style: WarmupStyle) -> Self {
        match style {
            WarmupStyle::Constant => Self::Constant,
            WarmupStyle::Cosine => Self::Cosine,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Optim {
    pub lr: f64,
    pub lr_warmup_steps_ratio: f64,
    pub warmup_style: WarmupStyle,
    pub min_lr_ratio: f64,
    pub betas: (f64, f64),
    pub weight_decay: f64,
    pub decay_excludes_norms_and_biases: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    Template,
    AsSampled,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    pub n: u32,
    pub temperature: f64,
    pub top_k: i64,
    pub top_p: f64,
    pub max_tokens: usize,
    pub max_model_len: usize,
    pub prompt_length: usize,
    pub response_length: usize,
    pub history: History,
    pub episode_deadline_s: f64,
    pub fault_retries: u32,
    pub exclude: Vec<(u32, u32, u32)>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentGym {
    pub task_name: String,
    pub env_addr: String,
    pub envs: BTreeMap<String, Environment>,
    pub max_retries: u32,
    pub sessions_max: Option<usize>,
    pub timeout: f64,
    pub instruction: Option<String>,
    pub record_actions: bool,
    pub style: Option<Style>,
    pub context_turns: Option<usize>,
    pub summary: Option<Style>,
}

/// Instructions to the policy beside the environment's own text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Style {
    /// As given: a name in `prompts/`, or a file.
    Named(String),
    /// As a plan holds it.
    Read {
        /// As it was given.
        name: String,
        /// What the file held.
        text: String,
    },
}

impl AgentGym {
    /// The first lines of every prompt, where the environment's own are `own`.
    pub fn instruction_of(&self, own: &str) -> String {
        let own = self.instruction.as_deref().unwrap_or(own);
        match &self.style {
            Some(Style::Read { text, .. }) => text.replace("{instruction}", own),
            _ => own.to_owned(),
        }
    }

    /// How the policy is asked for a summary, where it is.
    pub fn summary_request(&self) -> Option<&str> {
        match &self.summary {
            Some(Style::Read { text, .. }) => Some(text),
            _ => None,
        }
    }
}

/// Where an environment's episodes are played.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Name of the spec: `textcraft`, …
    pub task_name: String,
    /// URL, or `builtin…`.
    pub env_addr: String,
    /// Fewer rounds than the horizon, if it is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rounds: Option<u32>,
    /// Fewer tokens a turn than `rollout.max_tokens`, if it is less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlong {
    Keep,
    Mask,
}

/// What happens to a row of a training file that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlongRows {
    /// The run stops at its first part and names the row.
    Refuse,
    /// It is counted and not learnt.
    LeaveOut,
}

/// Where demonstrations come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SftSource {
    /// AgentTraj-L file; or else `env` and `ids`.
    #[serde(default)]
    pub file: Option<String>,
    /// A built-in environment whose solver demonstrates.
    #[serde(default)]
    pub env: Option<String>,
    #[serde(default)]
    pub ids: Option<Ids>,
    /// Style of the solver's demonstrations.
    #[serde(default)]
    pub style: Option<String>,
    /// Share of every batch; default: by size.
    #[serde(default)]
    pub share: Option<f64>,
    /// Rows of `file`; a plan of passes over them counts them.
    #[serde(default)]
    pub rows: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sft {
    pub sources: Vec<SftSource>,
    pub batch_size: usize,
    pub steps: u32,
    pub epochs: Option<u32>,
    pub lr: f64,
    pub warmup_steps: u32,
    pub min_lr_ratio: f64,
    pub betas: (f64, f64),
    pub weight_decay: f64,
    pub grad_clip: f64,
    pub max_length: usize,
    pub overlong: OverlongRows,
    pub validation_share: f64,
    pub validation_sources: Vec<SftSource>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationSet {
    pub name: String,
    pub env: String,
    /// The items; or else `file`.
    #[serde(default)]
    pub ids: Ids,
    /// AgentEval test file. A plan holds its items and categories instead.
    #[serde(default)]
    pub file: Option<String>,
    /// Items by category; default: the files beside `file`.
    #[serde(default)]
    pub categories: Option<BTreeMap<String, Ids>>,
    /// Reported beside the others and not counted into the figure over all sets.
    #[serde(default)]
    pub apart: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    pub sets: Vec<EvaluationSet>,
    pub samples: u32,
    pub temperature: f64,
    pub greedy: bool,
    pub max_rounds: u32,
    pub k: Option<Vec<u32>>,
}

impl Evaluation {
    /// Greedy episodes of each task beside the samples: none where those are greedy.
    pub fn greedy_beside(&self) -> u32 {
        u32::from(self.greedy && self.temperature > 0.0)
    }

    /// The k of pass@k, ascending.
    pub fn ks(&self) -> Vec<usize> {
        let default = vec![1, self.samples];
        let ks: BTreeSet<u32> = self.k.clone().unwrap_or(default).into_iter().collect();
        ks.into_iter().map(|k| k as usize).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    pub patience: u32,
    pub entropy_min: Option<f64>,
    pub entropy_max: Option<f64>,
    pub grad_norm_max: Option<f64>,
    pub success_share_min: Option<f64>,
    pub mismatch_max: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trainer {
    pub total_training_steps: Option<u32>,
    pub total_epochs: u32,
    pub save_freq: u32,
    pub test_freq: u32,
    pub critic_warmup: u32,
    pub project_name: String,
    pub experiment_name: String,
    pub logger: Vec<String>,
    pub default_local_dir: Option<String>,
}

impl Trainer {
    /// True where the project or the experiment was given a name.
    pub fn names_its_folder(&self) -> bool {
        (self.project_name.as_str(), self.experiment_name.as_str()) != ("agentgym", "run")
    }
}

impl EvaluationSet {
    /// The item ids of each category; `key` names the set in messages.
    pub fn categories_of(&self, key: &str) -> Result<BTreeMap<String, BTreeSet<i64>>> {
        let all = self.categories.iter().flatten();
        all.map(|(name, ids)| {
            let ids = ids.resolve(&format!("{key}.categories.{name}"))?;
            Ok((name.clone(), ids.into_iter().collect()))
        })
        .collect()
    }
}

impl Default for Ids {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

/// Ids that are counted without being made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Items {
    /// `from`, `from + step`, …: so many.
    Range { from: i64, step: i64, len: usize },
    /// These.
    List(Vec<i64>),
}

impl Items {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Range { len, .. } => *len,
            Self::List(ids) => ids.len(),
        }
    }

    /// The id at a place before `len`.
    pub(crate) fn at(&self, place: usize) -> i64 {
        match self {
            // Between the ends of the range, however far these are from 0.
            Self::Range { from, step, .. } => from.wrapping_add(step.wrapping_mul(place as i64)),
            Self::List(ids) => ids[place],
        }
    }
}

impl Ids {
    /// How many there are.
    ///
    /// # Errors
    /// As [`Ids::resolve`].
    pub fn count(&self, key: &str) -> Result<usize> {
        match self {
            Self::List(ids) => Ok(ids.len()),
            Self::Range(_) => Ok(self.items(key)?.len()),
        }
    }

    /// The ids in order.
    ///
    /// # Errors
    /// Text that is no range, or one that is too long.
    pub fn resolve(&self, key: &str) -> Result<Vec<i64>> {
        let items = self.items(key)?;
        Ok((0..items.len()).map(|place| items.at(place)).collect())
    }

    pub(crate) fn items(&self, key: &str) -> Result<Items> {
        let text = match self {
            Self::List(ids) => return Ok(Items::List(ids.clone())),
            Self::Range(text) => text,
        };
        let (from, to, step) = parse_range(text).ok_or_else(|| {
            Error::value(
                key,
                format!(
                    "`{text}` is not a range of task ids; write A..B or A..B:STEP, the end excluded"
                ),
            )
        })?;
        let len = to.abs_diff(from).div_ceil(step.unsigned_abs());
        match usize::try_from(len) {
            Ok(len) if len <= TASKS_MAX => Ok(Items::Range { from, step, len }),
            _ => Err(Error::value(
                key,
                format!(
                    "`{text}` is a range of {len} task ids, at most {TASKS_MAX} can be drawn from; give fewer"
                ),
            )),
        }
    }
}

/// Bounds and step: from < to, step > 0.
fn parse_range(text: &str) -> Option<(i64, i64, i64)> {
    let (range, step) = text
        .split_once(':')
        .map_or((text, Some(1)), |(r, s)| (r, s.trim().parse().ok()));
    let (from, to) = range.split_once("..")?;
    let (from, to, step): (i64, i64, i64) =
        (from.trim().parse().ok()?, to.trim().parse().ok()?, step?);
    (step > 0 && from < to).then_some((from, to, step))
}

impl Config {
    /// True where there are tasks to train on.
    pub(crate) fn has_tasks(&self) -> bool {
        self.data.train_file.is_some() || !self.data.tasks.is_empty()
    }

    /// The environments of the run: the one of `agentgym.task_name` under its
    /// own name, and those of `agentgym.envs`.
    pub fn environments(&self) -> BTreeMap<String, Environment> {
        let gym = &self.actor_rollout_ref.agentgym;
        let mut all = gym.envs.clone();
        all.entry(gym.task_name.clone())
            .or_insert_with(|| Environment {
                task_name: gym.task_name.clone(),
                env_addr: gym.env_addr.clone(),
                max_rounds: None,
                max_tokens: None,
            });
        all
    }
}
