//! Numbers computed by PyTorch in f64: |a − b| ≤ 1e-4 · (|b| + rms of the tensor).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::{fixtures, tiny_policy};
use crate::batch::Batch;
use crate::folder::parameter::{is_dense, transpose};
use crate::kernels::distribution::Distribution;
use crate::{
    AdamW, ComputeOptions, Engine, EngineOptions, GenerationRequest, Sampling, ScoreRequest,
    TrainSequence, Trainer, Unit, UnitCoefficients, UnitStreams, score,
};

#[derive(Deserialize)]
struct Golden {
    sequences: Vec<Vec<u32>>,
    /// `log_prob[t]` belongs to token t + 1, `loss_mask[t]` to token t.
    loss_mask: Vec<Vec<u8>>,
    #[serde(rename = "temperature_1.0")]
    warm: Vec<Streams>,
    #[serde(rename = "temperature_0.7")]
    cool: Vec<Streams>,
    greedy: Vec<Greedy>,
    update: Update,
}

#[derive(Deserialize)]
struct Streams {
    log_prob: Vec<f64>,
    entropy: Vec<f64>,
    last_logits: Vec<f64>,
}

#[derive(Deserialize)]
struct Greedy {
    prompt: Vec<u32>,
    continuation: Vec<u32>,
}

#[derive(Deserialize)]
struct Update {
    advantages: Vec<Vec<f64>>,
    old_log_prob: Vec<Vec<f64>>,
    ref_log_prob: Vec<Vec<f64>>,
    clip_ratio: f64,
    entropy_coeff: f64,
    kl_loss_coef: f64,
    optimizer: Optimizer,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Optimizer {
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    grad_clip: f64,
}

#[derive(Deserialize)]
struct Step {
    loss: f64,
    grad_norm: f64,
    /// In the first step only.
    #[serde(default)]
    gradients: BTreeMap<String, Summary>,
    parameters: BTreeMap<String, Summary>,
}

/// Norm and first numbers of a tensor in Hugging Face's layout.
#[derive(Deserialize)]
pub(super) struct Summary {
    l2: f64,
    first: Vec<f64>,
}

fn golden() -> Golden {
    read(&fixtures().join("qwen2-tiny/golden.json"))
}

pub(super) fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> T {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(super) fn close(found: &[f32], expected: &[f64], what: &str) {
    let squares: f64 = expected.iter().map(|x| x * x).sum();
    close_to_rms(
        found,
        expected,
        (squares / expected.len() as f64).sqrt(),
        what,
    );
}

fn close_to_rms(found: &[f32], expected: &[f64], rms: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&a, &b)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(a) - b).abs();
        assert!(
            error <= 1e-4 * (b.abs() + rms),
            "{what}[{i}]: {a} instead of {b}"
        );
    }
}

/// A tensor of the in-memory layout against its golden summary.
pub(super) fn matches(
    name: &str,
    shape: &[usize],
    numbers: &[f32],
    expected: &Summary,
    what: &str,
) {
    let numbers = if is_dense(name) {
        transpose(numbers, shape[0], shape[1])
    } else {
        numbers.to_vec()
    };
    let l2 = numbers
        .iter()
        .map(|&x| f64::from(x).powi(2))
        .sum::<f64>()
        .sqrt();
    let what = format!("{what} of {name}");
    assert!(
        (l2 - expected.l2).abs() <= 2e-4 * expected.l2,
        "{what}: norm {l2}, {}",
        expected.l2
    );
    let rms = expected.l2 / (numbers.len() as f64).sqrt();
    close_to_rms(
        &numbers[..expected.first.len()],
        &expected.first,
        rms,
        &what,
    );
}

