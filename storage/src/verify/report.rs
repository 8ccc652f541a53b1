//! What a verification is told of a run, and what it finds.

use std::sync::atomic::AtomicU64;

/// What is wrong with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its content is not what was written.
    Damaged,
    /// It was written, nothing has removed it by the rules, and it is not there.
    Missing,
    /// It counts as the run's, and the run never made it.
    Foreign,
    /// It lies among the run's objects, and nothing reads it: harmless.
    Stray,
}

impl Fault {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Missing => "missing",
            Self::Foreign => "foreign",
            Self::Stray => "stray",
        }
    }
}

/// Something that is not as the run left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing.
    pub fault: Fault,
    /// The object's key.
    pub key: String,
    /// What was found.
    pub found: String,
    /// What to do.
    pub remedy: String,
}

/// What there was to verify.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Manifests.
    pub commits: u64,
    /// Artifacts that they name and that are there.
    pub artifacts: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Artifacts of other runs among these: what a fork took over.
    pub taken_over: u64,
    /// Artifacts that retention has removed.
    pub removed: u64,
    /// Records of attempts, beginnings and ends.
    pub attempt_records: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Pins of forks.
    pub pins: u64,
    /// Journal segments; they are not read, for a damaged one is left out where it is used.
    pub journal_segments: u64,
    /// Files of attempts that did not commit.
    pub left_behind: u64,
}

/// Who makes a part by the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planned {
    /// The run itself.
    Made,
    /// The run that this one is a fork of.
    TakenOver,
    /// Nobody.
    Unknown,
}

/// How far it is, for those who watch.
#[derive(Debug, Default)]
pub struct BytesRead {
    /// Bytes of artifacts read so far.
    pub done: AtomicU64,
    /// All that the listing has shown of this run. Attempts that did not commit have written
    /// some of them, and what a fork took over lies elsewhere.
    pub listed: AtomicU64,
}
