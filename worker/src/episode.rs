//! One play of a task: prompt, then turn by turn sample, act, observe, until
//! the environment is done, the rounds or the tokens are used up, or the
//! environment fails.
//!
//! Three promises. Ids are kept as sampled and the loss mask says who produced
//! them (I6). A budget ends an episode before it is exceeded, with an outcome
//! of its own; nothing is cut silently. An environment's failure is never a
//! reward of zero (I8): the episode is taken up in a fresh session
//! ([`take_up`]), or else played again from the start with the same random
//! stream, and if that does not help it becomes an `env_fault`.

mod take_up;
mod transcript;

use crate::decoder::Decoder;
use crate::environments::Environment;
use crate::{Beat, Error, Result};
use agentgym_envs::spec::{Actions, first_message};
use agentgym_envs::{EnvError, Session, StepOutput};
use agentgym_jobs::config::AgentGym;
use agentgym_jobs::episode::{AVAILABLE_ACTIONS, Episode, Outcome, Parse, SUMMARIES, Task, Turn};
use agentgym_model::{Policy, Sampling};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use transcript::Transcript;

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
    /// What the policy is told, how much it sees, and what is noted.
    pub(crate) gym: AgentGym,
    /// An attempt at an episode that takes longer is a fault.
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
enum Interruption {
    /// The environment could not even be reached: nothing was played.
    Unreachable(EnvError),
    /// The environment failed the episode.
    Fault(String),
    /// Not the environment's doing.
    Error(Error),
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Player {
    /// Plays an episode to its outcome, faults included.
    ///
    /// # Errors
    /// The environment cannot be reached at all, the task does not fit the
    /// config, or the model failed.
    pub(crate) async fn play(&self, request: &Request) -> Result<Episode> {
        let mut fault = String::new();
        for _ in 0..=self.rules.fault_retries {
            let attempt = tokio::time::timeout(self.rules.deadline, self.attempt(request)).await;
            match attempt {
                Ok(Ok(episode)) => return Ok(episode),
                Ok(Err(Interruption::Fault(message))) => fault = message,
                Ok(Err(Interruption::Error(error))) => return Err(error),
                Ok(Err(Interruption::Unreachable(error))) => {
                    return Err(Error::Environment(error.to_string()));
                }
                Err(tokio::time::error::Elapsed { .. }) => {
                    fault = format!(
                        "the episode was not over after {} s (actor_rollout_ref.rollout.episode_deadline_s)",
                        self.rules.deadline.as_secs_f64()
                    );
                }
            }
            tracing::warn!(task = %request.task, sample = request.sample, fault, "environment fault");
        }
        Ok(request.spoiled(fault))
    }

    async fn attempt(&self, request: &Request) -> Result<Episode, Interruption> {
        let environment = self.environments.get(&request.task.env).ok_or_else(|| {
            Error::stage(format!("no client for environment `{}`", request.task.env))
        })?;
        let opened = self
            .timed(environment.client.open(request.task.item_id))
            .await;
        let mut session = match opened {
            Ok(session) => session,
            Err(error @ EnvError::Unreachable { .. }) => {
                return Err(Interruption::Unreachable(error));
            }
            Err(error) => return Err(Interruption::Fault(error.to_string())),
        };
        let played = self.converse(request, environment, &mut session).await;
        // A failure to close is counted and logged by the client.
        let _ = session.close().await;
        played
    }

    /// The conversation from the first observation to the outcome.
    async fn converse(
        &self,
        request: &Request,
        environment: &Environment,
        session: &mut Session,
    ) -> Result<Episode, Interruption> {
        let instruction = self.rules.gym.instruction_of(environment.spec.instruction);
        let first = session.observation().to_owned();
        let prompt = first_message(&instruction, &first);
        let rounds_max = self.rules.rounds_max.min(environment.rounds_max);
        let turn_tokens_max = self.rules.turn_tokens_max.min(environment.turn_tokens_max);
        let mut table = Transcript::start(self, request, &prompt, turn_tokens_max)?;
        let mut turns: Vec<Turn> = Vec::new();
        let mut available: Vec<Option<Vec<String>>> = Vec::new();
        // The environment's last word; an answer that the client gave by itself
        // says nothing about the task and takes no reward away.
        let (mut reward, mut success) = (0.0, false);
        let outcome = loop {
            if turns.len() as u32 == rounds_max {
                break Outcome::Horizon;
            }
            if let Some(turn) = turns.last()
                && !table
                    .observe(self, request, (turns.len() as u32, turn))
                    .await?
            {
                break Outcome::Length;
            }
            if self.rules.gym.record_actions {
                let listed = self.timed(session.available_actions()).await;
                available.push(listed.map_err(|e| Interruption::Fault(e.to_string()))?);
            }
            let Some(mut turn) = table.sample(self, request, turns.len() as u32).await? else {
                break Outcome::Length;
            };
            let step = match self.timed(session.step(&turn.text)).await {
                Ok(step) => step,
                Err(error) => {
                    let played = take_up::Played {
                        item_id: request.task.item_id,
                        prompt: &first,
                        turns: &turns,
                    };
                    self.take_up(environment, session, played, &turn.text, error)
                        .await?
                }
            };
            if !step.local {
                (reward, success) = (step.reward, step.success);
                turn.reward = Some(step.reward);
            }
            turn.parse = parse(&step);
            turn.done = step.done;
            turn.action = step.action;
            turn.observation = step.observation;
            turns.push(turn);
            if step.done {
                break if success {
                    Outcome::Solved
                } else {
                    Outcome::Failed
                };
            }
        };
        let (sequences, summaries) = table.into_parts();
        let mut extra = extra(environment, available, turns.len());
        if !summaries.is_empty() {
            let text = serde_json::to_string(&summaries).expect("summaries are plain JSON");
            extra.push((SUMMARIES.to_owned(), text));
        }
        Ok(Episode {
            task: request.task.clone(),
            group: request.group,
            sample: request.sample,
            outcome,
            success,
            reward,
            prompt,
            sequences,
            extra,
            turns,
            fault: None,
        })
    }

    async fn timed<T>(&self, call: impl Future<Output = T>) -> T {
        let start = Instant::now();
        let busy = self.beat.busy();
        let result = call.await;
        drop(busy);
        self.env_us
            .fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.beat.tick();
        result
    }
}

/// What was noted beside the turns. Where the observations hold the actions
/// themselves, nothing is written twice.
fn extra(
    environment: &Environment,
    mut available: Vec<Option<Vec<String>>>,
    turns: usize,
) -> Vec<(String, String)> {
    // The last list may belong to a turn for which there was no room.
    available.truncate(turns);
    let in_text = matches!(environment.spec.actions, Actions::InText(_));
    if in_text || available.iter().all(Option::is_none) {
        return vec![];
    }
    let text = serde_json::to_string(&available).expect("lists of texts are plain JSON");
    vec![(AVAILABLE_ACTIONS.to_owned(), text)]
}

fn parse(step: &StepOutput) -> Parse {
    match &step.parsed {
        parsed if !parsed.found || parsed.action.is_none() => Parse::Invalid,
        parsed if parsed.normalised => Parse::Normalised,
        _ => Parse::Clean,
    }
}

#[cfg(test)]
mod tests;
