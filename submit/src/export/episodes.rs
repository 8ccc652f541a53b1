//! `episodes.jsonl`: every episode of an iteration's rollouts, including those not trained on, with
//! everything that its advantages are computed from; and `trajectories.jsonl`, the sequences that are.

use crate::Result;
use crate::credit::iteration;
use crate::records::{EpisodeRecord, SequenceRecord, SlotHead, SlotRecord};
use crate::runs::RunView;
use crate::text::plain_zeros;
use agentgym_jobs::episode::{ContextSummary, Turn};
use agentgym_record::credit::{Standing, importance_weights, standings};
use agentgym_record::iteration::Slot;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A line of `episodes.jsonl`.
#[derive(Serialize)]
struct EpisodeLine {
    #[serde(flatten)]
    episode: EpisodeRecord,
    #[serde(flatten)]
    standing: Standing,
    slot: Option<usize>,
    summaries: Vec<ContextSummary>,
}

/// A line of `trajectories.jsonl`.
#[derive(Serialize)]
struct SequenceLine {
    #[serde(flatten)]
    slot: SlotHead,
    sequence: usize,
    #[serde(flatten)]
    streams: SequenceRecord,
    #[serde(flatten)]
    played: Option<PlayedSequence>,
}

/// What only the rollout says of a sequence.
#[derive(Clone, Serialize)]
struct PlayedSequence {
    turns: Vec<Turn>,
    #[serde(skip_serializing_if = "Option::is_none")]
    importance_weights: Option<Vec<f64>>,
}

/// An iteration's episodes as the advantage computation sees them.
pub(super) struct Played {
    /// One line per episode, by group and sample.
    pub(super) lines: Vec<Value>,
    /// The groups chosen for the batch, in the order of their slots, if the plan selects groups.
    pub(super) selected: Option<Vec<u32>>,
    /// By group, sample and sequence.
    sequences: BTreeMap<(u32, u32, usize), PlayedSequence>,
}

impl Played {
    pub(super) async fn read(view: &RunView, n: u32, slots: &[Slot]) -> Result<Self> {
        let iteration = iteration(view, n).await?;
        let standings = standings(&view.plan, &iteration)?;
        let slots: BTreeMap<(u32, u32), usize> = slots
            .iter()
            .map(|s| ((s.episode.group, s.episode.sample), s.slot))
            .collect();
        let (mut lines, mut sequences, mut number) = (Vec::new(), BTreeMap::new(), 0);
        for (scored, standing) in iteration.episodes.iter().zip(standings) {
            let (e, streams) = (&scored.episode, &scored.streams);
            let weights = importance_weights(&view.plan, e, &streams.old)?;
            let mut episode = EpisodeRecord::scored(scored, &mut number);
            for (index, own) in episode.sequences.iter_mut().enumerate() {
                let here = e.turns.iter().filter(|t| t.sequence as usize == index);
                let played = PlayedSequence {
                    turns: here.cloned().collect(),
                    importance_weights: weights.as_ref().map(|all| all[index].clone()),
                };
                own.importance_weights
                    .clone_from(&played.importance_weights);
                sequences.insert((e.group, e.sample, index), played);
            }
            let line = EpisodeLine {
                episode,
                standing,
                slot: slots.get(&(e.group, e.sample)).copied(),
                summaries: e.summaries(),
            };
            lines.push(plain_zeros(json!(line)));
        }
        Ok(Self {
            lines,
            selected: iteration.given.selected,
            sequences,
        })
    }

    /// One line per sequence of the batch: the fields of the episode, then the streams.
    pub(super) fn trajectories(&self, slots: &[Slot]) -> Vec<Value> {
        let (mut lines, mut number) = (Vec::new(), 0);
        for slot in slots {
            let record = SlotRecord::of(slot, &mut number);
            let (group, sample) = (slot.episode.group, slot.episode.sample);
            for (sequence, streams) in record.sequences.into_iter().enumerate() {
                let line = SequenceLine {
                    slot: record.head.clone(),
                    sequence,
                    streams,
                    played: self.sequences.get(&(group, sample, sequence)).cloned(),
                };
                lines.push(plain_zeros(json!(line)));
            }
        }
        lines
    }
}
