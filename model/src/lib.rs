//! The policy: a Qwen2-family language model that generates, scores, and is
//! trained, with the same bits however the work is batched.

mod chat;
mod config;
mod error;
mod kernels;
mod ops;
mod tensor_file;
pub mod tiny_text;
pub mod tiny_words;
mod tokenizer;
mod weights;

pub use chat::{Bridge, Chat, Message, Role};
pub use config::ModelConfig;
pub use error::{Error, Result, Verdict};
pub use tokenizer::Tokenizer;
pub use weights::{Weights, parameter_shapes};
