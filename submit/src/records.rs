//! The records inside a part, as JSON: episodes, log-probs, training sequences, minibatches. Each
//! is self-contained and one line of `--jsonl`, with every per-token stream next to its token ids.

use crate::Result;
use crate::runs::{RunView, part_id};
use crate::text::plain_zeros;
use agentgym_envs::spec::EnvSpec;
use agentgym_jobs::artifact_names;
use agentgym_jobs::episode::{AVAILABLE_ACTIONS, Episode, Episodes, OPENING, Sequence};
use agentgym_jobs::pipeline::Records;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{
    Batch, BatchEpisode, CriticSequence, CriticTargets, EpisodeLogProbs, LogProbs, Values,
};
use agentgym_jobs::trajectory::Lineage;
use agentgym_record::documents::{CriticSteps, UpdateSteps};
use agentgym_storage::{InputRef, Manifest};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Which records to read.
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

/// An episode with its recomputed streams.
#[derive(Debug)]
pub struct ScoredEpisode {
    /// The episode as played.
    pub episode: Episode,
    /// Log-probs under policy and reference.
    pub streams: EpisodeLogProbs,
    /// The critic's values, by sequence and token, if the run has a critic.
    pub values: Option<Vec<Vec<f32>>>,
}

/// A filled slot of the batch.
#[derive(Debug)]
pub struct Slot {
    /// draw × n + sample.
    pub slot: usize,
    /// What the policy trains on.
    pub episode: BatchEpisode,
    /// What the critic trains on, by sequence, if the run has a critic.
    pub targets: Option<Vec<CriticSequence>>,
}

/// The typed content of a part.
#[derive(Debug)]
pub enum Content {
    /// Episodes of a rollout or an evaluation.
    Episodes(Vec<Episode>),
    /// The episodes that an AgentEvol iteration trains on, and where each was played.
    Kept(Vec<(Lineage, Episode)>),
    /// Log-probs with the episodes they were computed for.
    LogProbs(Vec<ScoredEpisode>),
    /// The batch, by slot.
    Batch(Vec<Slot>),
    /// The minibatches of an update, of the policy or of the critic.
    Update(Vec<Value>),
    /// A stage without records.
    Nothing,
}

/// Reads and verifies the content of a committed part.
pub async fn content(view: &RunView, manifest: &Manifest, filter: Filter) -> Result<Content> {
    let stage = part_id(&manifest.slot()).map(|id| id.stage);
    let records = stage.map_or(Records::Nothing, |stage| stage.facts().records);
    Ok(match records {
        Records::Episodes => {
            let mut episodes = episodes(view, manifest).await?;
            episodes.retain(|e| filter.keeps(e.group, e.sample));
            list_actions(&view.plan, &mut episodes);
            Content::Episodes(episodes)
        }
        Records::Kept => {
            let mut kept = kept(view, manifest).await?;
            kept.retain(|(_, e)| filter.keeps(e.group, e.sample));
            Content::Kept(kept)
        }
        Records::LogProbs => {
            let LogProbs::V1(rows) = view.payload(manifest, artifact_names::LOG_PROBS).await?;
            let rollout = input(view, manifest, "rollout").await?;
            let values = match has(manifest, artifact_names::VALUES) {
                true => {
                    let Values::V1(values) = view.payload(manifest, artifact_names::VALUES).await?;
                    values.into_iter().map(Some).collect()
                }
                false => vec![None; rows.len()],
            };
            let episodes = episodes(view, &rollout).await?.into_iter();
            let all = episodes.zip(rows).zip(values);
            let all = all.map(|((episode, streams), values)| ScoredEpisode {
                episode,
                streams,
                values,
            });
            let kept = all.filter(|s| filter.keeps(s.episode.group, s.episode.sample));
            Content::LogProbs(kept.collect())
        }
        Records::Batch => {
            let mut slots = slots(view, manifest).await?;
            slots.retain(|s| filter.keeps(s.episode.group, s.episode.sample));
            Content::Batch(slots)
        }
        // A fork takes over what it reads, which steps are not part of.
        Records::Steps(file) if manifest.origin.is_some() && !has(manifest, file) => {
            Content::Nothing
        }
        Records::Steps(artifact_names::CRITIC_UPDATE) => {
            let steps: CriticSteps = view.document(manifest).await?;
            minibatches(&steps.minibatches)
        }
        Records::Steps(_) => {
            let steps: UpdateSteps = view.document(manifest).await?;
            minibatches(&steps.minibatches)
        }
        Records::Nothing => Content::Nothing,
    })
}

