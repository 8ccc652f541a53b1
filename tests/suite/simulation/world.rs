//! The state that all parts of a simulated world share: its seed, its faults, its event log, and
//! the links by which each process reaches the store and the queue. A process has no other way to
//! change anything, so a dead link is equivalent to a process killed at that await point, and a
//! waiting link to a stopped process.

use super::turns::Turns;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

/// SplitMix64: a whole world follows from one number.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number in 0..n.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }

    /// Milliseconds up to `max`, mostly short.
    pub(super) fn span(&mut self, max: u64) -> Duration {
        let scale = 1 + self.below(max.max(1));
        Duration::from_millis(self.below(scale))
    }
}

/// The finalizer of SplitMix64; also the simulation's cheap hash.
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Probabilities, per request unless specified otherwise.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// Answered with 500 (or not at all), and not executed.
    pub(super) refused: f64,
    /// Executed, but answered with an error.
    pub(super) lost_reply: f64,
    /// A create answered with "exists" (409) although the object does not exist.
    pub(super) conflict: f64,
    /// A create that was executed and answered with "exists" (412), as after a retry.
    pub(super) own_exists: f64,
    /// Only the beginning of a file or journal segment was written.
    pub(super) torn: f64,
    /// Takes up to one and a half leases.
    pub(super) slow: f64,
    /// The process dies at this await point.
    pub(super) crash: f64,
    /// The process that reaches this point of the world's history dies there. Points count from 1,
    /// two for each request: before and after its effect.
    pub(super) crash_at: u64,
    /// The queue hands out a job but also keeps it.
    pub(super) twice: f64,
    /// The queue loses a job while handing it out.
    pub(super) dropped: f64,
    /// The queue hands out any job instead of the first one.
    pub(super) reorder: f64,
    /// A wake-up does not arrive.
    pub(super) deaf: f64,
    /// A stage fails with an error; per attempt.
    pub(super) stage_fails: f64,
    /// A stage panics; per attempt.
    pub(super) stage_panics: f64,
    /// The code below a store request panics, in whatever task it runs.
    pub(super) store_panics: f64,
    /// The same below a queue request.
    pub(super) queue_panics: f64,
    /// Mean seconds between two injected process, queue or clock faults; 0 for none.
    pub(super) stroke_s: u64,
    /// Longest normal answer time, in milliseconds; 0 for immediate answers.
    pub(super) answer_ms: u64,
    /// All faults have stopped.
    pub(super) over: bool,
}

impl Faults {
    /// Each kind of fault is off, rare or frequent, depending on the seed: if everything failed at
    /// once, many states would never be reached.
    pub(super) fn of(rng: &mut Rng) -> Self {
        let mut rate = |max: f64| match rng.below(3) {
            0 => 0.0,
            1 => max / 8.0,
            _ => max,
        };
        Self {
            refused: rate(0.04),
            lost_reply: rate(0.04),
            conflict: rate(0.05),
            own_exists: rate(0.1),
            torn: rate(0.05),
            slow: rate(0.01),
            crash: rate(0.008),
            crash_at: 0,
            twice: rate(0.2),
            dropped: rate(0.1),
            reorder: rate(0.5),
            deaf: rate(0.5),
            stage_fails: rate(0.05),
            stage_panics: rate(0.05),
            store_panics: rate(0.004),
            queue_panics: rate(0.001),
            stroke_s: [0, 60, 25, 10][rng.below(4) as usize],
            answer_ms: [5, 50, 400][rng.below(3) as usize],
            over: false,
        }
    }

    fn none(answer_ms: u64) -> Self {
        Self {
            answer_ms,
            over: true,
            ..Self::default()
        }
    }
}

/// The outcome decided for a request that has reached its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Fine,
    Refused,
    LostReply,
}

/// The events of a world, and the violations of its invariants.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// FNV-1a over every line.
    pub(super) hash: u64,
    pub(super) lines: Vec<String>,
    keep: bool,
    /// When the commit under a key took effect.
    pub(super) commits: BTreeMap<String, Instant>,
    /// Deleted objects.
    pub(super) deleted: BTreeSet<String>,
    /// Violations of invariants.
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
}

/// The faults and events of a world.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) kills: u64,
    pub(super) stops: u64,
    pub(super) drains: u64,
    /// Workers that exited because their device was lost.
    pub(super) losses: u64,
    /// In stages, and below requests to the store.
    pub(super) panics: u64,
    pub(super) wipes: u64,
    pub(super) jumps: u64,
    pub(super) faults: u64,
    pub(super) attempts: u64,
    /// Attempts begun after their part's commit, by a worker that had not seen the commit.
    pub(super) races: u64,
    pub(super) resumes: u64,
    pub(super) points: u64,
    pub(super) turns: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.kills += other.kills;
        self.stops += other.stops;
        self.drains += other.drains;
        self.losses += other.losses;
        self.panics += other.panics;
        self.wipes += other.wipes;
        self.jumps += other.jumps;
        self.faults += other.faults;
        self.attempts += other.attempts;
        self.races += other.races;
        self.resumes += other.resumes;
        self.points += other.points;
        self.turns += other.turns;
    }
}

