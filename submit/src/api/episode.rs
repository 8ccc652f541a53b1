//! One episode with every stream of its tokens, and why these have their advantages.

use super::episodes::{EpisodeRow, row};
use super::known::Known;
use super::rows::{Listed, RowCache};
use crate::credit::{Compared, evolved, fate};
use crate::records::{Content, Filter, content, episodes, list_actions, slots};
use crate::runs::RunView;
use crate::{Error, Result};
use agentgym_jobs::agent_record::AgentRecord;
use agentgym_jobs::config::Pipeline;
use agentgym_jobs::episode::{ContextSummary, Episode, Judgement, Outcome, Turn};
use agentgym_jobs::pipeline::{PartId, Records, Stage, batch_of};
use agentgym_record::credit::EpisodeCredit;
use agentgym_record::filter::Candidate;
use agentgym_record::iteration::{Scored, Slot};
use agentgym_storage::Manifest;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

fn no_episode(id: PartId, k: u32, all: usize) -> Error {
    Error::Missing(format!(
        "{id} has episodes 0 to {}, not {k}",
        all.saturating_sub(1)
    ))
}

/// An episode of a part, with the part's commit and its number of episodes.
pub(super) async fn one(
    known: &Known,
    id: PartId,
    k: u32,
) -> Result<(Arc<Manifest>, usize, Episode)> {
    let (view, manifest) = (known.view().await, known.committed(id).await?);
    if !matches!(id.stage.facts().records, Records::Episodes | Records::Kept) {
        return Err(Error::Missing(format!("{id} holds no episodes")));
    }
    let mut all = episodes(&view, &manifest).await?;
    let count = all.len();
    if k as usize >= count {
        return Err(no_episode(id, k, count));
    }
    let mut one = vec![all.swap_remove(k as usize)];
    list_actions(&view.plan, &mut one);
    Ok((manifest, count, one.remove(0)))
}

/// A sequence of an episode, with the streams that a page draws; of these as many decimals as it can
/// show.
#[derive(Debug, Serialize)]
struct SequencePage {
    ids: Vec<u32>,
    pieces: Vec<String>,
    mask: Vec<u8>,
    sampled: Option<Vec<f64>>,
    entropies: Option<Vec<f64>>,
    old: Option<Vec<f64>>,
    reference: Option<Vec<f64>>,
    values: Option<Vec<f64>>,
    advantages: Option<Vec<f64>>,
}

/// How an agent behind a harness came to its turns, in words.
#[derive(Debug, Serialize)]
struct AgentPage {
    words: String,
    /// For each turn where it stands, if it does not continue the one before it.
    places: Vec<Option<String>>,
}

impl AgentPage {
    fn of(agent: &AgentRecord, turns: usize) -> Self {
        Self {
            words: agent.words(),
            places: (0..turns).map(|turn| agent.place(turn)).collect(),
        }
    }
}

/// An episode's page.
#[derive(Debug, Serialize)]
pub(crate) struct EpisodePage {
    run: String,
    part: String,
    k: u32,
    episodes: usize,
    iteration: u32,
    stage: &'static str,
    task: String,
    env: String,
    item: i64,
    group: u32,
    sample: u32,
    outcome: Outcome,
    success: bool,
    reward: f64,
    fault: Option<String>,
    prompt: String,
    tools: Vec<Value>,
    slot: Option<usize>,
    advantage: Option<f64>,
    greedy: bool,
    worker: Option<String>,
    attempt: u32,
    turns: Vec<Turn>,
    available: Vec<Option<Vec<String>>>,
    summaries: Vec<ContextSummary>,
    judgement: Option<Judgement>,
    agent: Option<AgentPage>,
    sequences: Vec<SequencePage>,
    siblings: Vec<EpisodeRow>,
}

pub(super) async fn episode(
    known: &Known,
    rows: &RowCache,
    id: PartId,
    k: u32,
) -> Result<EpisodePage> {
    let view = known.view().await;
    let (manifest, count, e) = one(known, id, k).await?;
    let alike = |part: PartId| part.iteration == id.iteration && part.stage == id.stage;
    let (scored, trained, listed) = tokio::try_join!(
        scored(known, &view, id, &e),
        trained(known, &view, id, &e),
        rows.of_run(known, alike)
    )?;
    let samples = view.plan.config.evaluation.samples;
    let is_sibling = |l: &&Listed| {
        (l.row.group, &l.row.env, l.row.item) == (e.group, &e.task.env, e.task.item_id)
    };
    let siblings = listed.rows.iter().filter(is_sibling);
    let siblings = siblings.map(|l| row(l, samples, None)).collect();
    let pieces = known.pieces().await?;
    let streams = scored.as_ref().map(|s| &s.streams);
    let sequences = e.sequences.iter().enumerate().map(|(i, s)| {
        let values = scored.as_ref().and_then(|s| s.values.as_ref());
        let reference = streams.and_then(|s| s.reference.as_ref());
        let entropies = streams.and_then(|s| s.entropies.get(i));
        let advantages = trained.as_ref().and_then(|t| t.episode.sequences.get(i));
        SequencePage {
            ids: s.token_ids.clone(),
            pieces: pieces.texts(&s.token_ids),
            mask: s.loss_mask.iter().map(|m| u8::from(*m)).collect(),
            sampled: rounded(Some(&s.sampled_log_probs)),
            entropies: rounded(entropies.or(s.entropies.as_ref())),
            old: rounded(streams.and_then(|s| s.old.get(i))),
            reference: rounded(reference.and_then(|r| r.get(i))),
            values: rounded(values.and_then(|v| v.get(i))),
            advantages: advantages.map(|s| s.advantages.clone()),
        }
    });
    let sequences = sequences.collect();
    Ok(EpisodePage {
        run: view.plan.run.to_string(),
        part: id.to_string(),
        k,
        episodes: count,
        iteration: id.iteration,
        stage: id.stage.name(),
        task: e.task.to_string(),
        env: e.task.env.clone(),
        item: e.task.item_id,
        group: e.group,
        sample: e.sample,
        outcome: e.outcome,
        success: e.success,
        reward: e.reward,
        fault: e.fault.clone(),
        prompt: e.told(),
        tools: e.tools(),
        slot: trained.as_ref().map(|t| t.slot),
        advantage: trained.as_ref().map(|t| t.episode.advantage),
        greedy: id.stage.facts().evaluates && e.sample >= samples,
        worker: manifest.work.as_ref().map(|w| w.worker.clone()),
        attempt: manifest.attempt,
        available: e.available_actions(),
        summaries: e.summaries(),
        judgement: e.judgement(),
        agent: e.agent().map(|agent| AgentPage::of(&agent, e.turns.len())),
        turns: e.turns,
        sequences,
        siblings,
    })
}