fn minibatches(steps: &[impl Serialize]) -> Content {
    Content::Update(steps.iter().map(|step| plain_zeros(json!(step))).collect())
}

/// The trajectories of a filter's commit with their lineage.
async fn kept(view: &RunView, manifest: &Manifest) -> Result<Vec<(Lineage, Episode)>> {
    let bad = |message: String| agentgym_jobs::Error::Payload {
        what: artifact_names::LINEAGE.into(),
        message,
    };
    let lineage: Vec<Lineage> = view.document(manifest).await?;
    let episodes = episodes(view, manifest).await?;
    if lineage.len() != episodes.len() {
        let (rows, episodes) = (lineage.len(), episodes.len());
        return Err(bad(format!("has {rows} rows for {episodes} episodes")).into());
    }
    Ok(lineage.into_iter().zip(episodes).collect())
}

/// Adds the possible actions if the observations list them.
pub(crate) fn list_actions(plan: &Plan, episodes: &mut [Episode]) {
    let environments = plan.config.environments().into_iter();
    let specs: BTreeMap<String, &EnvSpec> = environments
        .filter_map(|(name, known)| Some((name, plan.config.spec(&known.task_name).ok()?)))
        .collect();
    for episode in episodes {
        let Some(spec) = specs.get(&episode.task.env) else {
            continue;
        };
        if !episode.available_actions().is_empty() {
            continue;
        }
        let before = std::iter::once(&episode.prompt)
            .chain(episode.turns.iter().map(|turn| &turn.observation));
        let listed: Vec<Option<Vec<String>>> = before
            .take(episode.turns.len())
            .map(|text| spec.actions.in_text(text))
            .collect();
        if listed.iter().any(Option::is_some) {
            let text = serde_json::json!(listed).to_string();
            episode.extra.push((AVAILABLE_ACTIONS.to_owned(), text));
        }
    }
}

/// Whether a commit has an output of this name.
pub(crate) fn has(manifest: &Manifest, name: &str) -> bool {
    manifest.outputs.iter().any(|output| output.name == name)
}

/// The filled slots of an iteration's batch, with the critic's targets.
pub async fn slots(view: &RunView, manifest: &Manifest) -> Result<Vec<Slot>> {
    let Batch::V1(batch) = view.payload(manifest, artifact_names::BATCH).await?;
    let mut targets = match has(manifest, artifact_names::TARGETS) {
        true => {
            let CriticTargets::V1(targets) =
                view.payload(manifest, artifact_names::TARGETS).await?;
            targets
        }
        false => Vec::new(),
    };
    targets.resize(batch.len(), None);
    let all = batch.into_iter().zip(targets).enumerate();
    let filled = all.filter_map(|(slot, (episode, targets))| {
        Some(Slot {
            slot,
            episode: episode?,
            targets,
        })
    });
    Ok(filled.collect())
}

