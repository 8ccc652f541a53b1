//! Generation behind an async call. Each thread owns an engine with the KV caches of its episodes,
//! so an episode stays on the thread that played its first turn. The turns of a thread are decoded
//! in one batch, and new ones join between two steps as others end. The samples of a task share a
//! thread where there are tasks enough, since an engine runs once what its sequences have in common.
//! For a large model there is one such thread, whose engine divides its steps over all processors.
//!
//! An episode's samples depend only on its own tokens and its random stream (I7), so neither the
//! number of threads nor the other episodes in the batch affect the result.

use crate::{Beat, Error, Result, panics};
use agentgym_model::{Engine, EngineOptions, Generation, GenerationRequest, Policy};
use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Instant;
use tokio::sync::oneshot;

/// Prompt tokens that one step may prefill in addition to the rows it decodes. This bounds how long
/// a long prompt delays the other episodes.
pub const PREFILL_CHUNK_TOKENS: usize = 512;

/// Resource limits of one decoder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecoderOptions {
    /// Threads that compute.
    pub(crate) threads: usize,
    /// Episodes that are decoded at once for each of them.
    pub(crate) rows: usize,
    /// Tokens of KV cache for each of them.
    pub(crate) cache_tokens: usize,
}

/// The channel for the result of an episode's turn.
type Reply = oneshot::Sender<Result<Generation>>;

/// Why a thread ended early, for all later callers.
type Ended = Arc<OnceLock<Why>>;

enum Why {
    Failed(Arc<agentgym_model::Error>),
    Panicked(String),
}

impl Why {
    fn error(&self) -> Error {
        match self {
            Self::Failed(error) => Error::Model(Arc::clone(error)),
            Self::Panicked(message) => Error::Internal(message.clone()),
        }
    }
}

enum Command {
    Turn(GenerationRequest, Reply),
    Release(u64),
}

/// The engines and their threads. Dropping it ends the threads.
pub(crate) struct Decoder {
    threads: Vec<Thread>,
    sequences: AtomicU64,
    counts: Arc<Counts>,
    companies: Mutex<Companies>,
}

/// Group and sample of an episode.
type Episode = (u32, u32);

/// Episodes that are to share a thread.
#[derive(Debug, Default)]
struct Companies {
    of: BTreeMap<Episode, usize>,
    all: Vec<Company>,
}

#[derive(Debug, Default)]
struct Company {
    thread: Option<usize>,
    /// Episodes that have not begun.
    expected: usize,
}

impl Companies {
    /// A company for each group, or several where there are fewer groups than threads.
    fn new(episodes: impl Iterator<Item = Episode>, threads: usize) -> Self {
        let mut groups: BTreeMap<u32, Vec<Episode>> = BTreeMap::new();
        for episode in episodes {
            groups.entry(episode.0).or_default().push(episode);
        }
        let parts = threads.div_ceil(groups.len().max(1));
        let mut companies = Self::default();
        for group in groups.into_values() {
            for company in group.chunks(group.len().div_ceil(parts)) {
                let number = companies.all.len();
                companies
                    .of
                    .extend(company.iter().map(|own| (*own, number)));
                companies.all.push(Company {
                    thread: None,
                    expected: company.len(),
                });
            }
        }
        companies
    }

    /// The thread for an episode that begins; `open` has the open episodes of each thread. The
    /// first of a company takes the thread with the fewest episodes, open or expected.
    fn seat(&mut self, episode: Episode, open: &[usize]) -> usize {
        let mut load = open.to_vec();
        for company in &self.all {
            if let Some(thread) = company.thread {
                load[thread] += company.expected;
            }
        }
        let least = (0..load.len()).min_by_key(|thread| load[*thread]);
        let least = least.unwrap_or(0);
        let Some(company) = self.of.get(&episode).map(|number| &mut self.all[*number]) else {
            return least;
        };
        company.expected = company.expected.saturating_sub(1);
        *company.thread.get_or_insert(least)
    }
}

struct Thread {
    commands: mpsc::Sender<Command>,
    open: AtomicUsize,
    ended: Ended,
}

impl Thread {
    fn gone(&self) -> Error {
        match self.ended.get() {
            Some(why) => why.error(),
            None => Error::stage("a decoder thread ended early; the log above says why"),
        }
    }
}

