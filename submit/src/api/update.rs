//! The optimizer steps of an iteration, and the tokens that pull most.

use super::known::Known;
use crate::Result;
use crate::records::slots;
use agentgym_jobs::artifact_names;
use agentgym_jobs::pipeline::{PartId, Stage, policy_of};
use serde_json::{Value, json};

/// Tokens listed.
const TOKENS: usize = 40;

/// Steps and tokens. A token's pull is |advantage| · (1 − p): how strongly the first step, at
/// ratio 1, moves the logit of what was sampled, before the common denominator.
pub(super) async fn update(known: &Known, n: u32) -> Result<Value> {
    let view = known.view().await;
    view.iteration_parts(n)?;
    let batch = PartId {
        iteration: n,
        stage: Stage::Advantage,
        part: 0,
    };
    let batch = known.committed(batch).await?;
    let made = policy_of(&view.plan, n);
    let steps = match known.committed(made).await {
        Ok(manifest) => view.json(&manifest, artifact_names::UPDATE).await?,
        // The update is still being computed.
        Err(_) => Value::Null,
    };
    let mut pulls = Vec::new();
    for slot in slots(&view, &batch).await? {
        for (s, sequence) in slot.episode.sequences.iter().enumerate() {
            for (t, advantage) in sequence.advantages.iter().enumerate() {
                if sequence.sequence.loss_mask[t] && *advantage != 0.0 {
                    let p = f64::from(sequence.old_log_probs[t]).exp();
                    let pull = advantage.abs() * (1.0 - p);
                    let id = sequence.sequence.token_ids[t];
                    pulls.push((pull, *advantage, p, id, (slot.slot, s, t)));
                }
            }
        }
    }
    pulls.sort_by(|a, b| b.0.total_cmp(&a.0));
    pulls.truncate(TOKENS);
    let pieces = known.pieces().await?;
    let samples = view.plan.config.actor_rollout_ref.rollout.n as usize;
    let tokens = pulls.iter().map(|(pull, advantage, p, id, (slot, s, t))| {
        json!({
            "pull": pull, "advantage": advantage, "p": p, "id": id,
            "piece": pieces.texts(&[*id]).first(), "slot": slot, "sequence": s, "token": t,
            "group": slot / samples, "sample": slot % samples,
        })
    });
    Ok(json!({
        "run": view.plan.run.to_string(), "iteration": n, "settings": steps["settings"],
        "minibatches": steps["minibatches"], "tokens": tokens.collect::<Vec<_>>(),
    }))
}