/// The validated episodes of a commit.
pub async fn episodes(view: &RunView, manifest: &Manifest) -> Result<Vec<Episode>> {
    let episodes: Episodes = view.payload(manifest, artifact_names::EPISODES).await?;
    let episodes = episodes.into_vec();
    for episode in &episodes {
        episode
            .check()
            .map_err(|message| agentgym_jobs::Error::Payload {
                what: artifact_names::EPISODES.into(),
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
    let slot = agentgym_storage::PartKey {
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
    /// How many episodes there are, for stages that have some.
    pub(crate) fn episodes(&self) -> Option<usize> {
        match self {
            Self::Episodes(list) => Some(list.len()),
            Self::Kept(list) => Some(list.len()),
            Self::LogProbs(list) => Some(list.len()),
            Self::Batch(list) => Some(list.len()),
            Self::Update(_) | Self::Nothing => None,
        }
    }

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
            Self::Kept(list) => list
                .iter()
                .map(|(lineage, e)| {
                    let sequences = e.sequences.iter();
                    let sequences = sequences.map(|s| sequence_json(s, &mut number)).collect();
                    let mut record = episode_json(e, sequences);
                    record["lineage"] = json!(lineage);
                    record
                })
                .collect(),
            Self::LogProbs(list) => list
                .iter()
                .map(|scored| scored_json(scored, &mut number))
                .collect(),
            Self::Batch(list) => list
                .iter()
                .map(|slot| batch_json(slot, &mut number))
                .collect(),
            Self::Update(minibatches) => minibatches.clone(),
            Self::Nothing => Vec::new(),
        }
    }
}

/// Ids and masks of one sequence. Training packs sequences without padding: all tokens are attended
/// to, positions restart with each sequence, and the sequence id confines attention to the
/// sequence.
fn sequence_json(sequence: &Sequence, number: &mut usize) -> Value {
    let n = sequence.token_ids.len();
    let mut out = json!({
        "token_ids": sequence.token_ids,
        "attention_mask": vec![1; n],
        "loss_mask": bits(&sequence.loss_mask),
        "position_ids": (0..n).collect::<Vec<_>>(),
        "sequence_ids": vec![*number; n],
        "sampled_log_probs": sequence.sampled_log_probs,
    });
    if let Some(masses) = &sequence.log_kept_mass {
        out["log_kept_mass"] = json!(masses);
    }
    *number += 1;
    out
}

fn bits(mask: &[bool]) -> Vec<u8> {
    mask.iter().map(|m| u8::from(*m)).collect()
}

fn episode_json(episode: &Episode, sequences: Vec<Value>) -> Value {
    let mut row = json!({
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
        "available_actions": available_json(episode),
        "sequences": sequences,
    });
    let opening = episode.opening();
    if !opening.is_empty() {
        row[OPENING] = json!(opening);
    }
    row
}

/// An episode with its recomputed streams.
pub(crate) fn scored_json(scored: &ScoredEpisode, number: &mut usize) -> Value {
    let (e, row) = (&scored.episode, &scored.streams);
    let sequences = e.sequences.iter().enumerate().map(|(i, s)| {
        let mut out = sequence_json(s, number);
        out["old_log_probs"] = json!(row.old.get(i));
        out["entropies"] = json!(row.entropies.get(i));
        out["ref_log_probs"] = json!(row.reference.as_ref().and_then(|r| r.get(i)));
        out["values"] = json!(scored.values.as_ref().and_then(|v| v.get(i)));
        out
    });
    let sequences = sequences.collect();
    episode_json(e, sequences)
}

/// The possible actions by turn; null if the environment does not list them or they were not
/// requested.
fn available_json(episode: &Episode) -> Value {
    match episode.available_actions() {
        listed if listed.is_empty() => Value::Null,
        listed => json!(listed),
    }
}

/// A slot of the batch with every stream that an update reads.
pub fn batch_json(slot: &Slot, number: &mut usize) -> Value {
    let Slot {
        slot,
        episode,
        targets,
    } = slot;
    let sequences: Vec<Value> = episode
        .sequences
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let mut out = sequence_json(&s.sequence, number);
            out["old_log_probs"] = json!(s.old_log_probs);
            out["ref_log_probs"] = json!(s.ref_log_probs);
            out["advantages"] = json!(s.advantages);
            let critic = targets.as_ref().and_then(|all| all.get(i));
            out["values"] = json!(critic.map(|c| &c.values));
            out["returns"] = json!(critic.map(|c| &c.returns));
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
    use agentgym_jobs::config::ResolvedConfig;
    use agentgym_jobs::episode::{Finish, Outcome, Parse, Task, Turn};
    use agentgym_jobs::records::BatchSequence;
    use std::path::Path;

    /// BabyAI lists the actions in its observations: those in the observation before a turn were
    /// possible in that turn.
    #[test]
    fn possible_actions_are_read_from_the_texts() {
        let text = "
data: {tasks: [{env: grid, ids: 0..4}]}
actor_rollout_ref:
  rollout: {n: 2}
  agentgym: {envs: {grid: {task_name: babyai, env_addr: 'builtin:babyai'}}}
";
        let config = ResolvedConfig::parse("x", Path::new("x.yaml"), text, &[]).unwrap();
        let plan = Plan::new(config, Path::new("")).unwrap();
        let turn = |observation: &str| Turn {
            sequence: 0,
            context: (0, 0),
            policy: (0, 0),
            text: String::new(),
            action: None,
            parse: Parse::Clean,
            observation: observation.into(),
            reward: None,
            done: false,
            finish: Finish::Eos,
            policy_iteration: 0,
        };
        let mut episode = Episode {
            task: Task {
                env: "grid".into(),
                item_id: 4,
            },
            group: 0,
            sample: 0,
            outcome: Outcome::Horizon,
            success: false,
            reward: 0.0,
            prompt: "Your goal: go.\nAvailable actions: [\"turn left\", \"move forward\"]".into(),
            sequences: vec![],
            turns: vec![
                turn("A wall.\nAvailable actions: [\"turn right\"]"),
                turn("?"),
                turn(""),
            ],
            fault: None,
            extra: vec![],
        };
        list_actions(&plan, std::slice::from_mut(&mut episode));
        let json = episode_json(&episode, vec![]);
        assert_eq!(
            json["available_actions"],
            json!([["turn left", "move forward"], ["turn right"], null])
        );
        // Null if nothing is listed.
        episode.extra.clear();
        episode.task.env = "textcraft".into();
        list_actions(&plan, std::slice::from_mut(&mut episode));
        assert!(episode_json(&episode, vec![])["available_actions"].is_null());
    }

    #[test]
    fn every_stream_has_one_entry_per_token() {
        let sequence = Sequence {
            token_ids: vec![7, 8, 9],
            loss_mask: vec![false, true, true],
            sampled_log_probs: vec![0.0, -0.5, -0.25],
            log_kept_mass: None,
            entropies: None,
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
        let targets = CriticSequence {
            values: vec![0.0, 0.25, 0.5],
            returns: vec![0.0, 1.0, 1.0],
        };
        let slot = Slot {
            slot: 8,
            episode,
            targets: Some(vec![targets.clone(), targets]),
        };
        let record = batch_json(&slot, &mut 5);
        for sequence in record["sequences"].as_array().unwrap() {
            for (name, stream) in sequence.as_object().unwrap() {
                if name != "ref_log_probs" {
                    assert_eq!(stream.as_array().map(Vec::len), Some(3), "{name}");
                }
            }
        }
        assert_eq!(record["sequences"][1]["values"], json!([0.0, 0.25, 0.5]));
        assert_eq!(record["sequences"][0]["sequence_ids"], json!([5, 5, 5]));
        assert_eq!(record["sequences"][1]["sequence_ids"], json!([6, 6, 6]));
        assert_eq!(record["sequences"][1]["position_ids"], json!([0, 1, 2]));
        assert_eq!(record["sequences"][1]["loss_mask"], json!([0, 1, 1]));
        assert_eq!(record["task"], "textcraft_4");
        assert_eq!(record["outcome"], "solved");
    }
}
