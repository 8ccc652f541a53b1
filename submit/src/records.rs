//! The records inside a part, as JSON: episodes, log-probs, training sequences, minibatches. Each
//! is self-contained and one line of `--jsonl`, with every per-token stream next to its token ids.

use crate::Result;
use crate::runs::{COMMIT, RunView, part_id};
use crate::text::plain_zeros;
use agentgym_envs::spec::EnvSpec;
use agentgym_jobs::artifact_names;
use agentgym_jobs::config::OpeningTurn;
use agentgym_jobs::episode::{AVAILABLE_ACTIONS, Episode, Outcome, Sequence, Turn};
use agentgym_jobs::pipeline::Records;
use agentgym_jobs::plan::Plan;
use agentgym_jobs::trajectory::Lineage;
use agentgym_record::documents::{CriticSteps, UpdateSteps};
use agentgym_record::filter::{Kept, kept};
use agentgym_record::iteration::{self, Scored, Slot, batch, scored};
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

/// The typed content of a part.
#[derive(Debug)]
pub enum Content {
    /// Episodes of a rollout or an evaluation.
    Episodes(Vec<Episode>),
    /// The episodes that an AgentEvol iteration trains on, and where each was played.
    Kept(Vec<Kept>),
    /// Log-probs with the episodes they were computed for.
    LogProbs(Vec<Scored>),
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
            let mut kept = kept(&view.inputs([(COMMIT, manifest.clone())]), COMMIT).await?;
            kept.retain(|k| filter.keeps(k.episode.group, k.episode.sample));
            Content::Kept(kept)
        }
        Records::LogProbs => {
            let rollout = input(view, manifest, "rollout").await?;
            let inputs = view.inputs([("rollout", rollout), (COMMIT, manifest.clone())]);
            let mut all = scored(&inputs, "rollout", COMMIT, manifest.part).await?;
            all.retain(|s| filter.keeps(s.episode.group, s.episode.sample));
            Content::LogProbs(all)
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
    let (batch, targets) = batch(&view.inputs([(COMMIT, manifest.clone())]), COMMIT).await?;
    Ok(iteration::slots(batch, targets))
}

/// The validated episodes of a commit.
pub async fn episodes(view: &RunView, manifest: &Manifest) -> Result<Vec<Episode>> {
    let inputs = view.inputs([(COMMIT, manifest.clone())]);
    Ok(iteration::episodes(&inputs, COMMIT, artifact_names::EPISODES).await?)
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

    /// One document per record.
    pub fn documents(&self) -> Vec<RecordDocument> {
        let mut number = 0;
        let mut sequences = |e: &Episode| -> Vec<SequenceRecord> {
            let all = e.sequences.iter();
            all.map(|s| SequenceRecord::of(s, &mut number)).collect()
        };
        match self {
            Self::Episodes(list) => {
                let record = |e| EpisodeRecord::of(e, sequences(e)).into();
                list.iter().map(record).collect()
            }
            Self::Kept(list) => {
                let record = |kept: &Kept| {
                    let mut record = EpisodeRecord::of(&kept.episode, sequences(&kept.episode));
                    record.lineage = Some(kept.lineage.clone());
                    record.into()
                };
                list.iter().map(record).collect()
            }
            Self::LogProbs(list) => {
                let record = |scored| EpisodeRecord::scored(scored, &mut number).into();
                list.iter().map(record).collect()
            }
            Self::Batch(list) => {
                let record = |slot| SlotRecord::of(slot, &mut number).into();
                list.iter().map(record).collect()
            }
            Self::Update(minibatches) => minibatches
                .iter()
                .cloned()
                .map(RecordDocument::Step)
                .collect(),
            Self::Nothing => Vec::new(),
        }
    }
}

/// A record of a part.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum RecordDocument {
    /// An episode.
    Episode(Box<EpisodeRecord>),
    /// A slot of the batch.
    Slot(Box<SlotRecord>),
    /// A minibatch of an update.
    Step(Value),
}

impl From<EpisodeRecord> for RecordDocument {
    fn from(record: EpisodeRecord) -> Self {
        Self::Episode(Box::new(record))
    }
}

impl From<SlotRecord> for RecordDocument {
    fn from(record: SlotRecord) -> Self {
        Self::Slot(Box::new(record))
    }
}

impl RecordDocument {
    /// The sequences of an episode or a slot.
    pub(crate) fn sequences_mut(&mut self) -> &mut [SequenceRecord] {
        match self {
            Self::Episode(record) => &mut record.sequences,
            Self::Slot(record) => &mut record.sequences,
            Self::Step(_) => &mut [],
        }
    }
}

/// What `log_probs` computed for a sequence.
#[derive(Debug, Clone, Serialize)]
struct ScoredStreams {
    old_log_probs: Option<Vec<f32>>,
    entropies: Option<Vec<f32>>,
    ref_log_probs: Option<Vec<f32>>,
    values: Option<Vec<f32>>,
}

/// What an update reads of a sequence.
#[derive(Debug, Clone, Serialize)]
struct TrainedStreams {
    old_log_probs: Vec<f32>,
    ref_log_probs: Option<Vec<f32>>,
    advantages: Vec<f64>,
    values: Option<Vec<f32>>,
    returns: Option<Vec<f64>>,
}

