//! Input and output of a forward pass.

/// New tokens of several sequences, packed one after another in segments.
///
/// Where a segment's first tokens are in no cache, they are in the segments before it: it continues
/// their path, cut at its own first position. Segments that begin at position 0 are sequences of
/// their own.
#[derive(Clone)]
pub(crate) struct Batch {
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// Tokens of each segment.
    pub(crate) lengths: Vec<usize>,
}

impl Batch {
    /// Packs segments given as (tokens before it, its ids).
    pub(crate) fn new<'a>(segments: impl IntoIterator<Item = (usize, &'a [u32])>) -> Self {
        let (mut ids, mut positions, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for (past, segment) in segments {
            ids.extend_from_slice(segment);
            positions.extend((past..past + segment.len()).map(|position| position as u32));
            lengths.push(segment.len());
        }
        Batch {
            ids,
            positions,
            lengths,
        }
    }

    /// Tokens before the segment whose first row is `row`.
    pub(crate) fn past(&self, row: usize) -> usize {
        self.positions
            .get(row)
            .map_or(0, |position| *position as usize)
    }

    /// The batch, padded to `rows` rows with sequences of one token each.
    pub(crate) fn padded(&self, rows: usize) -> Self {
        let mut batch = self.clone();
        let added = rows - self.ids.len();
        batch.lengths.extend(std::iter::repeat_n(1, added));
        batch.ids.resize(rows, 0);
        batch.positions.resize(rows, 0);
        batch
    }
}

/// Log-probabilities and entropies of the predicted tokens, in packed order.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) log_probs: Vec<f32>,
    pub(crate) entropies: Vec<f32>,
}

/// One sequence to score.
#[derive(Debug, Clone, Copy)]
pub struct ScoreRequest<'a> {
    /// The whole sequence.
    pub token_ids: &'a [u32],
    /// Which tokens are scored; the first token cannot be.
    pub loss_mask: &'a [bool],
}

impl<'a> ScoreRequest<'a> {
    /// The tokens that its scores depend on: those before its last scored one.
    pub fn path(&self) -> &'a [u32] {
        let last = self.loss_mask.iter().rposition(|&wanted| wanted);
        &self.token_ids[..last.unwrap_or(0)]
    }
}
