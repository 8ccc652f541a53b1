//! What all parts of a simulated world share: its seed, the faults it is made
//! of, its event log, and the links by which each process reaches the store and
//! the queue. A process has no other way to change anything, so one whose link
//! is dead is a process that was killed at that very await point, and one whose
//! link waits is a process that was stopped.

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

    /// In 0..n.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= probability && probability > 0.0
    }

    /// Milliseconds up to `max`, mostly short ones.
    pub(super) fn span(&mut self, max: u64) -> Duration {
        let scale = 1 + self.below(max.max(1));
        Duration::from_millis(self.below(scale))
    }
}

/// The finisher of SplitMix64; also the worlds' cheap hash.
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Probabilities, per request unless said otherwise.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// Answered 500 (or not at all), and nothing was done.
    pub(super) refused: f64,
    /// Done, and answered with an error.
    pub(super) lost_reply: f64,
    /// A create answered "exists" (409) although nothing is there.
    pub(super) conflict: f64,
    /// A create that was done and answered "exists" (412), as after a retry.
    pub(super) own_exists: f64,
    /// A file or journal segment of which only the beginning was written.
    pub(super) torn: f64,
    /// Takes up to a lease and a half.
    pub(super) slow: f64,
    /// The process dies at this await point.
    pub(super) crash: f64,
    /// The process that comes to this point of the world's history dies there;
    /// points count from 1, two for each request: before and after its effect.
    pub(super) crash_at: u64,
    /// The queue hands a job out and keeps it all the same.
    pub(super) twice: f64,
    /// The queue forgets a job while handing it out.
    pub(super) dropped: f64,
    /// The queue hands out any job instead of the first.
    pub(super) reorder: f64,
    /// A wake-up does not arrive.
    pub(super) deaf: f64,
    /// A stage fails by itself; per attempt.
    pub(super) stage_fails: f64,
    /// A stage panics; per attempt.
    pub(super) stage_panics: f64,
    /// The code below a request to the store panics, in whatever task that is.
    pub(super) store_panics: f64,
    /// The same below a request to the queue.
    pub(super) queue_panics: f64,
    /// Seconds between two strokes of fate; 0 for none.
    pub(super) stroke_s: u64,
    /// Longest ordinary answer, in milliseconds; 0 for at once.
    pub(super) answer_ms: u64,
    /// Nothing goes wrong any more.
    pub(super) over: bool,
}

impl Faults {
    /// Each kind of fault is on or off and rare or frequent, by the seed: where
    /// everything goes wrong at once, much is never reached.
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

/// What fate has decided about a request that has reached its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Fine,
    Refused,
    LostReply,
}

/// What happened in a world, and what must never happen.
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
    /// What broke a promise.
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
}

/// What a world went through.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) kills: u64,
    pub(super) stops: u64,
    pub(super) drains: u64,
    /// Workers that left because their device was lost.
    pub(super) losses: u64,
    /// In stages, and below requests to the store.
    pub(super) panics: u64,
    pub(super) wipes: u64,
    pub(super) jumps: u64,
    pub(super) faults: u64,
    pub(super) attempts: u64,
    /// Attempts begun after their part's commit, by a worker that could not know.
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

/// A world. Everything in it is decided by its seed.
#[derive(Debug)]
pub(super) struct World {
    born: Instant,
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
            rng: Mutex::new(rng),
            faults: Mutex::new(faults),
            log: Mutex::new(log),
        })
    }

    /// A world in which nothing goes wrong and everything takes no time.
    pub(super) fn calm() -> Arc<Self> {
        Self::new(Rng::new(0), Faults::none(0), false)
    }

    /// From now on nothing goes wrong.
    pub(super) fn heal(&self) {
        let answer_ms = self.faults().answer_ms;
        *lock(&self.faults) = Faults::none(answer_ms);
    }

    pub(super) fn rng(&self) -> MutexGuard<'_, Rng> {
        lock(&self.rng)
    }

    pub(super) fn faults(&self) -> Faults {
        lock(&self.faults).clone()
    }

    pub(super) fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// True with the probability of one kind of fault, which is then counted.
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

    /// Writes a line of the event log. Nonces are left out: they are the one
    /// thing that a seed does not decide, and nothing may depend on them.
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

/// How one process reaches everything outside of it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) world: Arc<World>,
    dead: AtomicBool,
    death: Notify,
    stopped_until: Mutex<Option<Instant>>,
    /// Commits that it was told of.
    seen: Mutex<BTreeSet<String>>,
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
        })
    }

    /// SIGKILL.
    pub(super) fn kill(&self) {
        if !self.dead.swap(true, SeqCst) {
            self.world.log().counts.kills += 1;
            self.world.note(&self.name, "KILLED", "", "");
            self.death.notify_one();
        }
    }

    /// SIGSTOP, and SIGCONT after a while.
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

    /// Until when it is stopped, if it is.
    pub(super) fn stopped_until(&self) -> Option<Instant> {
        *lock(&self.stopped_until)
    }

    /// Waits for [`Link::kill`]; one waiter hears of it.
    pub(super) async fn died(&self) {
        self.death.notified().await;
    }

    /// Where a dead process stays for ever and a stopped one for a while.
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

    /// A request on its way to its server: it may never arrive. What the caller
    /// does next, without an await, is the moment at which it takes effect.
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

    /// The process has been told of a commit.
    pub(super) fn sees(&self, commit: &str) {
        lock(&self.seen).insert(commit.to_owned());
    }

    pub(super) fn has_seen(&self, commit: &str) -> bool {
        lock(&self.seen).contains(commit)
    }
}
