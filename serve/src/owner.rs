//! The thread that owns the engine. Messages join and leave the running batch between two of its
//! steps; what is to be scored is scored there too, some of it between two steps, so that neither keeps
//! the other waiting for long. A message that nobody waits for any more frees its row at once.

use crate::refusal::Refusal;
use agentgym_model::{
    ComputeOptions, Engine, EngineOptions, FinishReason, Generation, GenerationRequest, Policy,
    ScoreRequest, Scores, likeliest, score,
};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use tokio::sync::{mpsc as channel, oneshot, watch};

/// Tokens that are scored between two steps.
const SCORED_TOKENS: usize = 4096;
/// Ids that are told together to those who do not watch.
const TOLD_TOGETHER: usize = 32;
/// Finished sequences that stay: the next turn of a conversation begins with one.
const KEPT_MAX: usize = 64;

/// What happens to a message.
#[derive(Debug)]
pub(crate) enum Event {
    /// Further ids and their log-probs.
    Drawn(Vec<(u32, f32)>),
    Ended(FinishReason),
}

/// What scoring says of a sequence, token by token; the first has nothing before it.
#[derive(Debug)]
pub(crate) struct Scored {
    pub(crate) log_probs: Vec<f32>,
    /// For each token but the first.
    pub(crate) likeliest: Option<Vec<(u32, f32)>>,
}

/// Sequences to be scored.
pub(crate) struct ScoreAsk {
    pub(crate) sequences: Vec<Vec<u32>>,
    pub(crate) temperature: f64,
    pub(crate) likeliest: bool,
}

struct Scoring {
    ask: ScoreAsk,
    done: Vec<Scored>,
    reply: oneshot::Sender<Result<Vec<Scored>, String>>,
}

struct Open {
    events: channel::UnboundedSender<Result<Event, Refusal>>,
    /// Wants every id when it is drawn.
    watched: bool,
    /// Ids that were told.
    told: usize,
}

enum Command {
    Generate(GenerationRequest, Open),
    Score(Scoring),
    Leave(u64),
}

/// Sends work to the thread.
#[derive(Clone)]
pub(crate) struct Owner {
    commands: mpsc::Sender<Command>,
    numbers: Arc<AtomicU64>,
    ended: Arc<OnceLock<String>>,
}

/// A message that is generated. Dropped, it leaves the batch.
pub(crate) struct Seat {
    number: u64,
    owner: Owner,
    events: channel::UnboundedReceiver<Result<Event, Refusal>>,
}

impl Owner {
    /// Starts the thread. The receiver changes when the thread has ended early.
    pub(crate) fn start(
        policy: Policy,
        options: EngineOptions,
        threads: usize,
    ) -> std::io::Result<(Self, watch::Receiver<bool>)> {
        let (commands, receiver) = mpsc::channel();
        let (tell, told) = watch::channel(false);
        let ended = Arc::new(OnceLock::new());
        let why = Arc::clone(&ended);
        let work = move || {
            let mut thread = Thread::new(policy, options, threads);
            let run = catch_unwind(AssertUnwindSafe(|| thread.run(&receiver)));
            let found = match run {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned();
                    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into()));
                    format!("internal error: {}", text.unwrap_or_default())
                }
            };
            tracing::error!("the engine has ended: {found}");
            // Before those who wait are told by the end of their channels.
            let _ = why.set(found);
            drop(thread);
            let _ = tell.send(true);
        };
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(work)?;
        let owner = Self {
            commands,
            numbers: Arc::default(),
            ended,
        };
        Ok((owner, told))
    }

    /// Why the thread has ended.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// The answer where the thread has ended.
    pub(crate) fn gone(&self) -> Refusal {
        let why = self.ended().unwrap_or("it was stopped");
        Refusal::failed(format!("the engine has ended: {why}"))
    }

    /// Lets a message join the batch; its `sequence` is given here.
    pub(crate) fn generate(&self, request: GenerationRequest, watched: bool) -> Seat {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = channel::unbounded_channel();
        let open = Open {
            events: sender,
            watched,
            told: 0,
        };
        let request = GenerationRequest {
            sequence: number,
            ..request
        };
        // If the thread has ended, the channel of events has too.
        let _ = self.commands.send(Command::Generate(request, open));
        Seat {
            number,
            owner: self.clone(),
            events,
        }
    }

    /// Scores sequences.
    pub(crate) async fn score(&self, ask: ScoreAsk) -> Result<Vec<Scored>, Refusal> {
        let (reply, done) = oneshot::channel();
        let scoring = Scoring {
            ask,
            done: Vec::new(),
            reply,
        };
        let _ = self.commands.send(Command::Score(scoring));
        match done.await {
            Ok(Ok(scored)) => Ok(scored),
            Ok(Err(message)) => Err(Refusal::failed(message)),
            Err(_) => Err(self.gone()),
        }
    }
}

