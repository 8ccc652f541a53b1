//! What is measured on the way, and how long a run is.

use super::data::Ids;
use crate::Result;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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

/// The number format of a policy's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaveDtype {
    F32,
    Bf16,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trainer {
    pub total_training_steps: Option<u32>,
    pub total_epochs: u32,
    pub save_freq: u32,
    pub full_policy_freq: u32,
    pub state_freq: u32,
    pub save_dtype: SaveDtype,
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
