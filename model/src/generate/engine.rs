//! Generation with continuous batching. Every step runs all active rows together:
//! one new token for those that decode, a bounded number of known tokens for those
//! in prefill. A turn's samples depend on its own ids and random key alone, so
//! batching, chunking, eviction and order do not affect results. Neither does
//! prefix sharing, which takes keys and values from a sequence that begins the same
//! way: a prompt is run once for all samples of a task, a system message once for all tasks.

use crate::batch::Batch;
use crate::compute::Cache;
use crate::compute::decode::Decoder;
use crate::generate::near::{NEAR_ROWS_MIN, near_tokens};
use crate::generate::request::{FinishReason, Generation, GenerationRequest};
use crate::parallel::Team;
use crate::sampler::{Draw, Drawn};
use crate::{Error, Policy, Result};
use std::collections::{BTreeMap, VecDeque};

/// Shortest common prefix for which a sequence waits for another's keys and values.
const SHARED_TOKENS_MIN: usize = 32;

/// Limits of an engine; none of them changes what is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Turns that run at the same time.
    pub rows_max: usize,
    /// Tokens whose keys and values are kept over all sequences.
    pub cache_tokens_max: usize,
    /// Known tokens (prefill) run per step, besides the decoded ones.
    pub prefill_chunk: usize,
    /// Threads that divide each step among them.
    pub threads: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            rows_max: 32,
            cache_tokens_max: 1 << 16,
            prefill_chunk: 512,
            threads: 1,
        }
    }
}

/// Counters of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Forward passes.
    pub steps: u64,
    /// Forward passes that a GPU replayed from a recording.
    pub steps_replayed: u64,
    /// Ids sampled.
    pub tokens_sampled: u64,
    /// Tokens run through the network, known and sampled, repeats included.
    pub tokens_run: u64,
    /// Known tokens that were not run, since another sequence has the same prefix.
    pub tokens_shared: u64,
    /// Caches dropped to make room.
    pub evictions: u64,
    /// Tokens whose keys and values are held now.
    pub cache_tokens: usize,
    /// Turns submitted and not finished.
    pub turns_open: usize,
}

/// A message being generated.
#[derive(Debug)]
struct Active {
    turn: GenerationRequest,
    drawn: Vec<Drawn>,
}

#[derive(Debug)]
struct Sequence {
    /// Everything known: prompt, sampled ids, observations.
    ids: Vec<u32>,
    cache: Cache,
    /// Step at which it last ran; the least recent is evicted first.
    used: u64,
    active: Option<Active>,
    leader: Option<Leader>,
}

/// A sequence with a common prefix, whose keys and values are awaited.
#[derive(Debug, Clone, Copy)]
struct Leader {
    number: u64,
    /// Tokens in common.
    tokens: usize,
}

impl Sequence {
    fn pending(&self) -> &[u32] {
        &self.ids[self.cache.length()..]
    }

    /// Most tokens that it can hold at the end of its turn.
    fn tokens_max(&self) -> usize {
        let open = self.active.as_ref();
        self.ids.len() + open.map_or(0, |a| a.turn.tokens_max - a.drawn.len())
    }

    /// Tokens that it is likely to hold: most messages are shorter than they may be.
    fn tokens_soon(&self) -> usize {
        self.tokens_max().min(2 * self.ids.len())
    }
}

/// Generates for many sequences at once, on the calling thread or the threads of its team.
#[derive(Debug)]
pub struct Engine {
    policy: Policy,
    decoder: Decoder,
    team: Team,
    options: EngineOptions,
    /// [`near_tokens`]
    pub(super) near_tokens: usize,
    sequences: BTreeMap<u64, Sequence>,
    /// Turns not yet running, in order of submission.
    queue: VecDeque<u64>,
    /// Turns running, in order of admission.
    pub(super) running: Vec<u64>,
    stats: EngineStats,
}

impl Engine {
    /// An engine for one policy.
    pub fn new(policy: Policy, options: EngineOptions) -> Self {
        let options = EngineOptions {
            rows_max: options.rows_max.max(1),
            prefill_chunk: options.prefill_chunk.max(1),
            ..options
        };
        Engine {
            decoder: Decoder::new(policy.network()),
            team: Team::new(options.threads),
            near_tokens: near_tokens(&policy),
            policy,
            options,
            sequences: BTreeMap::new(),
            queue: VecDeque::new(),
            running: Vec::new(),
            stats: EngineStats::default(),
        }
    }

