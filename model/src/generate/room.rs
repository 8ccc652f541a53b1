//! How generation is divided over threads, and what it may take of a GPU's memory.

use crate::generate::engine::EngineOptions;
use crate::{Policy, Result};

/// Known tokens of a step that occupy a GPU; they delay the rows beside them by what a few steps take.
pub const GPU_PREFILL_TOKENS: usize = 4096;

/// Bytes of weights from which on threads divide the products of one engine. Smaller weights stay in
/// the caches, where an engine for each thread reads them in turns and no thread waits for another.
const DIVIDED_BYTES: usize = 64 << 20;

impl EngineOptions {
    /// The threads, of those that there are, that should divide the steps of one engine.
    pub fn team(policy: &Policy, threads: usize) -> usize {
        let is_large = policy.network().host.product_bytes() >= DIVIDED_BYTES;
        match policy.gpu() {
            None if is_large => threads.max(1),
            _ => 1,
        }
    }

    /// The engines with which `threads` generate, given what one thread may have: an engine each, or,
    /// for large weights, one with all threads, which reads the weights once for the rows of all.
    pub fn over(self, threads: usize, policy: &Policy) -> Vec<Self> {
        let team = Self::team(policy, threads);
        let one = EngineOptions {
            rows_max: self.rows_max.saturating_mul(team),
            cache_tokens_max: self.cache_tokens_max.saturating_mul(team),
            threads: team,
            ..self
        };
        vec![one; threads.max(1) / team]
    }

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
