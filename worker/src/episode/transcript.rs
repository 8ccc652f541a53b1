//! The tokens of an episode while it is played.
//!
//! Usually an episode is one sequence that only grows. With `agentgym.context_turns` the policy
//! sees the prompt and at most that many turns before the current one. Such a context does not
//! continue the previous one, so each such turn has its own sequence. It is assembled from existing
//! ids, sampled ones included, and nothing is encoded again (I6). The loss mask of a sequence is
//! true where the policy sampled the id *in that sequence*: a reply that is repeated as context is
//! trained on once, where it was sampled.
//!
//! With `agentgym.summary` the policy is asked for a summary instead, every `context_turns` turns
//! or when the window is full. The summary is sampled and trained on in the sequence that ends with
//! it. The next sequence is the prompt, the summary as the policy's own message, and the last
//! observation.

use super::player::{Interruption, Player, Request};
use super::texts::{kept, off_thread, prompt_ids};
use super::tokens::{append_context, append_sampled};
use crate::turn_engine::{TurnAsk, TurnSeat};
use crate::turn_journal::Tape;
use crate::{Error, Result};
use agentgym_jobs::config::OpeningTurn;
use agentgym_jobs::episode::{ContextSummary, Finish, Outcome, Parse, Sequence, Turn};
use agentgym_jobs::journal::{Event, RecordedMessage, Told};
use agentgym_model::{Message, PolicyText, Role};

/// Added to the turn number to select the random numbers of a summary.
const SUMMARY: u32 = 1 << 31;

pub(super) struct Transcript {
    /// In time order; the last one grows.
    sequences: Vec<Sequence>,
    /// Where the last sequence is generated.
    seat: TurnSeat,
    /// Where the context of the next message begins: after the last message.
    said: usize,
    /// Tokens of the last sequence that the engine has. Fewer than `said` if an earlier attempt
    /// sampled messages; the engine gets those with the next request.
    given: usize,
    /// Longest sequence that the budgets allow.
    tokens_max: usize,
    /// The most tokens that one turn may sample.
    turn_tokens_max: usize,
    /// Ids of the prompt, and per turn the reply with the observation after it: later contexts are
    /// assembled from these. Kept only if the context is limited.
    prompt: Vec<u32>,
    turns: Vec<Vec<u32>>,
    context_turns: Option<usize>,
    /// Ids of `agentgym.reply_prefix`.
    prefix: Vec<u32>,
    /// The request for a summary, if summaries are used.
    summary: Option<String>,
    summaries: Vec<ContextSummary>,
    /// Turns sampled in the last sequence.
    turns_here: usize,
    /// The conversation so far, where a chat API is asked.
    messages: Vec<Message>,
    /// Tokenizer and template of the policy, with the tools of the environment.
    text: PolicyText,
}

/// A message that the policy sampled, and its place in the last sequence.
struct Sampled {
    /// From the end of the previous message to the first id of this one that was sampled.
    context: (u32, u32),
    policy: (u32, u32),
    token_ids: Vec<u32>,
    text: String,
    ended: bool,
}

/// A message, its entropies where they are recorded, and what a chat API said in it.
type Spoken = (RecordedMessage, Option<Vec<f32>>, Option<Told>);