/// Measurements, summed over the threads.
#[derive(Debug, Default)]
struct Counts {
    sampled_tokens: AtomicU64,
    shared_tokens: AtomicU64,
    busy_us: AtomicU64,
}

/// An episode's handle in the decoder. Dropping it frees its caches.
pub(crate) struct Sequence {
    decoder: Arc<Decoder>,
    thread: usize,
    id: u64,
}

impl Decoder {
    /// Starts the threads.
    ///
    /// # Errors
    /// The operating system cannot create a thread.
    pub(crate) fn start(
        policy: &Arc<Policy>,
        options: DecoderOptions,
        beat: &Beat,
    ) -> Result<Arc<Self>> {
        let counts = Arc::new(Counts::default());
        let one = EngineOptions {
            rows_max: options.rows,
            cache_tokens_max: options.cache_tokens,
            prefill_chunk: PREFILL_CHUNK_TOKENS,
            threads: 1,
        };
        let engines = one.over(options.threads, policy).into_iter().enumerate();
        let threads = engines
            .map(|(index, engine)| {
                let (commands, receiver) = mpsc::channel();
                let engine = Engine::new(Policy::clone(policy), engine.on_device_of(policy)?);
                let (counts, beat) = (Arc::clone(&counts), beat.clone());
                let ended = Ended::default();
                let why = Arc::clone(&ended);
                std::thread::Builder::new()
                    .name(format!("decode-{index}"))
                    .spawn(move || {
                        answering(&why, |waiting| {
                            serve(engine, &receiver, waiting, (&counts, &beat))
                        });
                    })
                    .map_err(|source| Error::Io {
                        what: "starting a decoder thread".into(),
                        source,
                    })?;
                Ok(Thread {
                    commands,
                    open: AtomicUsize::new(0),
                    ended,
                })
            })
            .collect::<Result<_>>()?;
        Ok(Arc::new(Self {
            threads,
            sequences: AtomicU64::new(0),
            counts,
            companies: Mutex::default(),
        }))
    }

    /// Announces the episodes that are going to begin.
    pub(crate) fn expect(&self, episodes: impl Iterator<Item = Episode>) {
        *self.companies() = Companies::new(episodes, self.threads.len());
    }

