//! What is given to the episode loop: the policy, the environments and the limits of a part,
//! and which episode to play.

use crate::decoder::Decoder;
use crate::environments::Environment;
use crate::{Beat, Error};
use agentgym_envs::EnvError;
use agentgym_jobs::config::AgentGym;
use agentgym_jobs::episode::{Episode, Outcome, Task};
use agentgym_model::{Policy, Sampling};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What all episodes of a part have in common.
pub(crate) struct Player {
    /// Plays.
    pub(crate) policy: Arc<Policy>,
    /// Iteration that made it.
    pub(crate) policy_iteration: u32,
    /// Samples for it.
    pub(crate) decoder: Arc<Decoder>,
    /// By name in the plan.
    pub(crate) environments: BTreeMap<String, Environment>,
    /// Limits.
    pub(crate) rules: Rules,
    /// Told of every environment call.
    pub(crate) beat: Beat,
    /// Microseconds inside environment calls, summed over episodes.
    pub(crate) env_us: AtomicU64,
    /// Times that an episode was taken up in a fresh session.
    pub(crate) taken_up: AtomicU64,
    /// Episodes that went on in a fresh session after their attempt's end.
    pub(crate) resumed: AtomicU64,
    /// The worker drains: no message is begun any more.
    pub(crate) cancel: CancellationToken,
}

/// The limits of an episode.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// Horizon; an environment may have a nearer one.
    pub(crate) rounds_max: u32,
    /// Longest first prompt, tokens.
    pub(crate) prompt_tokens_max: usize,
    /// Most tokens after the prompt.
    pub(crate) response_tokens_max: usize,
    /// Longest context, tokens.
    pub(crate) context_tokens_max: usize,
    /// Most sampled tokens per turn; an environment may allow fewer.
    pub(crate) turn_tokens_max: usize,
    /// The instructions, the limits of the context, and the notes of an episode.
    pub(crate) gym: AgentGym,
    /// Whether sequences hold what top_k and top_p left; those of older plans do not.
    pub(crate) records_cuts: bool,
    /// An attempt at an episode that spends more inside environment calls is a fault.
    pub(crate) deadline: Duration,
    /// Times that a faulted episode is played again, and that a fault in the
    /// middle of it is answered with a fresh session.
    pub(crate) fault_retries: u32,
}

/// Which episode to play.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// What is to be solved.
    pub(crate) task: Task,
    /// Group of the episode.
    pub(crate) group: u32,
    /// Index in the group.
    pub(crate) sample: u32,
    /// Its randomness.
    pub(crate) stream: [u8; 32],
    /// Temperature and the like.
    pub(crate) sampling: Sampling,
}

impl Request {
    /// The record of an episode that the environment spoiled.
    pub(crate) fn spoiled(&self, fault: String) -> Episode {
        Episode {
            task: self.task.clone(),
            group: self.group,
            sample: self.sample,
            outcome: Outcome::EnvFault,
            success: false,
            reward: 0.0,
            prompt: String::new(),
            sequences: vec![],
            turns: vec![],
            fault: Some(fault),
            extra: vec![],
        }
    }
}

/// How playing can end without an episode.
pub(super) enum Interruption {
    /// The environment could not even be reached: nothing was played.
    Unreachable(EnvError),
    /// The environment failed the episode.
    Fault(String),
    /// It does not play again what an earlier attempt recorded.
    Differs(String),
    /// Not the environment's doing.
    Error(Error),
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}
