//! `episodes.jsonl`: every episode of an iteration's rollouts, including those not trained on, with
//! everything that its advantages are computed from.

use super::folder::unsaid;
use crate::Result;
use crate::credit::selected;
use crate::records::{Content, Filter, ScoredEpisode, Slot, content, has, input, scored_json};
use crate::runs::RunView;
use crate::text::plain_zeros;
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_jobs::pipeline::Stage;
use agentgym_worker::stages::export::{importance_weights, standings};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// An iteration's episodes as the advantage computation sees them.
pub(super) struct Played {
    /// One line per episode, by group and sample.
    pub(super) lines: Vec<Value>,
    /// The groups chosen for the batch, in the order of their slots, if the plan selects groups.
    pub(super) selected: Option<Vec<u32>>,
    /// Further fields for lines of the batch, by group, sample and sequence.
    beside: BTreeMap<(u32, u32, usize), Map<String, Value>>,
}

impl Played {
    pub(super) async fn read(view: &RunView, n: u32, slots: &[Slot]) -> Result<Self> {
        let (mut all, mut greedy): (Vec<ScoredEpisode>, Vec<Episode>) = Default::default();
        for id in view.stage_parts(n, Stage::LogProbs)? {
            let manifest = view.committed(id).await?;
            if let Content::LogProbs(own) = content(view, &manifest, Filter::default()).await? {
                all.extend(own);
            }
            let rollout = input(view, &manifest, "rollout").await?;
            if has(&rollout, artifact_names::BASELINES) {
                let own: Episodes = view.payload(&rollout, artifact_names::BASELINES).await?;
                greedy.extend(own.into_vec());
            }
        }
        all.sort_by_key(|s| (s.episode.group, s.episode.sample));
        let selected = selected(view, n).await?;
        let episodes: Vec<&Episode> = all.iter().map(|s| &s.episode).collect();
        let standings =
            standings(&view.plan, &episodes, &greedy, selected.clone()).map_err(unsaid)?;
        let slots: BTreeMap<(u32, u32), usize> = slots
            .iter()
            .map(|s| ((s.episode.group, s.episode.sample), s.slot))
            .collect();
        let (mut lines, mut beside, mut number) = (Vec::new(), BTreeMap::new(), 0);
        for (scored, standing) in all.iter().zip(standings) {
            let (episode, streams) = (&scored.episode, &scored.streams);
            let place = (episode.group, episode.sample);
            let mut line = scored_json(scored, &mut number);
            let standing = json!(standing);
            for (name, value) in standing.as_object().into_iter().flatten() {
                line[name] = value.clone();
            }
            line["slot"] = json!(slots.get(&place));
            line["summaries"] = json!(episode.summaries());
            let weights = importance_weights(&view.plan, episode, &streams.old).map_err(unsaid)?;
            for index in 0..episode.sequences.len() {
                let own = &mut line["sequences"][index];
                if let Some(weights) = &weights {
                    own["importance_weights"] = json!(weights[index]);
                }
                let streams = ["log_kept_mass", "importance_weights"];
                let streams = streams.map(|name| (name, own.get(name).cloned()));
                let here = episode
                    .turns
                    .iter()
                    .filter(|t| t.sequence as usize == index);
                let mut fields =
                    Map::from_iter([("turns".to_owned(), json!(here.collect::<Vec<_>>()))]);
                for (name, stream) in streams {
                    fields.extend(stream.map(|stream| (name.to_owned(), stream)));
                }
                beside.insert((place.0, place.1, index), fields);
            }
            lines.push(plain_zeros(line));
        }
        Ok(Self {
            lines,
            selected,
            beside,
        })
    }

    /// Further fields for one sequence of the batch: its turns and streams.
    pub(super) fn beside(&self, slot: &Slot, sequence: usize) -> Option<&Map<String, Value>> {
        let (group, sample) = (slot.episode.group, slot.episode.sample);
        self.beside.get(&(group, sample, sequence))
    }
}
