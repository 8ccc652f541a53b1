//! Generation by candle for families that our own networks do not know. A turn is one job of a
//! thread that computes one conversation at a time; a seat keeps its conversation's cache from turn
//! to turn. What a turn draws depends on its ids and its random key alone (I7).

use crate::{Beat, Error, Result, panics};
use agentgym_model::{Conversation, ForeignPolicy, Generation, GenerationRequest};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::oneshot;

/// A model and the threads that compute it.
pub(crate) struct CandleEngine {
    policy: Arc<ForeignPolicy>,
    /// Of one thread each: candle's products use the pool that they are called in, and several that
    /// share one wait for each other.
    threads: Vec<ThreadPool>,
    seats: AtomicUsize,
    beat: Beat,
    sampled_tokens: AtomicU64,
    busy_us: AtomicU64,
}

/// An episode's conversation, and the thread that computes it.
pub(crate) struct CandleSeat {
    engine: Arc<CandleEngine>,
    conversation: Arc<Mutex<Conversation>>,
    thread: usize,
}

impl CandleEngine {
    /// # Errors
    /// The operating system cannot create a thread.
    pub(crate) fn start(
        policy: Arc<ForeignPolicy>,
        threads: usize,
        beat: Beat,
    ) -> Result<Arc<Self>> {
        let thread = |index| {
            let thread = ThreadPoolBuilder::new()
                .num_threads(1)
                .thread_name(move |_| format!("candle-{index}"));
            thread.build().map_err(|e| Error::Io {
                what: "starting a thread for candle".into(),
                source: std::io::Error::other(e),
            })
        };
        Ok(Arc::new(Self {
            policy,
            threads: (0..threads.max(1)).map(thread).collect::<Result<_>>()?,
            seats: AtomicUsize::new(0),
            beat,
            sampled_tokens: AtomicU64::new(0),
            busy_us: AtomicU64::new(0),
        }))
    }

    /// A seat for an episode that begins, on the threads in turns.
    pub(crate) fn open(self: &Arc<Self>) -> CandleSeat {
        let seat = self.seats.fetch_add(1, Ordering::Relaxed);
        CandleSeat {
            engine: Arc::clone(self),
            conversation: Arc::new(Mutex::new(self.policy.begin())),
            thread: seat % self.threads.len(),
        }
    }

    /// Tokens sampled so far, those of finished messages.
    pub(crate) fn sampled_tokens(&self) -> u64 {
        self.sampled_tokens.load(Ordering::Relaxed)
    }

    /// Seconds spent in the model, summed over the threads.
    pub(crate) fn busy_s(&self) -> f64 {
        self.busy_us.load(Ordering::Relaxed) as f64 / 1e6
    }
}

impl CandleSeat {
    /// A seat for another sequence of the same episode.
    pub(crate) fn another(&self) -> Self {
        self.engine.open()
    }

    /// The message behind `request.append`, the whole conversation; `sampled` says which of its ids
    /// the policy said in it.
    ///
    /// # Errors
    /// The model's.
    pub(crate) async fn turn(
        &self,
        request: GenerationRequest,
        sampled: Vec<bool>,
    ) -> Result<Generation> {
        let (reply, done) = oneshot::channel::<Result<Generation>>();
        let (engine, conversation) = (Arc::clone(&self.engine), Arc::clone(&self.conversation));
        self.engine.threads[self.thread].spawn(move || {
            let (start, call) = (Instant::now(), engine.beat.busy());
            // Whoever no longer waits has dropped its end.
            let wanted = || {
                engine.beat.tick();
                !reply.is_closed()
            };
            let said = catch_unwind(AssertUnwindSafe(|| {
                let mut conversation = conversation.lock().unwrap_or_else(PoisonError::into_inner);
                conversation.turn(&request, &sampled, wanted)
            }));
            drop(call);
            let elapsed = start.elapsed().as_micros() as u64;
            engine.busy_us.fetch_add(elapsed, Ordering::Relaxed);
            let answer = match said {
                Ok(Ok(None)) => return,
                Ok(Ok(Some(said))) => {
                    let tokens = said.token_ids.len() as u64;
                    // For a killed process, this is the only record of what it had sampled.
                    tracing::trace!("sampled tokens={tokens}");
                    engine.sampled_tokens.fetch_add(tokens, Ordering::Relaxed);
                    Ok(said)
                }
                Ok(Err(error)) => Err(error.into()),
                Err(panic) => Err(Error::Internal(panics::message(&*panic))),
            };
            let _ = reply.send(answer);
        });
        done.await.unwrap_or(Err(Error::Cancelled))
    }
}
