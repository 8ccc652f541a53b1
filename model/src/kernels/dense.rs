//! The dense layer on slices: y = x · weight (+ bias) with `[in, out]` weights, and
//! its derivatives. A row's result does not depend on the other rows.

use super::matmul::{View, matmul, product, product_in};
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
    let Sizes { inner, width } = sizes;
    let rows = x.len() / inner;
    match bias {
        Some(bias) => {
            let mut y = bias.repeat(rows);
            add_to(&mut y, x, weight, sizes);
            y
        }
        None if width == 1 => {
            let mut y = vec![0.0; rows];
            add_to(&mut y, x, weight, sizes);
            y
        }
        None => product(View::new(x, rows, inner), View::new(weight, inner, width)),
    }
}

/// y += x · weight.
pub(crate) fn add_to(y: &mut [f32], x: &[f32], weight: &[f32], sizes: Sizes) {
    let Sizes { inner, width } = sizes;
    if width == 1 {
        // `gemm` would choose the order of additions by the number of rows.
        vectorised(
            #[inline(always)]
            || {
                for (y, row) in y.iter_mut().zip(x.chunks_exact(inner)) {
                    *y += dot(row, weight);
                }
            },
        );
    } else {
        let x = View::new(x, x.len() / inner, inner);
        matmul(x, View::new(weight, inner, width), y, true);
    }
}

/// ∂x = grad · weightᵀ.
pub(crate) fn grad_input(grad: &[f32], weight: &[f32], sizes: Sizes) -> Vec<f32> {
    let (grad, weight) = backwards(grad, weight, sizes);
    product(grad, weight)
}

/// ∂x += grad · weightᵀ.
pub(crate) fn add_grad_input(grad_x: &mut [f32], grad: &[f32], weight: &[f32], sizes: Sizes) {
    let (grad, weight) = backwards(grad, weight, sizes);
    matmul(grad, weight, grad_x, true);
}

fn backwards<'a>(grad: &'a [f32], weight: &'a [f32], sizes: Sizes) -> (View<'a>, View<'a>) {
    let Sizes { inner, width } = sizes;
    (
        View::new(grad, grad.len() / width, width),
        View::new(weight, inner, width).transposed(),
    )
}

/// ∂weight = xᵀ · grad, in the memory of `room`.
pub(crate) fn grad_weight(room: Vec<f32>, x: &[f32], grad: &[f32], sizes: Sizes) -> Vec<f32> {
    let Sizes { inner, width } = sizes;
    let rows = x.len() / inner;
    let x = View::new(x, rows, inner).transposed();
    product_in(room, x, View::new(grad, rows, width))
}
