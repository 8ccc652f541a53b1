//! RMS norm, rotary embedding and SwiGLU as differentiable operations.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};

use super::{output, slice, tensor_like, with_data};
use crate::kernels::pointwise::{self, RopeTable};

struct RmsNorm {
    eps: f32,
}

/// x · weight / rms(x), row by row.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return super::composed::rms_norm(x, weight, eps);
    }
    x.apply_op2(weight, RmsNorm { eps })
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let y = pointwise::rms_norm(slice(x, x_layout)?, slice(weight, weight_layout)?, self.eps);
        output(y, x_layout.shape())
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (grad_x, grad_weight) = with_data(x, |x| {
            with_data(weight, |weight| {
                with_data(grad, |grad| {
                    Ok(pointwise::rms_norm_backward(x, weight, grad, self.eps))
                })
            })
        })?;
        Ok((
            Some(tensor_like(grad_x, x)?),
            Some(tensor_like(grad_weight, weight)?),
        ))
    }
}

/// Where the rows of a packed batch stand in their sequences.
#[derive(Debug, Clone)]
pub(crate) struct Rotation {
    pub(crate) positions: Arc<[u32]>,
    pub(crate) table: Arc<RopeTable>,
}

struct Rope {
    rotation: Rotation,
    heads: usize,
    backward: bool,
}

/// Rotates `heads` heads per row by the row's position.
pub(crate) fn rope(x: &Tensor, rotation: &Rotation, heads: usize) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return super::composed::rope(x, rotation, heads);
    }
    x.apply_op1(Rope {
        rotation: rotation.clone(),
        heads,
        backward: false,
    })
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Rotation { positions, table } = &self.rotation;
        let y = pointwise::rope(
            slice(x, layout)?,
            positions,
            self.heads,
            table,
            self.backward,
        );
        output(y, layout.shape())
    }

    fn bwd(&self, _x: &Tensor, _y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let back = Rope {
            rotation: self.rotation.clone(),
            heads: self.heads,
            backward: !self.backward,
        };
        Ok(Some(grad.contiguous()?.apply_op1(back)?))
    }
}

struct SwiGlu;

/// silu(gate) · up.
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    if !gate.device().is_cpu() {
        return super::composed::swiglu(gate, up);
    }
    gate.apply_op2(up, SwiGlu)
}

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let y = pointwise::swiglu(slice(gate, gate_layout)?, slice(up, up_layout)?);
        output(y, gate_layout.shape())
    }

    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (grad_gate, grad_up) = with_data(gate, |gate| {
            with_data(up, |up| {
                with_data(grad, |g| Ok(pointwise::swiglu_backward(gate, up, g)))
            })
        })?;
        Ok((
            Some(tensor_like(grad_gate, gate)?),
            Some(tensor_like(grad_up, up)?),
        ))
    }
}
