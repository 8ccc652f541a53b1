//! The inputs and results of a verification.

use std::sync::atomic::AtomicU64;

/// What is wrong with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The content is not what was written.
    Damaged,
    /// It was written and retention has not removed it, but it is not there.
    Missing,
    /// It counts as part of the run, but the run did not write it.
    Foreign,
    /// It is stored among the run's objects, but nothing reads it: harmless.
    Stray,
}

impl Fault {
    /// The fault in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Missing => "missing",
            Self::Foreign => "foreign",
            Self::Stray => "stray",
        }
    }
}

/// An object that is not as the run left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong with it.
    pub fault: Fault,
    /// The object's key.
    pub key: String,
    /// What was found.
    pub found: String,
    /// What to do.
    pub remedy: String,
}

/// Counts of verified objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Manifests.
    pub commits: u64,
    /// Artifacts that the manifests name and that are there.
    pub artifacts: u64,
    /// Bytes of these artifacts.
    pub bytes: u64,
    /// Artifacts among these that belong to other runs: taken over by a fork.
    pub taken_over: u64,
    /// Artifacts that retention has removed.
    pub removed: u64,
    /// Optimizer states that are not stored, and can be made again.
    pub not_stored: u64,
    /// Attempt records, starts and ends.
    pub attempt_records: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Pins of forks.
    pub pins: u64,
    /// Journal segments; not read, because a damaged segment is skipped where it is used.
    pub journal_segments: u64,
    /// Files of attempts that did not commit.
    pub left_behind: u64,
}

/// Which run makes a part, according to the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planned {
    /// The run itself.
    Made,
    /// The run that this one is a fork of.
    TakenOver,
    /// The plan has no such part.
    Unknown,
}

/// Progress of a verification.
#[derive(Debug, Default)]
pub struct BytesRead {
    /// Bytes of artifacts read so far.
    pub done: AtomicU64,
    /// Bytes of all files that the listing of this run has shown. Some belong to attempts that did
    /// not commit, and files that a fork took over are not included.
    pub listed: AtomicU64,
}
