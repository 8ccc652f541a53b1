//! The stages of an iteration and their static facts, one entry per stage, enforced by an
//! exhaustive match. The stage functions are in the worker; the parts of a stage are defined by the
//! pipeline.

use crate::artifact_names;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A node of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Writes the initial models and the demonstrations that need a file.
    Init,
    /// Evaluates the policy that `init` wrote, if a warm start follows.
    EvaluateInit,
    /// Supervised steps on demonstrations.
    Sft,
    /// DPO steps on preference pairs.
    Dpo,
    /// Plays the iteration's tasks.
    Rollout,
    /// Asks an HTTP function for the rewards of a part of the rollouts.
    Reward,
    /// Selects the informative groups; part r runs after round r of the rollouts.
    Select,
    /// Keeps the trajectories worth training on.
    Filter,
    /// Teacher-forced log-probs of the sampled tokens.
    LogProbs,
    /// Turns rewards into advantages, and assembles the update's batch.
    Advantage,
    /// A shard of the gradient of one optimizer step; parts are ordered by step, then shard.
    Gradient,
    /// Optimizer steps of the policy; writes the next policy.
    Update,
    /// Optimizer steps of the critic.
    CriticUpdate,
    /// Plays held-out tasks; never blocks training.
    Evaluate,
    /// Deletes what retention does not keep; never blocks training.
    Expire,
}

/// Static facts about a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Its name in keys, configs and metrics.
    pub name: &'static str,
    /// Later iterations wait for it.
    pub blocks: bool,
    /// It evaluates a policy and trains nothing.
    pub evaluates: bool,
    /// Its commits carry metrics for people.
    pub is_measured: bool,
    /// Its metrics are in the overview of an iteration.
    pub in_overview: bool,
    /// The records in its commits that can be inspected.
    pub records: Records,
}

/// The records of a stage's commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// `episodes.bin`.
    Episodes,
    /// `episodes.bin`, with `lineage.json` for their origin.
    Kept,
    /// `log_probs.bin` of a part of the rollouts.
    LogProbs,
    /// `batch.bin`.
    Batch,
    /// Optimizer steps, in the file of this name.
    Steps(&'static str),
    /// None.
    Nothing,
}

impl Records {
    /// True if they can be read as conversations.
    pub fn are_episodes(self) -> bool {
        matches!(self, Self::Episodes | Self::Kept)
    }
}

impl Stage {
    /// All stages, in the order of an iteration.
    pub const ALL: [Self; 15] = [
        Self::Init,
        Self::EvaluateInit,
        Self::Sft,
        Self::Dpo,
        Self::Rollout,
        Self::Reward,
        Self::Select,
        Self::Filter,
        Self::LogProbs,
        Self::Advantage,
        Self::Gradient,
        Self::Update,
        Self::CriticUpdate,
        Self::Evaluate,
        Self::Expire,
    ];

    /// The stage's entry.
    pub const fn facts(self) -> Facts {
        const fn training(name: &'static str, records: Records) -> Facts {
            Facts {
                name,
                blocks: true,
                evaluates: false,
                is_measured: true,
                in_overview: !matches!(records, Records::LogProbs),
                records,
            }
        }
        const fn unseen(name: &'static str) -> Facts {
            Facts {
                in_overview: false,
                ..training(name, Records::Nothing)
            }
        }
        const fn evaluation(name: &'static str) -> Facts {
            Facts {
                blocks: false,
                evaluates: true,
                ..training(name, Records::Episodes)
            }
        }
        match self {
            Self::Init => unseen("init"),
            Self::EvaluateInit => evaluation("evaluate_init"),
            Self::Sft => training("sft", Records::Nothing),
            Self::Dpo => unseen("dpo"),
            Self::Rollout => training("rollout", Records::Episodes),
            Self::Reward => training("reward", Records::Episodes),
            Self::Select => unseen("select"),
            Self::Filter => training("filter", Records::Kept),
            Self::LogProbs => training("log_probs", Records::LogProbs),
            Self::Advantage => training("advantage", Records::Batch),
            Self::Gradient => unseen("gradient"),
            Self::Update => training("update", Records::Steps(artifact_names::UPDATE)),
            Self::CriticUpdate => Facts {
                in_overview: false,
                ..training(
                    "critic_update",
                    Records::Steps(artifact_names::CRITIC_UPDATE),
                )
            },
            Self::Evaluate => evaluation("evaluate"),
            Self::Expire => Facts {
                blocks: false,
                is_measured: false,
                ..unseen("expire")
            },
        }
    }

    /// The name in keys, configs and metrics.
    pub fn name(self) -> &'static str {
        self.facts().name
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|s| s.name() == name)
            .ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|s| s.name()).collect();
                format!("unknown stage `{name}`; stages are {}", known.join(", "))
            })
    }
}
