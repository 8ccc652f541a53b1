//! The dense layer on slices: y = x · weight (+ bias) with `[in, out]` weights, and
//! its derivatives. A row's result does not depend on the other rows.

use super::matmul::{View, matmul};
use super::{dot, vectorised};

/// Sizes of a dense layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Numbers per input row.
    pub(crate) inner: usize,
    /// Numbers per output row.
    pub(crate) width: usize,
}

/// y = x · weight + bias.
pub(crate) fn forward(x: &[f32], weight: &[f32], bias: Option<&[f32]>, sizes: Sizes) -> Vec<f32> {
    let rows = x.len() / sizes.inner;
    match bias {
        Some(bias) => {
            let mut y = bias.repeat(rows);
            product(x, weight, sizes, &mut y, true);
            y
        }
        None => {
            let mut y = vec![0.0; rows * sizes.width];
            product(x, weight, sizes, &mut y, false);
            y
        }
    }
}

/// y += x · weight.
pub(crate) fn add_to(y: &mut [f32], x: &[f32], weight: &[f32], sizes: Sizes) {
    product(x, weight, sizes, y, true);
}

fn product(x: &[f32], weight: &[f32], sizes: Sizes, y: &mut [f32], accumulate: bool) {
    let Sizes { inner, width } = sizes;
    if width == 1 {
        // `gemm` would choose an order by the number of rows.
        vectorised(
            #[inline(always)]
            || {
                for (y, row) in y.iter_mut().zip(x.chunks_exact(inner)) {
                    let sum = dot(row, weight);
                    *y = if accumulate { *y + sum } else { sum };
                }
            },
        );
    } else {
        let x = View::new(x, x.len() / inner, inner);
        matmul(x, View::new(weight, inner, width), y, accumulate);
    }
}

/// ∂x = grad · weightᵀ, or added to what is there.
pub(crate) fn grad_input(
    grad_x: &mut [f32],
    grad: &[f32],
    weight: &[f32],
    sizes: Sizes,
    accumulate: bool,
) {
    let Sizes { inner, width } = sizes;
    let grad = View::new(grad, grad.len() / width, width);
    let weight = View::new(weight, inner, width).transposed();
    matmul(grad, weight, grad_x, accumulate);
}

/// ∂weight = xᵀ · grad.
pub(crate) fn grad_weight(x: &[f32], grad: &[f32], sizes: Sizes) -> Vec<f32> {
    let Sizes { inner, width } = sizes;
    let rows = x.len() / inner;
    let mut grad_weight = vec![0.0; inner * width];
    let x = View::new(x, rows, inner).transposed();
    matmul(x, View::new(grad, rows, width), &mut grad_weight, false);
    grad_weight
}
