//! `advantage`: all parts of an iteration → one batch by slot, with an
//! advantage per token, and the iteration's metrics.
//!
//! A slot is draw × n + sample. An episode that the environment spoiled, one
//! that is left alone in its group, and (with `algorithm.overlong: mask`) one
//! that ran out of rounds or tokens leaves its slot empty; no other slot moves,
//! so every minibatch keeps its members (I8).

use super::{read, write};
use crate::metrics::{self, EpisodeSummary, mean, success_by_env};
use crate::{Error, Report, Result, StageContext};
use agentgym_algorithms::advantages::{broadcast, grpo};
use agentgym_algorithms::groups::{Group, collect, has_company};
use agentgym_algorithms::kl::{KlEstimator, masked_mean};
use agentgym_jobs::config::Overlong;
use agentgym_jobs::episode::{Episode, Episodes, Outcome};
use agentgym_jobs::plan::Plan;
use agentgym_jobs::records::{Batch, BatchEpisode, BatchSequence, EpisodeLogProbs, LogProbs};
use agentgym_storage::Outputs;
use serde::Serialize;
use std::collections::BTreeMap;

/// `metrics.json` of an iteration's episodes.
#[derive(Debug, Serialize)]
struct Metrics {
    #[serde(flatten)]
    episodes: EpisodeSummary,
    success_by_env: BTreeMap<String, f64>,
    /// Largest number of rounds in this iteration.
    horizon: u32,
    /// Groups whose members all failed alike: no gradient.
    groups_all_zero: usize,
    /// Groups whose members all succeeded alike: no gradient.
    groups_all_one: usize,
    /// Groups whose rewards differ: these teach.
    groups_mixed: usize,
    /// Groups with fewer than two members left: excluded.
    groups_excluded: usize,
    /// Entropy per sampled token at the start of the update, nats.
    entropy: f64,
    /// Mean over episodes of the k3 estimate of KL to the reference policy, nats.
    ref_kl: Option<f64>,
    /// Largest |sampled − old log-prob|; 0 on-policy with exact numerics.
    log_prob_mismatch_max: f64,
}

/// An episode with its recomputed streams.
struct Scored {
    episode: Episode,
    streams: EpisodeLogProbs,
}

pub(super) async fn run(context: &mut StageContext, outputs: &mut Outputs) -> Result<Report> {
    let plan = &context.plan;
    let mut all = Vec::new();
    for part in 0..plan.rollout_parts() {
        let (rollout, log_probs) = (format!("rollout.{part}"), format!("log_probs.{part}"));
        let episodes = read::<Episodes>(&context.inputs, &rollout, "episodes.bin")
            .await?
            .into_vec();
        let LogProbs::V1(streams) = read(&context.inputs, &log_probs, "log_probs.bin").await?;
        all.extend(join(part, episodes, streams)?);
        context.beat.tick();
    }
    all.sort_by_key(|s| (s.episode.group, s.episode.sample));

    let iteration = context.part.id.iteration;
    let (batch, groups) = batch(plan, &all)?;
    let metrics = summarise(plan, iteration, &all, &groups)?;
    if metrics.groups_mixed == 0 {
        tracing::warn!(
            iteration,
            success = metrics.episodes.success,
            "no group of this iteration has a gradient: all members of each got the same reward"
        );
    }
    write(outputs, "batch.bin", "batch", &batch).await?;
    metrics::write(outputs, &metrics).await?;
    Ok(Report::default())
}

/// Pairs episodes with their streams; both must speak of the same tokens.
fn join(part: u32, episodes: Vec<Episode>, streams: Vec<EpisodeLogProbs>) -> Result<Vec<Scored>> {
    let mismatch = |what: String| {
        Error::stage(format!(
            "rollout part {part} and its log-probs do not belong together ({what}); \
             delete the commit of log_probs part {part} so that it is made again"
        ))
    };
    if episodes.len() != streams.len() {
        return Err(mismatch(format!(
            "{} episodes, {} entries",
            episodes.len(),
            streams.len()
        )));
    }
    let pairs = episodes.into_iter().zip(streams);
    pairs
        .map(|(episode, streams)| {
            let lengths: Vec<usize> = episode
                .sequences
                .iter()
                .map(|s| s.token_ids.len())
                .collect();
            let fits = |rows: &[Vec<f32>]| rows.iter().map(Vec::len).eq(lengths.iter().copied());
            let all_fit = fits(&streams.old)
                && fits(&streams.entropies)
                && streams.reference.as_ref().is_none_or(|rows| fits(rows));
            if all_fit {
                Ok(Scored { episode, streams })
            } else {
                Err(mismatch(format!("task {}", episode.task)))
            }
        })
        .collect()
}

