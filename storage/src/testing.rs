//! Helpers of this crate's tests.

use crate::PartKey;

/// A part of a run.
pub(crate) fn slot() -> PartKey {
    PartKey {
        run: "r".parse().unwrap(),
        iteration: 1,
        stage: "update".into(),
        part: 0,
    }
}
