//! What is optimised: estimator, KL, the correction for other samplers, and the critic.

use super::actor::Optim;
use super::spelled::Spelled;
use agentgym_algorithms::{AdvantageEstimator, Aggregation, ImportanceLevel, KlEstimator};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlong {
    Keep,
    Mask,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Algorithm {
    pub adv_estimator: AdvantageEstimator,
    pub norm_adv_by_std_in_grpo: bool,
    pub gamma: f64,
    pub lam: f64,
    pub lag: u32,
    pub overlong: Overlong,
    pub gigpo: Gigpo,
    pub turn_rewards: bool,
    pub use_kl_in_reward: bool,
    pub kl_penalty: Spelled<KlEstimator>,
    pub kl_ctrl: KlCtrl,
    pub filter_groups: FilterGroups,
    pub rollout_correction: RolloutCorrection,
    pub verify_log_probs: f64,
    pub scramble_advantages: bool,
    pub rounds_ctrl: RoundsCtrl,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gigpo {
    pub step_advantage_w: f64,
}

/// One number of rounds, or one per stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Rounds {
    One(u32),
    Stages(Vec<u32>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundsCtrlType {
    Fixed,
    ScalingInterStepwise,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundsCtrl {
    #[serde(rename = "type")]
    pub kind: RoundsCtrlType,
    pub rounds: Rounds,
    pub steps_scaling_inter: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlCtrlType {
    Fixed,
    Adaptive,
}

impl std::fmt::Display for KlCtrlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fixed => "fixed",
            Self::Adaptive => "adaptive",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KlCtrl {
    #[serde(rename = "type")]
    pub kind: KlCtrlType,
    pub kl_coef: f64,
    pub target_kl: f64,
    pub horizon: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterGroups {
    pub enable: bool,
    pub max_num_gen_batches: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RolloutCorrection {
    pub rollout_is: Option<Spelled<ImportanceLevel>>,
    pub rollout_is_threshold: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reward {
    pub function: Option<String>,
    pub url: Option<String>,
    pub batch_size: usize,
    pub timeout_s: f64,
    pub retries: u32,
    pub overlong_buffer: OverlongKeys,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OverlongKeys {
    pub len: usize,
    pub penalty_factor: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Critic {
    pub model: CriticModel,
    pub ppo_mini_batch_size: usize,
    pub ppo_micro_batch_size: Option<usize>,
    pub ppo_epochs: u32,
    pub cliprange_value: Option<f64>,
    pub loss_agg_mode: Spelled<Aggregation>,
    pub grad_clip: f64,
    pub optim: Optim,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CriticModel {
    pub path: Option<String>,
    pub enable_gradient_checkpointing: bool,
}
