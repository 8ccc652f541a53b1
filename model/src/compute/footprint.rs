//! What computations with a network add to memory, counted in numbers that exist at the same time
//! in `cpu` and `kernels`.

use crate::kernels::head::{CHUNK_ROWS, KEPT_MAX};
use crate::parallel::ComputeOptions;
use crate::{Error, ModelConfig, Result};

/// Bytes of a number.
const NUMBER: u128 = 4;

/// Counts of f32 numbers. Measured peaks are 0.7 to 1.0 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    pub(super) layers: u128,
    pub(super) hidden: u128,
    pub(super) intermediate: u128,
    pub(super) query_width: u128,
    pub(super) key_width: u128,
    pub(super) norms_heads: bool,
    pub(super) vocabulary: u128,
}

impl Footprint {
    /// The footprint of a network of this shape.
    pub fn of(config: &ModelConfig) -> Self {
        Footprint {
            layers: config.num_hidden_layers as u128,
            hidden: config.hidden_size as u128,
            intermediate: config.intermediate_size as u128,
            query_width: config.query_width() as u128,
            key_width: config.key_width() as u128,
            norms_heads: config.norms_heads(),
            vocabulary: config.vocab_size as u128,
        }
    }

    /// Keys and values of a token in all layers.
    pub fn cache(&self) -> u128 {
        self.layers * 2 * self.key_width
    }

    /// Live in one layer's forward pass, per token: its input and the attention norm, queries and
    /// attention output, keys and values as computed and as blocks of the cache; then, while those
    /// pages are still allocated, the MLP's norm, gate and up. Allocations of many sizes fragment
    /// the memory: measured peaks exceed this by up to three quarters of gate and up.
    pub fn forward(&self) -> u128 {
        3 * self.hidden + 2 * self.query_width + 4 * self.key_width + 7 * self.intermediate / 2
    }

    /// Logits of one chunk of rows.
    pub fn head_chunk(&self) -> u128 {
        CHUNK_ROWS as u128 * self.vocabulary
    }

    /// A gradient unit of `tokens` on one thread: all tapes and the last layer's backward pass; with
    /// checkpointing, every layer's input and one layer, forward and backward.
    pub fn unit(&self, tokens: u128, checkpointed: bool) -> u128 {
        let tapes = match checkpointed {
            true => (self.layers + 1) * self.hidden + self.tape() + self.intermediate,
            false => self.layers * self.tape(),
        };
        // Logits of all tokens are kept where these are few.
        let kept = (tokens * self.vocabulary).min(KEPT_MAX as u128);
        let logits = self.head_chunk().max(kept);
        tokens * (tapes + self.backward() + 2 * self.hidden) + logits
    }

    /// Stored by the forward pass of a layer, per token: input, queries, keys, values, attention
    /// output, middle, gate and up.
    fn tape(&self) -> u128 {
        let heads = match self.norms_heads {
            true => self.query_width + self.key_width,
            false => 0,
        };
        2 * (self.hidden + self.query_width + self.key_width + self.intermediate) + heads
    }

    /// Live in one layer's backward pass in addition to its tape, per token: the MLP's product and
    /// its derivative, plus fragmentation; the derivative of the residual stream and, for each
    /// norm, its output, the derivative by its output and the derivative by its input; derivatives
    /// by attention output, queries, keys and values; keys and values as blocks, twice.
    fn backward(&self) -> u128 {
        3 * self.intermediate + 7 * self.hidden + 2 * self.query_width + 6 * self.key_width
    }

    /// Refuses a gradient unit that memory cannot hold, before the system kills the process for it.
    ///
    /// # Errors
    /// [`Error::MachineFull`]: even the least that a unit of so many `tokens` takes is more than
    /// `options.memory`.
    pub(crate) fn check_unit(
        &self,
        tokens: usize,
        sequences: usize,
        options: &ComputeOptions<'_>,
    ) -> Result<()> {
        let counted = NUMBER * self.unit(tokens as u128, options.checkpointed);
        let least = counted / 10 * 7;
        if least <= u128::from(options.memory) {
            return Ok(());
        }
        Err(Error::MachineFull {
            tokens,
            sequences,
            least: u64::try_from(least).unwrap_or(u64::MAX),
            memory: options.memory,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TinyShape;

    #[test]
    fn a_unit_fits_to_the_byte_or_is_refused_with_its_size() {
        let config = TinyShape::default().config().unwrap();
        let footprint = Footprint::of(&config);
        let check = |checkpointed, memory| {
            let options = ComputeOptions {
                checkpointed,
                memory,
                ..Default::default()
            };
            footprint.check_unit(10_000, 3, &options)
        };
        let least = |checkpointed| (NUMBER * footprint.unit(10_000, checkpointed) / 10 * 7) as u64;
        assert!(least(true) < least(false));
        for checkpointed in [false, true] {
            let least = least(checkpointed);
            check(checkpointed, least).unwrap();
            let error = check(checkpointed, least - 1).unwrap_err();
            let found = matches!(
                error,
                Error::MachineFull { tokens: 10_000, sequences: 3, memory, .. } if memory == least - 1
            );
            assert!(found, "{error:?}");
        }
    }
}
