//! What generation may take of a GPU's memory.

use crate::generate::engine::EngineOptions;
use crate::{Policy, Result};

/// Known tokens of a step that occupy a GPU; they delay the rows beside them by what a few steps take.
pub const GPU_PREFILL_TOKENS: usize = 4096;

impl EngineOptions {
    /// The same with the room that the policy's GPU has, if one computes: caches in up to three quarters
    /// of its free memory, so that the steps find some, and longer prefills.
    ///
    /// # Errors
    /// The GPU is lost.
    pub fn on_device_of(self, policy: &Policy) -> Result<Self> {
        let Some(gpu) = policy.gpu() else {
            return Ok(self);
        };
        let room = gpu.free_bytes()? / 4 * 3 / policy.network().cache_token_bytes(gpu);
        Ok(EngineOptions {
            cache_tokens_max: self.cache_tokens_max.max(room),
            prefill_chunk: self.prefill_chunk.max(GPU_PREFILL_TOKENS),
            ..self
        })
    }
}
