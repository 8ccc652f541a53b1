//! The tokens of an episode while it is played.
//!
//! As a rule an episode is one sequence that only grows. With
//! `agentgym.context_turns` the policy sees the prompt and so many turns before
//! the present one; what it sees then is no continuation of what it saw before,
//! so each such turn has a sequence of its own. It is put together from ids that
//! are there already, sampled ones included, and nothing is encoded again (I6).
//! The loss mask of a sequence is true where the policy sampled the id *in that
//! sequence*: a reply that is repeated as context is trained on once, where it
//! was sampled.

use super::{Player, Request};
use crate::decoder::Sequence as Seat;
use crate::{Error, Result};
use agentgym_jobs::episode::{Finish, Parse, Sequence, Turn};
use agentgym_model::{Message, Role};

pub(super) struct Transcript {
    /// In the order of time; the last one grows.
    sequences: Vec<Sequence>,
    /// The decoder's place of the last one.
    seat: Seat,
    /// Tokens of the last one that the engine has not been given yet: from here
    /// to the end.
    unsent: usize,
    /// Longest sequence that the budgets allow.
    tokens_max: usize,
    /// Ids of the prompt, and of each turn its reply with the observation after
    /// it: what a later context is put together from. Kept only where the
    /// context is limited.
    prompt: Vec<u32>,
    turns: Vec<Vec<u32>>,
    context_turns: Option<usize>,
}

impl Transcript {
    pub(super) fn start(player: &Player, request: &Request, prompt: &str) -> Result<Self> {
        let (policy, rules) = (&player.policy, &player.rules);
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
            sequences: vec![Sequence::default()],
            seat: player.decoder.open(),
            unsent: 0,
            tokens_max,
            prompt: Vec::new(),
            turns: Vec::new(),
            context_turns: rules.gym.context_turns,
        };
        transcript.append_context(&ids);
        if transcript.context_turns.is_some() {
            transcript.prompt = ids;
        }
        Ok(transcript)
    }

    /// The finished sequences.
    pub(super) fn into_sequences(self) -> Vec<Sequence> {
        self.sequences
    }

    fn current(&mut self) -> &mut Sequence {
        self.sequences
            .last_mut()
            .expect("a transcript begins with a sequence")
    }

    fn len(&self) -> usize {
        self.sequences.last().map_or(0, |s| s.token_ids.len())
    }

    fn append_context(&mut self, ids: &[u32]) {
        let sequence = self.current();
        sequence.token_ids.extend_from_slice(ids);
        let len = sequence.token_ids.len();
        sequence.loss_mask.resize(len, false);
        sequence.sampled_log_probs.resize(len, 0.0);
    }

    /// Appends the environment's answer; false if that would leave no room for
    /// a reply, in which case nothing is appended.
    pub(super) fn observe(
        &mut self,
        player: &Player,
        ended_with_eos: bool,
        observation: &str,
    ) -> Result<bool> {
        let policy = &player.policy;
        let ids = policy
            .chat()
            .observation_ids(policy.tokenizer(), ended_with_eos, observation)?;
        if let Some(last) = self.turns.last_mut() {
            last.extend_from_slice(&ids);
        }
        let seen = match self.context_turns {
            Some(limit) if self.turns.len() > limit => {
                let recent = &self.turns[self.turns.len() - limit..];
                Some(recent.concat())
            }
            _ => None,
        };
        let fits = match &seen {
            Some(recent) => self.prompt.len() + recent.len() < self.tokens_max,
            None => self.len() + ids.len() < self.tokens_max,
        };
        match seen {
            _ if !fits => {}
            None => self.append_context(&ids),
            Some(recent) => {
                self.sequences.push(Sequence::default());
                self.seat = player.decoder.open();
                self.unsent = 0;
                let prompt = std::mem::take(&mut self.prompt);
                self.append_context(&prompt);
                self.prompt = prompt;
                self.append_context(&recent);
            }
        }
        Ok(fits)
    }

    /// Samples the policy's next message; `None` if there is no room for one.
    pub(super) async fn sample(
        &mut self,
        player: &Player,
        request: &Request,
        turn: u32,
    ) -> Result<Option<Turn>> {
        let policy = &player.policy;
        let start = self.len();
        let room = self.tokens_max.saturating_sub(start);
        if room == 0 {
            return Ok(None);
        }
        let unsent = self.unsent;
        let append = self.current().token_ids[unsent..].to_vec();
        let done = self
            .seat
            .turn(agentgym_model::Turn {
                sequence: self.seat.id(),
                append,
                stream: request.stream,
                turn,
                sampling: request.sampling,
                tokens_max: room.min(player.rules.turn_tokens_max),
                stop_ids: policy.eos_ids().to_vec(),
            })
            .await?;
        let ended = done.finish == agentgym_model::Finish::Eos;
        // The engine keeps what it sampled; the next turn appends behind it.
        let sequence = self.current();
        sequence.token_ids.extend_from_slice(&done.token_ids);
        let end = sequence.token_ids.len();
        sequence.loss_mask.resize(end, true);
        sequence
            .sampled_log_probs
            .extend_from_slice(&done.log_probs);
        self.unsent = end;
        if self.context_turns.is_some() {
            self.turns.push(done.token_ids.clone());
        }
        let text_ids = done.token_ids.len() - usize::from(ended);
        Ok(Some(Turn {
            sequence: self.sequences.len() as u32 - 1,
            context: (unsent as u32, start as u32),
            policy: (start as u32, end as u32),
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
