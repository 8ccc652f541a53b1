//! Which lane may fetch next. A lane holds the jobs of one class, run and priority. Of the lanes
//! with a due job, the highest priority goes first; among runs of equal priority, the one that has
//! waited longest since its last turn at this worker; within a run, the class that the worker lists
//! first. Each worker takes turns independently, which makes the whole fleet take turns.
//!
//! A lane is served from when it is first seen until it has been empty for a while: runs come and
//! go, and each served lane costs a heartbeat.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{driver::Lane, gate::Gate, names::lane_parts};

/// How long jobs of other lanes wait for the worker of an earlier lane to attach. Without this wait
/// the lane that attaches fastest would start, not the first in the order.
const ATTACH_MAX: Duration = Duration::from_secs(2);
/// A lane that has been idle this long is no longer served.
const IDLE_MAX: Duration = Duration::from_secs(60);

struct Served {
    lane: Arc<Lane>,
    /// Ends the lane's worker.
    end: CancellationToken,
    class: usize,
    run: String,
    priority: i32,
    since: Instant,
    /// When it last held a job.
    held: Instant,
}

/// The lanes that one worker serves.
pub(crate) struct Lanes {
    worker: String,
    /// The classes it takes, in order of preference.
    classes: Vec<String>,
    served: BTreeMap<String, Served>,
    /// For each run, the sequence number of its last grant.
    turns: BTreeMap<String, u64>,
    grants: u64,
}

impl Lanes {
    pub(crate) fn new(worker: &str, classes: &[&str]) -> Self {
        Self {
            worker: worker.to_owned(),
            classes: classes.iter().map(|&class| class.to_owned()).collect(),
            served: BTreeMap::new(),
            turns: BTreeMap::new(),
            grants: 0,
        }
    }

    /// True for a lane of this worker's classes that is not served yet.
    pub(crate) fn is_new(&self, name: &str) -> bool {
        self.class(name).is_some() && !self.served.contains_key(name)
    }

    fn class(&self, name: &str) -> Option<usize> {
        let (class, ..) = lane_parts(name);
        self.classes.iter().position(|own| own == class)
    }

    /// Serves a lane until `end` is cancelled.
    pub(crate) fn add(&mut self, lane: Arc<Lane>, end: CancellationToken) {
        let name = lane.name.clone();
        let Some(class) = self.class(&name) else {
            return;
        };
        let (_, run, priority) = lane_parts(&name);
        let now = Instant::now();
        let served = Served {
            lane,
            end,
            class,
            run: run.to_owned(),
            priority,
            since: now,
            held: now,
        };
        self.served.insert(name, served);
    }

    /// Withdraws all grants.
    pub(crate) fn give_back(&self) {
        for served in self.served.values() {
            drop(served.lane.turn.take());
        }
    }

    /// True if a grant is out and another worker has taken its job.
    pub(crate) fn has_stale(&self) -> bool {
        self.served.values().any(|served| served.lane.is_stale())
    }

    /// Grants fetches to lanes with due jobs. True if the next lane in the order still waits for
    /// its worker to attach: call this again soon.
    pub(crate) fn grant(&mut self, gate: &Gate, due: &[(String, usize)]) -> bool {
        let due: BTreeMap<&str, usize> = due.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        self.forget(&due);
        // First free the slots of stale grants: another lane may wait for one, and nothing else
        // would free it.
        let is_due = |name: &str| {
            let is_avoided = gate.avoids(name) || gate.avoids(lane_parts(name).1);
            due.get(name).is_some_and(|n| *n > 0) && !is_avoided
        };
        for (name, served) in &self.served {
            if !is_due(name) && served.lane.is_stale() {
                drop(served.lane.turn.take());
            }
        }
        let mut waiting: Vec<(&String, &Served)> = self
            .served
            .iter()
            .filter(|(name, _)| is_due(name))
            .collect();
        waiting.sort_by_key(|(_, served)| {
            let turn = self.turns.get(&served.run).copied().unwrap_or(0);
            let tie = tie(&self.worker, &served.run);
            (Reverse(served.priority), turn, tie, served.class)
        });
        let mut granted = Vec::new();
        let mut waits = false;
        for (place, (_, served)) in waiting.iter().enumerate() {
            let Served {
                lane, run, since, ..
            } = served;
            // A free slot, or the slot of a stale grant further down the order. Without a slot the
            // loop stops here, so that grant would never be renewed.
            let slot = || {
                gate.reserve().or_else(|| {
                    let mut behind = waiting[place + 1..].iter();
                    let (_, held) = behind.find(|(_, other)| other.lane.is_stale())?;
                    drop(held.lane.turn.take());
                    gate.reserve()
                })
            };
            match lane.turn.granted_for() {
                Some(_) if lane.is_stale() => lane.turn.renew(),
                Some(_) => {}
                None if lane.turn.is_attached() => match slot() {
                    Some(slot) => {
                        lane.turn.grant(slot);
                        granted.push(run.clone());
                    }
                    None => break,
                },
                None if since.elapsed() < ATTACH_MAX => {
                    waits = true;
                    break;
                }
                None => {}
            }
        }
        for run in granted {
            self.grants += 1;
            self.turns.insert(run, self.grants);
        }
        waits
    }

    /// Stops serving lanes that have been empty for [`IDLE_MAX`].
    fn forget(&mut self, due: &BTreeMap<&str, usize>) {
        let now = Instant::now();
        self.served.retain(|name, served| {
            let lane = &served.lane;
            let works = lane.in_flight.load(SeqCst) > 0 || lane.turn.granted_for().is_some();
            if works || due.contains_key(name.as_str()) {
                served.held = now;
            }
            let keeps = served.held + IDLE_MAX > now;
            if !keeps {
                served.end.cancel();
            }
            keeps
        });
        let runs: BTreeSet<&String> = self.served.values().map(|served| &served.run).collect();
        self.turns.retain(|run, _| runs.contains(run));
    }
}

/// Breaks ties between runs that had no turn yet. The order differs between workers: many workers
/// live for one job only, and would otherwise all start with the same run.
fn tie(worker: &str, run: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (worker, run).hash(&mut hasher);
    hasher.finish()
}
