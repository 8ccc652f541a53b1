//! The source of all randomness in a run: a 256-bit stream key per (run seed, purpose, iteration,
//! draw, sample), extended by turn and token indices. There is no sequential generator state, so
//! the order of execution cannot change a value.

/// The use of a random stream. The number is part of every key: append only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Purpose {
    /// Initial weights of a preset.
    Init = 1,
    /// Order of tasks in a pass over the data.
    Data = 2,
    /// Sampling of training episodes.
    Rollout = 3,
    /// Sampling of evaluation episodes.
    Evaluate = 4,
    /// Order of demonstrations.
    Sft = 5,
    /// Greedy episodes used as baselines: they sample nothing, but have streams of their own.
    Baseline = 6,
    /// Order of preference pairs.
    Dpo = 7,
    /// Sampling of evaluation episodes before a warm start.
    EvaluateInit = 8,
    /// Which demonstrations are held out.
    HeldOut = 9,
    /// Whose advantages an episode gets in a control.
    Scramble = 10,
}

/// The key of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey {
    /// `run.seed`.
    pub seed: u64,
    /// The use of the stream.
    pub purpose: Purpose,
    /// Iteration of the part.
    pub iteration: u32,
    /// Index of the draw within the iteration (and evaluation set).
    pub draw: u64,
    /// Sample within the group.
    pub sample: u32,
}

impl StreamKey {
    /// The bytes that are hashed: fixed width, so different keys have different bytes.
    fn bytes(&self) -> [u8; 25] {
        let mut out = [0u8; 25];
        out[..8].copy_from_slice(&self.seed.to_le_bytes());
        out[8] = self.purpose as u8;
        out[9..13].copy_from_slice(&self.iteration.to_le_bytes());
        out[13..21].copy_from_slice(&self.draw.to_le_bytes());
        out[21..25].copy_from_slice(&self.sample.to_le_bytes());
        out
    }

    /// The stream: BLAKE3 in key-derivation mode over the key.
    pub fn stream(&self) -> [u8; 32] {
        blake3::derive_key("agentgym-rl 2026 random stream", &self.bytes())
    }
}

/// The key of a [`permutation`].
pub fn permutation_key(seed: u64, pass: u64) -> StreamKey {
    StreamKey {
        seed,
        purpose: Purpose::Data,
        iteration: 0,
        draw: pass,
        sample: 0,
    }
}

/// A permutation of `0..len` that depends only on (`seed`, `pass`).
pub fn permutation(seed: u64, pass: u64, len: usize) -> Vec<u32> {
    permuted(&permutation_key(seed, pass), len)
}

/// A permutation of `0..len` that depends only on the key.
pub fn permuted(key: &StreamKey, len: usize) -> Vec<u32> {
    let key = key.stream();
    let mut order: Vec<([u8; 8], u32)> = (0..len as u32)
        .map(|index| {
            let hash = blake3::keyed_hash(&key, &index.to_le_bytes());
            let mut head = [0u8; 8];
            head.copy_from_slice(&hash.as_bytes()[..8]);
            (head, index)
        })
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, index)| index).collect()
}

/// The first 64 bits of a stream, for generators with a 64-bit seed.
pub fn head(stream: &[u8; 32]) -> u64 {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&stream[..8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The keys that a run uses are checked where they are made, in the worker's stages.
    #[test]
    fn every_field_of_a_key_counts() {
        let key = StreamKey {
            seed: 7,
            purpose: Purpose::Rollout,
            iteration: 2,
            draw: 3,
            sample: 4,
        };
        let others = [
            StreamKey { seed: 8, ..key },
            StreamKey {
                purpose: Purpose::Evaluate,
                ..key
            },
            StreamKey {
                iteration: 3,
                ..key
            },
            StreamKey {
                draw: 3 << 32,
                ..key
            },
            StreamKey { sample: 5, ..key },
        ];
        let mut seen: BTreeSet<_> = others.iter().map(StreamKey::stream).collect();
        assert!(seen.insert(key.stream()));
        assert_eq!(seen.len(), 6);
    }

    #[test]
    fn permutations_are_complete_and_differ_by_pass() {
        let mut first = permutation(1, 0, 100);
        assert_ne!(first, permutation(1, 1, 100));
        assert_ne!(first, permutation(2, 0, 100));
        assert_eq!(first, permutation(1, 0, 100));
        first.sort_unstable();
        assert_eq!(first, (0..100).collect::<Vec<_>>());
    }
}
