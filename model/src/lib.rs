//! The policy: a Qwen2-family language model that generates, scores, and is
//! trained, with the same bits however the work is batched.

mod config;
mod error;
mod kernels;
mod ops;
mod tensor_file;
mod weights;

pub use config::ModelConfig;
pub use error::{Error, Result, Verdict};
pub use weights::{Weights, parameter_shapes};