/// The batch by slot, and the groups that were compared. `all` is sorted.
fn batch(plan: &Plan, all: &[Scored]) -> Result<(Batch, Vec<Group>)> {
    let n = plan.config.actor_rollout_ref.rollout.n;
    let usable: Vec<&Scored> = all.iter().filter(|s| s.episode.usable()).collect();
    let ids: Vec<u64> = usable.iter().map(|s| u64::from(s.episode.group)).collect();
    let members: Vec<&Scored> = usable
        .into_iter()
        .zip(has_company(&ids, 2))
        .filter_map(|(s, kept)| kept.then_some(s))
        .collect();
    let ids: Vec<u64> = members.iter().map(|s| u64::from(s.episode.group)).collect();
    let rewards: Vec<f64> = members.iter().map(|s| s.episode.reward).collect();
    let advantages = grpo(
        &rewards,
        &ids,
        plan.config.algorithm.norm_adv_by_std_in_grpo,
    )?;
    let groups = collect(&rewards, &ids)?;

    let mask_overlong = plan.config.algorithm.overlong == Overlong::Mask;
    let mut slots: Vec<Option<BatchEpisode>> =
        vec![None; plan.config.data.train_batch_size * n as usize];
    for (member, advantage) in members.into_iter().zip(advantages) {
        let Scored { episode, streams } = member;
        // Its reward counts in the group's baseline; it is not trained on.
        if mask_overlong && matches!(episode.outcome, Outcome::Horizon | Outcome::Length) {
            continue;
        }
        let slot = (episode.group * n + episode.sample) as usize;
        let place = slots
            .get_mut(slot)
            .filter(|place| place.is_none() && episode.sample < n)
            .ok_or_else(|| {
                Error::stage(format!(
                    "slot {slot} (task {}) is outside the batch or taken twice",
                    episode.task
                ))
            })?;
        *place = Some(entry(episode, streams, advantage));
    }
    Ok((Batch::V1(slots), groups))
}

fn entry(episode: &Episode, streams: &EpisodeLogProbs, advantage: f64) -> BatchEpisode {
    let sequences = episode
        .sequences
        .iter()
        .enumerate()
        .map(|(index, sequence)| BatchSequence {
            sequence: sequence.clone(),
            old_log_probs: streams.old[index].clone(),
            ref_log_probs: streams.reference.as_ref().map(|rows| rows[index].clone()),
            advantages: broadcast(advantage, &sequence.loss_mask),
        })
        .collect();
    BatchEpisode {
        task: episode.task.clone(),
        group: episode.group,
        sample: episode.sample,
        outcome: episode.outcome,
        success: episode.success,
        reward: episode.reward,
        advantage,
        sequences,
    }
}

fn summarise(plan: &Plan, iteration: u32, all: &[Scored], groups: &[Group]) -> Result<Metrics> {
    let episodes: Vec<&Episode> = all.iter().map(|s| &s.episode).collect();
    let (mut entropies, mut mismatch, mut divergences) = (Vec::new(), 0.0f64, Vec::new());
    for Scored { episode, streams } in all {
        for (index, sequence) in episode.sequences.iter().enumerate() {
            for t in (0..sequence.token_ids.len()).filter(|t| sequence.loss_mask[*t]) {
                entropies.push(f64::from(streams.entropies[index][t]));
                let difference = sequence.sampled_log_probs[t] - streams.old[index][t];
                mismatch = mismatch.max(f64::from(difference.abs()));
            }
            if let Some(reference) = &streams.reference {
                let wide = |row: &[f32]| row.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
                let (old, reference) = (wide(&streams.old[index]), wide(&reference[index]));
                divergences.extend(masked_mean(
                    &old,
                    &reference,
                    &sequence.loss_mask,
                    KlEstimator::K3,
                )?);
            }
        }
    }
    let uniform = |zero: bool| {
        groups
            .iter()
            .filter(|g| g.is_uniform && (g.mean <= 0.0) == zero)
            .count()
    };
    let summary = EpisodeSummary::of(&episodes);
    Ok(Metrics {
        success_by_env: success_by_env(&episodes),
        horizon: plan.rounds_max(iteration),
        groups_all_zero: uniform(true),
        groups_all_one: uniform(false),
        groups_mixed: groups.iter().filter(|g| g.is_informative()).count(),
        groups_excluded: plan
            .config
            .data
            .train_batch_size
            .saturating_sub(groups.len()),
        entropy: mean(entropies),
        ref_kl: plan.needs_reference().then(|| mean(divergences)),
        log_prob_mismatch_max: mismatch,
        episodes: summary,
    })
}

#[cfg(test)]
mod tests;
