//! Attention along one path, and its derivative. A key head and its query heads depend on no other,
//! so that the threads of a team may each take some.

use crate::batch::Batch;
use crate::cpu::network::Network;
use crate::cpu::tape::Attention;
use crate::kernels::attention::attend;
use crate::kernels::attention_backward::{
    AttentionGradients, AttentionRows, Segment, attend_backward,
};
use crate::kernels::key_values::KeyValues;
use crate::parallel;
use crate::spare::{room, zeros};
use std::borrow::Cow;

impl Network {
    /// Attention of every segment over the path before it and itself.
    pub(crate) fn attend_path(
        &self,
        batch: &Batch,
        queries: &[f32],
        keys: &[f32],
        values: &[f32],
    ) -> Vec<f32> {
        let parts = self.heads_apart();
        let [output] = joined(batch.ids.len(), parts, |part| {
            let [queries, keys, values] =
                [queries, keys, values].map(|all| part_of(all, batch.ids.len(), (part, parts)));
            let (heads, narrow) = (self.heads / parts, self.kv_heads / parts * self.width);
            let wide = heads * self.width;
            let mut output = zeros(queries.len());
            let mut path = KeyValues::new(self.kv_heads / parts, self.width);
            for segment in segments(batch) {
                let (first, Segment { past, rows }) = segment;
                path.truncate(past);
                let own = first * narrow..(first + rows) * narrow;
                path.append(&keys[own.clone()], &values[own]);
                let own = first * wide..(first + rows) * wide;
                attend(&queries[own.clone()], past, heads, &path, &mut output[own]);
            }
            [output]
        });
        output
    }

    /// The derivatives by queries, keys and values, given the one by the output.
    pub(crate) fn attention_backward(
        &self,
        batch: &Batch,
        attention: &Attention,
        grad: &[f32],
    ) -> [Vec<f32>; 3] {
        let segments: Vec<Segment> = segments(batch).map(|(_, segment)| segment).collect();
        let parts = self.heads_apart();
        joined(batch.ids.len(), parts, |part| {
            let own = |all| part_of(all, batch.ids.len(), (part, parts));
            let queries = own(&attention.queries);
            let [keys, values] = [&attention.keys, &attention.values].map(|all| own(all));
            let mut by_queries = zeros(queries.len());
            let [mut by_keys, mut by_values] = [(); 2].map(|()| zeros(keys.len()));
            attend_backward(
                &segments,
                AttentionRows {
                    queries: &queries,
                    keys: &keys,
                    values: &values,
                    output: &own(&attention.mixed),
                    grad: &own(grad),
                },
                (self.heads / parts, self.kv_heads / parts, self.width),
                AttentionGradients {
                    queries: &mut by_queries,
                    keys: &mut by_keys,
                    values: &mut by_values,
                },
            );
            [by_queries, by_keys, by_values]
        })
    }

    /// How many parts of the heads are computed apart: one for a single thread.
    fn heads_apart(&self) -> usize {
        match parallel::team() {
            1 => 1,
            _ => self.kv_heads,
        }
    }
}

/// The first row of each segment, and the segment.
fn segments(batch: &Batch) -> impl Iterator<Item = (usize, Segment)> {
    let mut first = 0;
    batch.lengths.iter().map(move |&rows| {
        let past = batch.past(first);
        first += rows;
        (first - rows, Segment { past, rows })
    })
}

/// One of the equal parts into which each of the `rows` is cut.
fn part_of(all: &[f32], rows: usize, (part, parts): (usize, usize)) -> Cow<'_, [f32]> {
    if parts == 1 {
        return Cow::Borrowed(all);
    }
    let width = all.len() / rows / parts;
    let mut own = room(rows * width);
    for row in all.chunks_exact(width * parts) {
        own.extend_from_slice(&row[part * width..][..width]);
    }
    Cow::Owned(own)
}

/// The matrices of `rows` whose parts `work` computes, by the caller's team.
fn joined<const N: usize>(
    rows: usize,
    parts: usize,
    work: impl Fn(usize) -> [Vec<f32>; N] + Sync + Send,
) -> [Vec<f32>; N] {
    if parts == 1 {
        return work(0);
    }
    let computed = parallel::divided((0..parts).collect(), work);
    std::array::from_fn(|number| {
        let width = computed[0][number].len() / rows;
        let mut all = room(rows * width * parts);
        for row in 0..rows {
            for part in &computed {
                all.extend_from_slice(&part[number][row * width..][..width]);
            }
        }
        all
    })
}
