//! The run config as the user wrote it (`RunConfig`) and as the code reads it
//! (`Config`). Reading resolves defaults, overrides and `${a.b}` references,
//! refuses unknown keys by naming the nearest one, and checks all arithmetic
//! before anything runs.

mod agentevol;
mod algorithm;
mod check;
mod dpo;
pub mod keys;
mod names;
mod read;
mod sft;
mod types;
mod upstream;

pub use agentevol::{AgentEvol, Keep, Threshold};
pub use algorithm::*;
pub use check::LORA_MODULES;
pub use dpo::Dpo;
pub use read::RunConfig;
pub use sft::rows_held_out;
pub(crate) use types::Items;
pub use types::*;
