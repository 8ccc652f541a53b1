//! Differentiable operations on candle tensors. On the CPU each is one fused
//! kernel with its own derivative; on any other device, and as the oracle of the
//! tests, it is composed of candle's elementary operations (`composed`).

mod attention;
pub(crate) mod composed;
mod head;
mod linear;
mod pointwise;

#[cfg(test)]
mod tests;

use candle_core::{CpuStorage, Layout, Result, Shape, Storage, Tensor, bail};

pub(crate) use attention::attention;
pub(crate) use head::{head, inverse_temperature};
pub(crate) use linear::linear;
pub(crate) use pointwise::{Rotation, rms_norm, rope, swiglu};

/// The numbers of a contiguous f32 operand.
fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let CpuStorage::F32(data) = storage else {
        bail!("the fused kernels take f32 only")
    };
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&data[start..end]),
        None => bail!("the fused kernels take contiguous tensors only"),
    }
}

/// Runs `f` on the numbers of a CPU tensor, made contiguous if it is not.
pub(crate) fn with_data<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => f(slice(storage, layout)?),
        _ => bail!("the fused kernels run on the CPU only"),
    }
}

/// A tensor of the shape and device of `like`.
fn tensor_like(data: Vec<f32>, like: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(data, like.shape(), like.device())
}

/// A kernel's result as candle takes it.
fn output(data: Vec<f32>, shape: impl Into<Shape>) -> Result<(CpuStorage, Shape)> {
    Ok((CpuStorage::F32(data), shape.into()))
}