    /// Queues a turn; it runs when rows and cache have room.
    pub fn submit(&mut self, mut turn: GenerationRequest) -> Result<()> {
        let number = turn.sequence;
        self.check(&turn)
            .map_err(|message| Error::Request(format!("turn of sequence {number}: {message}")))?;
        let network = self.policy.network();
        let sequence = self.sequences.entry(number).or_insert_with(|| Sequence {
            ids: Vec::new(),
            cache: network.cache(),
            used: 0,
            active: None,
            leader: None,
        });
        sequence.ids.extend_from_slice(&turn.append);
        turn.tokens_max = turn
            .tokens_max
            .min(network.positions_max() - sequence.ids.len());
        let drawn = Vec::new();
        sequence.active = Some(Active { turn, drawn });
        self.queue.push_back(number);
        Ok(())
    }

    fn check(&self, turn: &GenerationRequest) -> Result<(), String> {
        let known = self.sequences.get(&turn.sequence);
        if known.is_some_and(|sequence| sequence.active.is_some()) {
            return Err("its previous turn is not finished".to_owned());
        }
        let vocabulary = self.policy.config().vocab_size;
        if let Some(id) = turn.append.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(format!(
                "token id {id} is outside the vocabulary of {vocabulary}"
            ));
        }
        let length = known.map_or(0, |sequence| sequence.ids.len()) + turn.append.len();
        let positions = self.policy.network().positions_max();
        if length == 0 || turn.tokens_max == 0 {
            return Err(
                "needs at least one token before it and tokens_max of at least 1".to_owned(),
            );
        }
        if length >= positions {
            return Err(format!(
                "{length} tokens leave no room in {positions} positions"
            ));
        }
        turn.sampling.check()
    }

    /// Drops a sequence, even one whose turn is running.
    pub fn release(&mut self, sequence: u64) {
        self.sequences.remove(&sequence);
        self.queue.retain(|&queued| queued != sequence);
        self.running.retain(|&running| running != sequence);
    }

    /// The ids that an open turn has drawn so far, from number `from` on, and their log-probs.
    pub fn drawn(&self, sequence: u64, from: usize) -> impl Iterator<Item = (u32, f32)> + '_ {
        let open = (self.sequences.get(&sequence)).and_then(|known| known.active.as_ref());
        let drawn = open.and_then(|open| open.drawn.get(from..));
        let drawn = drawn.unwrap_or_default().iter();
        drawn.map(|drawn| (drawn.id, drawn.log_prob))
    }

    /// Threads that divide each step.
    pub fn threads(&self) -> usize {
        self.options.threads.max(1)
    }

    /// Whether no turn is open.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty()
    }

    /// So far [`EngineStats::tokens_sampled`] and [`EngineStats::tokens_shared`].
    pub fn counted(&self) -> (u64, u64) {
        (self.stats.tokens_sampled, self.stats.tokens_shared)
    }

    /// The counters so far.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            cache_tokens: self.sequences.values().map(|s| s.cache.length()).sum(),
            turns_open: self.queue.len() + self.running.len(),
            steps_replayed: self.decoder.replays(),
            ..self.stats
        }
    }

    /// One forward pass over the running rows; returns the turns that it finished.
    pub fn step(&mut self) -> Result<Vec<Generation>> {
        self.admit();
        if self.running.is_empty() {
            return Ok(Vec::new());
        }
        self.follow();
        self.stats.steps += 1;
        let mut active = self.take_running();
        let held: Vec<usize> = active.iter().map(|(_, s)| s.cache.length()).collect();
        let mut drawn = match self.forward(&mut active) {
            Ok(drawn) => drawn.into_iter(),
            Err(error) => {
                // Roll back: a failed step has no effect.
                for ((number, mut sequence), held) in active.into_iter().zip(held) {
                    sequence.cache = sequence.cache.first(held);
                    self.sequences.insert(number, sequence);
                }
                if error.is_device_full() && self.make_do() {
                    if let Some(gpu) = self.policy.gpu() {
                        gpu.make_do(&error);
                    }
                    return Ok(Vec::new());
                }
                return Err(error);
            }
        };
        let mut done = Vec::new();
        for (number, mut sequence) in active {
            if sequence.pending().is_empty()
                && let Some(drawn) = drawn.next()
            {
                let open = sequence
                    .active
                    .as_mut()
                    .expect("a running sequence has a turn");
                let turn = &open.turn;
                let id = drawn.id;
                open.drawn.push(drawn);
                sequence.ids.push(id);
                self.stats.tokens_sampled += 1;
                let finish = if turn.stop_ids.contains(&id) {
                    Some(FinishReason::Eos)
                } else if open.drawn.len() >= turn.tokens_max {
                    Some(FinishReason::Length)
                } else {
                    None
                };
                if let Some(finish) = finish {
                    let Active { turn, drawn } =
                        sequence.active.take().expect("the turn is still there");
                    self.running.retain(|&running| running != number);
                    done.push(Generation::of(&turn, &drawn, finish));
                }
            }
            self.sequences.insert(number, sequence);
        }
        Ok(done)
    }

    /// Starts queued turns while rows and cache have room; at least one always runs. Where they would
    /// push each other out of the processor's caches, a few run to their end before others begin.
    fn admit(&mut self) {
        while self.running.len() < self.options.rows_max
            && let Some(&next) = self.queue.front()
        {
            let all = || self.running.iter().chain([&next]);
            let wanted: usize = all().map(|n| self.sequences[n].tokens_max()).sum();
            let soon: usize = all().map(|n| self.sequences[n].tokens_soon()).sum();
            let is_full = wanted > self.options.cache_tokens_max && !self.running.is_empty();
            if is_full || (soon > self.near_tokens && self.running.len() >= NEAR_ROWS_MIN) {
                break;
            }
            self.queue.pop_front();
            self.running.push(next);
            self.make_room(wanted);
            let leader = self.leader(next);
            if let Some(sequence) = self.sequences.get_mut(&next) {
                sequence.leader = leader;
            }
        }
    }

    /// The sequence that shares the longest prefix with a newly admitted one without a
    /// cache: one that holds its keys and values, or a running one that soon will.
    fn leader(&self, number: u64) -> Option<Leader> {
        let own = &self.sequences[&number];
        if own.cache.length() > 0 {
            return None;
        }
        // The last token is always run: its logits are needed.
        let (_, ids) = own.ids.split_last()?;
        let common = |(&other, sequence): (&u64, &Sequence)| {
            let reach = match self.running.contains(&other) {
                true => sequence.ids.len(),
                false => sequence.cache.length(),
            };
            let both = ids.iter().zip(&sequence.ids[..reach]);
            let tokens = both.take_while(|(a, b)| a == b).count();
            let leads = other != number && tokens >= SHARED_TOKENS_MIN;
            leads.then_some(Leader {
                number: other,
                tokens,
            })
        };
        let leaders = self.sequences.iter().filter_map(common);
        leaders.max_by_key(|leader| leader.tokens)
    }

    /// Takes over the awaited keys and values that are ready. A sequence waits only for one
    /// that was admitted before it and still runs, so that the first never waits.
    fn follow(&mut self) {
        for at in 0..self.running.len() {
            let number = self.running[at];
            let Some(Leader {
                number: leader,
                tokens,
            }) = self.sequences[&number].leader
            else {
                continue;
            };
            let cache = self.sequences.get(&leader).map(|leader| &leader.cache);
            let cache = cache.filter(|cache| cache.length() >= tokens);
            let first = cache.map(|cache| cache.first(tokens));
            if first.is_none() && self.running[..at].contains(&leader) {
                continue;
            }
            if let Some(sequence) = self.sequences.get_mut(&number) {
                sequence.leader = None;
                if let Some(first) = first {
                    sequence.cache = first;
                    self.stats.tokens_shared += tokens as u64;
                }
            }
        }
    }

    /// Drops the caches of sequences that do not run, least recently used first, until
    /// `wanted` tokens of running ones fit beside the rest.
    fn make_room(&mut self, wanted: usize) {
        let mut waiting: Vec<(u64, u64)> = self
            .sequences
            .iter()
            .filter(|(number, s)| s.cache.length() > 0 && !self.running.contains(number))
            .map(|(&number, s)| (s.used, number))
            .collect();
        waiting.sort_unstable();
        let held = |(_, number): &(u64, u64)| self.sequences[number].cache.length();
        let mut total: usize = wanted + waiting.iter().map(held).sum::<usize>();
        for (_, number) in waiting {
            if total <= self.options.cache_tokens_max {
                break;
            }
            let sequence = self.sequences.get_mut(&number);
            let sequence = sequence.expect("it was listed above");
            total -= sequence.cache.length();
            sequence.cache = self.policy.network().cache();
            self.stats.evictions += 1;
        }
    }

    /// Reduces memory use where a device's memory is full: drops recorded steps, then caches of
    /// sequences that do not run and half of the rows, then halves the prefill chunk. False where
    /// nothing is left to reduce.
    fn make_do(&mut self) -> bool {
        if self.decoder.make_do() {
            return true;
        }
        let mut is_less = false;
        let rows = self.running.len();
        if rows > 1 {
            self.options.rows_max = rows / 2;
            for number in self
                .running
                .split_off(self.options.rows_max)
                .into_iter()
                .rev()
            {
                self.queue.push_front(number);
            }
            is_less = true;
        }
        let empty = self.policy.network().cache();
        for (number, sequence) in &mut self.sequences {
            if sequence.cache.length() > 0 && !self.running.contains(number) {
                sequence.cache = empty.clone();
                self.stats.evictions += 1;
                is_less = true;
            }
        }
        if !is_less && self.options.prefill_chunk > 1 {
            self.options.prefill_chunk /= 2;
            is_less = true;
        }
        is_less
    }

    /// Takes the running sequences out of the map for a step, in order of admission.
    fn take_running(&mut self) -> Vec<(u64, Sequence)> {
        let sequences = &mut self.sequences;
        let take = |&number: &u64| {
            let sequence = sequences.remove(&number);
            (number, sequence.expect("running ones are known"))
        };
        self.running.iter().map(take).collect()
    }

    /// Runs pending tokens and draws the next id of every sequence that has none left;
    /// returns the ids and their log-probabilities.
    fn forward(&mut self, active: &mut [(u64, Sequence)]) -> Result<Vec<Drawn>> {
        let mut budget = self.options.prefill_chunk;
        let mut takes = Vec::with_capacity(active.len());
        let mut last_rows = Vec::new();
        let mut row = 0;
        for (_, sequence) in active.iter_mut() {
            let pending = sequence.pending().len();
            let open = sequence.active.as_ref();
            let decodes = open.is_some_and(|open| !open.drawn.is_empty());
            let take = if sequence.leader.is_some() {
                0
            } else if decodes && pending == 1 {
                1
            } else {
                pending.min(budget)
            };
            if !(decodes && pending == 1) {
                budget -= take;
            }
            takes.push(take);
            row += take;
            if take == pending {
                last_rows.push((row - 1) as u32);
            }
            sequence.used = self.stats.steps;
        }
        self.stats.tokens_run += row as u64;
        let taken = |(sequence, &take): (&Sequence, &usize)| {
            let past = sequence.cache.length();
            (past, sequence.ids[past..past + take].to_vec())
        };
        let segments: Vec<(usize, Vec<u32>)> = active
            .iter()
            .map(|(_, sequence)| sequence)
            .zip(&takes)
            .map(taken)
            .collect();
        let batch = Batch::new(segments.iter().map(|(past, ids)| (*past, ids.as_slice())));
        let mut caches: Vec<&mut Cache> = active.iter_mut().map(|(_, s)| &mut s.cache).collect();
        let network = self.policy.network();
        let decoder = &mut self.decoder;
        let logits =
            (self.team).run(|| decoder.next_token(network, &batch, &last_rows, &mut caches))?;
        let complete = active.iter().filter(|(_, s)| s.pending().is_empty());
        let draws: Vec<Draw<'_>> = complete
            .filter_map(|(_, sequence)| sequence.active.as_ref())
            .map(|open| Draw {
                sampling: &open.turn.sampling,
                stream: &open.turn.stream,
                turn: open.turn.turn,
                token: open.drawn.len() as u32,
            })
            .collect();
        self.team.run(|| logits.draw(&draws))
    }
}
