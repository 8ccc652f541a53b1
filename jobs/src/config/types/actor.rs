//! The policy: its model, how it is trained, how it plays, and the environments.

use super::data::Files;
use super::evaluation::SaveDtype;
use super::spelled::Spelled;
use agentgym_algorithms::{Aggregation, KlEstimator, LearningRateStyle, PolicyLoss};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

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
    pub dtype: SaveDtype,
    pub template_date: Option<String>,
    pub template_variables: Map<String, Value>,
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
    pub policy_loss: PolicyLossMode,
    pub entropy_coeff: f64,
    pub use_kl_loss: bool,
    pub kl_loss_coef: f64,
    pub kl_loss_type: Spelled<KlEstimator>,
    pub loss_agg_mode: Spelled<Aggregation>,
    pub grad_clip: f64,
    pub share_prefixes: bool,
    pub optim: Optim,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyLossMode {
    pub loss_mode: PolicyLoss,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Optim {
    pub lr: f64,
    pub lr_warmup_steps_ratio: f64,
    pub warmup_style: LearningRateStyle,
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
    pub empty_share_max: f64,
    pub record_entropies: bool,
    pub exclude: Vec<(u32, u32, u32)>,
    pub engine: RolloutEngine,
    pub server: RolloutServer,
}

/// Who generates the rollouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutEngine {
    /// This program, exactly.
    Own,
    /// An inference server.
    Server,
    /// A chat-completions API, in evaluations.
    Chat,
    /// candle-transformers, in evaluations of families that this program does not compute.
    Candle,
}

/// Where the server of [`RolloutEngine::Server`] or [`RolloutEngine::Chat`] is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutServer {
    pub url: Option<String>,
    pub dialect: Option<ServerDialect>,
    pub model: Option<String>,
    pub timeout_s: f64,
    pub patience_s: f64,
    pub concurrent: usize,
    pub price_input: Option<f64>,
    pub price_output: Option<f64>,
}

/// The routes and bodies of an inference server that takes and gives token ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerDialect {
    /// vLLM's tokens in, tokens out.
    Vllm,
    /// SGLang's own generate route.
    Sglang,
    /// llama.cpp's completion.
    LlamaCpp,
    /// OpenAI's completions with ids as prompt.
    Openai,
}

impl ServerDialect {
    /// The word in a config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::LlamaCpp => "llama_cpp",
            Self::Openai => "openai",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentGym {
    pub task_name: String,
    pub env_addr: String,
    pub envs: BTreeMap<String, Environment>,
    pub specs: Vec<SpecSource>,
    pub max_retries: u32,
    pub sessions_max: Option<usize>,
    pub timeout: f64,
    pub check_servers: bool,
    pub fault_share_max: f64,
    pub instruction: Option<String>,
    pub record_actions: bool,
    pub reply_prefix: Option<String>,
    pub lenient_actions: bool,
    pub style: Option<PromptText>,
    pub context_turns: Option<usize>,
    pub summary: Option<PromptText>,
    pub prompt: Opening,
    pub rules: u32,
}

/// An environment that this program does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SpecSource {
    /// As given: a file.
    Named(String),
    /// As a plan holds it; `agentgym_envs::spec::declared` knows the fields.
    Read(serde_json::Value),
}

/// Instructions to the policy beside the environment's own text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PromptText {
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

/// How a conversation begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Opening {
    /// As given: `own`, `agentgym`, or a file. In a plan only `own`: the instruction and the first
    /// observation are one message.
    Named(String),
    /// As a plan holds it: turns before the first observation, which is a message of its own.
    Read {
        /// As it was given.
        name: String,
        /// In turn human and gpt; `{instruction}` stands for the environment's own text.
        turns: Vec<OpeningTurn>,
    },
}

impl Opening {
    /// The name of the default.
    pub const OWN: &str = "own";
}

/// A message before the first observation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpeningTurn {
    /// Who says it.
    pub from: Speaker,
    /// The text.
    pub value: String,
}

/// Whose message it is, in the words of AgentGym's trajectory files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// The environment.
    #[serde(alias = "user")]
    Human,
    /// The policy.
    #[serde(alias = "assistant")]
    Gpt,
}

impl Speaker {
    /// The word in a trajectory file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Human => "human",
            Self::Gpt => "gpt",
        }
    }
}

impl AgentGym {
    /// How a conversation begins where the environment's own text is `own`: the turns before the
    /// first observation, and the text at the head of the observation's message.
    pub fn opening_of(&self, own: &str) -> (Vec<OpeningTurn>, String) {
        let own = self.instruction_of(own);
        let Opening::Read { turns, .. } = &self.prompt else {
            return (Vec::new(), own);
        };
        let told = |turn: &OpeningTurn| OpeningTurn {
            from: turn.from,
            value: turn.value.replace("{instruction}", &own),
        };
        (turns.iter().map(told).collect(), String::new())
    }

    /// The environment's own text `own` in its style.
    fn instruction_of(&self, own: &str) -> String {
        let own = self.instruction.as_deref().unwrap_or(own);
        match &self.style {
            Some(PromptText::Read { text, .. }) => text.replace("{instruction}", own),
            _ => own.to_owned(),
        }
    }

    /// How the policy is asked for a summary, where it is.
    pub fn summary_request(&self) -> Option<&str> {
        match &self.summary {
            Some(PromptText::Read { text, .. }) => Some(text),
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
