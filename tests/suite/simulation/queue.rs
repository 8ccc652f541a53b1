//! A simulated queue server, and the driver with which a process reaches it. It replaces SQLite and
//! Redis under the production loop, gate and claims, and passes the same contract tests
//! (`suite/queue`). Over a link with faults it also fails as they do.

use super::world::{Fate, Link, Sickness};
use agentgym_queue::{BOARD_RANKS, Driver, Enqueued, Error, QueueOptions, Result, Started, Worker};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Waiting,
    /// Handed out to an incarnation of a worker.
    Running(String),
    /// Acked at this time.
    Done(i64),
}

#[derive(Debug)]
struct Entry {
    id: u64,
    class: String,
    key: Option<String>,
    payload: Vec<u8>,
    run_at: i64,
    state: State,
}

#[derive(Debug, Default)]
struct Memory {
    entries: Vec<Entry>,
    next: u64,
    /// The registered workers.
    workers: BTreeSet<String>,
    /// Time of each worker's last heartbeat or fetch.
    heard: BTreeMap<String, i64>,
    leases: BTreeMap<String, (String, i64)>,
    boards: BTreeMap<String, BTreeSet<(u32, String)>>,
    /// How far the clock has jumped, in milliseconds.
    jumped: i64,
}

/// The state that all processes of a world share. It may be lost.
#[derive(Debug)]
pub(crate) struct Server {
    born: Instant,
    options: QueueOptions,
    memory: Mutex<Memory>,
    pushed: Notify,
}

impl Server {
    pub(crate) fn new(options: QueueOptions) -> Arc<Self> {
        Arc::new(Self {
            born: Instant::now(),
            options,
            memory: Mutex::default(),
            pushed: Notify::new(),
        })
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Like FLUSHALL.
    pub(crate) fn wipe(&self) {
        let mut memory = self.memory();
        let jumped = memory.jumped;
        *memory = Memory {
            jumped,
            ..Memory::default()
        };
    }

    /// Changes the server's clock, like an operator.
    pub(super) fn jump(&self, ms: i64) {
        self.memory().jumped += ms;
    }

    /// Pushes a payload that another program might push.
    pub(crate) fn push_bytes(&self, class: &str, payload: Vec<u8>) {
        let now = self.now(&self.memory());
        self.memory().push(class, payload, None, now);
        self.pushed.notify_waiters();
    }

    fn now(&self, memory: &Memory) -> i64 {
        self.born.elapsed().as_millis() as i64 + memory.jumped
    }

    fn lease_ms(&self) -> i64 {
        self.options.lease_ttl_s as i64 * 1000
    }
}

impl Memory {
    fn push(&mut self, class: &str, payload: Vec<u8>, key: Option<&str>, run_at: i64) {
        self.next += 1;
        self.entries.push(Entry {
            id: self.next,
            class: class.to_owned(),
            key: key.map(str::to_owned),
            payload,
            run_at,
            state: State::Waiting,
        });
    }

    /// Makes jobs of silent workers available again.
    fn redeliver(&mut self, now: i64, lease_ms: i64) {
        for entry in &mut self.entries {
            if let State::Running(worker) = &entry.state {
                let heard = self.heard.get(worker).copied();
                if heard.is_none_or(|at| at + lease_ms <= now) {
                    entry.state = State::Waiting;
                }
            }
        }
    }

    fn due<'a>(&'a self, class: &'a str, now: i64) -> impl Iterator<Item = usize> + 'a {
        let due = move |entry: &Entry| {
            entry.class == class && entry.state == State::Waiting && entry.run_at <= now
        };
        (0..self.entries.len()).filter(move |at| due(&self.entries[*at]))
    }
}

/// One process's connection to the server.
#[derive(Debug)]
pub(crate) struct SimulatedDriver {
    server: Arc<Server>,
    link: Arc<Link>,
}

impl SimulatedDriver {
    pub(super) fn new(server: Arc<Server>, link: Arc<Link>) -> Self {
        Self { server, link }
    }

    /// Without faults, for the contract tests.
    pub(crate) fn calm(server: Arc<Server>) -> Self {
        let link = Link::new("calm", super::world::World::calm());
        Self { server, link }
    }

