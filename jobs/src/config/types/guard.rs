//! What is watched in a run's figures: limits that pause it, and the watchdog's warnings.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    pub patience: u32,
    pub pause: Vec<Alarm>,
    pub entropy_min: Option<f64>,
    pub entropy_max: Option<f64>,
    pub grad_norm_max: Option<f64>,
    pub success_share_min: Option<f64>,
    pub mismatch_max: Option<f64>,
}

/// What the watchdog warns of. `docs/algorithms.md` says what each one means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    Kl,
    Ratio,
    GradNorm,
    Entropy,
    Length,
    Success,
    Evaluation,
    NoReward,
    SameReward,
    NoSignal,
    Unsolved,
    Unparsed,
    Context,
    SameSamples,
    Unmoved,
    Loss,
    Scrambled,
}

impl Alarm {
    /// Its name in `guard.pause` and in every warning.
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            _ => unreachable!("a variant without fields is written as its name"),
        }
    }
}
