//! The section of an AgentEvol run: which explored episodes are kept and trained on.

use super::{Config, Pipeline, Threshold};
use crate::{Error, Result};
use std::collections::BTreeMap;

impl Config {
    /// Checks the section if the run is an AgentEvol run.
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
