//! The same operations out of candle's elementary ones: slower, on any device,
//! differentiated by candle itself.

use std::sync::Arc;

use candle_core::{D, Result, Tensor};

use super::Rotation;

/// See [`super::linear`].
pub(crate) fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let y = x.matmul(weight)?;
    match bias {
        Some(bias) => y.broadcast_add(bias),
        None => Ok(y),
    }
}

/// See [`super::rms_norm`].
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(mean + f64::from(eps))?.sqrt()?)?
        .broadcast_mul(weight)
}

/// See [`super::rope`].
pub(crate) fn rope(x: &Tensor, rotation: &Rotation, heads: usize) -> Result<Tensor> {
    let (rows, columns) = x.dims2()?;
    let half = columns / heads / 2;
    let (mut cos, mut sin) = (Vec::new(), Vec::new());
    for &position in rotation.positions.iter() {
        cos.extend_from_slice(rotation.table.cos(position as usize));
        sin.extend_from_slice(rotation.table.sin(position as usize));
    }
    let cos = Tensor::from_vec(cos, (rows, 1, half), x.device())?;
    let sin = Tensor::from_vec(sin, (rows, 1, half), x.device())?;
    let x = x.reshape((rows, heads, 2 * half))?;
    let (x1, x2) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
    let y1 = (x1.broadcast_mul(&cos)? - x2.broadcast_mul(&sin)?)?;
    let y2 = (x2.broadcast_mul(&cos)? + x1.broadcast_mul(&sin)?)?;
    Tensor::cat(&[y1, y2], 2)?.reshape((rows, columns))
}

/// See [`super::swiglu`].
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    // x / (1 + e^-x); candle's sigmoid has no gradient on every device.
    (gate / (gate.neg()?.exp()? + 1.0)?)? * up
}

/// See [`super::attention`].
pub(crate) fn attention(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    lengths: &Arc<[usize]>,
    heads: usize,
    kv_heads: usize,
) -> Result<Tensor> {
    let (_, columns) = queries.dims2()?;
    let width = columns / heads;
    let mut outputs = Vec::with_capacity(lengths.len());
    let mut start = 0;
    for &length in lengths.iter() {
        let part = |t: &Tensor, heads: usize| {
            t.narrow(0, start, length)?
                .reshape((length, heads, width))?
                .transpose(0, 1)
        };
        let repeat = |t: Tensor| {
            t.unsqueeze(1)?
                .broadcast_as((kv_heads, heads / kv_heads, length, width))?
                .reshape((heads, length, width))
        };
        let q = part(queries, heads)?.contiguous()?;
        let (k, v) = (
            repeat(part(keys, kv_heads)?)?,
            repeat(part(values, kv_heads)?)?,
        );
        let scores = (q.matmul(&k.transpose(1, 2)?.contiguous()?)? / (width as f64).sqrt())?;
        let mask: Vec<f32> = (0..length * length)
            .map(|i| if i % length > i / length { -1e30 } else { 0.0 })
            .collect();
        let mask = Tensor::from_vec(mask, (1, length, length), queries.device())?;
        let scores = scores.broadcast_add(&mask)?;
        let max = scores.max_keepdim(D::Minus1)?.detach();
        let weights = scores.broadcast_sub(&max)?.exp()?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
        outputs.push(
            weights
                .matmul(&v)?
                .transpose(0, 1)?
                .reshape((length, columns))?,
        );
        start += length;
    }
    Tensor::cat(&outputs, 0)
}

/// See [`super::head`].
pub(crate) fn head(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &Arc<[u32]>,
    inverse_temperature: f32,
) -> Result<Tensor> {
    let logits = (hidden.matmul(weight)? * f64::from(inverse_temperature))?;
    let max = logits.max_keepdim(D::Minus1)?.detach();
    let shifted = logits.broadcast_sub(&max)?;
    let log_probs = shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(D::Minus1)?.log()?)?;
    let index = Tensor::from_slice(targets, (targets.len(), 1), hidden.device())?;
    let picked = log_probs.gather(&index, 1)?.squeeze(1)?;
    let entropies = (log_probs.exp()? * &log_probs)?.sum(D::Minus1)?.neg()?;
    Tensor::stack(&[picked, entropies], 0)
}
