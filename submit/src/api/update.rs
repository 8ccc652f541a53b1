//! The optimizer steps of an iteration, and the tokens that pull most.

use super::episode::places;
use super::known::Known;
use super::rescore::{Histogram, TokenPlace, batch};
use super::rows::RowCache;
use crate::Result;
use crate::records::episodes;
use agentgym_jobs::episode::{Episode, Turn};
use agentgym_jobs::pipeline::{PartId, Stage, policy_of};
use agentgym_record::documents::{UpdateSettings, UpdateStep, UpdateSteps};
use agentgym_record::iteration::{Slot, slots};
use agentgym_record::weights::{log_prob_slopes, token_weights};
use serde::Serialize;
use std::collections::BTreeMap;

/// Tokens listed.
const TOKENS: usize = 40;

/// A token with what it pulls.
#[derive(Debug, Default, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct PullingToken {
    #[serde(flatten)]
    pub(crate) place: TokenPlace,
    pub(crate) turn: Option<usize>,
    pub(crate) pull: f64,
    pub(crate) advantage: f64,
    pub(crate) weight: f64,
    pub(crate) slope: f64,
    pub(crate) p: f64,
    pub(crate) id: u32,
    pub(crate) piece: Option<String>,
}

/// An iteration's update; no steps while it is being computed.
#[derive(Debug, Serialize)]
pub(crate) struct Update {
    pub(crate) run: String,
    iteration: u32,
    newest: Option<u32>,
    pub(crate) settings: Option<UpdateSettings>,
    minibatches: Option<Vec<UpdateStep>>,
    /// Old over sampled probability: 1 for every token where the sampler's log-probs are used.
    sampler: Option<Histogram>,
    pub(crate) tokens: Vec<PullingToken>,
}

/// Steps and tokens. A token's pull is |slope| · (1 − p). Its slope is the derivative of the loss with
/// respect to its log-prob as the first step has it, where the ratio is 1: − advantage · weight, and
/// the KL term's where there is one. The weight is what `loss_agg_mode` gives a token of its sequence.
/// 1 − p is the derivative of the log-prob with respect to the logit of what was sampled.
pub(super) async fn update(known: &Known, rows: &RowCache, n: u32) -> Result<Update> {
    let (view, recorded) = batch(known, n).await?;
    let made = policy_of(&view.plan, n);
    let steps = match known.committed(made).await {
        Ok(manifest) => Some(view.document::<UpdateSteps>(&manifest).await?),
        // The update is still being computed.
        Err(_) => None,
    };
    let weights = token_weights(&view.plan, &recorded)?;
    let slopes = log_prob_slopes(&view.plan, &recorded)?;
    let filled = slots(recorded, None);
    let mut pulls = Vec::new();
    let mut mismatches = Vec::new();
    for slot in &filled {
        for (s, sequence) in slot.episode.sequences.iter().enumerate() {
            for (t, slope) in slopes[slot.slot][s].iter().enumerate() {
                if !sequence.sequence.loss_mask[t] {
                    continue;
                }
                let old = f64::from(sequence.old_log_probs[t]);
                mismatches.push(old - f64::from(sequence.sequence.sampled_log_probs[t]));
                if *slope != 0.0 {
                    pulls.push((slope.abs() * (1.0 - old.exp()), *slope, slot, s, t));
                }
            }
        }
    }
    pulls.sort_by(|a, b| b.0.total_cmp(&a.0));
    pulls.truncate(TOKENS);
    let pieces = known.pieces().await?;
    let places = places(known, rows, n).await?;
    let mut played = BTreeMap::<PartId, Vec<Episode>>::new();
    for (_, _, slot, ..) in &pulls {
        let place = places.get(&(slot.episode.group, slot.episode.sample));
        if let Some((part, _)) = place.filter(|(part, _)| !played.contains_key(part)) {
            let manifest = known.committed(*part).await?;
            // Of a part that cannot be read, no turn is named.
            let all = episodes(&view, &manifest).await.unwrap_or_default();
            played.insert(*part, all);
        }
    }
    let turn = |slot: &Slot, s: usize, t: usize| {
        let (part, k) = places.get(&(slot.episode.group, slot.episode.sample))?;
        let turns = &played.get(part)?.get(*k as usize)?.turns;
        let owns = |turn: &Turn| {
            let (from, to) = turn.policy;
            turn.sequence as usize == s && (from as usize..to as usize).contains(&t)
        };
        turns.iter().position(owns)
    };
    let tokens = pulls.iter().map(|(pull, slope, slot, s, t)| {
        let sequence = &slot.episode.sequences[*s];
        let id = sequence.sequence.token_ids[*t];
        PullingToken {
            place: TokenPlace::of(&places, slot, *s, *t),
            turn: turn(slot, *s, *t),
            pull: *pull,
            advantage: sequence.advantages[*t],
            weight: weights[slot.slot][*s],
            slope: *slope,
            p: f64::from(sequence.old_log_probs[*t]).exp(),
            id,
            piece: pieces.texts(&[id]).pop(),
        }
    });
    let tokens = tokens.collect();
    let state = known.state().await;
    let newest = state
        .manifests
        .keys()
        .filter(|id| id.stage == Stage::Advantage);
    let newest = newest.map(|id| id.iteration).max();
    let differs = mismatches.iter().any(|d| *d != 0.0);
    let (settings, minibatches) = steps.map(|of| (of.settings, of.minibatches)).unzip();
    Ok(Update {
        run: view.plan.run.to_string(),
        iteration: n,
        newest,
        settings,
        minibatches,
        sampler: differs.then(|| Histogram::of(&mismatches)),
        tokens,
    })
}
