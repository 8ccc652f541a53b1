//! How the estimator used each episode, for whoever computes an iteration again elsewhere.

use super::assign::{self, compared, is_masked};
use crate::Result;
use crate::iteration::Iteration;
use crate::rewards::Rewards;
use crate::weights::wide;
use agentgym_jobs::episode::Episode;
use agentgym_jobs::plan::Plan;
use serde::Serialize;

/// How an episode takes part in its iteration's advantages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// Whether the estimator uses it, for baselines, groups and whitening.
    pub compared: bool,
    /// Whether it is compared but not trained on (`algorithm.overlong: mask`).
    pub masked: bool,
    /// Its score, as group estimators compare it.
    pub score: f64,
    /// The reward of each turn, if turns are rewarded separately (`algorithm.turn_rewards`), placed
    /// on the turn's last token. Otherwise the score is placed on the last token of the episode's
    /// loss mask.
    pub turn_rewards: Option<Vec<f64>>,
    /// The reward of the greedy episode of its task, if the estimator uses it as baseline.
    pub baseline: Option<f64>,
}

/// The standing of each episode of an iteration.
///
/// # Errors
/// An environment without a spec.
pub fn standings(plan: &Plan, iteration: &Iteration) -> Result<Vec<Standing>> {
    let rewards = Rewards::of(plan)?;
    let given = &iteration.given;
    let episodes: Vec<&Episode> = iteration.episodes.iter().map(|s| &s.episode).collect();
    let all = episodes.iter().zip(compared(plan, &episodes, given));
    Ok(all
        .map(|(episode, compared)| Standing {
            compared,
            masked: compared && is_masked(plan, episode),
            score: rewards.score(episode),
            turn_rewards: rewards.turns(episode),
            baseline: given.baselines.get(&episode.group).copied(),
        })
        .collect())
}

/// Importance weights by which the sampler correction multiplies the advantages, by sequence and
/// token; `None` if the correction is off. `old` are the log-probs of the policy at the start of
/// the update.
///
/// # Errors
/// Streams of different lengths.
pub fn importance_weights(
    plan: &Plan,
    episode: &Episode,
    old: &[Vec<f32>],
) -> Result<Option<Vec<Vec<f64>>>> {
    let Some(correction) = plan.config.importance_correction()? else {
        return Ok(None);
    };
    let (mut behaviour, mut mask) = (Vec::new(), Vec::new());
    for sequence in &episode.sequences {
        behaviour.extend(assign::behaviour(sequence)?);
        mask.extend_from_slice(&sequence.loss_mask);
    }
    let mut weights = correction
        .weights(&wide(&old.concat()), &behaviour, &mask)?
        .into_iter();
    let own = |s: &Vec<f32>| weights.by_ref().take(s.len()).collect();
    Ok(Some(old.iter().map(own).collect()))
}
