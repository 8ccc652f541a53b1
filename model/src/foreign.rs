//! Models of families that this crate does not compute, by candle-transformers: read from a folder
//! in Hugging Face's layout or with a GGUF file, and run a conversation at a time. With the feature
//! `candle`; without it every folder is refused, and the message says how to build.
//!
//! Two guarantees. What is drawn depends on the conversation's ids and its random key alone, not on
//! when it was given them: known ids run together and sampled ones one at a time, whether they were
//! just sampled or are taken up (I7). And a model that candle would compute otherwise than
//! `transformers` does is refused, or bounded in length, by name.

#[cfg(feature = "candle")]
mod family;
#[cfg(feature = "candle")]
mod gguf;
#[cfg(feature = "candle")]
mod network;
#[cfg_attr(not(feature = "candle"), path = "foreign/unbuilt.rs")]
mod policy;

pub use self::policy::{Conversation, ForeignPolicy};

/// What a folder holds, by its headers.
#[derive(Debug, Clone, PartialEq)]
pub struct ForeignModel {
    /// `model_type` of its config, or `general.architecture` of its GGUF file.
    pub family: &'static str,
    /// Whether the weights are in a GGUF file.
    pub gguf: bool,
    /// Numbers of the weights.
    pub parameters: u64,
    /// Longest conversation that candle computes as the model's authors do.
    pub positions: usize,
    /// The files that it is read from.
    pub files: Vec<String>,
}
