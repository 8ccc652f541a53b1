//! The one join of what stages commit of an iteration: its episodes with the streams that `log_probs`
//! computed, the greedy episodes, the chosen groups and the KL coefficient; and the slots of its batch.
//! The stage `advantage` reads it to credit the episodes, and every screen that shows them.

use crate::documents::{self, KlState, Selection, payload};
use crate::rewards::Rewards;
use crate::{Error, Result};
use agentgym_jobs::artifact_names as names;
use agentgym_jobs::episode::{Episode, Episodes};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{
    Batch, BatchEpisode, CriticSequence, CriticTargets, EpisodeLogProbs, LogProbs, Values,
};
use agentgym_storage::Inputs;
use std::collections::BTreeMap;

/// The input of `advantage` that is the iteration before.
pub const BEFORE: &str = "before";

/// An episode with its recomputed streams.
#[derive(Debug, Clone)]
pub struct Scored {
    pub episode: Episode,
    pub streams: EpisodeLogProbs,
    /// The critic's values by sequence and token, if there is a critic.
    pub values: Option<Vec<Vec<f32>>>,
}

/// The inputs of an iteration's credit besides its episodes.
#[derive(Debug, Default)]
pub struct Given {
    /// The iteration.
    pub iteration: u32,
    /// Rewards of the greedy episodes, by group.
    pub baselines: BTreeMap<u32, f64>,
    /// Coefficient of the KL penalty, if there is one.
    pub kl_coef: Option<f64>,
    /// The groups to train on, in the order of their slots; `None` for all.
    pub selected: Option<Vec<u32>>,
}

/// What an iteration's credit is computed from.
#[derive(Debug, Default)]
pub struct Iteration {
    /// By group and sample.
    pub episodes: Vec<Scored>,
    pub given: Given,
}

impl Iteration {
    /// Joins the inputs of the iteration's `advantage`; `read` is called after each part.
    ///
    /// # Errors
    /// The store fails, an input is not what its name says, or two do not belong together.
    pub async fn read(
        plan: &Plan,
        iteration: u32,
        inputs: &Inputs,
        read: impl Fn(),
    ) -> Result<Self> {
        let rewards = Rewards::of(plan)?;
        let mut given = Given {
            iteration,
            kl_coef: kl_coef(plan, inputs).await?,
            ..Given::default()
        };
        if plan.selects() {
            let selection: Selection = documents::read(inputs, "select").await?;
            given.selected = Some(selection.groups);
        }
        let mut all = Vec::new();
        for part in 0..plan.rollout_parts() * plan.rollout_rounds() {
            let (rollout, log_probs) = (format!("rollout.{part}"), format!("log_probs.{part}"));
            all.extend(scored(inputs, &rollout, &log_probs, part).await?);
            if plan.config.algorithm.adv_estimator.needs_baseline() {
                let greedy = episodes(inputs, &rollout, names::BASELINES).await?;
                let usable = greedy.iter().filter(|e| e.usable());
                let baselines = usable.map(|e| (e.group, rewards.score(e)));
                given.baselines.extend(baselines);
            }
            read();
        }
        all.sort_by_key(|s| (s.episode.group, s.episode.sample));
        Ok(Self {
            episodes: all,
            given,
        })
    }
}

/// The coefficient of the KL penalty in an iteration's rewards: the one that the previous iteration
/// recorded, or the initial one.
async fn kl_coef(plan: &Plan, inputs: &Inputs) -> Result<Option<f64>> {
    let Some(controller) = plan.config.kl_controller()? else {
        return Ok(None);
    };
    if !inputs.names().any(|name| name == BEFORE) {
        return Ok(Some(controller.initial()));
    }
    let state: KlState = documents::read(inputs, BEFORE).await?;
    Ok(Some(state.next_kl_coef))
}

fn has(inputs: &Inputs, input: &str, artifact: &str) -> Result<bool> {
    let all = inputs.artifacts(input)?;
    Ok(all.iter().any(|a| a.name == artifact))
}

