//! Pseudo-random draws that depend only on a purpose and a key.
//!
//! The original server draws its distractors from one generator per process and in the order of a
//! hash table, so the text of a task differs between processes. Here each task has its own stream:
//! BLAKE3 in counter mode, keyed by the task. All draws use integer arithmetic, so every machine
//! gets the same worlds.

use std::ops::RangeInclusive;

const BLOCK_BYTES: usize = 64;

pub(crate) struct Draws {
    reader: blake3::OutputReader,
    block: [u8; BLOCK_BYTES],
    used: usize,
}

impl Draws {
    /// A stream for these key parts; each part is preceded by its length, so that no two
    /// lists of parts give the same stream.
    pub(crate) fn new(purpose: &str, parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("agentgym-envs textcraft draws v1");
        for part in std::iter::once(purpose.as_bytes()).chain(parts.iter().copied()) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self {
            reader: hasher.finalize_xof(),
            block: [0; BLOCK_BYTES],
            used: BLOCK_BYTES,
        }
    }

    fn next_u64(&mut self) -> u64 {
        if self.used == BLOCK_BYTES {
            self.reader.fill(&mut self.block);
            self.used = 0;
        }
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.block[self.used..self.used + 8]);
        self.used += 8;
        u64::from_le_bytes(bytes)
    }

    /// A number below `bound`, which must not be 0. The bias of the high half of a 128-bit
    /// product is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "a draw needs at least one choice");
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    pub(crate) fn between(&mut self, range: RangeInclusive<u32>) -> u32 {
        let width = (range.end() - range.start()) as usize + 1;
        range.start() + self.below(width) as u32
    }

    pub(crate) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// An index drawn in proportion to its weight.
    pub(crate) fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut at = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            if at < *weight {
                return index;
            }
            at -= weight;
        }
        unreachable!("the draw is below the sum of the weights")
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