    async fn call<T: Send>(
        &self,
        action: &'static str,
        about: &str,
        effect: impl FnOnce(&mut Memory, i64) -> T + Send,
    ) -> Result<T> {
        let failed = || Error::Backend {
            url: "simulated".to_owned(),
            action,
            source: "connection reset".into(),
        };
        let world = &self.link.world;
        let reads = matches!(action, "due" | "depth" | "holder");
        if self.link.sickness() == Some(Sickness::QueueReadOnly) && !reads {
            self.link.answer().await;
            return Err(failed());
        }
        self.link.turn(action, about).await;
        world.may_panic("the queue's code", |f| f.queue_panics);
        let fate = self.link.ask().await;
        if fate == Fate::Refused {
            self.link.note(action, about, "refused");
            self.link.answer().await;
            return Err(failed());
        }
        let done = {
            let mut memory = self.server.memory();
            let now = self.server.now(&memory);
            memory.redeliver(now, self.server.lease_ms());
            effect(&mut memory, now)
        };
        // Polls are too frequent to be logged.
        if action != "due" {
            self.link.note(action, about, "done");
        }
        self.link.answer().await;
        match fate {
            Fate::LostReply => Err(failed()),
            _ => Ok(done),
        }
    }

    /// Takes one job off the queue. By a fault it may stay there too (double delivery) or get lost.
    async fn fetch(&self, worker: &Worker) -> Result<Option<(u64, Vec<u8>)>> {
        let world = Arc::clone(&self.link.world);
        self.call("fetch", worker.lane_name(), |memory, now| {
            let due: Vec<usize> = memory.due(worker.lane_name(), now).collect();
            let any = world.strikes(|f| f.reorder);
            let at = match any {
                true => due.get(world.rng().below(due.len() as u64) as usize),
                false => due.first(),
            };
            let at = *at?;
            if world.strikes(|f| f.dropped) {
                memory.entries.remove(at);
                return None;
            }
            memory.heard.insert(worker.name().to_owned(), now);
            let entry = &mut memory.entries[at];
            if !world.strikes(|f| f.twice) {
                entry.state = State::Running(worker.name().to_owned());
            }
            Some((entry.id, entry.payload.clone()))
        })
        .await
    }
}

#[async_trait]
impl Driver for SimulatedDriver {
    fn poll_every(&self) -> Duration {
        Duration::from_millis(match self.server.options.poll_ms {
            0 => 20,
            poll_ms => poll_ms,
        })
    }

    async fn push(
        &self,
        class: &str,
        payload: Vec<u8>,
        key: Option<&str>,
        delay: Duration,
    ) -> Result<Enqueued> {
        let (lease_ms, most) = (self.server.lease_ms(), self.server.options.length_max);
        let about = format!("{class} {}", key.unwrap_or_default());
        let pushed = self
            .call("push", &about, |memory, now| {
                if let Some(key) = key {
                    let is_same = |e: &Entry| e.class == class && e.key.as_deref() == Some(key);
                    memory.entries.retain(|e| match e.state {
                        State::Done(at) => !(is_same(e) && at + lease_ms <= now),
                        _ => true,
                    });
                    if memory.entries.iter().any(is_same) {
                        return Enqueued::Duplicate;
                    }
                    let waiting = |e: &&Entry| e.class == class && e.state == State::Waiting;
                    if memory.entries.iter().filter(waiting).count() >= most {
                        return Enqueued::Full;
                    }
                }
                let whole_s = delay.as_millis().div_ceil(1000) as i64;
                memory.push(class, payload, key, now + whole_s * 1000);
                Enqueued::Pushed
            })
            .await;
        self.server.pushed.notify_waiters();
        pushed
    }

    async fn due(&self) -> Result<Vec<(String, usize)>> {
        self.call("due", "", |memory, now| {
            let live = memory.entries.iter();
            let live = live.filter(|e| !matches!(e.state, State::Done(_)));
            let lanes: BTreeSet<String> = live.map(|e| e.class.clone()).collect();
            let due = |lane: String| {
                let count = memory.due(&lane, now).count();
                (lane, count)
            };
            lanes.into_iter().map(due).collect()
        })
        .await
    }

