//! Generation behind an async call. Every thread owns an engine with the KV
//! caches of its episodes, so an episode stays on the thread that played its
//! first turn; all episodes of a thread are decoded together, and new turns
//! join between two steps.
//!
//! What an episode samples depends on its own tokens and its stream alone
//! (I7), so neither the number of threads nor the company of an episode shows
//! in the result.

use crate::{Beat, Error, Result};
use agentgym_model::{Engine, EngineOptions, Policy, Turn, TurnDone};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Instant;
use tokio::sync::oneshot;

/// Prompt tokens that one step may prefill beside the rows it decodes: bounds
/// how long a long prompt holds up the others.
const PREFILL_CHUNK_TOKENS: usize = 512;

/// How much one decoder may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecoderOptions {
    /// Threads, each with an engine.
    pub(crate) threads: usize,
    /// Episodes that one thread decodes at once.
    pub(crate) rows: usize,
    /// Tokens of KV cache that one thread keeps.
    pub(crate) cache_tokens: usize,
}

/// What one episode is told of its turn.
type Reply = oneshot::Sender<Result<TurnDone>>;

/// Why a thread ended before its time, for all who ask it later.
type Ended = Arc<OnceLock<Arc<agentgym_model::Error>>>;

enum Command {
    Turn(Turn, Reply),
    Release(u64),
}

/// Engines on their threads. Dropping it ends them.
pub(crate) struct Decoder {
    threads: Vec<Thread>,
    sequences: AtomicU64,
    counts: Arc<Counts>,
}

struct Thread {
    commands: mpsc::Sender<Command>,
    open: AtomicUsize,
    ended: Ended,
}

impl Thread {
    fn gone(&self) -> Error {
        match self.ended.get() {
            Some(error) => Error::Model(Arc::clone(error)),
            None => Error::stage("a decoder thread ended early; the log above says why"),
        }
    }
}

/// What the threads measured, summed over them.
#[derive(Debug, Default)]
struct Counts {
    sampled_tokens: AtomicU64,
    busy_us: AtomicU64,
}

/// An episode's place in the decoder. Dropping it frees the caches.
pub(crate) struct Sequence {
    decoder: Arc<Decoder>,
    thread: usize,
    id: u64,
}

impl Decoder {
    /// Starts the threads.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub(crate) fn start(
        policy: &Arc<Policy>,
        options: DecoderOptions,
        beat: &Beat,
    ) -> Result<Arc<Self>> {
        let counts = Arc::new(Counts::default());
        let threads = (0..options.threads.max(1))
            .map(|index| {
                let (commands, receiver) = mpsc::channel();
                let engine = Engine::new(
                    Policy::clone(policy),
                    EngineOptions {
                        rows_max: options.rows,
                        cache_tokens_max: options.cache_tokens,
                        prefill_chunk: PREFILL_CHUNK_TOKENS,
                    },
                );
                let (counts, beat) = (Arc::clone(&counts), beat.clone());
                let ended = Ended::default();
                let why = Arc::clone(&ended);
                std::thread::Builder::new()
                    .name(format!("decode-{index}"))
                    .spawn(move || serve(engine, &receiver, &counts, &beat, &why))
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
        }))
    }

    /// A place on the thread with the fewest open episodes.
    pub(crate) fn open(self: &Arc<Self>) -> Sequence {
        let id = self.sequences.fetch_add(1, Ordering::Relaxed);
        let open = |thread: &Thread| thread.open.load(Ordering::Relaxed);
        let thread = (0..self.threads.len())
            .min_by_key(|t| open(&self.threads[*t]))
            .unwrap_or(0);
        self.threads[thread].open.fetch_add(1, Ordering::Relaxed);
        Sequence {
            decoder: Arc::clone(self),
            thread,
            id,
        }
    }

    /// Tokens sampled so far.
    pub(crate) fn sampled_tokens(&self) -> u64 {
        self.counts.sampled_tokens.load(Ordering::Relaxed)
    }

    /// Seconds spent inside the engines, summed over the threads.
    pub(crate) fn busy_s(&self) -> f64 {
        self.counts.busy_us.load(Ordering::Relaxed) as f64 / 1e6
    }
}

