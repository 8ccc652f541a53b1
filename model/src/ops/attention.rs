//! Causal grouped-query attention inside each sequence of a packed batch.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};

use super::{output, slice, tensor_like, with_data};
use crate::kernels::attention::{KeyValues, attend};
use crate::kernels::attention_backward::{Sequence, SequenceGradients, attend_backward};

struct Attention {
    /// Rows of each sequence, in packed order.
    lengths: Arc<[usize]>,
    heads: usize,
    kv_heads: usize,
}

/// Attention of `queries` \[rows, heads · width\] over `keys` and `values` \[rows,
/// kv_heads · width\]; sequences of `lengths` rows never see each other.
pub(crate) fn attention(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    lengths: &Arc<[usize]>,
    heads: usize,
    kv_heads: usize,
) -> Result<Tensor> {
    if !queries.device().is_cpu() {
        return super::composed::attention(queries, keys, values, lengths, heads, kv_heads);
    }
    queries.apply_op3(
        keys,
        values,
        Attention {
            lengths: Arc::clone(lengths),
            heads,
            kv_heads,
        },
    )
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        queries: &CpuStorage,
        queries_layout: &Layout,
        keys: &CpuStorage,
        keys_layout: &Layout,
        values: &CpuStorage,
        values_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (mut queries, mut keys, mut values) = (
            slice(queries, queries_layout)?,
            slice(keys, keys_layout)?,
            slice(values, values_layout)?,
        );
        let row_width = queries_layout.shape().dims2()?.1;
        let width = row_width / self.heads;
        let mut outputs = vec![0.0; queries.len()];
        let mut rest = outputs.as_mut_slice();
        for &length in self.lengths.iter() {
            let mut kv = KeyValues::new(self.kv_heads, width);
            kv.append(
                take(&mut keys, length * self.kv_heads * width),
                take(&mut values, length * self.kv_heads * width),
            );
            let own = rest
                .split_off_mut(..length * row_width)
                .expect("lengths sum to the rows");
            attend(
                take(&mut queries, length * row_width),
                0,
                self.heads,
                &kv,
                own,
            );
        }
        output(outputs, queries_layout.shape())
    }

    fn bwd(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        result: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let width = queries.dims2()?.1 / self.heads;
        let mut grad_queries = vec![0.0; queries.elem_count()];
        let mut grad_keys = vec![0.0; keys.elem_count()];
        let mut grad_values = vec![0.0; values.elem_count()];
        with_data(queries, |q| {
            with_data(keys, |k| {
                with_data(values, |v| {
                    with_data(result, |o| {
                        with_data(grad, |g| {
                            let mut row = 0;
                            for &length in self.lengths.iter() {
                                let end = row + length;
                                let wide = row * self.heads * width..end * self.heads * width;
                                let narrow =
                                    row * self.kv_heads * width..end * self.kv_heads * width;
                                let sequence = Sequence {
                                    queries: &q[wide.clone()],
                                    keys: &k[narrow.clone()],
                                    values: &v[narrow.clone()],
                                    output: &o[wide.clone()],
                                    grad: &g[wide.clone()],
                                };
                                let gradients = SequenceGradients {
                                    queries: &mut grad_queries[wide],
                                    keys: &mut grad_keys[narrow.clone()],
                                    values: &mut grad_values[narrow],
                                };
                                attend_backward(
                                    sequence,
                                    self.heads,
                                    self.kv_heads,
                                    width,
                                    gradients,
                                );
                                row = end;
                            }
                            Ok(())
                        })
                    })
                })
            })
        })?;
        Ok((
            Some(tensor_like(grad_queries, queries)?),
            Some(tensor_like(grad_keys, keys)?),
            Some(tensor_like(grad_values, values)?),
        ))
    }
}

/// Splits the first `count` numbers off a slice.
fn take<'a>(rest: &mut &'a [f32], count: usize) -> &'a [f32] {
    rest.split_off(..count).expect("lengths sum to the rows")
}