/// A world, fully determined by its seed.
#[derive(Debug)]
pub(super) struct World {
    born: Instant,
    turns: Arc<Turns>,
    seed: u64,
    rng: Mutex<Rng>,
    faults: Mutex<Faults>,
    log: Mutex<Log>,
}

impl World {
    pub(super) fn new(rng: Rng, faults: Faults, keep_log: bool) -> Arc<Self> {
        let log = Log {
            hash: 0xcbf2_9ce4_8422_2325,
            keep: keep_log,
            ..Log::default()
        };
        Arc::new(Self {
            born: Instant::now(),
            turns: Arc::default(),
            seed: rng.0,
            rng: Mutex::new(rng),
            faults: Mutex::new(faults),
            log: Mutex::new(log),
        })
    }

    /// A world without faults and delays.
    pub(super) fn calm() -> Arc<Self> {
        Self::new(Rng::new(0), Faults::none(0), false)
    }

    /// Stops all faults.
    pub(super) fn heal(&self) {
        let answer_ms = self.faults().answer_ms;
        *lock(&self.faults) = Faults::none(answer_ms);
    }

    pub(super) fn rng(&self) -> MutexGuard<'_, Rng> {
        lock(&self.rng)
    }

    /// How long the computing of one thing takes: the same whoever does it, and whatever befalls others.
    pub(super) fn span_of(&self, thing: u64, most_ms: u64) -> Duration {
        Rng::new(self.seed ^ thing).span(most_ms)
    }

    pub(super) fn faults(&self) -> Faults {
        lock(&self.faults).clone()
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// True with the probability of one kind of fault; true results are counted.
    pub(super) fn strikes(&self, probability: impl Fn(&Faults) -> f64) -> bool {
        let probability = probability(&lock(&self.faults));
        if probability == 0.0 {
            return false;
        }
        let strikes = self.rng().chance(probability);
        self.log().counts.faults += u64::from(strikes);
        strikes
    }

    /// Panics with the probability of one kind of fault.
    pub(super) fn may_panic(&self, what: &str, probability: impl Fn(&Faults) -> f64) {
        if self.strikes(probability) {
            self.log().counts.panics += 1;
            panic!("{what} is at fault");
        }
    }

    /// Writes a line of the event log. Nonces are left out: they alone are not determined by the
    /// seed, and nothing may depend on them.
    pub(super) fn note(&self, who: &str, what: &str, about: &str, how: &str) {
        let ms = self.born.elapsed().as_millis();
        let mut line = format!("{ms:>8} {who} {what} ");
        push_without_nonces(&mut line, about);
        line.push(' ');
        push_without_nonces(&mut line, how);
        let mut log = self.log();
        for byte in line.bytes() {
            log.hash = (log.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if log.keep {
            log.lines.push(line);
        }
    }

    pub(super) fn violated(&self, what: String) {
        self.note("world", "VIOLATED", &what, "");
        self.log().violations.push(what);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds `…/a0002-1f2e3d4c/…` as `…/a0002/…`.
fn push_without_nonces(line: &mut String, text: &str) {
    for piece in text.split_inclusive('/') {
        match piece.split_once('-') {
            Some((head, rest)) if head == "probe" || is_attempt(head) => {
                line.push_str(head);
                line.push_str(if rest.ends_with('/') { "/" } else { "" });
            }
            _ => line.push_str(piece),
        }
    }
}

fn is_attempt(head: &str) -> bool {
    let number = head.strip_prefix('a').unwrap_or_default();
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
}

/// What a process that is sick suffers for good, and no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sickness {
    /// Every request is refused, as with a wrong clock (403).
    Refused,
    /// Its token has expired (400).
    Expired,
    /// It may write nothing.
    Unwritable,
    /// It may write no file of an attempt.
    FilesUnwritable,
    /// It may read no file of an attempt.
    FilesUnreadable,
    /// The disk is full.
    Full,
    /// No request is ever answered.
    Hangs,
    /// Every object that it reads is missing.
    Blind,
    /// Every byte that it reads is wrong.
    Garbled,
    /// It cannot read the plan.
    OldProgram,
    /// The queue takes none of its writes.
    QueueReadOnly,
}

impl Sickness {
    pub(super) const ALL: [Self; 11] = [
        Self::Refused,
        Self::Expired,
        Self::Unwritable,
        Self::FilesUnwritable,
        Self::FilesUnreadable,
        Self::Full,
        Self::Hangs,
        Self::Blind,
        Self::Garbled,
        Self::OldProgram,
        Self::QueueReadOnly,
    ];
}

/// A process's connection to everything outside of it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) world: Arc<World>,
    dead: AtomicBool,
    death: Notify,
    stopped_until: Mutex<Option<Instant>>,
    /// Commits that the process has seen.
    seen: Mutex<BTreeSet<String>>,
    sickness: Mutex<Option<(Instant, Sickness)>>,
}

impl Link {
    pub(super) fn new(name: impl Into<String>, world: Arc<World>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            world,
            dead: AtomicBool::new(false),
            death: Notify::new(),
            stopped_until: Mutex::default(),
            seen: Mutex::default(),
            sickness: Mutex::default(),
        })
    }

    /// The process is sick from `from` on, for good.
    pub(super) fn falls_sick(&self, from: Instant, sickness: Sickness) {
        *lock(&self.sickness) = Some((from, sickness));
    }

    pub(super) fn sickness(&self) -> Option<Sickness> {
        let sick = lock(&self.sickness).filter(|(from, _)| *from <= Instant::now());
        sick.map(|(_, sickness)| sickness)
    }

    /// Like SIGKILL.
    pub(super) fn kill(&self) {
        if !self.dead.swap(true, SeqCst) {
            self.world.log().counts.kills += 1;
            self.world.note(&self.name, "KILLED", "", "");
            self.death.notify_one();
        }
    }

    /// Like SIGSTOP, and SIGCONT after a while.
    pub(super) fn stop_for(&self, span: Duration) {
        self.world.log().counts.stops += 1;
        self.world.note(
            &self.name,
            "STOPPED",
            "",
            &format!("{} ms", span.as_millis()),
        );
        *lock(&self.stopped_until) = Some(Instant::now() + span);
    }

    /// The time until which the process is stopped, if it is.
    pub(super) fn stopped_until(&self) -> Option<Instant> {
        *lock(&self.stopped_until)
    }

    /// Waits for [`Link::kill`]; only one waiter is notified.
    pub(super) async fn died(&self) {
        self.death.notified().await;
    }

    /// Blocks a dead process for ever and a stopped one for a while.
    async fn gate(&self) {
        loop {
            if self.dead.load(SeqCst) {
                std::future::pending::<()>().await;
            }
            let until = *lock(&self.stopped_until);
            match until {
                Some(until) if until > Instant::now() => sleep_until(until).await,
                _ => return,
            }
        }
    }

    async fn travel(&self) {
        self.gate().await;
        let span = {
            let (mut rng, faults) = (self.world.rng(), self.world.faults());
            let most = if rng.chance(faults.slow) {
                90_000
            } else {
                faults.answer_ms
            };
            rng.span(most)
        };
        if !span.is_zero() {
            sleep(span).await;
            self.gate().await;
        }
        let faults = self.world.faults();
        let point = {
            let mut log = self.world.log();
            log.counts.points += u64::from(!faults.over);
            log.counts.points
        };
        let is_due = faults.crash_at > 0 && point == faults.crash_at;
        if is_due || self.world.strikes(|f| f.crash) {
            self.kill();
            self.gate().await;
        }
    }

    /// Waits until it is this request's turn among those that begin at the same time. Until its next
    /// await it is alone.
    pub(super) async fn turn(&self, what: &str, about: &str) {
        let mut label = format!("{} {what} ", self.name);
        push_without_nonces(&mut label, about);
        self.world.turns.take(label).await;
    }

    /// A request on its way to its server; it may never arrive. It takes effect in the code that
    /// the caller runs next, before its next await.
    pub(super) async fn ask(&self) -> Fate {
        self.travel().await;
        match () {
            () if self.world.strikes(|f| f.refused) => Fate::Refused,
            () if self.world.strikes(|f| f.lost_reply) => Fate::LostReply,
            () => Fate::Fine,
        }
    }

    /// The answer on its way back.
    pub(super) async fn answer(&self) {
        self.travel().await;
    }

    pub(super) fn note(&self, what: &str, about: &str, how: &str) {
        self.world.note(&self.name, what, about, how);
    }

    /// Records that the process has seen a commit.
    pub(super) fn sees(&self, commit: &str) {
        lock(&self.seen).insert(commit.to_owned());
    }

    pub(super) fn has_seen(&self, commit: &str) -> bool {
        lock(&self.seen).contains(commit)
    }
}