/// Five decimals: what a picture can show. Exact values are in `inspect --json`.
fn rounded(stream: Option<&Vec<f32>>) -> Option<Vec<f64>> {
    let cut = stream?.iter().map(|v| (f64::from(*v) * 1e5).round() / 1e5);
    Some(cut.collect())
}

/// The streams that `log_probs` made for an episode of a rollout, once there.
async fn scored(known: &Known, view: &RunView, id: PartId, e: &Episode) -> Result<Option<Scored>> {
    let log_probs = PartId {
        stage: Stage::LogProbs,
        ..id
    };
    let Some(manifest) = training_commit(known, id, log_probs).await else {
        return Ok(None);
    };
    let filter = Filter {
        group: Some(e.group),
        sample: Some(e.sample),
    };
    Ok(match content(view, &manifest, filter).await? {
        Content::LogProbs(mut all) => all.pop(),
        _ => None,
    })
}

/// A commit of the same iteration's training; none for an evaluation, or before it is there.
async fn training_commit(known: &Known, id: PartId, wanted: PartId) -> Option<Arc<Manifest>> {
    if !matches!(id.stage, Stage::Rollout | Stage::Reward) {
        return None;
    }
    known.state().await.manifests.get(&wanted).cloned()
}

/// The slot of an episode in the batch, if it is trained on.
async fn trained(known: &Known, view: &RunView, id: PartId, e: &Episode) -> Result<Option<Slot>> {
    let Some(manifest) = training_commit(known, id, batch_of(id.iteration)).await else {
        return Ok(None);
    };
    let mut slots = slots(view, &manifest).await?.into_iter();
    Ok(slots.find(|s| (s.episode.group, s.episode.sample) == (e.group, e.sample)))
}

/// Part and place of the episodes that an iteration trains on, by group and sample.
pub(super) type Places = BTreeMap<(u32, u32), (PartId, u32)>;

/// See [`Places`].
pub(super) async fn places(known: &Known, rows: &RowCache, n: u32) -> Result<Places> {
    let trained = |id: PartId| id.iteration == n && !id.stage.facts().evaluates;
    let listed = rows.of_run(known, trained).await?.rows.into_iter();
    let place = |l: Listed| ((l.row.group, l.row.sample), (l.part, l.row.k));
    Ok(listed.map(place).collect())
}

/// Why the tokens of an episode have their advantages.
#[derive(Debug, Serialize)]
#[serde(tag = "pipeline", rename_all = "lowercase")]
pub(crate) enum EpisodeCreditPage {
    AgentEvol {
        candidate: Option<Candidate>,
        lineage_equal: Option<bool>,
        lines: Option<Vec<String>>,
    },
    Rl {
        #[serde(flatten)]
        credit: Box<EpisodeCredit>,
        lines: Vec<String>,
        batch: Compared,
        /// Of the advantage.
        bits: Option<String>,
        run: String,
    },
}

pub(super) async fn credit(known: &Known, id: PartId, k: u32) -> Result<EpisodeCreditPage> {
    let (view, manifest) = (known.view().await, known.committed(id).await?);
    if !matches!(id.stage, Stage::Rollout | Stage::Reward) {
        return Err(Error::Missing(format!(
            "{id} is not trained on: only the episodes of a training iteration get advantages"
        )));
    }
    let all = episodes(&view, &manifest).await?;
    let e = all
        .get(k as usize)
        .ok_or_else(|| no_episode(id, k, all.len()))?;
    if view.plan.config.run.pipeline == Pipeline::AgentEvol {
        let (candidates, lineage_equal) = evolved(&view, id.iteration).await?;
        let candidate = candidates.into_iter().find(|c| {
            let l = &c.lineage;
            (l.iteration, l.group, l.sample) == (id.iteration, e.group, e.sample)
        });
        return Ok(EpisodeCreditPage::AgentEvol {
            lines: (candidate.as_ref()).map(|c| vec![fate(&c.fate)]),
            candidate,
            lineage_equal,
        });
    }
    let (played, batch) = known.credit(id.iteration).await?;
    let found = played.explain(&view.plan, e.group, e.sample)?;
    let found = found.ok_or_else(|| no_episode(id, k, all.len()))?;
    Ok(EpisodeCreditPage::Rl {
        lines: found.lines(),
        bits: found.advantage.map(|a| format!("{:016x}", a.to_bits())),
        credit: Box::new(found),
        batch,
        run: view.plan.run.to_string(),
    })
}
