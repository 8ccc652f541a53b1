//! The metrics of the iteration's episodes. Entries of an option are written only if the option is
//! on, so that the metrics of other runs keep their bytes.

use super::assign::{Credit, behaviour};
use crate::Result;
use crate::figures::{self, mean, success_by_env};
use crate::iteration::Iteration;
use crate::metrics::AdvantageMetrics;
use crate::weights::wide;
use agentgym_algorithms::importance::Mismatch;
use agentgym_algorithms::kl::{KlEstimator, masked_mean};
use agentgym_jobs::episode::Episode;
use agentgym_jobs::plan::Plan;

/// The metrics of an iteration whose episodes got this credit.
///
/// # Errors
/// Streams of different lengths.
pub fn summarise(plan: &Plan, iteration: &Iteration, credit: &Credit) -> Result<AdvantageMetrics> {
    let Iteration {
        episodes: all,
        given,
    } = iteration;
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
    Ok(AdvantageMetrics {
        success_by_env: success_by_env(&episodes),
        horizon: plan.rounds_max(given.iteration),
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
        episodes: figures::summary(&episodes),
    })
}
