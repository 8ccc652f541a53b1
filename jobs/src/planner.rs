//! Which parts can run now: a pure function of the plan and the existing commits. It depends on no
//! clock, queue or other worker (I4), so any process may call it at any time, and processes with
//! the same commits get the same result.

use crate::pipeline::{Part, PartId, Stage, parts};
use crate::plan::Plan;
use std::collections::BTreeSet;

/// The commits that a process has seen. Commits are immutable, so the set only grows.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    committed: BTreeSet<PartId>,
    /// Every iteration before this one is complete.
    complete_before: u32,
}

/// A part that cannot run yet, and the inputs it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The part.
    pub part: Part,
    /// Its inputs without a commit.
    pub missing: Vec<PartId>,
}

/// All parts in flight, sorted by iteration and stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frontier {
    /// Parts without a commit whose inputs are all committed.
    pub runnable: Vec<Part>,
    /// Parts without a commit that wait for inputs.
    pub waiting: Vec<Waiting>,
    /// The iterations examined: these may still get commits.
    pub iterations: BTreeSet<u32>,
}

impl Progress {
    /// Adds a commit; true if it is new.
    pub fn insert(&mut self, id: PartId) -> bool {
        self.committed.insert(id)
    }

    /// True if the part is committed.
    pub fn contains(&self, id: &PartId) -> bool {
        self.committed.contains(id)
    }

    /// Number of commits seen.
    pub fn len(&self) -> usize {
        self.committed.len()
    }

    /// True if no commit has been seen.
    pub fn is_empty(&self) -> bool {
        self.committed.is_empty()
    }

    /// The newest iteration whose update (or start policy) is committed.
    pub fn latest_policy(&self, plan: &Plan) -> Option<u32> {
        (0..=plan.iterations)
            .rev()
            .find(|n| self.contains(&crate::pipeline::policy_of(plan, *n)))
    }

    /// The parts in flight. Examines iterations from the first incomplete one to the first that has
    /// neither a commit nor a runnable part.
    pub fn frontier(&mut self, plan: &Plan) -> Frontier {
        let mut out = Frontier::default();
        let mut prefix_complete = true;
        for iteration in self.complete_before..=plan.iterations {
            let all = parts(plan, iteration);
            let mut touched = false;
            let mut complete = true;
            let mut waiting = Vec::new();
            for part in all {
                if self.contains(&part.id) {
                    touched = true;
                    continue;
                }
                complete = false;
                let missing: Vec<_> = part
                    .inputs
                    .iter()
                    .map(|i| i.from)
                    .filter(|from| !self.contains(from))
                    .collect();
                if missing.is_empty() {
                    touched = true;
                    out.runnable.push(part);
                } else {
                    waiting.push(Waiting { part, missing });
                }
            }
            if complete && prefix_complete {
                self.complete_before = iteration + 1;
                continue;
            }
            prefix_complete = false;
            if !touched {
                break;
            }
            out.iterations.insert(iteration);
            out.waiting.append(&mut waiting);
        }
        out
    }

    /// True if every part of every iteration is committed.
    pub fn finished(&mut self, plan: &Plan) -> bool {
        self.frontier(plan);
        self.complete_before > plan.iterations
    }
}

impl Frontier {
    /// The first iteration in flight.
    pub fn first_iteration(&self) -> Option<u32> {
        self.iterations.first().copied()
    }

    /// Runnable parts that block training.
    pub fn blocking(&self) -> impl Iterator<Item = &Part> {
        self.runnable.iter().filter(|p| p.id.stage.facts().blocks)
    }

    /// Runnable parts of one stage.
    pub fn of_stage(&self, stage: Stage) -> impl Iterator<Item = &Part> {
        self.runnable.iter().filter(move |p| p.id.stage == stage)
    }
}