impl Transcript {
    pub(super) async fn start(
        player: &Player,
        request: &Request,
        (opening, prompt): (&[OpeningTurn], &str),
        turn_tokens_max: usize,
    ) -> Result<Self, Interruption> {
        let rules = &player.rules;
        let ids_max = rules.prompt_tokens_max.max(rules.context_tokens_max);
        let mut told: Vec<String> = opening.iter().map(|turn| turn.value.clone()).collect();
        told.push(prompt.to_owned());
        let messages = match player.engine.is_chat() {
            true => (told.iter().enumerate())
                .map(|(at, text)| Message::new([Role::User, Role::Assistant][at % 2], text))
                .collect(),
            false => Vec::new(),
        };
        let text = player.text_for(&request.task.env).clone();
        let begins = rules.gym.reply_prefix.clone().unwrap_or_default();
        let ids = off_thread(&text, prompt.len(), move |policy| {
            let prefix = policy.tokenizer().encode_ordinary(&begins)?;
            Ok((prompt_ids(policy, &told, &begins, ids_max)?, prefix))
        });
        let (Some(ids), prefix) = ids.await? else {
            let why = format!(
                "task {}: its prompt of {} bytes has more than {ids_max} tokens, which is more than \
                 data.max_prompt_length and actor_rollout_ref.rollout.max_model_len",
                request.task,
                prompt.len()
            );
            return Err(Interruption::Empty(Outcome::NoRoom, why));
        };
        let (prompt_max, response_max) = (rules.prompt_tokens_max, rules.response_tokens_max);
        // As in AgentGym-RL, the part of a first observation beyond the prompt limit counts towards
        // the response. The total never exceeds both limits together.
        let both = ids.len().min(prompt_max) + response_max;
        let tokens_max = rules.context_tokens_max.min(both);
        if ids.len() + prefix.len() >= tokens_max {
            let limit = match both < rules.context_tokens_max {
                true => format!(
                    "data.max_prompt_length = {prompt_max} and data.max_response_length = {response_max} leave"
                ),
                false => format!("actor_rollout_ref.rollout.max_model_len = {tokens_max} leaves"),
            };
            let prefix = match prefix.len() {
                0 => String::new(),
                n => format!(" and actor_rollout_ref.agentgym.reply_prefix {n}"),
            };
            let why = format!(
                "task {}: its prompt has {} tokens{prefix}, {limit} no room for a reply",
                request.task,
                ids.len()
            );
            return Err(Interruption::Empty(Outcome::NoRoom, why));
        }
        let mut transcript = Self {
            sequences: vec![Sequence::default()],
            seat: player.engine.open((request.group, request.sample)),
            said: 0,
            given: 0,
            tokens_max,
            turn_tokens_max,
            prompt: Vec::new(),
            turns: Vec::new(),
            context_turns: rules.gym.context_turns,
            prefix,
            summary: rules.gym.summary_request().map(str::to_owned),
            summaries: Vec::new(),
            turns_here: 0,
            messages,
            text,
        };
        transcript.append_context(&ids);
        if transcript.context_turns.is_some() || transcript.summary.is_some() {
            transcript.prompt = ids;
        }
        Ok(transcript)
    }

    /// The finished sequences, and the summaries in them.
    pub(super) fn into_parts(self) -> (Vec<Sequence>, Vec<ContextSummary>) {
        (self.sequences, self.summaries)
    }

    /// Starts a new sequence with these ids.
    fn begin(&mut self, ids: &[u32]) {
        self.sequences.push(Sequence::default());
        self.seat = self.seat.another();
        (self.said, self.given) = (0, 0);
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
        append_context(self.current(), ids);
    }

    /// An observation as recorded ([`kept`]).
    pub(super) async fn kept(&self, observation: String) -> Result<String> {
        kept(&self.text, observation, self.tokens_max).await
    }

    /// Appends the environment's answer to the `turns`-th turn; false if that leaves no room for a
    /// reply, so that nothing more can be sampled.
    pub(super) async fn observe(
        &mut self,
        player: &Player,
        request: &Request,
        tape: &mut Tape,
        (turns, last): (u32, &Turn),
    ) -> Result<bool> {
        if player.engine.is_chat() {
            let observation = Message::new(Role::User, last.observation.as_str());
            self.messages.push(observation);
        }
        let ids = self.ids(&last.observation).await?;
        if let Some(ask) = self.summary.clone() {
            let due = (self.context_turns).is_some_and(|limit| self.turns_here >= limit);
            let policy = &self.text;
            let (chat, ended) = (policy.chat(), self.closed());
            let alone = chat.observation_ids(policy.tokenizer(), ended, &ask)?;
            // After another reply there must still be room for the request and the summary.
            let reserve = self.prefix.len() + 2 * self.turn_tokens_max + alone.len();
            let fitting =
                ids.filter(|ids| !due && self.len() + ids.len() + reserve <= self.tokens_max);
            let Some(ids) = fitting else {
                let asked = format!("{}\n\n{ask}", last.observation);
                return self
                    .sum_up((player, request), tape, (turns, last), &asked, &alone)
                    .await;
            };
            self.append_context(&ids);
            return Ok(true);
        }
        let Some(ids) = ids else {
            return Ok(false);
        };
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
        let seen_len = match &seen {
            Some(seen) => seen.len(),
            None => self.len() + ids.len(),
        };
        let fits = seen_len + self.prefix.len() < self.tokens_max;
        match seen {
            _ if !fits => {}
            None => self.append_context(&ids),
            Some(seen) => self.begin(&seen),
        }
        Ok(fits)
    }

