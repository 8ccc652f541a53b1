//! The optimizer steps of an iteration, and the tokens that pull most.

use super::episodes::places;
use super::known::Known;
use super::rescore::{batch, histogram, told};
use super::rows::RowCache;
use crate::records::Slot;
use crate::runs::RunView;
use crate::{Error, Result};
use agentgym_jobs::artifact_names;
use agentgym_jobs::pipeline::{Stage, policy_of};
use agentgym_jobs::records::Batch;
use agentgym_worker::stages::credit::token_weights;
use serde_json::{Value, json};

/// Tokens listed.
const TOKENS: usize = 40;

/// What each token of each sequence of a slot weighs in the loss.
fn weights(view: &RunView, filled: &[Slot]) -> Result<Vec<Vec<f64>>> {
    let mut batch = vec![None; filled.iter().map(|slot| slot.slot + 1).max().unwrap_or(0)];
    for slot in filled {
        batch[slot.slot] = Some(slot.episode.clone());
    }
    let weights = token_weights(&view.plan, &Batch::V1(batch));
    weights.map_err(|e| Error::Usage(format!("weighing the tokens of the batch: {e}")))
}

/// Steps and tokens. A token's pull is |advantage| · weight · (1 − p), the size of the derivative of the
/// policy's loss with respect to the logit of what was sampled, at the first step, where the ratio is 1.
/// The weight is what `loss_agg_mode` gives a token of its sequence in its minibatch.
pub(super) async fn update(known: &Known, rows: &RowCache, n: u32) -> Result<Value> {
    let (view, filled) = batch(known, n).await?;
    let made = policy_of(&view.plan, n);
    let steps = match known.committed(made).await {
        Ok(manifest) => view.json(&manifest, artifact_names::UPDATE).await?,
        // The update is still being computed.
        Err(_) => Value::Null,
    };
    let weights = weights(&view, &filled)?;
    let mut pulls = Vec::new();
    let mut mismatches = Vec::new();
    for slot in &filled {
        for (s, sequence) in slot.episode.sequences.iter().enumerate() {
            for (t, advantage) in sequence.advantages.iter().enumerate() {
                if !sequence.sequence.loss_mask[t] {
                    continue;
                }
                let old = f64::from(sequence.old_log_probs[t]);
                mismatches.push(old - f64::from(sequence.sequence.sampled_log_probs[t]));
                if *advantage != 0.0 {
                    let (p, weight) = (old.exp(), weights[slot.slot][s]);
                    pulls.push((advantage.abs() * weight * (1.0 - p), weight, slot, s, t));
                }
            }
        }
    }
    pulls.sort_by(|a, b| b.0.total_cmp(&a.0));
    pulls.truncate(TOKENS);
    let pieces = known.pieces().await?;
    let places = places(known, rows, n).await?;
    let tokens = pulls.iter().map(|(pull, weight, slot, s, t)| {
        let sequence = &slot.episode.sequences[*s];
        let id = sequence.sequence.token_ids[*t];
        let mut out = told(&view, &places, slot, *s, *t);
        out["pull"] = json!(pull);
        out["advantage"] = json!(sequence.advantages[*t]);
        out["weight"] = json!(weight);
        out["p"] = json!(f64::from(sequence.old_log_probs[*t]).exp());
        out["id"] = json!(id);
        out["piece"] = json!(pieces.texts(&[id]).first());
        out
    });
    let state = known.state().await;
    let newest = state
        .manifests
        .keys()
        .filter(|id| id.stage == Stage::Advantage);
    let newest = newest.map(|id| id.iteration).max();
    let differs = mismatches.iter().any(|d| *d != 0.0);
    Ok(json!({
        "run": view.plan.run.to_string(), "iteration": n, "newest": newest, "settings": steps["settings"],
        "minibatches": steps["minibatches"],
        // Old over sampled probability: 1 for every token where the sampler's log-probs are used.
        "sampler": differs.then(|| histogram(&mismatches)), "tokens": tokens.collect::<Vec<_>>(),
    }))
}
