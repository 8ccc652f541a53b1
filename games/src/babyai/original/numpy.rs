//! NumPy's random numbers, as far as MiniGrid draws them: the generator PCG64 seeded through
//! `SeedSequence`, whole numbers below a bound, and fractions.
//!
//! The same seed gives the same draws as `numpy.random.Generator(PCG64(SeedSequence(seed)))` of
//! NumPy 1.26. Sources: M. E. O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically
//! Good Algorithms for Random Number Generation" (2014), for the generator, XSL-RR with 128 bits of
//! state; D. Lemire, "Fast Random Integer Generation in an Interval" (2019), for the bounded
//! numbers; M. E. O'Neill, "Developing a seed_seq Alternative" (2015), for the seeding.

use agentgym_envs::quantity::Quantity;

/// Words of the pool in which a seed is mixed.
const POOL: usize = 4;

/// Hashes words with a constant that changes at every use.
struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn of(&mut self, word: u32) -> u32 {
        let word = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        let word = word.wrapping_mul(self.constant);
        word ^ (word >> 16)
    }
}

fn mixed(one: u32, other: u32) -> u32 {
    let mixed = one
        .wrapping_mul(0xca01_f9dd)
        .wrapping_sub(other.wrapping_mul(0x4973_f715));
    mixed ^ (mixed >> 16)
}

fn pool(seed: &[u32]) -> [u32; POOL] {
    let mut hash = Hash {
        constant: 0x43b0_d7e5,
        multiplier: 0x931e_8875,
    };
    let mut pool: [u32; POOL] =
        std::array::from_fn(|at| hash.of(seed.get(at).copied().unwrap_or(0)));
    for from in 0..POOL {
        for to in 0..POOL {
            if from != to {
                pool[to] = mixed(pool[to], hash.of(pool[from]));
            }
        }
    }
    for word in seed.iter().skip(POOL) {
        for place in &mut pool {
            *place = mixed(*place, hash.of(*word));
        }
    }
    pool
}

/// Four words of 64 bits out of a pool.
fn state(pool: [u32; POOL]) -> [u64; 4] {
    let mut hash = Hash {
        constant: 0x8b51_f9dd,
        multiplier: 0x58f3_8ded,
    };
    let words: [u32; 8] = std::array::from_fn(|at| hash.of(pool[at % POOL]));
    std::array::from_fn(|at| u64::from(words[2 * at]) | u64::from(words[2 * at + 1]) << 32)
}

/// The generator.
pub(crate) struct Numpy {
    state: u128,
    increment: u128,
    /// The upper half of the latest word, of which only the lower half was used.
    spare: Option<u32>,
}

impl Numpy {
    /// The generator of a seed of any size.
    pub(crate) fn seeded(seed: &Quantity) -> Self {
        let mut words = Vec::new();
        let mut rest = seed.clone();
        while !rest.is_zero() {
            words.push(rest.remainder(1 << 32) as u32);
            rest = rest.quotient(1 << 32);
        }
        let [high, low, step_high, step_low] = state(pool(&words));
        let wide = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        let mut generator = Self {
            state: 0,
            increment: wide(step_high, step_low) << 1 | 1,
            spare: None,
        };
        generator.advance();
        generator.state = generator.state.wrapping_add(wide(high, low));
        generator.advance();
        generator
    }

    fn advance(&mut self) {
        const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;
        self.state = self
            .state
            .wrapping_mul(MULTIPLIER)
            .wrapping_add(self.increment);
    }

    fn next_u64(&mut self) -> u64 {
        self.advance();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn next_u32(&mut self) -> u32 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let word = self.next_u64();
        self.spare = Some((word >> 32) as u32);
        word as u32
    }

    /// `integers(low, high)`: from `low` to below `high`, which must be larger. One possible number
    /// is no draw.
    pub(crate) fn between(&mut self, low: usize, high: usize) -> usize {
        let count = (high - low) as u32;
        if count == 1 {
            return low;
        }
        let mut product = u64::from(self.next_u32()) * u64::from(count);
        // Fewer low halves than this belong to no number fairly; below `count` it has to be looked
        // at.
        if (product as u32) < count {
            let unfair = count.wrapping_neg() % count;
            while (product as u32) < unfair {
                product = u64::from(self.next_u32()) * u64::from(count);
            }
        }
        low + (product >> 32) as usize
    }

    /// `uniform(0, 1)`.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `integers(0, 2) == 0`.
    pub(crate) fn coin(&mut self) -> bool {
        self.between(0, 2) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.between(0, from.len())]
    }

    /// Different elements, in the order of drawing.
    pub(crate) fn subset<T: Copy>(&mut self, from: &[T], count: usize) -> Vec<T> {
        let mut left = from.to_vec();
        (0..count)
            .map(|_| left.remove(self.between(0, left.len())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What NumPy 1.26.4 draws: five numbers below 6, a fraction, four numbers from 3 to 7, then
    /// one from a wide range, one of one, two from a range that refuses many draws, a fraction.
    #[test]
    fn draws_are_numpys() {
        type Drawn<'a> = ([usize; 5], f64, [usize; 4], [usize; 4], f64);
        let cases: [(&str, Drawn<'_>); 4] = [
            (
                "0",
                (
                    [5, 3, 3, 1, 1],
                    0.016_527_635_528_529_094,
                    [3, 3, 7, 6],
                    [3_651_022_308, 5, 1_819_907_327, 1_630_874_974],
                    0.935_072_423_787_768_2,
                ),
            ),
            (
                "1",
                (
                    [2, 3, 4, 5, 0],
                    0.948_649_447_137_243_9,
                    [3, 4, 4, 7],
                    [1_693_305_795, 5, 819_508_041, 770_976_088],
                    0.549_593_687_673_059_5,
                ),
            ),
            (
                "12345678901234567890",
                (
                    [3, 0, 3, 3, 4],
                    0.984_305_041_798_805_8,
                    [6, 6, 5, 6],
                    [40_484_062, 5, 2_962_393_136, 1_908_020_642],
                    0.609_825_569_128_901,
                ),
            ),
            (
                // 2^200 + 7: more words than the pool has.
                "1606938044258990275541962092341162602522202993782792835301383",
                (
                    [0, 5, 1, 2, 1],
                    0.726_552_296_508_841_1,
                    [5, 6, 5, 3],
                    [3_791_435_976, 5, 44_228_304, 29_254_327],
                    0.532_616_330_088_594_2,
                ),
            ),
        ];
        for (seed, expected) in cases {
            let mut numpy = Numpy::seeded(&Quantity::from_digits(seed));
            let five = std::array::from_fn(|_| numpy.between(0, 6));
            let fraction = numpy.fraction();
            let four = std::array::from_fn(|_| numpy.between(3, 8));
            let wide = [
                (0, 4_000_000_000),
                (5, 6),
                (0, 3_000_000_001),
                (0, 3_000_000_001),
            ];
            let wide = wide.map(|(low, high)| numpy.between(low, high));
            let found = (five, fraction, four, wide, numpy.fraction());
            assert_eq!(found, expected, "{seed}");
        }
    }
}