    async fn depth(&self) -> Result<Vec<(String, usize)>> {
        self.call("depth", "", |memory, _| {
            let mut depth: BTreeMap<String, usize> = BTreeMap::new();
            for entry in memory.entries.iter().filter(|e| e.state == State::Waiting) {
                *depth.entry(entry.class.clone()).or_default() += 1;
            }
            depth.into_iter().collect()
        })
        .await
    }

    async fn lease(&self, name: &str, holder: &str, ttl: Duration) -> Result<Option<String>> {
        self.call("lease", name, |memory, now| match memory.leases.get(name) {
            Some((other, until)) if *until > now => Some(other.clone()),
            _ => {
                let until = now + ttl.as_millis() as i64;
                memory
                    .leases
                    .insert(name.to_owned(), (holder.to_owned(), until));
                None
            }
        })
        .await
    }

    async fn holder(&self, name: &str) -> Result<Option<String>> {
        self.call("holder", name, |memory, now| {
            let held = memory.leases.get(name).filter(|(_, until)| *until > now);
            held.map(|(holder, _)| holder.clone())
        })
        .await
    }

    async fn renew(&self, name: &str, holder: &str, ttl: Duration) -> Result<bool> {
        self.call("renew", name, |memory, now| {
            match memory.leases.get_mut(name) {
                Some((held_by, until)) if held_by == holder => {
                    *until = now + ttl.as_millis() as i64;
                    true
                }
                _ => false,
            }
        })
        .await
    }

    async fn release(&self, name: &str, holder: &str) -> Result<()> {
        self.call("release", name, |memory, _| {
            if memory.leases.get(name).is_some_and(|(by, _)| by == holder) {
                memory.leases.remove(name);
            }
        })
        .await
    }

    async fn post(&self, board: &str, note: Option<(u32, &str)>, from: u32) -> Result<Vec<String>> {
        self.call("post", board, |memory, _| {
            let notes = memory.boards.entry(board.to_owned()).or_default();
            if let Some((rank, note)) = note {
                notes.insert((rank, note.to_owned()));
                notes.retain(|(other, _)| other + BOARD_RANKS >= rank);
            }
            let wanted = notes.iter().filter(|(rank, _)| *rank >= from);
            wanted.map(|(_, note)| note.clone()).collect()
        })
        .await
    }

    async fn ended(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    async fn purge(&self) -> Result<usize> {
        let lease_ms = self.server.lease_ms();
        self.call("purge", "", |memory, now| {
            let before = memory.entries.len();
            memory.entries.retain(|e| match e.state {
                State::Done(at) => at + lease_ms > now,
                _ => true,
            });
            memory.leases.retain(|_, (_, until)| *until > now);
            before - memory.entries.len()
        })
        .await
    }

    async fn run(&self, worker: Worker) -> Result<()> {
        let name = worker.name().to_owned();
        let beats = |memory: &mut Memory, now| {
            memory.heard.insert(name.clone(), now);
            !memory.workers.insert(name.clone())
        };
        self.call("register", worker.lane_name(), beats).await?;
        let mut beat = interval(Duration::from_secs(self.server.options.heartbeat_s));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(id) = running.next(), if !running.is_empty() => {
                    self.call("ack", worker.lane_name(), |memory, now| {
                        let own = State::Running(worker.name().to_owned());
                        let acked = memory.entries.iter_mut().find(|e| e.id == id && e.state == own);
                        if let Some(entry) = acked {
                            entry.state = State::Done(now);
                        }
                    })
                    .await?;
                }
                () = worker.end().cancelled(), if running.is_empty() => return Ok(()),
                _ = beat.tick() => {
                    if !self.call("heartbeat", worker.lane_name(), beats).await? {
                        return Err(Error::Backend {
                            url: "simulated".to_owned(),
                            action: "work",
                            source: "the worker is not registered".into(),
                        });
                    }
                }
                () = worker.granted() => {
                    if let Some((id, payload)) = self.fetch(&worker).await? {
                        running.push(ended(worker.start(&payload), id));
                    }
                }
            }
        }
    }

    async fn listen(&self, pushed: &watch::Sender<()>) {
        loop {
            self.server.pushed.notified().await;
            self.link.answer().await;
            if !self.link.world.strikes(|f| f.deaf) {
                pushed.send_replace(());
            }
        }
    }
}

async fn ended(started: Started, id: u64) -> u64 {
    started.await;
    id
}
