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
mod check_model;
mod configs;
mod curriculum;
mod datasets;
mod dependencies;
mod dtype;
mod durability;
mod environments;
mod evaluation;
mod evidence;
mod evolution;
mod examples;
mod first_hour;
mod fleet;
mod forks;
mod glossary;
mod gpu_check;
mod harness;
mod hostile;
mod import;
mod key_names;
mod limits;
mod memory;
mod modules;
mod old_runs;
mod panics;
mod places;
mod published;
mod readme;
mod recipes;
mod remedies;
mod retention;
mod reward_function;
mod serve;
mod shared_updates;
mod states;
mod strikes;
mod template_settings;
mod toolbox;
mod verify;
mod version;
mod view;
mod watchdog;
mod weights;
mod workers;
mod worlds;
