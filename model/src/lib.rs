//! The policy: a language model of the Qwen2, Qwen3, Llama or Mistral family that generates,
//! scores, and is trained, with the same bits however the work is batched.

mod batch;
mod compute;
mod cpu;
mod dtype;
mod error;
mod folder;
mod foreign;
mod generate;
mod gguf;
mod gpu;
mod kernels;
mod parallel;
mod policy;
mod policy_text;
mod prefix_tree;
mod sampler;
mod spare;
mod tiny;
pub mod tiny_text;
pub mod tiny_words;
mod train;

pub use batch::ScoreRequest;
pub use compute::device::{Device, MemoryUse};
pub use compute::device_footprint::DeviceFootprint;
pub use compute::footprint::Footprint;
pub use compute::gradient_tree::{PartialSum, shard_of_units};
pub use cpu::adamw::{AdamW, StepReport};
pub use cpu::gradients::Gradients;
pub use dtype::Dtype;
pub use error::{Error, Result, Verdict};
pub use folder::adapter::{ALL_LINEAR, Adapter, LORA_MODULES, LoraOptions, factor_names};
pub use folder::chat::{
    Bridge, Chat, Message, RecordedChat, Role, SampledReply, TEMPLATE_DATE, TemplateSettings,
    ToolCall,
};
pub use folder::config::ModelConfig;
pub use folder::family::{Architecture, CANDLE_FAMILIES};
pub use folder::files::{gguf_at, import_line};
pub use folder::layout::Layout;
pub use folder::parameter::Parameter;
pub use folder::rope::{Rope, RopeScaling};
pub use folder::shards::SHARD_BYTES_MAX;
pub use folder::tokenizer::Tokenizer;
pub use folder::twice::said_twice;
pub use folder::weight_files::WeightsOnDisk;
pub use folder::weights::{Weights, parameter_shapes};
pub use foreign::{Conversation, ForeignModel, ForeignPolicy};
pub use generate::engine::{Engine, EngineOptions, EngineStats};
pub use generate::likeliest::likeliest;
pub use generate::request::{FinishReason, Generation, GenerationRequest};
pub use generate::room::GPU_PREFILL_TOKENS;
pub use gguf::{Imported, NumbersIn, import};
pub use kernels::key_values::BLOCK as CACHE_BLOCK;
pub use parallel::ComputeOptions;
pub use policy::Policy;
pub use policy_text::PolicyText;
pub use prefix_tree::{cut_tree, tree_nodes};
pub use sampler::Sampling;
pub use tiny::TinyShape;
pub use train::critic::{Critic, values};
pub use train::optimizer_state::OptimizerState;
pub use train::score::{Scores, score};
pub use train::trainer::{
    Coefficients, TrainSequence, Trainable, Trainer, Unit, UnitCoefficients, UnitStreams,
    partial_gradients,
};

#[cfg(test)]
mod tests;

#[cfg(test)]
mod damaged;
#[cfg(test)]
#[path = "../../tests/mutations.rs"]
mod mutations;

/// Counts allocations: tests also bound the memory that readers of foreign bytes take.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mutations::Counting = mutations::Counting;
