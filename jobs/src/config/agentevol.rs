//! The section of an AgentEvol run: what of an exploration is kept and learnt.
#![allow(
    missing_docs,
    reason = "every field is documented once, in the key table"
)]

use super::{Config, Pipeline};
use crate::episode::Episode;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentEvol {
    pub threshold: Option<Threshold>,
    pub keep: Keep,
    pub add_original_data: bool,
    pub accumulate: bool,
    pub share: Option<f64>,
    pub steps: u32,
}

/// Least reward of a kept trajectory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Threshold {
    /// Of every environment.
    All(f64),
    /// By environment; in one that is not named what counts is the success.
    ByEnv(BTreeMap<String, f64>),
}

/// Which of a task's good trajectories are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The one with the highest reward, of these the shortest, of these the first.
    Best,
    /// All that differ in what the policy said.
    All,
}

impl AgentEvol {
    /// True if the episode is good enough to be learnt.
    pub fn keeps(&self, episode: &Episode) -> bool {
        let least = match &self.threshold {
            None => None,
            Some(Threshold::All(least)) => Some(*least),
            Some(Threshold::ByEnv(by_env)) => by_env.get(&episode.task.env).copied(),
        };
        episode.usable() && least.map_or(episode.success, |least| episode.reward >= least)
    }
}

impl Config {
    /// Checks the section where the run is an AgentEvol run.
    pub(super) fn check_agentevol(&self) -> Result<()> {
        let evol = &self.agentevol;
        if self.run.pipeline != Pipeline::AgentEvol {
            return Ok(());
        }
        if evol.steps == 0 {
            return Err(Error::value(
                "agentevol.steps",
                "every iteration trains the base anew, for at least one optimizer step",
            ));
        }
        if let Some(share) = evol.share
            && !(share > 0.0 && share < 1.0)
        {
            return Err(Error::value(
                "agentevol.share",
                format!("is a part of every batch between 0 and 1, found {share}; null: by size"),
            ));
        }
        let known = self.environments();
        let by_env = match &evol.threshold {
            Some(Threshold::ByEnv(by_env)) => by_env.clone(),
            Some(Threshold::All(least)) => BTreeMap::from([(String::new(), *least)]),
            None => BTreeMap::new(),
        };
        for (env, least) in by_env {
            if !least.is_finite() {
                return Err(Error::value(
                    "agentevol.threshold",
                    format!("must be a number, found {least}"),
                ));
            }
            if !env.is_empty() && !known.contains_key(&env) {
                let names: Vec<_> = known.keys().map(String::as_str).collect();
                return Err(Error::value(
                    "agentevol.threshold",
                    format!(
                        "`{env}` is not declared under actor_rollout_ref.agentgym.envs; declared: {}",
                        names.join(", ")
                    ),
                ));
            }
        }
        Ok(())
    }
}
