//! Integration tests: one binary.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests are not marked as tests"
)]

mod queue;
mod storage;

mod bad_input;
mod configs;
mod durability;
mod submit;