    fn companies(&self) -> std::sync::MutexGuard<'_, Companies> {
        (self.companies.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a sequence for an episode that begins.
    pub(crate) fn open(self: &Arc<Self>, episode: Episode) -> Sequence {
        let mut companies = self.companies();
        let open = (self.threads.iter()).map(|thread| thread.open.load(Ordering::Relaxed));
        let thread = companies.seat(episode, &open.collect::<Vec<_>>());
        self.take(thread)
    }

    fn take(self: &Arc<Self>, thread: usize) -> Sequence {
        self.threads[thread].open.fetch_add(1, Ordering::Relaxed);
        Sequence {
            decoder: Arc::clone(self),
            thread,
            id: self.sequences.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Tokens sampled so far, those of unfinished messages included.
    pub(crate) fn sampled_tokens(&self) -> u64 {
        self.counts.sampled_tokens.load(Ordering::Relaxed)
    }

    /// Known tokens that no engine ran, since another sequence of its begins the same way.
    pub(crate) fn shared_tokens(&self) -> u64 {
        self.counts.shared_tokens.load(Ordering::Relaxed)
    }

    /// Seconds spent inside the engines, summed over the threads.
    pub(crate) fn busy_s(&self) -> f64 {
        self.counts.busy_us.load(Ordering::Relaxed) as f64 / 1e6
    }
}

impl Sequence {
    /// The engine's number of the episode.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Another sequence on the same thread.
    pub(crate) fn another(&self) -> Self {
        self.decoder.take(self.thread)
    }

    /// Plays a turn: appends `turn.append`, samples until the end token or the
    /// limit.
    ///
    /// # Errors
    /// The model's error, or the reason why the thread ended.
    pub(crate) async fn turn(&self, turn: GenerationRequest) -> Result<Generation> {
        let (reply, done) = oneshot::channel();
        let thread = &self.decoder.threads[self.thread];
        thread
            .commands
            .send(Command::Turn(turn, reply))
            .map_err(|_| thread.gone())?;
        done.await.map_err(|_| thread.gone())?
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let thread = &self.decoder.threads[self.thread];
        thread.open.fetch_sub(1, Ordering::Relaxed);
        // A thread that has ended has no cache left to free.
        let _ = thread.commands.send(Command::Release(self.id));
    }
}

/// Runs `serve`. If it ends early, by an error or a panic, all waiting callers get that error.
fn answering(
    why: &Ended,
    serve: impl FnOnce(&mut HashMap<u64, Reply>) -> agentgym_model::Result<()>,
) {
    let mut waiting = HashMap::new();
    let ended = match catch_unwind(AssertUnwindSafe(|| serve(&mut waiting))) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => Why::Failed(Arc::new(error)),
        Err(panic) => Why::Panicked(panics::message(&*panic)),
    };
    let ended = why.get_or_init(|| ended);
    for (_, reply) in waiting.drain() {
        let _ = reply.send(Err(ended.error()));
    }
}

/// The loop of one thread: takes new commands, decodes one step, replies. However it ends, the
/// callers without a reply are in `waiting`.
fn serve(
    mut engine: Engine,
    commands: &mpsc::Receiver<Command>,
    waiting: &mut HashMap<u64, Reply>,
    (counts, beat): (&Counts, &Beat),
) -> agentgym_model::Result<()> {
    let (mut counted, mut shared) = (0, 0);
    loop {
        if engine.is_idle() {
            match commands.recv() {
                Ok(command) => take(command, &mut engine, waiting),
                Err(mpsc::RecvError) => return Ok(()),
            }
        }
        loop {
            match commands.try_recv() {
                Ok(command) => take(command, &mut engine, waiting),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            }
        }
        let start = Instant::now();
        let call = beat.busy();
        let stepped = engine.step();
        drop(call);
        let done = stepped?;
        let (sampled, taken) = engine.counted();
        counts
            .sampled_tokens
            .fetch_add(sampled - counted, Ordering::Relaxed);
        counted = sampled;
        (counts.shared_tokens).fetch_add(taken - shared, Ordering::Relaxed);
        shared = taken;
        for turn in done {
            // For a killed process, this is the only record of what it had sampled.
            tracing::trace!("sampled tokens={}", turn.token_ids.len());
            if let Some(reply) = waiting.remove(&turn.sequence) {
                // An abandoned episode has dropped its receiver.
                let _ = reply.send(Ok(turn));
            }
        }
        let busy = start.elapsed() * engine.threads() as u32;
        counts
            .busy_us
            .fetch_add(busy.as_micros() as u64, Ordering::Relaxed);
        beat.tick();
    }
}

fn take(command: Command, engine: &mut Engine, waiting: &mut HashMap<u64, Reply>) {
    match command {
        Command::Turn(turn, reply) => {
            let sequence = turn.sequence;
            waiting.insert(sequence, reply);
            if let Err(error) = engine.submit(turn)
                && let Some(reply) = waiting.remove(&sequence)
            {
                let _ = reply.send(Err(error.into()));
            }
        }
        Command::Release(sequence) => {
            waiting.remove(&sequence);
            engine.release(sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;
    use agentgym_model::Sampling;

    fn turn() -> GenerationRequest {
        GenerationRequest {
            sequence: 0,
            append: vec![1],
            stream: [0; 32],
            turn: 0,
            sampling: Sampling::default(),
            tokens_max: 1,
            stop_ids: Vec::new(),
        }
    }

    /// A one-thread decoder that runs `serve`.
    fn decoder(
        serve: impl FnOnce(
            &mpsc::Receiver<Command>,
            &mut HashMap<u64, Reply>,
        ) -> agentgym_model::Result<()>
        + Send
        + 'static,
    ) -> (Arc<Decoder>, std::thread::JoinHandle<()>) {
        let ended = Ended::default();
        let (commands, receiver) = mpsc::channel();
        let why = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            answering(&why, |waiting| serve(&receiver, waiting));
        });
        let decoder = Decoder {
            threads: vec![Thread {
                commands,
                open: AtomicUsize::new(0),
                ended,
            }],
            sequences: AtomicU64::new(0),
            counts: Arc::default(),
            companies: Mutex::default(),
        };
        (Arc::new(decoder), thread)
    }

    fn await_a_turn(commands: &mpsc::Receiver<Command>, waiting: &mut HashMap<u64, Reply>) {
        if let Ok(Command::Turn(turn, reply)) = commands.recv() {
            waiting.insert(turn.sequence, reply);
        }
    }

    /// Begins `episodes` in the given order, none of which ends; returns the threads of each group.
    fn seats(threads: usize, groups: u32, samples: u32, by_sample: bool) -> Vec<Vec<usize>> {
        let all = || (0..groups).flat_map(|g| (0..samples).map(move |s| (g, s)));
        let mut companies = Companies::new(all(), threads);
        let mut open = vec![0; threads];
        let mut seats = vec![Vec::new(); groups as usize];
        let mut order: Vec<Episode> = all().collect();
        if by_sample {
            order.sort_by_key(|(group, sample)| (*sample, *group));
        }
        for episode in order {
            let thread = companies.seat(episode, &open);
            open[thread] += 1;
            seats[episode.0 as usize].push(thread);
        }
        let [least, most] = [open.iter().min(), open.iter().max()].map(Option::unwrap);
        assert!(most - least <= samples as usize, "{open:?}");
        seats
    }

    #[test]
    fn the_samples_of_a_task_share_a_thread_and_no_thread_is_left_out() {
        for by_sample in [false, true] {
            for (threads, groups) in [(1, 3), (2, 2), (2, 5), (4, 9)] {
                for own in seats(threads, groups, 8, by_sample) {
                    assert!(own.iter().all(|thread| *thread == own[0]), "{own:?}");
                }
            }
            // One task for two threads, three for eight: each is played on as few as fill them.
            let mut own = seats(2, 1, 8, by_sample).remove(0);
            own.sort_unstable();
            assert_eq!(own, [0, 0, 0, 0, 1, 1, 1, 1]);
            let mut all = seats(8, 3, 6, by_sample).concat();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }

    #[test]
    fn an_episode_that_nobody_announced_goes_where_fewest_are() {
        let mut companies = Companies::new([(0, 0), (0, 1)].into_iter(), 2);
        assert_eq!(companies.seat((7, 7), &[3, 2]), 1);
        assert_eq!(companies.seat((0, 0), &[0, 1]), 0);
        // A second time: a fault has begun it anew.
        assert_eq!(companies.seat((0, 0), &[5, 1]), 0);
    }

    /// For callers before the thread has ended, and after.
    #[tokio::test]
    async fn a_lost_device_stays_one_for_every_episode() {
        let (decoder, thread) = decoder(|commands, waiting| {
            await_a_turn(commands, waiting);
            Err(agentgym_model::Error::DeviceLost {
                name: "cuda:0".to_owned(),
                message: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
            })
        });
        let [early, late] = [decoder.open((0, 0)), decoder.open((0, 1))];
        let error = early.turn(turn()).await.unwrap_err();
        assert_eq!(error.cause(), Cause::Device, "{error}");
        thread.join().unwrap();
        let error = late.turn(turn()).await.unwrap_err();
        assert_eq!(error.cause(), Cause::Device, "{error}");
        assert!(matches!(error.verdict(), agentgym_storage::Verdict::Retry));
    }

    /// The catching thread survives: no caller waits forever, and every caller gets the panic's
    /// message.
    #[tokio::test]
    async fn a_panic_in_a_thread_is_an_error_of_every_episode() {
        let (decoder, thread) = decoder(|commands, waiting| {
            await_a_turn(commands, waiting);
            panic!("row {} is out of bounds", 7)
        });
        let [early, late] = [decoder.open((0, 0)), decoder.open((0, 1))];
        let error = early.turn(turn()).await.unwrap_err();
        thread.join().unwrap();
        let later = late.turn(turn()).await.unwrap_err();
        for error in [error, later] {
            assert!(error.is_internal(), "{error}");
            assert!(
                error.to_string().contains("row 7 is out of bounds"),
                "{error}"
            );
            assert!(matches!(error.verdict(), agentgym_storage::Verdict::Retry));
        }
    }
}
