//! One play of a task: prompt, then turn by turn sample, act, observe, until
//! the environment is done, the rounds or the tokens are used up, or the
//! environment fails.
//!
//! Three promises. Ids are kept as sampled and the loss mask says who produced
//! them (I6). A budget ends an episode before it is exceeded, with an outcome
//! of its own; nothing is cut silently. An environment's failure is never a
//! reward of zero (I8): the episode is played again from the start with the
//! same random stream, and if that does not help it becomes an `env_fault`.

use crate::decoder::{Decoder, Sequence as DecoderSequence};
use crate::environments::Environment;
use crate::{Beat, Error, Result};
use agentgym_envs::spec::first_message;
use agentgym_envs::{EnvError, Session, StepOutput};
use agentgym_jobs::episode::{Episode, Finish, Outcome, Parse, Sequence, Task, Turn};
use agentgym_model::{Message, Policy, Role, Sampling};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
}

/// The limits of an episode.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// Horizon.
    pub(crate) rounds_max: u32,
    /// Longest first prompt, tokens.
    pub(crate) prompt_tokens_max: usize,
    /// Most tokens after the prompt.
    pub(crate) response_tokens_max: usize,
    /// Longest context, tokens.
    pub(crate) context_tokens_max: usize,
    /// Most sampled tokens per turn.
    pub(crate) turn_tokens_max: usize,
    /// Instead of the environment's own instruction.
    pub(crate) instruction: Option<String>,
    /// An attempt at an episode that takes longer is a fault.
    pub(crate) deadline: Duration,
    /// Times that a faulted episode is played again.
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
        Ok(Episode {
            task: request.task.clone(),
            group: request.group,
            sample: request.sample,
            outcome: Outcome::EnvFault,
            success: false,
            reward: 0.0,
            prompt: String::new(),
            sequences: vec![],
            turns: vec![],
            fault: Some(fault),
            extra: vec![],
        })
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
        let instruction = self
            .rules
            .instruction
            .as_deref()
            .unwrap_or(environment.spec.instruction);
        let prompt = first_message(instruction, session.observation());
        let mut table = Transcript::start(&self.policy, &self.rules, request, &prompt)?;
        let seat = self.decoder.open();
        let mut turns: Vec<Turn> = Vec::new();
        // The environment's last word; an answer that the client gave by itself
        // says nothing about the task and takes no reward away.
        let (mut reward, mut success) = (0.0, false);
        let outcome = loop {
            if turns.len() as u32 == self.rules.rounds_max {
                break Outcome::Horizon;
            }
            if let Some(turn) = turns.last()
                && !table.observe(&self.policy, turn.finish == Finish::Eos, &turn.observation)?
            {
                break Outcome::Length;
            }
            let Some(mut turn) = table
                .sample(self, &seat, request, turns.len() as u32)
                .await?
            else {
                break Outcome::Length;
            };
            let step = self
                .timed(session.step(&turn.text))
                .await
                .map_err(|e| Interruption::Fault(e.to_string()))?;
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
        Ok(Episode {
            task: request.task.clone(),
            group: request.group,
            sample: request.sample,
            outcome,
            success,
            reward,
            prompt,
            sequences: vec![table.sequence],
            turns,
            fault: None,
            extra: vec![],
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

fn parse(step: &StepOutput) -> Parse {
    match &step.parsed {
        parsed if !parsed.found || parsed.action.is_none() => Parse::Invalid,
        parsed if parsed.normalised => Parse::Normalised,
        _ => Parse::Clean,
    }
}

/// The tokens of an episode while it is played.
struct Transcript {
    sequence: Sequence,
    /// Tokens that the engine has not been given yet: from here to the end.
    unsent: usize,
    /// Longest sequence that the budgets allow.
    tokens_max: usize,
}

impl Transcript {
    fn start(policy: &Policy, rules: &Rules, request: &Request, prompt: &str) -> Result<Self> {
        let message = Message {
            role: Role::User,
            content: prompt.to_owned(),
        };
        let ids = policy.chat().prompt_ids(policy.tokenizer(), &[message])?;
        for (key, limit, needed) in [
            ("data.max_prompt_length", rules.prompt_tokens_max, ids.len()),
            (
                "actor_rollout_ref.rollout.max_model_len",
                rules.context_tokens_max,
                ids.len() + 1,
            ),
        ] {
            if needed > limit {
                return Err(Error::stage(format!(
                    "task {}: its prompt has {} tokens, {key} = {limit} is too small; raise it or leave the task out",
                    request.task,
                    ids.len()
                )));
            }
        }
        let tokens_max = rules
            .context_tokens_max
            .min(ids.len() + rules.response_tokens_max);
        let mut transcript = Self {
            sequence: Sequence::default(),
            unsent: 0,
            tokens_max,
        };
        transcript.append_context(&ids);
        Ok(transcript)
    }

    fn append_context(&mut self, ids: &[u32]) {
        self.sequence.token_ids.extend_from_slice(ids);
        self.sequence
            .loss_mask
            .resize(self.sequence.token_ids.len(), false);
        self.sequence
            .sampled_log_probs
            .resize(self.sequence.token_ids.len(), 0.0);
    }

    /// Appends the environment's answer; false if that would leave no room for
    /// a reply, in which case nothing is appended.
    fn observe(
        &mut self,
        policy: &Policy,
        ended_with_eos: bool,
        observation: &str,
    ) -> Result<bool> {
        let ids = policy
            .chat()
            .observation_ids(policy.tokenizer(), ended_with_eos, observation)?;
        let fits = self.sequence.token_ids.len() + ids.len() < self.tokens_max;
        if fits {
            self.append_context(&ids);
        }
        Ok(fits)
    }

    /// Samples the policy's next message; `None` if there is no room for one.
    async fn sample(
        &mut self,
        player: &Player,
        seat: &DecoderSequence,
        request: &Request,
        turn: u32,
    ) -> Result<Option<Turn>> {
        let policy = &player.policy;
        let start = self.sequence.token_ids.len();
        let room = self.tokens_max.saturating_sub(start);
        if room == 0 {
            return Ok(None);
        }
        let done = seat
            .turn(agentgym_model::Turn {
                sequence: seat.id(),
                append: self.sequence.token_ids[self.unsent..].to_vec(),
                stream: request.stream,
                turn,
                sampling: request.sampling,
                tokens_max: room.min(player.rules.turn_tokens_max),
                stop_ids: policy.eos_ids().to_vec(),
            })
            .await?;
        let ended = done.finish == agentgym_model::Finish::Eos;
        // The engine keeps what it sampled; the next turn appends behind it.
        self.sequence.token_ids.extend_from_slice(&done.token_ids);
        self.sequence
            .loss_mask
            .resize(self.sequence.token_ids.len(), true);
        self.sequence
            .sampled_log_probs
            .extend_from_slice(&done.log_probs);
        let context = (self.unsent as u32, start as u32);
        self.unsent = self.sequence.token_ids.len();
        let text_ids = done.token_ids.len() - usize::from(ended);
        Ok(Some(Turn {
            sequence: 0,
            context,
            policy: (start as u32, self.unsent as u32),
            text: policy.tokenizer().decode(&done.token_ids[..text_ids], true),
            action: None,
            parse: Parse::Invalid,
            observation: String::new(),
            reward: None,
            done: false,
            finish: if ended { Finish::Eos } else { Finish::Length },
            policy_iteration: player.policy_iteration,
        }))
    }
}

#[cfg(test)]
mod tests;
