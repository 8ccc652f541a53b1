//! Integration tests: one binary.
#![allow(
    clippy::unwrap_used,
    reason = "helpers of tests are not marked as tests"
)]

mod export;
mod queue;
mod simulation;
mod storage;
mod submit;

mod architecture;
mod bad_input;
mod configs;
mod durability;
mod environments;
mod evaluation;
mod evolution;
mod fleet;
mod forks;
mod memory;
mod shared_updates;