/// The episodes of an input.
///
/// # Errors
/// The store fails, or an episode is not whole.
pub async fn episodes(inputs: &Inputs, input: &str, artifact: &str) -> Result<Vec<Episode>> {
    let all: Episodes = payload(inputs, input, artifact).await?;
    let all = all.into_vec();
    for episode in &all {
        episode
            .check()
            .map_err(|message| agentgym_jobs::Error::Payload {
                what: artifact.into(),
                message,
            })?;
    }
    Ok(all)
}

/// The episodes of part `part`, committed by the input `rollout`, with what the input `log_probs`
/// computed for them.
///
/// # Errors
/// The store fails, or they do not belong together.
pub async fn scored(
    inputs: &Inputs,
    rollout: &str,
    log_probs: &str,
    part: u32,
) -> Result<Vec<Scored>> {
    let episodes = episodes(inputs, rollout, names::EPISODES).await?;
    let LogProbs::V1(streams) = payload(inputs, log_probs, names::LOG_PROBS).await?;
    let values = match has(inputs, log_probs, names::VALUES)? {
        true => {
            let Values::V1(values) = payload(inputs, log_probs, names::VALUES).await?;
            Some(values)
        }
        false => None,
    };
    join(part, episodes, streams, values)
}

/// Pairs episodes with their streams; both must have the same tokens.
pub(crate) fn join(
    part: u32,
    episodes: Vec<Episode>,
    streams: Vec<EpisodeLogProbs>,
    values: Option<Vec<Vec<Vec<f32>>>>,
) -> Result<Vec<Scored>> {
    let mismatch = |what: String| {
        Error::Stage(format!(
            "rollout part {part} and its log-probs do not belong together ({what}); \
             delete the commit of log_probs part {part} so that it is made again"
        ))
    };
    let counts = [
        streams.len(),
        values.as_ref().map_or(streams.len(), Vec::len),
    ];
    if counts.iter().any(|count| *count != episodes.len()) {
        return Err(mismatch(format!(
            "{} episodes, {} entries",
            episodes.len(),
            counts[0].min(counts[1])
        )));
    }
    let values: Vec<Option<Vec<Vec<f32>>>> = match values {
        Some(values) => values.into_iter().map(Some).collect(),
        None => vec![None; episodes.len()],
    };
    let rows = episodes.into_iter().zip(streams).zip(values);
    rows.map(|((episode, streams), values)| {
        let lengths = || episode.sequences.iter().map(|s| s.token_ids.len());
        let fits = |rows: &[Vec<f32>]| rows.iter().map(Vec::len).eq(lengths());
        let all_fit = fits(&streams.old)
            && fits(&streams.entropies)
            && streams.reference.as_ref().is_none_or(|rows| fits(rows))
            && values.as_ref().is_none_or(|rows| fits(rows));
        match all_fit {
            true => Ok(Scored {
                episode,
                streams,
                values,
            }),
            false => Err(mismatch(format!("task {}", episode.task))),
        }
    })
    .collect()
}

/// A filled slot of the batch.
#[derive(Debug, Clone)]
pub struct Slot {
    /// draw × n + sample.
    pub slot: usize,
    /// What the policy trains on.
    pub episode: BatchEpisode,
    /// What the critic trains on, by sequence, if the run has a critic.
    pub targets: Option<Vec<CriticSequence>>,
}

/// The batch that an input committed, and the critic's targets if there is a critic.
///
/// # Errors
/// The store fails, or it is no batch.
pub async fn batch(inputs: &Inputs, input: &str) -> Result<(Batch, Option<CriticTargets>)> {
    let batch = payload(inputs, input, names::BATCH).await?;
    let targets = match has(inputs, input, names::TARGETS)? {
        true => Some(payload(inputs, input, names::TARGETS).await?),
        false => None,
    };
    Ok((batch, targets))
}

/// The filled slots of a batch.
pub fn slots(batch: Batch, targets: Option<CriticTargets>) -> Vec<Slot> {
    let Batch::V1(batch) = batch;
    let mut targets = targets.map_or_else(Vec::new, |CriticTargets::V1(targets)| targets);
    targets.resize(batch.len(), None);
    let all = batch.into_iter().zip(targets).enumerate();
    let filled = all.filter_map(|(slot, (episode, targets))| {
        Some(Slot {
            slot,
            episode: episode?,
            targets,
        })
    });
    filled.collect()
}
