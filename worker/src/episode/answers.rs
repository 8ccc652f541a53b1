//! The answers that an episode has given to its agent: which one a request gets, the ids that stand for
//! what the agent sends back of them, and the sequences that they make in the end.
//!
//! An answer is found by the ids of its prompt and by how often the episode was asked exactly that. So it
//! does not matter when a request comes, or on which connection, and an agent that is started again gets
//! what it got before.

use super::player::Rules;
use super::tokens::{append_context, append_sampled};
use crate::gateway::Call;
use crate::turn_engine::TurnSeat;
use agentgym_jobs::episode::{Finish, Parse, Sequence, Turn};
use agentgym_jobs::journal::{Answered, RecordedMessage};
use agentgym_model::{FinishReason, Message, PolicyText, Role, SampledReply, Tokenizer};
use agentgym_serve::{AgentAnswer, AgentRequest};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How far an answer has come to its client.
const WAITS: u8 = 0;
const ON_ITS_WAY: u8 = 1;
const DELIVERED: u8 = 2;

/// The digest of the ids of a prompt.
pub(super) fn digest(prompt: &[u32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for id in prompt {
        hasher.update(&id.to_le_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// An answer, or the place of one.
pub(super) struct Slot {
    digest: [u8; 32],
    /// How often the same had been asked before.
    pub(super) number: u32,
    /// `None` while it is sampled.
    pub(super) message: Option<(RecordedMessage, Option<Vec<f32>>)>,
    /// What this try at the episode knows of it; `None` where its agent has not asked for it.
    pub(super) request: Option<SlotRequest>,
    /// Who waits for it.
    pub(super) waiting: Vec<Call>,
    /// Holds the keys and values of prompt and answer, where nothing has continued it.
    pub(super) seat: Option<TurnSeat>,
    /// The answer to who waits first, which was read to settle what of it counts.
    first: Option<AgentAnswer>,
    state: Arc<AtomicU8>,
    idempotency_key: Option<String>,
}

/// What was asked.
pub(super) struct SlotRequest {
    pub(super) prompt: Vec<u32>,
    /// The text that a completion continues.
    pub(super) text: Option<String>,
    /// What a chat API is asked in the policy's place.
    pub(super) messages: Vec<Message>,
    /// What the agent said since the last message of the policy.
    pub(super) said: String,
    pub(super) tools: Option<Value>,
    pub(super) unsampled_messages: u32,
    pub(super) kept_thoughts: u32,
    pub(super) overridden: Vec<String>,
    /// The answer as the client reads it.
    pub(super) heard: Option<(String, Vec<(String, Value)>)>,
}

/// Those that may stand for a message of a conversation: the digest of the prompt of each, and its ids.
pub(super) type Candidates = Vec<([u8; 32], SampledReply)>;

/// What of a request stands for ids that are known.
pub(super) enum Known {
    /// For each message of a chat that was sampled here, the answers that it may be; and how many were not
    /// sampled here.
    Messages(BTreeMap<usize, Candidates>, u32),
    /// The ids with which the text of a completion begins, and how many of its bytes these are.
    Text(Vec<u32>, usize),
}

/// What an agent has played in a try, conversation by conversation.
#[derive(Default)]
pub(super) struct Played {
    pub(super) sequences: Vec<Sequence>,
    pub(super) turns: Vec<Turn>,
    /// For each turn the one that it continues.
    pub(super) continues: Vec<Option<u32>>,
    /// For each turn its answer.
    pub(super) slots: Vec<usize>,
}

#[derive(Default)]
pub(super) struct Answers(pub(super) Vec<Slot>);

impl Slot {
    pub(super) fn new(digest: [u8; 32], number: u32, idempotency_key: Option<String>) -> Self {
        Self {
            digest,
            number,
            message: None,
            request: None,
            waiting: Vec::new(),
            seat: None,
            first: None,
            state: Arc::default(),
            idempotency_key,
        }
    }

    /// The random key: of the episode, the prompt and the number alone.
    pub(super) fn stream(&self, episode: &[u8; 32]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(episode);
        hasher.update(&self.digest);
        hasher.update(&self.number.to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    /// What the client of the first request reads of the message decides how much of it counts: what comes
    /// before a text that ends it, or up to its only call. What was sampled beyond is left out.
    pub(super) fn settle(&mut self, tokenizer: &Tokenizer, key: [u8; 32]) {
        let (Some((message, entropies)), Some(request)) = (&mut self.message, &mut self.request)
        else {
            return;
        };
        let Some(call) = self.waiting.first() else {
            return;
        };
        let answer = hear(call, &request.prompt, (message, tokenizer), key);
        if answer.kept < message.token_ids.len() {
            message.token_ids.truncate(answer.kept);
            message.log_probs.truncate(answer.kept);
            let streams = [&mut message.log_kept_masses, entropies];
            for stream in streams.into_iter().flatten() {
                stream.truncate(answer.kept);
            }
            message.ended = false;
            // It has run ids that are no part of the message.
            self.seat = None;
        }
        request.heard = Some((answer.text.clone(), answer.calls.clone()));
        self.first = Some(answer);
    }

    /// Answers everyone who waits.
    pub(super) fn answer(&mut self, tokenizer: &Tokenizer, key: [u8; 32]) {
        if self
            .request
            .as_ref()
            .is_some_and(|request| request.heard.is_none())
        {
            self.settle(tokenizer, key);
        }
        let (Some((message, _)), Some(request)) = (&self.message, &self.request) else {
            return;
        };
        let mut first = self.first.take();
        for call in std::mem::take(&mut self.waiting) {
            let again = || hear(&call, &request.prompt, (message, tokenizer), key);
            let mut answer = first.take().unwrap_or_else(again);
            answer.overridden.clone_from(&request.overridden);
            self.state.store(ON_ITS_WAY, Ordering::SeqCst);
            let sending = Sending(Arc::clone(&self.state));
            answer.delivered = Some(Box::new(move || {
                sending.0.store(DELIVERED, Ordering::SeqCst)
            }));
            // Who has gone asks again.
            let _ = call.reply.send(Ok(answer));
        }
    }

    /// Whether an equal request may be the same one: its answer was not delivered whole.
    fn is_owed(&self) -> bool {
        let alone = self.waiting.iter().all(|call| call.reply.is_closed());
        alone && self.state.load(Ordering::SeqCst) == WAITS
    }
}

/// A message as the client of a request reads it.
fn hear(
    call: &Call,
    prompt: &[u32],
    (message, tokenizer): (&RecordedMessage, &Tokenizer),
    key: [u8; 32],
) -> AgentAnswer {
    let drawn = (message.token_ids.iter().copied()).zip(message.log_probs.iter().copied());
    let finish = match message.ended {
        true => FinishReason::Eos,
        false => FinishReason::Length,
    };
    (call.asked).hear(tokenizer, prompt, drawn, (finish, key))
}

/// An answer that is being sent.
struct Sending(Arc<AtomicU8>);

impl Drop for Sending {
    fn drop(&mut self) {
        let lost = (ON_ITS_WAY, WAITS);
        let _ = (self.0).compare_exchange(lost.0, lost.1, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl Answers {
    /// Answers that earlier tries recorded.
    pub(super) fn recorded(all: Vec<Answered>) -> Self {
        let mut answers = Self::default();
        for answered in all {
            let known = |slot: &Slot| {
                (slot.digest, slot.number) == (answered.prompt, answered.message.number)
            };
            if !answers.0.iter().any(known) {
                let mut slot = Slot::new(answered.prompt, answered.message.number, None);
                slot.message = Some((answered.message, answered.entropies));
                answers.0.push(slot);
            }
        }
        answers
    }

    /// Begins another try: nobody has asked for anything.
    pub(super) fn begin(&mut self) {
        self.0.retain(|slot| slot.message.is_some());
        for slot in &mut self.0 {
            (slot.request, slot.seat, slot.idempotency_key) = (None, None, None);
            slot.first = None;
            slot.waiting.clear();
            slot.state = Arc::default();
        }
    }

    /// The answer that a request gets: that of a request which it repeats, by its client's word or since
    /// nobody has got it whole. `None`: a new one.
    pub(super) fn find(&self, prompt: &[u8; 32], asked: &AgentRequest) -> Option<usize> {
        let own = || {
            let all = self.0.iter().enumerate();
            all.filter(|(_, slot)| slot.digest == *prompt)
        };
        let key = asked.idempotency_key.as_ref();
        let named = own().find(|(_, slot)| key.is_some() && slot.idempotency_key.as_ref() == key);
        let last = || own().rfind(|(_, slot)| slot.request.is_some());
        let retried = || asked.is_retry.then(last).flatten();
        let owed = || {
            let owed = own().filter(|(_, slot)| slot.is_owed());
            owed.min_by_key(|(_, slot)| slot.number)
        };
        let found = named.or_else(retried).or_else(owed);
        found.map(|(at, _)| at)
    }

    /// Makes place for a further answer to a prompt; where it is.
    pub(super) fn add(&mut self, prompt: [u8; 32], idempotency_key: Option<String>) -> usize {
        let number = self.0.iter().filter(|slot| slot.digest == prompt).count() as u32;
        self.0.push(Slot::new(prompt, number, idempotency_key));
        self.0.len() - 1
    }

    /// Whether an equal request is in flight.
    pub(super) fn is_in_flight(&self, prompt: &[u8; 32]) -> bool {
        let mut same = self.0.iter().filter(|slot| slot.digest == *prompt);
        same.any(|slot| slot.request.is_some() && slot.state.load(Ordering::SeqCst) != DELIVERED)
    }

    /// What of a request was asked and answered before.
    pub(super) fn known(&self, asked: &AgentRequest, text: &PolicyText) -> Known {
        match asked.is_chat() {
            true => self.sampled_in(asked.messages(), |ids| text.closes(ids)),
            false => self.continued(asked.text().unwrap_or_default(), text.tokenizer()),
        }
    }

    /// The longest text that was asked and answered with which a text begins.
    fn continued(&self, text: &str, tokenizer: &Tokenizer) -> Known {
        let own = self.0.iter().filter_map(|slot| {
            let (said, _) = slot.message.as_ref()?;
            let request = slot.request.as_ref()?;
            let rest = text.strip_prefix(request.text.as_deref()?)?;
            let (heard, _) = request.heard.as_ref()?;
            let (sampled, answer) = answered(rest, (&said.token_ids, heard), tokenizer)?;
            let bytes = text.len() - rest.len() + answer;
            let ids = [&request.prompt[..], &said.token_ids[..sampled]].concat();
            Some((ids, bytes))
        });
        let longest = own.max_by(|a, b| (a.1, &b.0).cmp(&(b.1, &a.0)));
        let (ids, bytes) = longest.unwrap_or_default();
        Known::Text(ids, bytes)
    }

    fn sampled_in(&self, messages: &[Message], closes: impl Fn(&[u32]) -> bool) -> Known {
        let (mut found, mut unsampled) = (BTreeMap::new(), 0);
        for (at, message) in messages.iter().enumerate() {
            if message.role != Role::Assistant {
                continue;
            }
            let own = self.0.iter().filter_map(|slot| {
                let (said, _) = slot.message.as_ref()?;
                let heard = slot.request.as_ref()?.heard.as_ref()?;
                let reply = (said.token_ids.clone(), closes(&said.token_ids));
                is_same(heard, message).then_some((slot.digest, reply))
            });
            let own: Candidates = own.collect();
            match own.is_empty() {
                true => unsampled += 1,
                false => _ = found.insert(at, own),
            }
        }
        Known::Messages(found, unsampled)
    }

    /// The answer that a prompt continues with the most ids, and how many those are.
    pub(super) fn before(&self, prompt: &[u32]) -> Option<(usize, usize)> {
        let own = self.0.iter().enumerate().filter_map(|(at, slot)| {
            let (said, _) = slot.message.as_ref()?;
            let known = &slot.request.as_ref()?.prompt;
            let rest = prompt.strip_prefix(&known[..])?;
            let all = known.len() + said.token_ids.len();
            (rest.starts_with(&said.token_ids) && !said.token_ids.is_empty()).then_some((at, all))
        });
        own.max_by_key(|(at, all)| (*all, std::cmp::Reverse(*at)))
    }

    /// Of each id of a prompt whether the policy said it, as far as that is known.
    pub(super) fn mask(&self, prompt: &[u32]) -> Vec<bool> {
        let Some((at, all)) = self.before(prompt) else {
            return vec![false; prompt.len()];
        };
        let begins = self.0[at]
            .request
            .as_ref()
            .map_or(0, |asked| asked.prompt.len());
        let mut mask = self.mask(&prompt[..begins]);
        mask.resize(all, true);
        mask.resize(prompt.len(), false);
        mask
    }

    /// Ids of the first prompt of a conversation.
    pub(super) fn first_prompt(&self, prompt: &[u32]) -> usize {
        match self
            .before(prompt)
            .and_then(|(at, _)| self.0[at].request.as_ref())
        {
            Some(asked) => self.first_prompt(&asked.prompt),
            None => prompt.len(),
        }
    }

    /// What the agent has asked in this try, in an order that its ids decide.
    pub(super) fn played(&self, tokenizer: &Tokenizer, rules: &Rules) -> Played {
        let asked = |at: &usize| self.0[*at].request.as_ref();
        let mut order: Vec<usize> = (0..self.0.len()).filter(|at| asked(at).is_some()).collect();
        order.sort_by_key(|at| (asked(at).map(|request| &request.prompt), self.0[*at].number));
        let mut below: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for at in &order {
            let before = asked(at).and_then(|request| self.before(&request.prompt));
            below.entry(before.map(|(at, _)| at)).or_default().push(*at);
        }
        let mut all = Played::default();
        // What is yet to be written, the next one last: a slot, the turn that it continues, and whether
        // it is the first to do so, in the same sequence.
        let mut rest: Vec<(usize, Option<u32>, bool)> = Vec::new();
        let roots = below.get(&None).into_iter().flatten();
        rest.extend(roots.rev().map(|at| (*at, None, false)));
        while let Some((at, before, continues)) = rest.pop() {
            let next = below.get(&Some(at)).map_or(&[][..], Vec::as_slice);
            let number = all.turns.len() as u32;
            if let Some(mut turn) =
                self.write(at, (continues, tokenizer, rules), &mut all.sequences)
            {
                let said = next.first().and_then(asked);
                turn.observation = said.map_or_else(String::new, |request| request.said.clone());
                all.turns.push(turn);
                all.continues.push(before);
                all.slots.push(at);
            }
            let next = next.iter().enumerate().rev();
            rest.extend(next.map(|(place, at)| (*at, Some(number), place == 0)));
        }
        all
    }

    /// Appends a prompt and its answer to the last sequence, or as another one.
    fn write(
        &self,
        at: usize,
        (continues, tokenizer, rules): (bool, &Tokenizer, &Rules),
        sequences: &mut Vec<Sequence>,
    ) -> Option<Turn> {
        let slot = &self.0[at];
        let (message, entropies) = slot.message.as_ref()?;
        let (request, own) = (slot.request.as_ref()?, &message.token_ids);
        if !continues || sequences.is_empty() {
            sequences.push(Sequence::default());
        }
        let index = sequences.len() - 1;
        let sequence = &mut sequences[index];
        let (before, start) = (sequence.token_ids.len(), request.prompt.len());
        append_context(sequence, &request.prompt[before..]);
        append_sampled(sequence, message, (entropies.as_deref(), rules));
        let end = sequence.token_ids.len();
        let text = own.len() - usize::from(message.ended);
        let (heard, calls) = request.heard.clone().unwrap_or_default();
        let calls = calls
            .iter()
            .map(|(name, arguments)| format!("{name} {arguments}"));
        let acts: Vec<String> = calls.collect();
        Some(Turn {
            sequence: index as u32,
            context: (before as u32, start as u32),
            policy: (start as u32, end as u32),
            text: tokenizer.decode(&own[..text], true),
            action: Some(if acts.is_empty() {
                heard
            } else {
                acts.join("\n")
            }),
            parse: Parse::Clean,
            observation: String::new(),
            reward: None,
            done: false,
            finish: match message.ended {
                true => Finish::Eos,
                false => Finish::Length,
            },
            policy_iteration: 0,
        })
    }
}

/// How many ids of an answer a text begins with, and in how many bytes: as many as it spells, its end or the text
/// that stopped it included where they stand there, and at least what the client heard; else all, where nothing but
/// blanks at their ends differs.
fn answered(
    text: &str,
    (sampled, heard): (&[u32], &str),
    tokenizer: &Tokenizer,
) -> Option<(usize, usize)> {
    let all = (1..=sampled.len()).rev();
    let all = all.map(|count| (count, tokenizer.decode(&sampled[..count], false)));
    let mut spelt = all.take_while(|(_, spelt)| spelt.len() >= heard.trim().len());
    let (start, words) = (text.trim_start(), heard.trim());
    let trimmed = text.len() - start.len() + words.len();
    let is_trimmed = !words.is_empty() && start.starts_with(words);
    let found = spelt.find_map(|(count, spelt)| {
        let exact = spelt.len() >= heard.len() && text.starts_with(&spelt);
        let same = || is_trimmed && spelt.trim() == words;
        match exact {
            true => Some((count, spelt.len())),
            false => same().then_some((count, trimmed)),
        }
    });
    found.filter(|(_, bytes)| *bytes > 0)
}

/// Whether a client sends back what it got: text, or the text behind a thought, and calls.
fn is_same((text, calls): &(String, Vec<(String, Value)>), message: &Message) -> bool {
    let sent = message.content.trim();
    let answer = text
        .rsplit_once("</think>")
        .map(|(_, answer)| answer.trim());
    let same = text.trim() == sent || answer == Some(sent);
    let called = message.tool_calls.iter();
    let called = called.map(|call| (&call.name, &call.arguments));
    same && called.eq(calls
        .iter()
        .filter_map(|(name, arguments)| arguments.as_object().map(|arguments| (name, arguments))))
}
