//! The inputs of the episode loop: the policy, the environments and the limits of a part, and the
//! episode to play.

use crate::environments::Environment;
use crate::gateway::AgentGateway;
use crate::meters::Meters;
use crate::turn_engine::TurnEngine;
use crate::{Beat, Error};
use agentgym_envs::EnvError;
use agentgym_jobs::config::AgentGym;
use agentgym_jobs::episode::{Episode, Outcome, Task};
use agentgym_model::{PolicyText, Sampling};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What all episodes of a part share.
pub(crate) struct Player {
    /// Tokenizer and template of the policy that plays.
    pub(crate) text: PolicyText,
    /// The same with the tools of the environments whose actions are calls, by their names.
    pub(crate) calling: BTreeMap<String, PolicyText>,
    /// The iteration that made it.
    pub(crate) policy_iteration: u32,
    /// Samples from the policy.
    pub(crate) engine: TurnEngine,
    /// By name in the plan.
    pub(crate) environments: BTreeMap<String, Environment>,
    /// Limits.
    pub(crate) rules: Rules,
    /// Ticked at every environment call.
    pub(crate) beat: Beat,
    /// Microseconds inside environment calls, summed over episodes.
    pub(crate) env_us: AtomicU64,
    /// Where agents behind a harness ask.
    pub(crate) gateway: Arc<AgentGateway>,
    /// Each of these calls, for operators.
    pub(crate) meters: Arc<Meters>,
    /// How often an episode continued in a fresh session.
    pub(crate) taken_up: AtomicU64,
    /// Episodes of earlier attempts that continued in a fresh session.
    pub(crate) resumed: AtomicU64,
    /// The worker drains: no new message is begun.
    pub(crate) cancel: CancellationToken,
}

impl Player {
    /// Tokenizer and template for the episodes of an environment.
    pub(crate) fn text_for(&self, env: &str) -> &PolicyText {
        self.calling.get(env).unwrap_or(&self.text)
    }
}

/// The limits of an episode.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// The horizon; an environment may have a lower limit.
    pub(crate) rounds_max: u32,
    /// Longest first prompt, in tokens.
    pub(crate) prompt_tokens_max: usize,
    /// Most tokens after the prompt.
    pub(crate) response_tokens_max: usize,
    /// Longest context, in tokens.
    pub(crate) context_tokens_max: usize,
    /// Most sampled tokens per turn; an environment may allow fewer.
    pub(crate) turn_tokens_max: usize,
    /// The instructions, the context limits and the recording options.
    pub(crate) gym: AgentGym,
    /// Whether sequences record the probability mass that top_k and top_p keep; in older plans they
    /// do not.
    pub(crate) records_cuts: bool,
    /// Sequences record the entropy at every sampled token.
    pub(crate) records_entropies: bool,
    /// A try at an episode that spends more than this in environment calls is a fault.
    pub(crate) deadline: Duration,
    /// How often a faulted episode is played again, and how often a fault in mid-episode is
    /// answered with a fresh session.
    pub(crate) fault_retries: u32,
    /// An answer to an agent is given when it is in the journal.
    pub(crate) journals_first: bool,
    /// An episode whose first prompt leaves no room for a reply is left out; else it ends the run.
    pub(crate) leaves_out: bool,
}

/// The episode to play.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// The task to solve.
    pub(crate) task: Task,
    /// Group of the episode.
    pub(crate) group: u32,
    /// Index in the group.
    pub(crate) sample: u32,
    /// The random stream of the episode.
    pub(crate) stream: [u8; 32],
    /// Temperature and other sampling options.
    pub(crate) sampling: Sampling,
}

impl Request {
    /// The record of an episode that leaves its slot empty, and why.
    pub(crate) fn empty(&self, outcome: Outcome, why: String) -> Episode {
        Episode {
            task: self.task.clone(),
            group: self.group,
            sample: self.sample,
            outcome,
            success: false,
            reward: 0.0,
            prompt: String::new(),
            sequences: vec![],
            turns: vec![],
            fault: Some(why),
            extra: vec![],
        }
    }
}

/// Why playing ended without an episode.
pub(super) enum Interruption {
    /// The environment could not be reached, or is another one: nothing was played.
    Useless(EnvError),
    /// The environment failed during the episode.
    Fault(String),
    /// The environment's replay differs from what an earlier attempt recorded.
    Differs(String),
    /// The episode leaves its slot empty, and would if it were played again.
    Empty(Outcome, String),
    /// A failure outside the environment.
    Error(Error),
}

impl From<EnvError> for Interruption {
    fn from(error: EnvError) -> Self {
        match error {
            useless @ (EnvError::Unreachable { .. } | EnvError::Another { .. }) => {
                Self::Useless(useless)
            }
            error => Self::Fault(error.to_string()),
        }
    }
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        match error {
            Error::NoMessage(why) => Self::Empty(Outcome::NoMessage, why),
            error => Self::Error(error),
        }
    }
}
