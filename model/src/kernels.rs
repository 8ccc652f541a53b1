//! The arithmetic of the policy on plain `f32` slices, in an order that is part of the
//! format: a token's hidden state must not depend on which other tokens are computed beside
//! it (invariant I7), nor on the width of the vector unit. Every kernel therefore reduces
//! over sixteen fixed lanes, uses fused multiply-adds only, and has its own `exp` and `ln`.
//! Kernels are compiled for each instruction set and chosen at run time, with equal bits.

pub(crate) mod attention;
pub(crate) mod attention_backward;
pub(crate) mod bf16;
pub(crate) mod dense;
pub(crate) mod distribution;
mod few_rows;
pub(crate) mod head;
pub(crate) mod key_values;
pub(crate) mod matmul;
pub(crate) mod pointwise;
mod tile;

/// Width of every reduction: one 512-bit register, two 256-bit ones.
pub(crate) const LANES: usize = 16;

/// Sixteen partial results of one reduction.
pub(crate) type Lanes = [f32; LANES];

/// Runs `f` with the widest instruction set of this machine. Everything `f`
/// calls must be `#[inline(always)]` to be compiled for it.
#[inline(always)]
pub(crate) fn vectorised<R>(f: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(f)
}

/// Has a line of memory fetched that is used soon, into the second cache or, where it is small beside
/// the first one, into that. An address out of range does nothing.
#[inline(always)]
fn fetch<const FIRST: bool>(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it reads nothing, and every such processor has the instructions.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match FIRST {
            true => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
            false => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Adds the lanes in a fixed tree.
#[inline(always)]
pub(crate) fn sum_lanes(lanes: &Lanes) -> f32 {
    let mut sums = *lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}

/// The largest lane; a NaN is never chosen, but shows in the sums.
#[inline(always)]
pub(crate) fn max_lanes(lanes: &Lanes) -> f32 {
    let mut max = lanes[0];
    for &lane in &lanes[1..] {
        max = if lane > max { lane } else { max };
    }
    max
}

/// Σ a·b over sixteen lanes; the tail goes to the first lanes.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (a_chunks, a_tail) = a.as_chunks::<LANES>();
    let (b_chunks, b_tail) = b.as_chunks::<LANES>();
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] = x[lane].mul_add(y[lane], lanes[lane]);
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *lane = x.mul_add(*y, *lane);
    }
    sum_lanes(&lanes)
}

/// Below this `exp` is exactly zero, so that no subnormal is ever produced.
const EXP_LOW: f32 = -87.0;
const EXP_HIGH: f32 = 88.0;

/// e^x to about one unit in the last place: x = n·ln 2 + r, Taylor polynomial in
/// r, exponent set by its bits. NaN stays NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5·2^23 rounds to an integer and leaves it in the low bits.
    const ROUNDER: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let low = x < EXP_LOW;
    let x = if low { EXP_LOW } else { x };
    let x = if x > EXP_HIGH { EXP_HIGH } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUNDER);
    let n = shifted - ROUNDER;
    let r = n.mul_add(-LN_2_HIGH, x);
    let r = n.mul_add(-LN_2_LOW, r);
    let mut y = 1.0 / 5040.0;
    y = r.mul_add(y, 1.0 / 720.0);
    y = r.mul_add(y, 1.0 / 120.0);
    y = r.mul_add(y, 1.0 / 24.0);
    y = r.mul_add(y, 1.0 / 6.0);
    y = r.mul_add(y, 0.5);
    y = r.mul_add(y, 1.0);
    y = r.mul_add(y, 1.0);
    let power = shifted
        .to_bits()
        .wrapping_sub(ROUNDER.to_bits())
        .wrapping_add(127)
        << 23;
    let y = y * f32::from_bits(power);
    if low { 0.0 } else { y }
}

/// ln x of a positive normal number, by atanh's series in f64; free of the
/// platform's libm.
pub(crate) fn ln(x: f32) -> f64 {
    if !(x.is_finite() && x >= f32::MIN_POSITIVE) {
        return if x == 0.0 {
            f64::NEG_INFINITY
        } else if x > 0.0 {
            f64::INFINITY
        } else {
            f64::NAN
        };
    }
    let bits = x.to_bits();
    let mut exponent = f64::from((bits >> 23) as i32 - 127);
    let mut mantissa = f64::from(f32::from_bits((bits & 0x007f_ffff) | 0x3f80_0000));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1.0;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let s2 = s * s;
    let mut series = 0.0;
    for odd in (0..9).rev() {
        series = f64::mul_add(series, s2, 1.0 / f64::from(2 * odd + 1));
    }
    f64::mul_add(exponent, std::f64::consts::LN_2, 2.0 * s * series)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in [-0.5, 0.5).
    pub(super) fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect()
    }

    #[test]
    fn exp_and_ln_agree_with_f64_to_a_few_units() {
        for step in -8600..=8700 {
            let x = step as f32 * 0.01;
            let expected = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(relative < 3e-7, "exp({x}): {relative}");
            let y = expected as f32;
            if y.is_normal() {
                let found = ln(y);
                let exact = f64::from(y).ln();
                assert!(
                    (found - exact).abs() <= 1e-12 * exact.abs().max(1.0),
                    "ln({y})"
                );
            }
        }
        assert_eq!(exp(-1000.0), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let x: Vec<f32> = (0..999)
            .map(|i| ((i * 7919) % 1000) as f32 * 0.01 - 5.0)
            .collect();
        let y: Vec<f32> = x.iter().rev().copied().collect();
        let wide = vectorised(
            #[inline(always)]
            || (dot(&x, &y), x.iter().map(|&v| exp(v)).collect::<Vec<_>>()),
        );
        let narrow = (dot(&x, &y), x.iter().map(|&v| exp(v)).collect::<Vec<_>>());
        assert_eq!(wide, narrow);
    }
}
