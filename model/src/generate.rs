//! Batched generation.

pub(crate) mod engine;
pub(crate) mod request;
