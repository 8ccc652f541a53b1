//! Derivative of causal attention over one whole sequence. The weights are
//! computed again from queries and keys instead of being kept: they would need
//! length² numbers. Sums over query rows run in ascending order of the rows.

use super::attention::{BLOCK, KeyValues, Tiling, Weights, at, mix, products, softmax_weights};
use super::{LANES, Lanes, fused_row, vectorised};

/// One sequence from its first position on: rows of heads · width numbers.
#[derive(Clone, Copy)]
pub(crate) struct Sequence<'a> {
    pub(crate) queries: &'a [f32],
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    /// What the forward pass gave.
    pub(crate) output: &'a [f32],
    /// Derivative of the loss by `output`.
    pub(crate) grad: &'a [f32],
}

/// Derivatives by queries, keys and values, to be written.
pub(crate) struct SequenceGradients<'a> {
    pub(crate) queries: &'a mut [f32],
    pub(crate) keys: &'a mut [f32],
    pub(crate) values: &'a mut [f32],
}

/// Buffers of one key head.
struct HeadBuffers {
    /// `[length][padded]`
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Softmax weights and the derivative by the scores of one tile.
    weights: Vec<f32>,
    scores: Vec<f32>,
}

/// Back-propagates `sequence.grad` through [`super::attention::attend`].
pub(crate) fn attend_backward(
    sequence: Sequence<'_>,
    heads: usize,
    kv_heads: usize,
    width: usize,
    gradients: SequenceGradients<'_>,
) {
    let mut kv = KeyValues::new(kv_heads, width);
    kv.append(sequence.keys, sequence.values);
    // Values across and keys along: serves ∂weights and ∂queries with the same kernels.
    let mut swapped = KeyValues::new(kv_heads, width);
    swapped.append(sequence.values, sequence.keys);
    let tiling = Tiling {
        heads,
        group: heads / kv_heads,
        width,
    };
    let length = kv.length();
    let pairs = length * tiling.group;
    let padded = kv.padded();
    let longest = length.next_multiple_of(BLOCK);
    let mut buffers = HeadBuffers {
        keys: vec![0.0; length * padded],
        values: vec![0.0; length * padded],
        weights: vec![0.0; 4 * longest],
        scores: vec![0.0; 4 * longest],
    };
    for head in 0..kv_heads {
        buffers.keys.fill(0.0);
        buffers.values.fill(0.0);
        vectorised(
            #[inline(always)]
            || {
                let mut pair = 0;
                while pair < pairs {
                    let left = pairs - pair;
                    let both = (&kv, &swapped);
                    let at = (head, pair);
                    let grad = &mut *gradients.queries;
                    pair += if left >= 4 {
                        tile::<4>(sequence, tiling, at, both, &mut buffers, grad)
                    } else if left >= 2 {
                        tile::<2>(sequence, tiling, at, both, &mut buffers, grad)
                    } else {
                        tile::<1>(sequence, tiling, at, both, &mut buffers, grad)
                    };
                }
            },
        );
        for (from, to) in [
            (&buffers.keys, &mut *gradients.keys),
            (&buffers.values, &mut *gradients.values),
        ] {
            let rows = from
                .chunks_exact(padded)
                .zip(to.chunks_exact_mut(kv_heads * width));
            for (from, to) in rows {
                to[head * width..(head + 1) * width].copy_from_slice(&from[..width]);
            }
        }
    }
}

