//! The metrics of the iteration's episodes. Entries of an option are written only if the option is
//! on, so that the metrics of other runs keep their bytes.

use super::credit::{Credit, Given, behaviour};
use super::scored::Scored;
use crate::Result;
use crate::metrics::{EpisodeSummary, mean, success_by_env};
use crate::stages::training::wide;
use agentgym_algorithms::importance::Mismatch;
use agentgym_algorithms::kl::{KlEstimator, masked_mean};
use agentgym_jobs::episode::Episode;
use agentgym_jobs::plan::Plan;
use serde::Serialize;
use std::collections::BTreeMap;

/// `metrics.json` of an iteration's episodes.
#[derive(Debug, Serialize)]
pub(super) struct Metrics {
    #[serde(flatten)]
    pub(super) episodes: EpisodeSummary,
    pub(super) success_by_env: BTreeMap<String, f64>,
    /// Largest number of rounds in this iteration.
    pub(super) horizon: u32,
    /// Groups whose members all have the same reward of at most 0: no gradient.
    pub(super) groups_all_zero: usize,
    /// Groups whose members all have the same positive reward: no gradient.
    pub(super) groups_all_one: usize,
    /// Groups whose rewards differ: these have a gradient.
    pub(super) groups_mixed: usize,
    /// Groups with too few members left: excluded.
    pub(super) groups_excluded: usize,
    /// Entropy per sampled token at the start of the update, nats.
    pub(super) entropy: f64,
    /// Mean over episodes of the k3 estimate of KL to the reference policy, nats.
    pub(super) ref_kl: Option<f64>,
    /// Largest |sampled − old log-prob|; 0 on-policy with exact numerics. `None` where the old ones
    /// are those sampled: then the stats of `log_probs` say what was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) log_prob_mismatch_max: Option<f64>,
    /// k3 of KL(sampler ‖ policy) per token, if the two differ at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) log_prob_mismatch_kl: Option<f64>,
    /// Mean importance weight of the correction for this mismatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) importance_weight_mean: Option<f64>,
    /// Share of tokens whose weight was clipped at the threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) importance_weight_cut: Option<f64>,
    /// Coefficient of the KL penalty in this iteration's rewards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kl_coef: Option<f64>,
    /// The KL that the controller measured: mean over episodes, nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kl_in_reward: Option<f64>,
    /// Sources of `data.tasks` that later iterations draw from, under a curriculum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sources_entered: Option<usize>,
    /// Mean reward of the greedy baseline episodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) baseline_reward: Option<f64>,
    /// Share of the variance of the returns that the critic's values explain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) explained_variance: Option<f64>,
}

pub(super) fn summarise(
    plan: &Plan,
    iteration: u32,
    all: &[Scored],
    given: &Given,
    credit: &Credit,
) -> Result<Metrics> {
    let episodes: Vec<&Episode> = all.iter().map(|s| &s.episode).collect();
    let (mut entropies, mut divergences) = (Vec::new(), Vec::new());
    let mut mismatch = Mismatch::default();
    for scored in all {
        let (episode, streams) = (&scored.episode, &scored.streams);
        for (index, sequence) in episode.sequences.iter().enumerate() {
            for t in (0..sequence.token_ids.len()).filter(|t| sequence.loss_mask[*t]) {
                entropies.push(f64::from(streams.entropies[index][t]));
            }
            let (old, mask) = (wide(&streams.old[index]), &sequence.loss_mask);
            mismatch.merge(&Mismatch::of(&old, &behaviour(sequence)?, mask)?);
            if let Some(reference) = &streams.reference {
                let reference = wide(&reference[index]);
                divergences.extend(masked_mean(&old, &reference, mask, KlEstimator::K3)?);
            }
        }
    }
    let groups = &credit.groups;
    let uniform = |zero: bool| {
        groups
            .iter()
            .filter(|g| g.is_uniform && (g.mean <= 0.0) == zero)
            .count()
    };
    let weights = &credit.importance_weights;
    let correction = plan.config.importance_correction()?;
    let cut = |threshold: f64| mean(weights.iter().map(|w| f64::from(u8::from(*w >= threshold))));
    let estimator = plan.config.algorithm.adv_estimator;
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
        log_prob_mismatch_max: (!plan.samples_are_scores()).then_some(mismatch.max),
        log_prob_mismatch_kl: (mismatch.max > 0.0).then(|| mismatch.kl()),
        importance_weight_mean: correction.map(|_| mean(weights.iter().copied())),
        importance_weight_cut: correction.map(|c| cut(c.threshold)),
        kl_coef: credit.kl.as_ref().map(|kl| kl.kl_coef),
        kl_in_reward: credit.kl.as_ref().map(|kl| kl.kl),
        sources_entered: None,
        baseline_reward: estimator
            .needs_baseline()
            .then(|| mean(given.baselines.values().copied())),
        explained_variance: credit.explained_variance,
        episodes: EpisodeSummary::of(&episodes),
    })
}