/// Ids, masks and streams of one sequence. Training packs sequences without padding: all tokens are
/// attended to, positions restart with each sequence, and the sequence id confines attention to the
/// sequence.
#[derive(Debug, Clone, Serialize)]
pub struct SequenceRecord {
    pub(crate) token_ids: Vec<u32>,
    attention_mask: Vec<u8>,
    loss_mask: Vec<u8>,
    position_ids: Vec<usize>,
    sequence_ids: Vec<usize>,
    sampled_log_probs: Vec<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_kept_mass: Option<Vec<f32>>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    scored: Option<ScoredStreams>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    trained: Option<TrainedStreams>,
    /// Of the sampler correction, in an export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) importance_weights: Option<Vec<f64>>,
    /// The text of each token, where somebody looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pieces: Option<Vec<String>>,
}

impl SequenceRecord {
    fn of(sequence: &Sequence, number: &mut usize) -> Self {
        let n = sequence.token_ids.len();
        *number += 1;
        Self {
            token_ids: sequence.token_ids.clone(),
            attention_mask: vec![1; n],
            loss_mask: sequence.loss_mask.iter().map(|m| u8::from(*m)).collect(),
            position_ids: (0..n).collect(),
            sequence_ids: vec![*number - 1; n],
            sampled_log_probs: sequence.sampled_log_probs.clone(),
            log_kept_mass: sequence.log_kept_mass.clone(),
            scored: None,
            trained: None,
            importance_weights: None,
            pieces: None,
        }
    }
}

/// An episode.
#[derive(Debug, Clone, Serialize)]
pub struct EpisodeRecord {
    task: String,
    env: String,
    item_id: i64,
    group: u32,
    sample: u32,
    outcome: Outcome,
    success: bool,
    reward: f64,
    fault: Option<String>,
    prompt: String,
    turns: Vec<Turn>,
    /// By turn; none if the environment does not list them or they were not requested.
    available_actions: Option<Vec<Option<Vec<String>>>>,
    pub(crate) sequences: Vec<SequenceRecord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    opening: Vec<OpeningTurn>,
    /// Where a trajectory of AgentEvol was played.
    #[serde(skip_serializing_if = "Option::is_none")]
    lineage: Option<Lineage>,
}

impl EpisodeRecord {
    fn of(e: &Episode, sequences: Vec<SequenceRecord>) -> Self {
        Self {
            task: e.task.to_string(),
            env: e.task.env.clone(),
            item_id: e.task.item_id,
            group: e.group,
            sample: e.sample,
            outcome: e.outcome,
            success: e.success,
            reward: e.reward,
            fault: e.fault.clone(),
            prompt: e.prompt.clone(),
            turns: e.turns.clone(),
            available_actions: Some(e.available_actions()).filter(|listed| !listed.is_empty()),
            sequences,
            opening: e.opening(),
            lineage: None,
        }
    }

    /// With its recomputed streams.
    pub(crate) fn scored(scored: &Scored, number: &mut usize) -> Self {
        let (e, row) = (&scored.episode, &scored.streams);
        let at =
            |rows: Option<&Vec<Vec<f32>>>, i: usize| rows.and_then(|rows| rows.get(i)).cloned();
        let sequences = e.sequences.iter().enumerate().map(|(i, s)| SequenceRecord {
            scored: Some(ScoredStreams {
                old_log_probs: at(Some(&row.old), i),
                entropies: at(Some(&row.entropies), i),
                ref_log_probs: at(row.reference.as_ref(), i),
                values: at(scored.values.as_ref(), i),
            }),
            ..SequenceRecord::of(s, number)
        });
        let sequences = sequences.collect();
        Self::of(e, sequences)
    }
}

/// A slot of the batch with every stream that an update reads.
#[derive(Debug, Clone, Serialize)]
pub struct SlotRecord {
    #[serde(flatten)]
    pub(crate) head: SlotHead,
    pub(crate) sequences: Vec<SequenceRecord>,
}

/// A slot without its sequences.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct SlotHead {
    slot: usize,
    task: String,
    env: String,
    item_id: i64,
    group: u32,
    sample: u32,
    outcome: Outcome,
    success: bool,
    reward: f64,
    advantage: f64,
}

impl SlotRecord {
    pub(crate) fn of(slot: &Slot, number: &mut usize) -> Self {
        let e = &slot.episode;
        let sequences = e.sequences.iter().enumerate().map(|(i, s)| {
            let critic = slot.targets.as_ref().and_then(|all| all.get(i));
            SequenceRecord {
                trained: Some(TrainedStreams {
                    old_log_probs: s.old_log_probs.clone(),
                    ref_log_probs: s.ref_log_probs.clone(),
                    advantages: s.advantages.clone(),
                    values: critic.map(|c| c.values.clone()),
                    returns: critic.map(|c| c.returns.clone()),
                }),
                ..SequenceRecord::of(&s.sequence, number)
            }
        });
        let sequences = sequences.collect();
        Self {
            head: SlotHead {
                slot: slot.slot,
                task: e.task.to_string(),
                env: e.task.env.clone(),
                item_id: e.task.item_id,
                group: e.group,
                sample: e.sample,
                outcome: e.outcome,
                success: e.success,
                reward: e.reward,
                advantage: e.advantage,
            },
            sequences,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agentgym_jobs::config::ResolvedConfig;
    use agentgym_jobs::episode::{Finish, Parse, Task};
    use agentgym_jobs::records::{BatchEpisode, BatchSequence, CriticSequence};
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
        let json = |episode: &Episode| json!(EpisodeRecord::of(episode, vec![]));
        assert_eq!(
            json(&episode)["available_actions"],
            json!([["turn left", "move forward"], ["turn right"], null])
        );
        // Null if nothing is listed.
        episode.extra.clear();
        episode.task.env = "textcraft".into();
        list_actions(&plan, std::slice::from_mut(&mut episode));
        assert!(json(&episode)["available_actions"].is_null());
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
        let record = json!(SlotRecord::of(&slot, &mut 5));
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
