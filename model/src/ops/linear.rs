//! The one dense product of the model: x \[rows, in\] · weight \[in, out\] (+ bias).

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use super::{output, slice, tensor_like, with_data};
use crate::kernels::matmul::{View, matmul};
use crate::kernels::{dot, pointwise::column_sums, vectorised};

struct Linear;

/// x · weight (+ bias), rows computed independently of each other.
pub(crate) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return super::composed::linear(x, weight, bias);
    }
    match bias {
        Some(bias) => x.apply_op3(weight, bias, Linear),
        None => x.apply_op2(weight, Linear),
    }
}

/// The product on slices; `out` = 1 has its own fixed order, since `gemm` would
/// choose one by the number of rows.
fn forward(
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    inner: usize,
    width: usize,
) -> Vec<f32> {
    let rows = x.len() / inner;
    if width == 1 {
        let bias = bias.map_or(0.0, |bias| bias[0]);
        return vectorised(
            #[inline(always)]
            || {
                x.chunks_exact(inner)
                    .map(|row| dot(row, weight) + bias)
                    .collect()
            },
        );
    }
    let mut y = match bias {
        Some(bias) => bias.repeat(rows),
        None => vec![0.0; rows * width],
    };
    matmul(
        View::new(x, rows, inner),
        View::new(weight, inner, width),
        &mut y,
        bias.is_some(),
    );
    y
}

fn backward(x: &Tensor, weight: &Tensor, grad: &Tensor) -> Result<(Tensor, Tensor, Vec<f32>)> {
    let (inner, width) = weight.dims2()?;
    let rows = x.dims2()?.0;
    with_data(grad, |grad| {
        let grad_view = View::new(grad, rows, width);
        let grad_x = with_data(weight, |weight| {
            let mut grad_x = vec![0.0; rows * inner];
            matmul(
                grad_view,
                View::new(weight, inner, width).transposed(),
                &mut grad_x,
                false,
            );
            tensor_like(grad_x, x)
        })?;
        let grad_weight = with_data(x, |x| {
            let mut grad_weight = vec![0.0; inner * width];
            matmul(
                View::new(x, rows, inner).transposed(),
                grad_view,
                &mut grad_weight,
                false,
            );
            tensor_like(grad_weight, weight)
        })?;
        Ok((grad_x, grad_weight, column_sums(grad, width)))
    })
}

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (inner, width) = weight_layout.shape().dims2()?;
        let rows = x_layout.shape().dims2()?.0;
        let y = forward(
            slice(x, x_layout)?,
            slice(weight, weight_layout)?,
            None,
            inner,
            width,
        );
        output(y, (rows, width))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (grad_x, grad_weight, _) = backward(x, weight, grad)?;
        Ok((Some(grad_x), Some(grad_weight)))
    }
}

impl CustomOp3 for Linear {
    fn name(&self) -> &'static str {
        "linear with bias"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (inner, width) = weight_layout.shape().dims2()?;
        let rows = x_layout.shape().dims2()?.0;
        let bias = Some(slice(bias, bias_layout)?);
        let y = forward(
            slice(x, x_layout)?,
            slice(weight, weight_layout)?,
            bias,
            inner,
            width,
        );
        output(y, (rows, width))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (grad_x, grad_weight, grad_bias) = backward(x, weight, grad)?;
        Ok((
            Some(grad_x),
            Some(grad_weight),
            Some(tensor_like(grad_bias, bias)?),
        ))
    }
}
