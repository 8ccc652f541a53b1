//! The policy: a language model of the Qwen2 or Qwen3 family that generates, scores, and is
//! trained, with the same bits however the work is batched.

mod adamw;
mod backward;
mod chat;
mod config;
mod critic;
mod decode;
mod device;
mod engine;
mod error;
mod files;
mod gpu;
mod gradients;
mod kernels;
mod learner;
mod lora;
mod network;
mod parallel;
mod policy;
mod sampler;
mod score;
mod teacher_forced;
mod tensor_file;
mod tiny;
pub mod tiny_text;
pub mod tiny_words;
mod tokenizer;
mod trainer;
mod weights;

pub use adamw::{AdamW, AdamWState, StepReport};
pub use chat::{Bridge, Chat, Message, Role};
pub use config::{Architecture, ModelConfig};
pub use critic::{Critic, CriticTrainer, ValueCoefficients, values};
pub use device::{Device, Dtype};
pub use engine::{Engine, EngineOptions, EngineStats, Finish, Turn, TurnDone};
pub use error::{Error, Result, Verdict};
pub use gradients::{Gradients, PartialSum};
pub use lora::{ALL_LINEAR, Adapter, LORA_MODULES, LoraOptions, factor_names};
pub use parallel::ComputeOptions;
pub use policy::Policy;
pub use sampler::Sampling;
pub use score::{ScoreRequest, Scores, score};
pub use tiny::TinyShape;
pub use tokenizer::Tokenizer;
pub use trainer::{
    Coefficients, TrainSequence, Trainer, Unit, UnitCoefficients, UnitStreams, partial_gradients,
};
pub use weights::{Parameter, Weights, parameter_shapes};

#[cfg(test)]
mod tests;

#[cfg(test)]
mod damaged;
#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;

/// Readers of foreign bytes are tested for what they take, too.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