#[test]
fn log_probs_entropies_and_last_logits() {
    let (golden, policy) = (golden(), tiny_policy());
    for (temperature, expected) in [(1.0, &golden.warm), (0.7, &golden.cool)] {
        let masks: Vec<Vec<bool>> = golden
            .sequences
            .iter()
            .map(|ids| (0..ids.len()).map(|t| t > 0).collect())
            .collect();
        let requests: Vec<_> = golden
            .sequences
            .iter()
            .zip(&masks)
            .map(|(token_ids, loss_mask)| ScoreRequest {
                token_ids,
                loss_mask,
            })
            .collect();
        let scores = score(&policy, &requests, temperature, &ComputeOptions::default()).unwrap();
        for ((scores, expected), ids) in scores.iter().zip(expected).zip(&golden.sequences) {
            close(&scores.log_probs[1..], &expected.log_prob, "log-probs");
            close(&scores.entropies[1..], &expected.entropy, "entropies");
            let batch = Batch::new([(0, ids.as_slice())]);
            let network = &policy.network().host;
            let hidden = network.hidden(&batch, &[ids.len() as u32 - 1], None, None);
            let logits = network.logits(&hidden, &network.generating_head());
            let scaled: Vec<f32> = logits
                .iter()
                .map(|&z| (f64::from(z) / temperature) as f32)
                .collect();
            close(&scaled, &expected.last_logits, "last logits");
        }
    }
}

#[test]
fn greedy_continuations() {
    let golden = golden();
    let mut engine = Engine::new(tiny_policy(), EngineOptions::default());
    for (number, greedy) in golden.greedy.iter().enumerate() {
        let turn = GenerationRequest {
            sequence: number as u64,
            append: greedy.prompt.clone(),
            stream: [0; 32],
            turn: 0,
            sampling: Sampling {
                greedy: true,
                ..Sampling::default()
            },
            tokens_max: greedy.continuation.len(),
            stop_ids: Vec::new(),
        };
        engine.submit(turn).unwrap();
    }
    let mut found = BTreeMap::new();
    while !engine.is_idle() {
        for done in engine.step().unwrap() {
            found.insert(done.sequence as usize, done.token_ids);
        }
    }
    for (number, greedy) in golden.greedy.iter().enumerate() {
        assert_eq!(found[&number], greedy.continuation);
    }
}

/// PPO-clip − entropy bonus + k3 KL, means over all masked tokens, as the fixture's
/// note defines it: the loss and its derivative by the streams of one unit.
struct Loss<'a> {
    update: &'a Update,
    masked: f64,
}

impl Loss<'_> {
    fn of(&self, streams: &UnitStreams, first: usize) -> (f64, UnitCoefficients) {
        let Update {
            advantages,
            old_log_prob,
            ref_log_prob,
            ..
        } = self.update;
        let mut loss = 0.0;
        let mut coefficients = UnitCoefficients::default();
        for (number, (log_probs, entropies)) in
            streams.log_probs.iter().zip(&streams.entropies).enumerate()
        {
            let sequence = first + number;
            let mut by_log_prob = vec![0.0; log_probs.len()];
            let mut by_entropy = vec![0.0; log_probs.len()];
            for token in 1..log_probs.len() {
                // A masked token's entropy is positive; others are 0.0.
                if entropies[token] == 0.0 {
                    continue;
                }
                let (at, log_prob) = (token - 1, f64::from(log_probs[token]));
                let advantage = advantages[sequence][at];
                let ratio = (log_prob - old_log_prob[sequence][at]).exp();
                let clip = self.update.clip_ratio;
                let clipped = ratio.clamp(1.0 - clip, 1.0 + clip);
                let (free, held) = (-advantage * ratio, -advantage * clipped);
                let policy = free.max(held);
                let slope = if free >= held || clipped == ratio {
                    free
                } else {
                    0.0
                };
                let gap = ref_log_prob[sequence][at] - log_prob;
                let kl = gap.exp() - gap - 1.0;
                loss += policy - self.update.entropy_coeff * f64::from(entropies[token])
                    + self.update.kl_loss_coef * kl;
                by_log_prob[token] =
                    (slope + self.update.kl_loss_coef * (1.0 - gap.exp())) / self.masked;
                by_entropy[token] = -self.update.entropy_coeff / self.masked;
            }
            coefficients.log_probs.push(by_log_prob);
            coefficients.entropies.push(by_entropy);
        }
        (loss / self.masked, coefficients)
    }
}

