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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::near::{NEAR_ROWS_MIN, near_tokens};
    use crate::tests::tiny_policy;
    use crate::{Device, Parameter, Weights, parameter_shapes};
    use crate::{Engine, GenerationRequest, Sampling};

    #[test]
    fn turns_that_caches_cannot_hold_together_run_one_after_another() {
        let said = |near_tokens: usize, tokens_max: usize| {
            let mut engine = Engine::new(tiny_policy(), EngineOptions::default());
            engine.near_tokens = near_tokens;
            for sequence in 0..9 {
                let turn = GenerationRequest {
                    sequence,
                    append: (0..20).map(|n| 3 + n + sequence as u32).collect(),
                    stream: [sequence as u8; 32],
                    turn: 0,
                    sampling: Sampling::default(),
                    tokens_max,
                    stop_ids: Vec::new(),
                };
                engine.submit(turn).unwrap();
            }
            let (mut done, mut rows_max) = (Vec::new(), 0);
            while !engine.is_idle() {
                done.extend(engine.step().unwrap());
                rows_max = rows_max.max(engine.running.len());
            }
            done.sort_by_key(|generation| generation.sequence);
            (done, rows_max)
        };
        let (all, rows) = said(usize::MAX, 12);
        assert_eq!((all.len(), rows), (9, 9));
        // Six of 20 + 12 tokens each; and weights are read for four rows at least.
        for (near_tokens, rows) in [(200, 6), (10, NEAR_ROWS_MIN)] {
            assert_eq!(said(near_tokens, 12), (all.clone(), rows));
        }
        // Where much more may be said, a row counts twice what it holds.
        assert_eq!(said(200, 100).1, 5);
    }

    #[test]
    fn the_threads_of_a_large_model_share_one_engine() {
        let small = tiny_policy();
        let one = EngineOptions {
            rows_max: 4,
            cache_tokens_max: 100,
            ..EngineOptions::default()
        };
        assert_eq!(one.over(3, &small), [one; 3]);
        assert_eq!(one.over(0, &small), [one]);

        let mut config = small.config().clone();
        let numbers = DIVIDED_BYTES / 4 / config.num_hidden_layers;
        config.intermediate_size = numbers / (3 * config.hidden_size) + 1;
        let zeros = |(name, shape): (String, Vec<usize>)| {
            let numbers = vec![0.0; shape.iter().product()];
            (name, Parameter::new(shape, numbers))
        };
        let weights = Weights::new(parameter_shapes(&config).into_iter().map(zeros).collect());
        let large = small.with_config(config, weights).unwrap();
        let all = EngineOptions {
            rows_max: 12,
            cache_tokens_max: 300,
            threads: 3,
            ..one
        };
        assert_eq!(one.over(3, &large), [all]);
        assert_eq!(near_tokens(&large), usize::MAX);
        // Keys and values of three layers and two heads of 16 numbers, in 4 MiB.
        assert_eq!(near_tokens(&small), (4 << 20) / (4 * 2 * 3 * 2 * 16));
        // Half as many bytes.
        let vectors = Device::cpu_bf16();
        let halved = large.on(&vectors).unwrap();
        assert_eq!(one.over(2, &halved), [one; 2]);
    }
}