#[inline(always)]
fn tile<const R: usize>(
    sequence: Sequence<'_>,
    tiling: Tiling,
    (head, pair): (usize, usize),
    (kv, swapped): (&KeyValues, &KeyValues),
    buffers: &mut HeadBuffers,
    grad_queries: &mut [f32],
) -> usize {
    let width = tiling.width;
    let scale = 1.0 / (width as f32).sqrt();
    let mut positions = [0; R];
    for (r, position) in positions.iter_mut().enumerate() {
        *position = tiling.place(head, pair + r).0;
    }
    let keys = positions[R - 1] + 1;
    let stride = keys.next_multiple_of(BLOCK);
    let mut vectors = [[[0.0; R]; 256]; 2];
    let [queries, grads] = &mut vectors;
    let (queries, grads) = (&mut queries[..width], &mut grads[..width]);
    tiling.gather(sequence.queries, head, pair, scale, queries);
    tiling.gather(sequence.grad, head, pair, 1.0, grads);

    let mut weights = Weights {
        data: &mut buffers.weights[..R * stride],
        stride,
    };
    let sums = softmax_weights(queries, &positions, kv, head, &mut weights);
    let mut scores = Weights {
        data: &mut buffers.scores[..R * stride],
        stride,
    };
    products(grads, swapped, head, &mut scores);
    for (r, sum) in sums.into_iter().enumerate() {
        let start = tiling.place(head, pair + r).1;
        let columns = start..start + width;
        // Σ_j weight_j · ∂weight_j = ∂output · output
        let shared = super::dot(&sequence.grad[columns.clone()], &sequence.output[columns]);
        let inverse = 1.0 / sum;
        for (weights, scores) in weights.row(r).iter_mut().zip(scores.row(r)) {
            for lane in 0..LANES {
                weights[lane] *= inverse;
                scores[lane] = weights[lane] * (scores[lane] - shared);
            }
        }
    }
    let mut column = 0;
    while column < width {
        if kv.padded() - column >= 2 * LANES {
            const C: usize = 2;
            let mixed = mix::<R, C>(&scores, keys, swapped, head, column);
            write_rows(&mixed, scale, tiling, (head, pair), column, grad_queries);
            spread::<R, C>(
                &scores,
                keys,
                queries,
                column,
                kv.padded(),
                &mut buffers.keys,
            );
            spread::<R, C>(
                &weights,
                keys,
                grads,
                column,
                kv.padded(),
                &mut buffers.values,
            );
            column += C * LANES;
        } else {
            const C: usize = 1;
            let mixed = mix::<R, C>(&scores, keys, swapped, head, column);
            write_rows(&mixed, scale, tiling, (head, pair), column, grad_queries);
            spread::<R, C>(
                &scores,
                keys,
                queries,
                column,
                kv.padded(),
                &mut buffers.keys,
            );
            spread::<R, C>(
                &weights,
                keys,
                grads,
                column,
                kv.padded(),
                &mut buffers.values,
            );
            column += C * LANES;
        }
    }
    R
}

/// target_j += Σ_r weights\[r\]\[j\] · vectors\[r\] for `C` registers from `column` on.
#[inline(always)]
fn spread<const R: usize, const C: usize>(
    weights: &Weights<'_>,
    keys: usize,
    vectors: &[[f32; R]],
    column: usize,
    padded: usize,
    target: &mut [f32],
) {
    let mut rows = [[[0.0; LANES]; C]; R];
    for (place, vector) in vectors[column..].iter().enumerate().take(C * LANES) {
        for r in 0..R {
            rows[r][place / LANES][place % LANES] = vector[r];
        }
    }
    for (block, lines) in target.chunks_mut(BLOCK * padded).enumerate() {
        if block * BLOCK >= keys {
            break;
        }
        let weights = weights.block::<R>(block);
        let count = BLOCK.min(keys - block * BLOCK);
        for (j, line) in lines.chunks_exact_mut(padded).enumerate().take(count) {
            let line = &mut line[column..column + C * LANES];
            let mut sum = *super::lines::<C>(line);
            let weights = at(&weights, j);
            fused_row(weights[0], &rows[0], &mut sum);
            if R > 1 {
                fused_row(weights[1], &rows[1], &mut sum);
            }
            if R > 2 {
                fused_row(weights[2], &rows[2], &mut sum);
            }
            if R > 3 {
                fused_row(weights[3], &rows[3], &mut sum);
            }
            line.copy_from_slice(sum.as_flattened());
        }
    }
}

#[inline(always)]
fn write_rows<const R: usize, const C: usize>(
    mixed: &[[Lanes; C]; R],
    scale: f32,
    tiling: Tiling,
    (head, pair): (usize, usize),
    column: usize,
    output: &mut [f32],
) {
    for (r, mixed) in mixed.iter().enumerate() {
        let start = tiling.place(head, pair + r).1;
        let end = tiling.width.min(column + C * LANES);
        for (y, x) in output[start + column..start + end]
            .iter_mut()
            .zip(mixed.as_flattened())
        {
            *y = x * scale;
        }
    }
}
