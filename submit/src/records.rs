//! The records inside a part, as JSON: episodes, log-probs, training
//! sequences, minibatches. Each stands on its own, one line of `--jsonl` each,
//! with every per-token stream beside the ids it belongs to.

use crate::Result;
use crate::runs::{RunView, part_id};
use agentgym_jobs::episode::{Episode, Episodes, Sequence};
use agentgym_jobs::pipeline::Stage;
use agentgym_jobs::records::{Batch, BatchEpisode, EpisodeLogProbs, LogProbs};
use agentgym_storage::{InputRef, Manifest, Slot};
use serde_json::{Value, json};

/// Which records are wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter {
    /// Only this group.
    pub group: Option<u32>,
    /// Only this sample of each group.
    pub sample: Option<u32>,
}

impl Filter {
    fn keeps(&self, group: u32, sample: u32) -> bool {
        self.group.is_none_or(|g| g == group) && self.sample.is_none_or(|s| s == sample)
    }
}

/// What a part holds, typed.
#[derive(Debug)]
pub enum Content {
    /// Rollout and evaluation.
    Episodes(Vec<Episode>),
    /// Log-probs beside the episodes they were computed for.
    LogProbs(Vec<(Episode, EpisodeLogProbs)>),
    /// The batch, by slot.
    Batch(Vec<(usize, BatchEpisode)>),
    /// The update's minibatches, as the worker wrote them.
    Update(Value),
    /// A stage without records.
    Nothing,
}

/// Reads and verifies what a committed part holds.
pub async fn content(view: &RunView, manifest: &Manifest, filter: Filter) -> Result<Content> {
    let stage = part_id(&manifest.slot()).map(|id| id.stage);
    Ok(match stage {
        Some(Stage::Rollout | Stage::Evaluate | Stage::EvaluateInit) => {
            let mut episodes = episodes(view, manifest).await?;
            episodes.retain(|e| filter.keeps(e.group, e.sample));
            Content::Episodes(episodes)
        }
        Some(Stage::LogProbs) => {
            let LogProbs::V1(rows) = view.payload(manifest, "log_probs.bin").await?;
            let rollout = input(view, manifest, "rollout").await?;
            let both = episodes(view, &rollout).await?.into_iter().zip(rows);
            let kept = both.filter(|(e, _)| filter.keeps(e.group, e.sample));
            Content::LogProbs(kept.collect())
        }
        Some(Stage::Advantage) => {
            let Batch::V1(slots) = view.payload(manifest, "batch.bin").await?;
            let filled = slots
                .into_iter()
                .enumerate()
                .filter_map(|(i, e)| Some((i, e?)));
            let kept = filled.filter(|(_, e)| filter.keeps(e.group, e.sample));
            Content::Batch(kept.collect())
        }
        Some(Stage::Update) => Content::Update(view.json(manifest, "update.json").await?),
        _ => Content::Nothing,
    })
}

async fn episodes(view: &RunView, manifest: &Manifest) -> Result<Vec<Episode>> {
    let episodes: Episodes = view.payload(manifest, "episodes.bin").await?;
    let episodes = episodes.into_vec();
    for episode in &episodes {
        episode
            .check()
            .map_err(|message| agentgym_jobs::Error::Payload {
                what: "episodes.bin".into(),
                message,
            })?;
    }
    Ok(episodes)
}

/// The commit behind a named input.
pub async fn input(view: &RunView, manifest: &Manifest, name: &str) -> Result<Manifest> {
    let found = manifest.inputs.iter().find(|i| i.name == name);
    let input = found.ok_or_else(|| agentgym_jobs::Error::Payload {
        what: format!("commit {}/{}", manifest.iteration, manifest.stage),
        message: format!("names no input `{name}`"),
    })?;
    input_commit(view, manifest, input).await
}

/// The commit behind an input.
pub async fn input_commit(
    view: &RunView,
    manifest: &Manifest,
    input: &InputRef,
) -> Result<Manifest> {
    let slot = Slot {
        run: manifest.run.clone(),
        iteration: input.iteration,
        stage: input.stage.clone(),
        part: input.part,
    };
    let commit = view.store.manifest(&slot).await?;
    commit.ok_or_else(|| {
        crate::Error::Missing(format!(
            "the commit {}/{}/{}, an input of {}/{}/{}, is gone from the store",
            input.iteration,
            input.stage,
            input.part,
            manifest.iteration,
            manifest.stage,
            manifest.part
        ))
    })
}

