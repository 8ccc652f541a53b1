//! Batched generation.

pub(crate) mod engine;
pub(crate) mod likeliest;
pub(crate) mod near;
pub(crate) mod request;
pub(crate) mod room;
