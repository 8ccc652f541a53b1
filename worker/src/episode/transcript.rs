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
//!
//! With `agentgym.summary` the policy is asked to sum up instead, every
//! `context_turns` turns or when the window is full. What it answers is sampled
//! and trained on in the sequence that ends with it; the next sequence is the
//! prompt, that answer as the policy's own message, and the last observation.

use super::{Player, Request};
use crate::decoder::Sequence as Seat;
use crate::{Error, Result};
use agentgym_jobs::episode::{Finish, Parse, Sequence, Summary, Turn};
use agentgym_model::{Message, Role};

/// Added to a turn's number where its random numbers choose a summary instead.
const SUMMARY: u32 = 1 << 31;

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
    /// Most of them that one turn may sample.
    turn_tokens_max: usize,
    /// Ids of the prompt, and of each turn its reply with the observation after
    /// it: what a later context is put together from. Kept only where the
    /// context is limited.
    prompt: Vec<u32>,
    turns: Vec<Vec<u32>>,
    context_turns: Option<usize>,
    /// How the policy is asked to sum up, if it is.
    summary: Option<String>,
    summaries: Vec<Summary>,
    /// Turns sampled in the last sequence.
    turns_here: usize,
}

/// A message that the policy sampled, where it stands in the last sequence.
struct Sampled {
    /// What the engine was given before it, to where it starts.
    context: (u32, u32),
    policy: (u32, u32),
    token_ids: Vec<u32>,
    text: String,
    ended: bool,
}

impl Transcript {
    pub(super) fn start(
        player: &Player,
        request: &Request,
        prompt: &str,
        turn_tokens_max: usize,
    ) -> Result<Self> {
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
            turn_tokens_max,
            prompt: Vec::new(),
            turns: Vec::new(),
            context_turns: rules.gym.context_turns,
            summary: rules.gym.summary_request().map(str::to_owned),
            summaries: Vec::new(),
            turns_here: 0,
        };
        transcript.append_context(&ids);
        if transcript.context_turns.is_some() || transcript.summary.is_some() {
            transcript.prompt = ids;
        }
        Ok(transcript)
    }

    /// The finished sequences, and the summaries in them.
    pub(super) fn into_parts(self) -> (Vec<Sequence>, Vec<Summary>) {
        (self.sequences, self.summaries)
    }

    /// Goes on in a new sequence, which begins with these ids.
    fn begin(&mut self, player: &Player, ids: &[u32]) {
        self.sequences.push(Sequence::default());
        self.seat = player.decoder.open();
        self.unsent = 0;
        self.turns_here = 0;
        self.append_context(ids);
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

    /// Appends the environment's answer to the `turns`-th turn; false if that would
    /// leave no room for a reply, in which case nothing more can be sampled.
    pub(super) async fn observe(
        &mut self,
        player: &Player,
        request: &Request,
        (turns, last): (u32, &Turn),
    ) -> Result<bool> {
        let ended = last.finish == Finish::Eos;
        let policy = &player.policy;
        let ids = policy
            .chat()
            .observation_ids(policy.tokenizer(), ended, &last.observation)?;
        if let Some(ask) = self.summary.clone() {
            let due = (self.context_turns).is_some_and(|limit| self.turns_here >= limit);
            let alone = policy
                .chat()
                .observation_ids(policy.tokenizer(), ended, &ask)?;
            // After another reply there must still be room to ask, and for the answer.
            let reserve = 2 * self.turn_tokens_max + alone.len();
            if due || self.len() + ids.len() + reserve > self.tokens_max {
                let asked = format!("{}\n\n{ask}", last.observation);
                return self
                    .sum_up(player, request, (turns, last), &asked, &alone)
                    .await;
            }
            self.append_context(&ids);
            return Ok(true);
        }
        if let Some(last) = self.turns.last_mut() {
            last.extend_from_slice(&ids);
        }
        let seen = match self.context_turns {
            Some(limit) if self.turns.len() > limit => {
                let recent = &self.turns[self.turns.len() - limit..];
                Some([self.prompt.as_slice(), &recent.concat()].concat())
            }
            _ => None,
        };
        let fits = match &seen {
            Some(seen) => seen.len() < self.tokens_max,
            None => self.len() + ids.len() < self.tokens_max,
        };
        match seen {
            _ if !fits => {}
            None => self.append_context(&ids),
            Some(seen) => self.begin(player, &seen),
        }
        Ok(fits)
    }

    /// Asks for a summary behind the last observation, or `alone` where that leaves
    /// too little room, and begins a sequence with the answer.
    async fn sum_up(
        &mut self,
        player: &Player,
        request: &Request,
        (turns, last): (u32, &Turn),
        asked: &str,
        alone: &[u32],
    ) -> Result<bool> {
        let (chat, tokenizer) = (player.policy.chat(), player.policy.tokenizer());
        let mut asked = chat.observation_ids(tokenizer, last.finish == Finish::Eos, asked)?;
        if self.len() + asked.len() + self.turn_tokens_max > self.tokens_max {
            asked = alone.to_vec();
        }
        if self.len() + asked.len() >= self.tokens_max {
            return Ok(false);
        }
        self.append_context(&asked);
        let Some(told) = self.generate(player, request, SUMMARY | turns).await? else {
            return Ok(false);
        };
        self.summaries.push(Summary {
            turns,
            sequence: self.sequences.len() as u32 - 1,
            policy: told.policy,
            text: told.text,
        });
        let seen = chat.observation_ids(tokenizer, told.ended, &last.observation)?;
        let ids = [self.prompt.as_slice(), &told.token_ids, &seen].concat();
        let fits = ids.len() < self.tokens_max;
        if fits {
            self.begin(player, &ids);
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
        let Some(said) = self.generate(player, request, turn).await? else {
            return Ok(None);
        };
        self.turns_here += 1;
        if self.context_turns.is_some() && self.summary.is_none() {
            self.turns.push(said.token_ids);
        }
        Ok(Some(Turn {
            sequence: self.sequences.len() as u32 - 1,
            context: said.context,
            policy: said.policy,
            text: said.text,
            action: None,
            parse: Parse::Invalid,
            observation: String::new(),
            reward: None,
            done: false,
            finish: match said.ended {
                true => Finish::Eos,
                false => Finish::Length,
            },
            policy_iteration: player.policy_iteration,
        }))
    }

    /// Samples a message at the end of the last sequence; `number` selects its
    /// random numbers. `None` if there is no room for one.
    async fn generate(
        &mut self,
        player: &Player,
        request: &Request,
        number: u32,
    ) -> Result<Option<Sampled>> {
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
                turn: number,
                sampling: request.sampling,
                tokens_max: room.min(self.turn_tokens_max),
                stop_ids: policy.eos_ids().to_vec(),
            })
            .await?;
        let ended = done.finish == agentgym_model::Finish::Eos;
        // The engine keeps what it sampled; the next message appends behind it.
        let sequence = self.current();
        sequence.token_ids.extend_from_slice(&done.token_ids);
        let end = sequence.token_ids.len();
        sequence.loss_mask.resize(end, true);
        sequence
            .sampled_log_probs
            .extend_from_slice(&done.log_probs);
        self.unsent = end;
        let text_ids = &done.token_ids[..done.token_ids.len() - usize::from(ended)];
        Ok(Some(Sampled {
            context: (unsent as u32, start as u32),
            policy: (start as u32, end as u32),
            text: policy.tokenizer().decode(text_ids, true),
            token_ids: done.token_ids,
            ended,
        }))
    }
}
