//! An adapter that PEFT saved, and what PEFT and PyTorch compute with it in
//! f64 (tools/lora_fixture.py): |a − b| ≤ 1e-4 · (|b| + rms of the tensor).

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::golden::{Summary, close, matches, read};
use crate::{
    AdamW, ComputeOptions, Device, Policy, ScoreRequest, TrainSequence, Trainer, Unit,
    UnitCoefficients, UnitStreams, score,
};

#[derive(Deserialize)]
struct Sequences {
    sequences: Vec<Vec<u32>>,
}

#[derive(Deserialize)]
struct Golden {
    loss: f64,
    /// `log_probs[t]` belongs to token t + 1.
    log_probs: Vec<Vec<f64>>,
    gradients: BTreeMap<String, Summary>,
}

/// These numbers belong to the base beside them, whichever fixtures the other tests use.
fn own(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures")).join(name)
}

fn adapted() -> Policy {
    let base = Policy::load(&own("qwen2-tiny"), &Device::cpu()).unwrap();
    let adapter = crate::Adapter::load(&own("lora-tiny"), base.config()).unwrap();
    base.with_adapter(adapter).unwrap()
}

/// dloss/dlog_prob of token t.
fn weight(t: usize) -> f64 {
    0.3 * ((t % 4) as f64 - 1.2)
}

#[test]
fn log_probs_loss_and_gradients_are_those_of_peft() {
    let golden: Golden = read(&own("lora-tiny/golden.json"));
    let Sequences { sequences } = read(&own("qwen2-tiny/golden.json"));
    let policy = adapted();
    let masks: Vec<Vec<bool>> = (sequences.iter())
        .map(|ids| (0..ids.len()).map(|t| t > 0).collect())
        .collect();
    let requests: Vec<_> = (sequences.iter().zip(&masks))
        .map(|(token_ids, loss_mask)| ScoreRequest {
            token_ids,
            loss_mask,
        })
        .collect();
    let scores = score(&policy, &requests, 1.0, &ComputeOptions::default()).unwrap();
    let mut loss = 0.0;
    for (scores, expected) in scores.iter().zip(&golden.log_probs) {
        close(&scores.log_probs[1..], expected, "log-probs");
        loss += (1..scores.log_probs.len())
            .map(|t| weight(t) * f64::from(scores.log_probs[t]))
            .sum::<f64>();
    }
    let error = (loss - golden.loss).abs();
    assert!(error <= 1e-4 * golden.loss.abs(), "loss {loss}");

    let units: Vec<Unit> = (sequences.iter().zip(&masks))
        .map(|(ids, mask)| Unit {
            sequences: vec![TrainSequence {
                token_ids: ids.clone(),
                loss_mask: mask.clone(),
            }],
            skip: false,
            share_prefixes: false,
        })
        .collect();
    let ask = |_: usize, streams: &UnitStreams| {
        let row = |s: &Vec<f32>| (0..s.len()).map(weight).collect();
        UnitCoefficients {
            log_probs: streams.log_probs.iter().map(row).collect(),
            entropies: (streams.entropies.iter())
                .map(|s| vec![0.0; s.len()])
                .collect(),
        }
    };
    let trainer = Trainer::new(policy.clone(), AdamW::default());
    let options = ComputeOptions::default();
    let (gradients, _) = trainer.gradients(&units, 1.0, &ask, &options).unwrap();
    let adapter = policy.trained_weights();
    assert_eq!(adapter.iter().count(), golden.gradients.len());
    for (name, factor) in adapter.iter() {
        let (found, expected) = (gradients.get(name).unwrap(), &golden.gradients[name]);
        matches(name, factor.shape(), found, expected, "gradient");
    }
}
