//! The resolved config, typed. Field names are the key names of
//! [`super::keys::KEYS`], where each is explained.
#![allow(
    missing_docs,
    reason = "every field is documented once, in the key table"
)]

mod actor;
mod algorithm;
mod data;
mod evaluation;
mod guard;
mod lessons;
mod run;
mod spelled;

use crate::{Error, Result};
pub use actor::*;
use agentgym_envs::builtin::{self, RULES, other_rules};
use agentgym_envs::spec::{EnvSpec, declared, spec};
pub use algorithm::*;
pub(crate) use data::Items;
pub use data::{CurriculumCtrl, Data, Files, Ids, TaskSource};
pub use evaluation::*;
pub use guard::*;
pub use lessons::*;
pub use run::*;
use serde::{Deserialize, Serialize};
pub use spelled::Spelled;
use std::collections::BTreeMap;

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
    pub reward: Reward,
    pub sft: Sft,
    pub dpo: Dpo,
    pub agentevol: AgentEvol,
    pub evaluation: Evaluation,
    pub guard: Guard,
    pub trainer: Trainer,
}

impl Config {
    /// True if there are tasks to train on.
    pub(crate) fn has_tasks(&self) -> bool {
        self.data.train_file.is_some() || !self.data.tasks.is_empty()
    }

    /// The spec of this name: one of the plan's own, or one that every program has.
    ///
    /// # Errors
    /// An unknown name.
    pub fn spec(&self, name: &str) -> Result<&'static EnvSpec> {
        let known = || {
            spec(name).map_err(|why| {
                Error::value("actor_rollout_ref.agentgym.task_name", why.to_string())
            })
        };
        self.own_spec(name).map_or_else(known, Ok)
    }

    /// The spec of this name that the plan holds.
    fn own_spec(&self, name: &str) -> Option<&'static EnvSpec> {
        let held = self.actor_rollout_ref.agentgym.specs.iter();
        // What cannot be read has been refused where the plan was made.
        held.filter_map(|source| match source {
            SpecSource::Read(value) => declared::declared(value).ok(),
            SpecSource::Named(_) => None,
        })
        .find(|spec| spec.name.eq_ignore_ascii_case(name))
    }

    /// The environments of the run: that of `agentgym.task_name` under its own name, and those of
    /// `agentgym.envs`. One of a spec of one's own has the rounds of its spec.
    pub fn environments(&self) -> BTreeMap<String, Environment> {
        let gym = &self.actor_rollout_ref.agentgym;
        let mut all = gym.envs.clone();
        for source in &self.data.tasks {
            let questions = source.address().map(|env_addr| Environment {
                task_name: TaskSource::QUESTIONS.to_owned(),
                env_addr,
                max_rounds: Some(1),
                max_tokens: None,
            });
            if let Some(questions) = questions {
                all.entry(source.env.clone()).or_insert(questions);
            }
        }
        all.entry(gym.task_name.clone())
            .or_insert_with(|| Environment {
                task_name: gym.task_name.clone(),
                env_addr: gym.env_addr.clone(),
                max_rounds: None,
                max_tokens: None,
            });
        for environment in all.values_mut() {
            let own = self
                .own_spec(&environment.task_name)
                .map(|spec| spec.rounds_max);
            environment.max_rounds = environment.max_rounds.or(own);
        }
        all
    }

    /// Refuses what plays games by rules that this program has no longer. Of the others both rules are
    /// the same: runs from before the key go on with them.
    pub fn check_rules(&self) -> Result<()> {
        let rules = self.actor_rollout_ref.agentgym.rules;
        if rules == RULES {
            return Ok(());
        }
        let changed = |(name, environment): (String, Environment)| {
            let told = |spec: &EnvSpec| !spec.tools.is_empty();
            let kind = &environment.task_name;
            let played = builtin::is_builtin(&environment.env_addr)
                && matches!(kind.as_str(), "babyai" | "maze")
                || self.spec(kind).is_ok_and(told);
            played.then_some(name)
        };
        let played: Vec<String> = self
            .environments()
            .into_iter()
            .filter_map(changed)
            .collect();
        match &played[..] {
            [] => Ok(()),
            _ => Err(Error::value(
                "actor_rollout_ref.agentgym.rules",
                other_rules(&format!("this run plays {}", played.join(", ")), rules),
            )),
        }
    }
}
