//! Metrics of a run that the stop guard has read.

use std::collections::BTreeMap;

/// The metrics of one iteration that the guard checks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Figures {
    pub(super) entropy: Option<f64>,
    pub(super) success: Option<f64>,
    pub(super) mismatch: Option<f64>,
    pub(super) grad_norm: Option<f64>,
}

/// Metrics by iteration, as far as they have been read.
pub(crate) type History = BTreeMap<u32, Figures>;
