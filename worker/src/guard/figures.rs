//! What the stop guard has read of a run.

use std::collections::BTreeMap;

/// What the guard looks at in one iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Figures {
    pub(super) entropy: Option<f64>,
    pub(super) success: Option<f64>,
    pub(super) mismatch: Option<f64>,
    pub(super) grad_norm: Option<f64>,
}

/// Figures by iteration, as far as they have been read.
pub(crate) type History = BTreeMap<u32, Figures>;
