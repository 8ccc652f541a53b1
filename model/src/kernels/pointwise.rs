//! Row-wise kernels: RMS norm, rotary position embedding, SwiGLU, each with its
//! derivative. A row is computed alone, so its bits depend on nothing else.

use super::{LANES, dot, exp, vectorised};

/// 1 / sqrt(mean(x²) + eps).
#[inline(always)]
fn inverse_rms(row: &[f32], eps: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt()
}

/// y = x · weight / rms(x) for every row of `weight.len()` numbers.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    vectorised(
        #[inline(always)]
        || {
            for (x, y) in x
                .chunks_exact(weight.len())
                .zip(y.chunks_exact_mut(weight.len()))
            {
                let scale = inverse_rms(x, eps);
                for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
                    *y = x * scale * w;
                }
            }
        },
    );
    y
}

/// Derivatives of [`rms_norm`]: adds the one by `x` to `grad_x`, and returns the one by
/// `weight`, summed over rows in order.
pub(crate) fn rms_norm_backward(
    x: &[f32],
    weight: &[f32],
    grad: &[f32],
    eps: f32,
    grad_x: &mut [f32],
) -> Vec<f32> {
    let width = weight.len();
    let mut grad_weight = vec![0.0; width];
    let mut weighted = vec![0.0; width];
    vectorised(
        #[inline(always)]
        || {
            let rows = x.chunks_exact(width).zip(grad.chunks_exact(width));
            for ((x, g), gx) in rows.zip(grad_x.chunks_exact_mut(width)) {
                let scale = inverse_rms(x, eps);
                for ((t, g), w) in weighted.iter_mut().zip(g).zip(weight) {
                    *t = g * w;
                }
                let shared = scale * scale * dot(&weighted, x) / width as f32;
                for ((gx, t), x) in gx.iter_mut().zip(&weighted).zip(x) {
                    *gx += scale * (-shared).mul_add(*x, *t);
                }
                for ((gw, g), x) in grad_weight.iter_mut().zip(g).zip(x) {
                    *gw = (g * scale).mul_add(*x, *gw);
                }
            }
        },
    );
    grad_weight
}

/// Cosines and sines of every (position, frequency), computed in f64.
#[derive(Debug)]
pub(crate) struct RopeTable {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Angles `position · frequency`, in radians, for `positions` positions; cosines and sines
    /// are multiplied by `factor`.
    pub(crate) fn new(frequencies: &[f64], factor: f64, positions: usize) -> Self {
        let half = frequencies.len();
        let mut cos = Vec::with_capacity(positions * half);
        let mut sin = Vec::with_capacity(positions * half);
        for position in 0..positions {
            for frequency in frequencies {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cos.push((factor * c) as f32);
                sin.push((factor * s) as f32);
            }
        }
        RopeTable { half, cos, sin }
    }

    /// How many positions the table covers.
    pub(crate) fn positions(&self) -> usize {
        self.cos.len() / self.half
    }

    /// Cosines, `[position][half]`.
    pub(crate) fn cosines(&self) -> &[f32] {
        &self.cos
    }

    /// Sines, `[position][half]`.
    pub(crate) fn sines(&self) -> &[f32] {
        &self.sin
    }

    /// Cosines of one position.
    pub(crate) fn cos(&self, position: usize) -> &[f32] {
        &self.cos[position * self.half..(position + 1) * self.half]
    }

    /// Sines of one position.
    pub(crate) fn sin(&self, position: usize) -> &[f32] {
        &self.sin[position * self.half..(position + 1) * self.half]
    }
}

/// Rotates every head of every row in place by the angle of its position: first
/// half against second half, as Qwen2 does, and multiplies by the table's factor.
/// `backward` rotates the other way, which is the derivative.
pub(crate) fn rope(
    x: &mut [f32],
    positions: &[u32],
    heads: usize,
    table: &RopeTable,
    backward: bool,
) {
    let half = table.half;
    let sign = if backward { -1.0 } else { 1.0 };
    vectorised(
        #[inline(always)]
        || {
            for (row, &position) in x.chunks_exact_mut(heads * half * 2).zip(positions) {
                let (cos, sin) = (table.cos(position as usize), table.sin(position as usize));
                for head in row.chunks_exact_mut(2 * half) {
                    let (first, second) = head.split_at_mut(half);
                    let angles = cos.iter().zip(sin);
                    for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
                        let sin = sign * sin;
                        let (x, y) = (*a, *b);
                        *a = x.mul_add(*cos, -(y * sin));
                        *b = y.mul_add(*cos, x * sin);
                    }
                }
            }
        },
    );
}

/// silu(gate) · up, in the memory of `gate`.
pub(crate) fn swiglu(mut gate: Vec<f32>, up: &[f32]) -> Vec<f32> {
    vectorised(
        #[inline(always)]
        || {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = *gate * up / (1.0 + exp(-*gate));
            }
        },
    );
    gate
}

/// Derivatives of [`swiglu`], written over `gate` and `up`.
pub(crate) fn swiglu_backward(gate: &mut [f32], up: &mut [f32], grad: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for ((gate, up), g) in gate.iter_mut().zip(up).zip(grad) {
                let (a, b) = (*gate, *up);
                let sigmoid = 1.0 / (1.0 + exp(-a));
                let silu = a * sigmoid;
                *up = g * silu;
                // d silu = σ·(1 + a·(1 − σ)) = σ + silu·(1 − σ)
                *gate = g * b * silu.mul_add(1.0 - sigmoid, sigmoid);
            }
        },
    );
}

/// y += x.
pub(crate) fn add_assign(y: &mut [f32], x: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (y, x) in y.iter_mut().zip(x) {
                *y += x;
            }
        },
    );
}

/// Column sums of row-major rows, in row order.
pub(crate) fn column_sums(x: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0; width];
    vectorised(
        #[inline(always)]
        || {
            for row in x.chunks_exact(width) {
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += x;
                }
            }
        },
    );
    sums
}

/// Σ x² in f64, over sixteen lanes.
pub(crate) fn sum_of_squares(x: &[f32]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    vectorised(
        #[inline(always)]
        || {
            let (chunks, tail) = x.as_chunks::<LANES>();
            for chunk in chunks {
                for lane in 0..LANES {
                    let v = f64::from(chunk[lane]);
                    lanes[lane] = v.mul_add(v, lanes[lane]);
                }
            }
            for (lane, &v) in lanes.iter_mut().zip(tail) {
                *lane = f64::from(v).mul_add(f64::from(v), *lane);
            }
        },
    );
    lanes.iter().sum()
}