impl Seat {
    /// What happens next.
    pub(crate) async fn next(&mut self) -> Result<Event, Refusal> {
        let told = self.events.recv().await;
        told.unwrap_or_else(|| Err(self.owner.gone()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // A thread that has ended has nothing left to free.
        let _ = self.owner.commands.send(Command::Leave(self.number));
    }
}

struct Thread {
    policy: Policy,
    engine: Engine,
    threads: usize,
    open: BTreeMap<u64, Open>,
    kept: VecDeque<u64>,
    scoring: VecDeque<Scoring>,
}

impl Thread {
    fn new(policy: Policy, options: EngineOptions, threads: usize) -> Self {
        Self {
            engine: Engine::new(policy.clone(), options),
            policy,
            threads,
            open: BTreeMap::new(),
            kept: VecDeque::new(),
            scoring: VecDeque::new(),
        }
    }

    /// Works until nobody is left who could send anything.
    fn run(&mut self, commands: &mpsc::Receiver<Command>) -> agentgym_model::Result<()> {
        loop {
            if self.engine.is_idle() && self.scoring.is_empty() {
                match commands.recv() {
                    Ok(command) => self.take(command),
                    Err(mpsc::RecvError) => return Ok(()),
                }
            }
            loop {
                match commands.try_recv() {
                    Ok(command) => self.take(command),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
                }
            }
            self.score();
            let done = self.engine.step()?;
            self.tell(done);
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Generate(request, open) => {
                let number = request.sequence;
                match self.engine.submit(request) {
                    Ok(()) => _ = self.open.insert(number, open),
                    Err(e) => _ = open.events.send(Err(Refusal::bad("", e.to_string()))),
                }
            }
            Command::Score(scoring) => self.scoring.push_back(scoring),
            Command::Leave(number) => {
                if self.open.remove(&number).is_some() {
                    self.engine.release(number);
                }
            }
        }
    }

    /// Tells what was drawn, and whose message has ended.
    fn tell(&mut self, done: Vec<Generation>) {
        for (number, open) in &mut self.open {
            // The rest of the work on ids goes on beside the engine's.
            let wanted = if open.watched { 1 } else { TOLD_TOGETHER };
            if (self.engine.drawn(*number, open.told + wanted - 1).next()).is_none() {
                continue;
            }
            let drawn: Vec<_> = self.engine.drawn(*number, open.told).collect();
            open.told += drawn.len();
            // Who has gone says so by a command of their own.
            let _ = open.events.send(Ok(Event::Drawn(drawn)));
        }
        for message in done {
            let Some(open) = self.open.remove(&message.sequence) else {
                continue;
            };
            let all = message.token_ids.iter().copied().zip(message.log_probs);
            let rest: Vec<_> = all.skip(open.told).collect();
            let _ = open.events.send(Ok(Event::Drawn(rest)));
            let _ = open.events.send(Ok(Event::Ended(message.finish)));
            self.kept.push_back(message.sequence);
        }
        while self.kept.len() > KEPT_MAX
            && let Some(oldest) = self.kept.pop_front()
        {
            self.engine.release(oldest);
        }
    }

    /// Scores as much as there is time for between two steps, at least a sequence.
    fn score(&mut self) {
        self.scoring.retain(|scoring| !scoring.reply.is_closed());
        let Some(mut scoring) = self.scoring.pop_front() else {
            return;
        };
        let rest = &scoring.ask.sequences[scoring.done.len()..];
        let mut tokens = 0;
        let fits = rest.iter().take_while(|ids| {
            let before = tokens;
            tokens += ids.len();
            before == 0 || tokens <= SCORED_TOKENS
        });
        let next: Vec<&[u32]> = fits.map(Vec::as_slice).collect();
        let scored = self.scored(&next, scoring.ask.temperature, scoring.ask.likeliest);
        match scored {
            Err(e) => _ = scoring.reply.send(Err(e.to_string())),
            Ok(scored) => {
                scoring.done.extend(scored);
                match scoring.done.len() < scoring.ask.sequences.len() {
                    true => self.scoring.push_back(scoring),
                    false => _ = scoring.reply.send(Ok(scoring.done)),
                }
            }
        }
    }

    fn scored(
        &self,
        sequences: &[&[u32]],
        temperature: f64,
        wants_likeliest: bool,
    ) -> agentgym_model::Result<Vec<Scored>> {
        let masks: Vec<Vec<bool>> = (sequences.iter())
            .map(|ids| (0..ids.len()).map(|at| at > 0).collect())
            .collect();
        let requests: Vec<ScoreRequest<'_>> = (sequences.iter().zip(&masks))
            .map(|(token_ids, loss_mask)| ScoreRequest {
                token_ids,
                loss_mask,
            })
            .collect();
        let options = ComputeOptions {
            threads: self.threads,
            ..ComputeOptions::default()
        };
        let scores = score(&self.policy, &requests, temperature, &options)?;
        let with_likeliest = |(ids, scores): (&&[u32], Scores)| -> agentgym_model::Result<Scored> {
            let likeliest = match wants_likeliest {
                true => Some(likeliest(&self.policy, ids, temperature)?),
                false => None,
            };
            Ok(Scored {
                log_probs: scores.log_probs,
                likeliest,
            })
        };
        sequences.iter().zip(scores).map(with_likeliest).collect()
    }
}
