//! The run config as resolved from the user's input (`ResolvedConfig`) and as the code reads it
//! (`Config`). Reading resolves defaults, overrides and `${a.b}` references, refuses unknown keys
//! with a suggestion, and checks all arithmetic before anything runs.

mod agentevol;
mod algorithm;
mod check;
mod dpo;
mod engine;
mod idle;
pub mod keys;
pub(crate) mod names;
mod read;
mod sft;
mod tree;
mod types;
mod upstream;

pub use check::LORA_MODULES;
pub(crate) use names::check_environments;
pub use read::ResolvedConfig;
pub use sft::rows_held_out;
pub use types::*;