#[test]
fn three_optimizer_steps() {
    let golden = golden();
    let update = &golden.update;
    let policy = tiny_policy();
    let options = AdamW {
        betas: update.optimizer.betas,
        eps: update.optimizer.eps,
        weight_decay: update.optimizer.weight_decay,
        grad_clip: update.optimizer.grad_clip,
        decay_excludes_norms_and_biases: false,
    };
    let mut trainer = Trainer::new(policy, options);
    let units: Vec<Unit> = golden
        .sequences
        .iter()
        .zip(&golden.loss_mask)
        .map(|(ids, mask)| Unit {
            sequences: vec![TrainSequence {
                token_ids: ids.clone(),
                loss_mask: mask
                    .iter()
                    .enumerate()
                    .map(|(t, &m)| t > 0 && m != 0)
                    .collect(),
            }],
            skip: false,
            share_prefixes: false,
        })
        .collect();
    let masked = units
        .iter()
        .map(|unit| unit.sequences[0].loss_mask.iter().filter(|&&m| m).count())
        .sum::<usize>() as f64;
    let loss = Loss { update, masked };
    for (number, expected) in update.steps.iter().enumerate() {
        let total = std::sync::Mutex::new(0.0);
        let ask = |unit: usize, streams: &UnitStreams| {
            let (own, coefficients) = loss.of(streams, unit);
            *total.lock().unwrap() += own;
            coefficients
        };
        let threads = ComputeOptions {
            threads: 2,
            ..ComputeOptions::default()
        };
        let (gradients, _) = trainer.gradients(&units, 1.0, &ask, &threads).unwrap();
        let shapes = crate::parameter_shapes(trainer.model().unwrap().config());
        assert_eq!(gradients.iter().count(), shapes.len());
        assert!(number > 0 || expected.gradients.len() == shapes.len());
        for (name, expected) in &expected.gradients {
            let found = gradients.get(name).unwrap();
            matches(name, &shapes[name], found, expected, "gradient");
        }
        *total.lock().unwrap() = 0.0;
        let report = trainer
            .step(&units, 1.0, update.optimizer.lr, &ask, &threads)
            .unwrap();
        let found = total.into_inner().unwrap();
        assert!(
            (found - expected.loss).abs() <= 1e-4 * expected.loss.abs(),
            "step {number}"
        );
        let relative = (report.grad_norm - expected.grad_norm).abs() / expected.grad_norm;
        assert!(relative <= 1e-4, "step {number}: norm {}", report.grad_norm);
        for (name, parameter) in trainer.model().unwrap().weights().iter() {
            let expected = &expected.parameters[name];
            matches(
                name,
                parameter.shape(),
                parameter.numbers(),
                expected,
                "parameter",
            );
        }
    }
}

#[test]
fn log_probs_and_entropies_of_given_logits() {
    #[derive(Deserialize)]
    struct Case {
        logits: Vec<Vec<f32>>,
        labels: Vec<usize>,
        entropy: Vec<f64>,
        log_prob: Vec<f64>,
    }
    let cases: Vec<Case> = read(&fixtures().join("golden/logits.json"));
    assert!(!cases.is_empty());
    for case in cases {
        let rows: Vec<_> = case
            .logits
            .iter()
            .map(|row| Distribution::of(row, 1.0))
            .collect();
        let log_probs: Vec<f32> = rows
            .iter()
            .zip(case.logits.iter().zip(&case.labels))
            .map(|(d, (row, &label))| d.log_prob(row[label]))
            .collect();
        let entropies: Vec<f32> = rows.iter().map(|d| d.entropy).collect();
        close(&log_probs, &case.log_prob, "log-probs");
        close(&entropies, &case.entropy, "entropies");
    }
}
