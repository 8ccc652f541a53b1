//! skeleton
pub mod queue;