impl Content {
    /// One JSON value per record.
    pub fn to_json(&self) -> Vec<Value> {
        let mut number = 0;
        match self {
            Self::Episodes(list) => list
                .iter()
                .map(|e| {
                    let sequences: Vec<Value> = e
                        .sequences
                        .iter()
                        .map(|s| sequence_json(s, &mut number))
                        .collect();
                    episode_json(e, sequences)
                })
                .collect(),
            Self::LogProbs(list) => list
                .iter()
                .map(|(e, row)| {
                    let sequences: Vec<Value> = e
                        .sequences
                        .iter()
                        .enumerate()
                        .map(|(i, s)| {
                            let mut out = sequence_json(s, &mut number);
                            out["old_log_probs"] = json!(row.old.get(i));
                            out["entropies"] = json!(row.entropies.get(i));
                            out["ref_log_probs"] =
                                json!(row.reference.as_ref().and_then(|r| r.get(i)));
                            out
                        })
                        .collect();
                    episode_json(e, sequences)
                })
                .collect(),
            Self::Batch(list) => list
                .iter()
                .map(|(slot, e)| batch_json(*slot, e, &mut number))
                .collect(),
            Self::Update(update) => match update.get("minibatches").and_then(Value::as_array) {
                Some(minibatches) => minibatches.clone(),
                None => vec![update.clone()],
            },
            Self::Nothing => Vec::new(),
        }
    }
}

/// Ids and masks of one sequence. Training packs sequences without padding:
/// every token attends, positions restart, and the sequence id keeps
/// attention inside.
fn sequence_json(sequence: &Sequence, number: &mut usize) -> Value {
    let n = sequence.token_ids.len();
    let out = json!({
        "token_ids": sequence.token_ids,
        "attention_mask": vec![1; n],
        "loss_mask": bits(&sequence.loss_mask),
        "position_ids": (0..n).collect::<Vec<_>>(),
        "sequence_ids": vec![*number; n],
        "sampled_log_probs": sequence.sampled_log_probs,
    });
    *number += 1;
    out
}

fn bits(mask: &[bool]) -> Vec<u8> {
    mask.iter().map(|m| u8::from(*m)).collect()
}

fn episode_json(episode: &Episode, sequences: Vec<Value>) -> Value {
    json!({
        "task": episode.task.to_string(),
        "env": episode.task.env,
        "item_id": episode.task.item_id,
        "group": episode.group,
        "sample": episode.sample,
        "outcome": episode.outcome,
        "success": episode.success,
        "reward": episode.reward,
        "fault": episode.fault,
        "prompt": episode.prompt,
        "turns": episode.turns,
        "sequences": sequences,
    })
}

/// A slot of the batch with every stream an update reads.
pub fn batch_json(slot: usize, episode: &BatchEpisode, number: &mut usize) -> Value {
    let sequences: Vec<Value> = episode
        .sequences
        .iter()
        .map(|s| {
            let mut out = sequence_json(&s.sequence, number);
            out["old_log_probs"] = json!(s.old_log_probs);
            out["ref_log_probs"] = json!(s.ref_log_probs);
            out["advantages"] = json!(s.advantages);
            out
        })
        .collect();
    json!({
        "slot": slot,
        "task": episode.task.to_string(),
        "env": episode.task.env,
        "item_id": episode.task.item_id,
        "group": episode.group,
        "sample": episode.sample,
        "outcome": episode.outcome,
        "success": episode.success,
        "reward": episode.reward,
        "advantage": episode.advantage,
        "sequences": sequences,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::episode::{Outcome, Task};
    use agentgym_jobs::records::BatchSequence;

    #[test]
    fn every_stream_has_one_entry_per_token() {
        let sequence = Sequence {
            token_ids: vec![7, 8, 9],
            loss_mask: vec![false, true, true],
            sampled_log_probs: vec![0.0, -0.5, -0.25],
        };
        let one = BatchSequence {
            sequence,
            old_log_probs: vec![0.0, -0.5, -0.25],
            ref_log_probs: None,
            advantages: vec![0.0, 1.5, 1.5],
        };
        let episode = BatchEpisode {
            task: Task {
                env: "textcraft".into(),
                item_id: 4,
            },
            group: 1,
            sample: 0,
            outcome: Outcome::Solved,
            success: true,
            reward: 1.0,
            advantage: 1.5,
            sequences: vec![one.clone(), one],
        };
        let record = batch_json(8, &episode, &mut 5);
        for sequence in record["sequences"].as_array().unwrap() {
            for (name, stream) in sequence.as_object().unwrap() {
                if name != "ref_log_probs" {
                    assert_eq!(stream.as_array().map(Vec::len), Some(3), "{name}");
                }
            }
        }
        assert_eq!(record["sequences"][0]["sequence_ids"], json!([5, 5, 5]));
        assert_eq!(record["sequences"][1]["sequence_ids"], json!([6, 6, 6]));
        assert_eq!(record["sequences"][1]["position_ids"], json!([0, 1, 2]));
        assert_eq!(record["sequences"][1]["loss_mask"], json!([0, 1, 1]));
        assert_eq!(record["task"], "textcraft_4");
        assert_eq!(record["outcome"], "solved");
    }
}