impl Sequence {
    /// Number under which the engine knows the episode.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Plays a turn: appends `turn.append`, samples until the end token or the
    /// limit.
    ///
    /// # Errors
    /// The model's error, or the thread's end.
    pub(crate) async fn turn(&self, turn: Turn) -> Result<TurnDone> {
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
        // A thread that is gone has no cache left to free.
        let _ = thread.commands.send(Command::Release(self.id));
    }
}

/// One thread: takes what has arrived, decodes one step, replies.
fn serve(
    mut engine: Engine,
    commands: &mpsc::Receiver<Command>,
    counts: &Counts,
    beat: &Beat,
    ended: &Ended,
) {
    let mut waiting: HashMap<u64, Reply> = HashMap::new();
    loop {
        if engine.is_idle() {
            match commands.recv() {
                Ok(command) => take(command, &mut engine, &mut waiting),
                Err(mpsc::RecvError) => return,
            }
        }
        loop {
            match commands.try_recv() {
                Ok(command) => take(command, &mut engine, &mut waiting),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
        }
        let start = Instant::now();
        let call = beat.busy();
        let stepped = engine.step();
        drop(call);
        match stepped {
            Ok(done) => {
                for turn in done {
                    counts
                        .sampled_tokens
                        .fetch_add(turn.token_ids.len() as u64, Ordering::Relaxed);
                    if let Some(reply) = waiting.remove(&turn.sequence) {
                        // An episode that has given up no longer listens.
                        let _ = reply.send(Ok(turn));
                    }
                }
            }
            Err(error) => {
                let error = ended.get_or_init(|| Arc::new(error));
                for (_, reply) in waiting.drain() {
                    let _ = reply.send(Err(Error::Model(Arc::clone(error))));
                }
                return;
            }
        }
        counts
            .busy_us
            .fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        beat.tick();
    }
}

fn take(command: Command, engine: &mut Engine, waiting: &mut HashMap<u64, Reply>) {
    match command {
        Command::Turn(turn, reply) => {
            let sequence = turn.sequence;
            match engine.submit(turn) {
                Ok(()) => {
                    waiting.insert(sequence, reply);
                }
                Err(error) => {
                    let _ = reply.send(Err(error.into()));
                }
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

    fn turn() -> Turn {
        Turn {
            sequence: 0,
            append: vec![1],
            stream: [0; 32],
            turn: 0,
            sampling: Sampling::default(),
            tokens_max: 1,
            stop_ids: Vec::new(),
        }
    }

    /// Whoever asks: before the thread has ended, and after.
    #[tokio::test]
    async fn a_lost_device_stays_one_for_every_episode() {
        let ended = Ended::default();
        let (commands, receiver) = mpsc::channel();
        let decoder = Arc::new(Decoder {
            threads: vec![Thread {
                commands,
                open: AtomicUsize::new(0),
                ended: Arc::clone(&ended),
            }],
            sequences: AtomicU64::new(0),
            counts: Arc::default(),
        });
        let [early, late] = [decoder.open(), decoder.open()];
        let thread = std::thread::spawn(move || {
            let unanswered = receiver.recv();
            let lost = agentgym_model::Error::DeviceLost {
                name: "cuda:0".to_owned(),
                message: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
            };
            let _ = ended.set(Arc::new(lost));
            drop((unanswered, receiver));
        });
        let error = early.turn(turn()).await.unwrap_err();
        assert_eq!(error.cause(), Cause::Device, "{error}");
        thread.join().unwrap();
        let error = late.turn(turn()).await.unwrap_err();
        assert_eq!(error.cause(), Cause::Device, "{error}");
        assert!(matches!(error.verdict(), agentgym_storage::Verdict::Retry));
    }
}
