//! When a part may not be tried again. Workers and all commands that report on a run use this
//! module, so that a part which `status` calls stopped is one that no worker tries again.

use agentgym_jobs::pipeline::PartId;
use agentgym_jobs::plan::Plan;
use agentgym_storage::{AttemptOutcome, AttemptRecord};
use std::fmt;

/// The limit that a part has reached under the plan revision in force. A new revision resets all
/// attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// It failed this often: `jobs.failures_max`.
    Failed(u32),
    /// It failed in a way in which every further attempt would fail too.
    FailedForGood,
    /// This many attempts have no end record: `jobs.vanished_max`.
    Vanished(u32),
}

impl Exhausted {
    /// The limit that these attempts have reached, if any.
    pub fn of(plan: &Plan, attempts: &[AttemptRecord]) -> Option<Self> {
        let jobs = &plan.config.jobs;
        let mut ends = counted(plan, attempts).filter_map(|a| a.end.as_ref());
        if ends.any(|end| end.outcome == AttemptOutcome::Failed && end.for_good) {
            return Some(Self::FailedForGood);
        }
        let failed = counted_failures(plan, attempts);
        if failed >= jobs.failures_max {
            return Some(Self::Failed(failed));
        }
        let vanished = counted(plan, attempts).filter(|a| a.end.is_none()).count() as u32;
        (vanished >= jobs.vanished_max).then_some(Self::Vanished(vanished))
    }

    /// The full message; `last` is the message of the last failed attempt.
    pub fn message(self, id: PartId, last: &str) -> String {
        match self {
            Self::Failed(_) => format!("{id} {self}, last: {last}"),
            Self::FailedForGood => format!("{id} {self}: {last}"),
            Self::Vanished(_) => format!("{id} {self}"),
        }
    }
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(times) => write!(f, "failed {times} times"),
            Self::FailedForGood => f.write_str("cannot be made"),
            Self::Vanished(times) => write!(
                f,
                "took its worker down {times} times without a word; look at the worker's log; if memory \
                 was full: jobs.threads, jobs.unit_tokens (training), jobs.cache_tokens (generation) and \
                 jobs.pack_tokens (scoring) lower it"
            ),
        }
    }
}

/// Failed attempts that count towards `jobs.failures_max`: those that the part itself caused.
pub fn counted_failures(plan: &Plan, attempts: &[AttemptRecord]) -> u32 {
    let failed = |a: &&AttemptRecord| {
        let end = a.end.as_ref();
        end.is_some_and(|end| end.outcome == AttemptOutcome::Failed && !end.excused)
    };
    counted(plan, attempts).filter(failed).count() as u32
}

fn counted<'a>(
    plan: &Plan,
    attempts: &'a [AttemptRecord],
) -> impl Iterator<Item = &'a AttemptRecord> {
    let revision = plan.revision;
    let is_counted = move |a: &&AttemptRecord| a.start.plan_revision == revision;
    attempts.iter().filter(is_counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_storage::{AttemptEnd, AttemptStart};

    fn attempt(plan_revision: u32, for_good: bool) -> AttemptRecord {
        let start = AttemptStart {
            worker: "w".to_owned(),
            started_unix_s: 1,
            code_version: "v".to_owned(),
            plan_revision,
            ..AttemptStart::default()
        };
        let end = AttemptEnd {
            outcome: AttemptOutcome::Failed,
            message: "no".to_owned(),
            wall_s: 1.0,
            stats: serde_json::Map::new(),
            excused: false,
            for_good,
        };
        AttemptRecord {
            number: 1,
            nonce: "n".to_owned(),
            start,
            end: Some(end),
            damage: None,
        }
    }

    /// One such failure is enough, whatever `jobs.failures_max` allows; a new revision allows
    /// another try.
    #[test]
    fn what_fails_for_good_is_not_tried_again() {
        let plan = crate::stages::testing::plan(&["jobs.failures_max=3"]);
        assert_eq!(Exhausted::of(&plan, &[attempt(0, false)]), None);
        let exhausted = Exhausted::of(&plan, &[attempt(0, false), attempt(0, true)]);
        assert_eq!(exhausted, Some(Exhausted::FailedForGood));
        assert_eq!(Exhausted::of(&plan, &[attempt(7, true)]), None);
    }
}