    /// Asks for a summary after the last observation, or with `alone` if that leaves too little
    /// room, and begins a sequence with the summary.
    async fn sum_up(
        &mut self,
        (player, request): (&Player, &Request),
        tape: &mut Tape,
        (turns, last): (u32, &Turn),
        asked: &str,
        alone: &[u32],
    ) -> Result<bool> {
        let asked = self.ids(asked).await?;
        let fits =
            |ids: &Vec<u32>| self.len() + ids.len() + self.turn_tokens_max <= self.tokens_max;
        let asked = asked.filter(fits).unwrap_or_else(|| alone.to_vec());
        if self.len() + asked.len() >= self.tokens_max {
            return Ok(false);
        }
        self.append_context(&asked);
        let told = self.generate(player, request, tape, SUMMARY | turns);
        let Some(told) = told.await? else {
            return Ok(false);
        };
        self.summaries.push(ContextSummary {
            turns,
            sequence: self.sequences.len() as u32 - 1,
            policy: told.policy,
            text: told.text,
        });
        let seen = self.ids(&last.observation).await?;
        let Some(seen) = seen else {
            return Ok(false);
        };
        let ids = [self.prompt.as_slice(), &told.token_ids, &seen].concat();
        let fits = ids.len() + self.prefix.len() < self.tokens_max;
        if fits {
            self.begin(&ids);
        }
        Ok(fits)
    }

    /// Whether the last message ends as the template ends one.
    fn closed(&self) -> bool {
        let last = self.sequences.last();
        last.is_some_and(|sequence| self.text.closes(&sequence.token_ids))
    }

    /// Ids of an observation, or `None` if its length alone shows that it fits no context.
    async fn ids(&self, text: &str) -> Result<Option<Vec<u32>>> {
        let (text, ids_max, ended) = (text.to_owned(), self.tokens_max, self.closed());
        off_thread(&self.text, text.len(), move |policy| {
            (policy.chat()).observation_ids_within(policy.tokenizer(), ended, &text, ids_max)
        })
        .await
    }

    /// Samples the policy's next message; `None` if there is no room for one.
    pub(super) async fn sample(
        &mut self,
        player: &Player,
        request: &Request,
        tape: &mut Tape,
        turn: u32,
    ) -> Result<Option<Turn>> {
        if self.len() + self.prefix.len() >= self.tokens_max {
            return Ok(None);
        }
        self.append_context(&self.prefix.clone());
        let Some(said) = self.generate(player, request, tape, turn).await? else {
            return Ok(None);
        };
        self.turns_here += 1;
        if self.context_turns.is_some() && self.summary.is_none() {
            self.turns
                .push([self.prefix.as_slice(), &said.token_ids].concat());
        }
        Ok(Some(Turn {
            sequence: self.sequences.len() as u32 - 1,
            context: said.context,
            policy: said.policy,
            text: player.rules.gym.reply_prefix.clone().unwrap_or_default() + &said.text,
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

    /// Appends a message to the last sequence: the recorded one, or else a sampled one; `number`
    /// selects its random numbers. `None` if there is no room for one.
    async fn generate(
        &mut self,
        player: &Player,
        request: &Request,
        tape: &mut Tape,
        number: u32,
    ) -> Result<Option<Sampled>> {
        let policy = &player.text;
        let start = self.len();
        let room = self.tokens_max.saturating_sub(start);
        if room == 0 {
            return Ok(None);
        }
        let tokens_max = room.min(self.turn_tokens_max);
        let message = match player.engine.is_chat() {
            true => self.told(player, request, tape, (number, tokens_max)).await,
            false => self.said(player, request, tape, (number, tokens_max)).await,
        };
        let (message, entropies, told) = message?;
        let context = self.said;
        let sequence = self.current();
        append_sampled(sequence, &message, (entropies.as_deref(), &player.rules));
        let end = sequence.token_ids.len();
        self.said = end;
        let text = match told {
            Some(told) => told.text,
            None => {
                let text = message.token_ids.len() - usize::from(message.ended);
                (policy.tokenizer()).decode(&message.token_ids[..text], true)
            }
        };
        if player.engine.is_chat() {
            self.messages
                .push(Message::new(Role::Assistant, text.as_str()));
        }
        Ok(Some(Sampled {
            context: (context as u32, start as u32),
            policy: (start as u32, end as u32),
            text,
            token_ids: message.token_ids,
            ended: message.ended,
        }))
    }

    /// A message with its entropies: the recorded one, or else a sampled one.
    async fn said(
        &mut self,
        player: &Player,
        request: &Request,
        tape: &mut Tape,
        (number, tokens_max): (u32, usize),
    ) -> Result<Spoken> {
        // A greedy baseline is never scored.
        let entropies = player.rules.records_entropies && !request.sampling.greedy;
        let vocabulary = player.text.vocab_size();
        let recorded = tape.message(|said, own| {
            let length = said.token_ids.len();
            said.number == number
                && (1..=tokens_max).contains(&length)
                && said.log_probs.len() == length
                && (said.log_kept_masses.as_ref()).is_none_or(|masses| masses.len() == length)
                && own.map(<[f32]>::len) == entropies.then_some(length)
                && said.token_ids.iter().all(|id| (*id as usize) < vocabulary)
        });
        if let Some((message, own)) = recorded {
            return Ok((message, own, None));
        }
        let (message, own, _) = self.sampled(player, request, number, tokens_max).await?;
        let own = entropies.then_some(own);
        tape.record(match own.clone() {
            Some(own) => Event::MessageWithEntropies(message.clone(), own),
            None => Event::Message(message.clone()),
        });
        self.given = self.len() + message.token_ids.len();
        Ok((message, own, None))
    }

    /// A message with its text: the recorded one, or else what a chat API says now. Its ids are our
    /// record of it and may be more than the API was allowed of its own.
    async fn told(
        &mut self,
        player: &Player,
        request: &Request,
        tape: &mut Tape,
        (number, tokens_max): (u32, usize),
    ) -> Result<Spoken> {
        let recorded =
            tape.told(|said| said.number == number && said.log_probs.len() == said.token_ids.len());
        let (message, told) = match recorded {
            Some(recorded) => recorded,
            None => {
                let (message, _, told) = self.sampled(player, request, number, tokens_max).await?;
                let told = told.unwrap_or_default();
                tape.record(Event::Told(message.clone(), Box::new(told.clone())));
                (message, told)
            }
        };
        player.engine.count(&told);
        Ok((message, None, Some(told)))
    }

    /// Samples a message with the engine, which keeps the sampled tokens; the next request appends
    /// after them. Also the entropy of each token, and what a chat API said.
    async fn sampled(
        &self,
        player: &Player,
        request: &Request,
        number: u32,
        tokens_max: usize,
    ) -> Result<(RecordedMessage, Vec<f32>, Option<Told>)> {
        if player.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let asked = self.seat.turn(TurnAsk {
            known: self.sequences.last().map_or(&[], |s| &s.token_ids),
            sampled: self.sequences.last().map_or(&[], |s| &s.loss_mask),
            messages: &self.messages,
            tools: None,
            given: self.given,
            stream: request.stream,
            number,
            sampling: request.sampling,
            tokens_max,
            stop_ids: player.text.eos_ids(),
        });
        let (done, told) = asked.await?;
        let message = RecordedMessage {
            number,
            ended: done.finish == agentgym_model::FinishReason::Eos,
            token_ids: done.token_ids,
            log_probs: done.log_probs,
            log_kept_masses: done.log_kept_masses,
        };
        Ok((message, done.entropies, told))
    }
}
