//! Every family, with every scaling of rotary frequencies, against `transformers` 5.24 and
//! PyTorch's autograd in f64. The parameters are a hash of their names and indices, so that only
//! the results need to be stored.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

use super::tiny_policy;
use crate::folder::parameter::{is_dense, transpose};
use crate::{
    AdamW, Architecture, ComputeOptions, Engine, EngineOptions, GenerationRequest, ModelConfig,
    Parameter, Policy, Sampling, ScoreRequest, TrainSequence, Trainer, Unit, UnitCoefficients,
    UnitStreams, Weights, parameter_shapes, score,
};

#[derive(Deserialize)]
struct Golden {
    models: Vec<Model>,
    rotary: Vec<Rotary>,
}

#[derive(Deserialize)]
struct Model {
    config: Map<String, Value>,
    frequencies: Vec<f64>,
    attention_factor: f64,
    log_probs: Vec<f64>,
    /// Norm, and product with another hash.
    gradients: BTreeMap<String, [f64; 2]>,
    greedy: Vec<u32>,
}

/// Rotary parameters of published models.
#[derive(Deserialize)]
struct Rotary {
    name: String,
    head_dim: usize,
    max_position_embeddings: usize,
    rope_parameters: Value,
    frequencies: Vec<f64>,
    attention_factor: f64,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("families.json")).unwrap()
}

/// `count` numbers from 0 to 1 that depend on a name and a salt.
fn units(name: &str, count: usize, salt: u32) -> impl Iterator<Item = f64> {
    let step = |sum: u32, byte: u8| {
        let sum = sum.wrapping_mul(31).wrapping_add(u32::from(byte));
        sum.wrapping_add(salt)
    };
    let seed = name.bytes().fold(0, step);
    (1..=count as u32).map(move |at| {
        let mut hash = at.wrapping_mul(2_654_435_761).wrapping_add(seed);
        hash = (hash ^ (hash >> 15)).wrapping_mul(2_246_822_519);
        hash = (hash ^ (hash >> 13)).wrapping_mul(3_266_489_917);
        f64::from(hash ^ (hash >> 16)) / 4_294_967_296.0
    })
}

/// A parameter's numbers in the in-memory layout.
fn parameter(name: &str, shape: &[usize]) -> Vec<f32> {
    let (offset, scale) = match (name.contains("norm"), shape.len()) {
        (true, _) => (1.0, 0.5),
        (_, 1) => (0.0, 1.0),
        _ if name.contains("embed") => (0.0, 2.0),
        _ => (0.0, 3.0 / f64::from((shape[0] as f32).sqrt())),
    };
    let numbers: Vec<f32> = units(name, shape.iter().product(), 0)
        .map(|unit| (offset + scale * (unit - 0.5)) as f32)
        .collect();
    match is_dense(name) {
        true => transpose(&numbers, shape[1], shape[0]),
        false => numbers,
    }
}

fn policy(model: &Model) -> Policy {
    let config = ModelConfig::from_json(model.config.clone(), "golden".as_ref()).unwrap();
    let parameters = parameter_shapes(&config).into_iter().map(|(name, shape)| {
        let numbers = parameter(&name, &shape);
        (name, Parameter::new(shape, numbers))
    });
    let weights = Weights::new(parameters.collect());
    let tiny = tiny_policy();
    Policy::new(
        config,
        weights,
        tiny.tokenizer().clone(),
        tiny.chat().clone(),
    )
    .unwrap()
}

fn ids(policy: &Policy, count: usize) -> Vec<u32> {
    let words = (policy.config().vocab_size - 3) as f64;
    let numbers = units("ids", count, 0);
    numbers.map(|unit| (3.0 + unit * words) as u32).collect()
}

fn near(found: &[f64], expected: &[f64], bound: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (a, b)) in found.iter().zip(expected).enumerate() {
        let error = (a - b).abs() / b.abs().max(1e-12);
        assert!(error < bound, "{what}[{at}]: {a} instead of {b}");
    }
}

/// `transformers` computes frequencies in f32.
#[test]
fn rotary_frequencies() {
    let golden = golden();
    for model in &golden.models {
        let config = policy(model).config().clone();
        let found = config.rope.frequencies(config.head_dim);
        near(&found, &model.frequencies, 1e-6, "frequencies");
        let factor = config.rope.attention_factor();
        near(&[factor], &[model.attention_factor], 1e-12, "factor");
    }
    for model in &golden.rotary {
        let mut config = golden.models[0].config.clone();
        config.insert("rope_parameters".to_owned(), model.rope_parameters.clone());
        for (key, number) in [
            ("head_dim", model.head_dim),
            ("max_position_embeddings", model.max_position_embeddings),
        ] {
            config.insert(key.to_owned(), number.into());
        }
        let rope = ModelConfig::from_json(config, "published".as_ref())
            .unwrap()
            .rope;
        let found = rope.frequencies(model.head_dim);
        near(&found, &model.frequencies, 2e-6, &model.name);
        near(
            &[rope.attention_factor()],
            &[model.attention_factor],
            1e-12,
            &model.name,
        );
    }
}

#[test]
fn log_probs_gradients_and_greedy_continuations() {
    let golden = golden();
    for family in Architecture::ALL {
        let kinds = golden
            .models
            .iter()
            .map(|model| &model.config["model_type"]);
        assert!(kinds.into_iter().any(|kind| kind == family.model_type()));
    }
    for model in &golden.models {
        let policy = policy(model);
        let what = format!("{}", Value::Object(model.config.clone()));
        let token_ids = ids(&policy, 90);
        let loss_mask: Vec<bool> = (0..token_ids.len()).map(|token| token > 0).collect();
        let options = ComputeOptions::default();
        let request = ScoreRequest {
            token_ids: &token_ids,
            loss_mask: &loss_mask,
        };
        let scores = score(&policy, &[request], 1.0, &options).unwrap();
        let found: Vec<f64> = scores[0].log_probs[1..]
            .iter()
            .map(|x| f64::from(*x))
            .collect();
        near(&found, &model.log_probs, 1e-4, &what);

        let ask = |_: usize, streams: &UnitStreams| {
            let coefficients = |stream: &Vec<f32>| -> Vec<f64> {
                (0..stream.len())
                    .map(|token| (token % 5) as f64 * 0.3 - 0.5)
                    .collect()
            };
            UnitCoefficients {
                log_probs: streams.log_probs.iter().map(coefficients).collect(),
                entropies: streams
                    .log_probs
                    .iter()
                    .map(|stream| vec![0.0; stream.len()])
                    .collect(),
            }
        };
        let unit = Unit {
            sequences: vec![TrainSequence {
                token_ids: token_ids.clone(),
                loss_mask,
            }],
            skip: false,
            share_prefixes: false,
        };
        let trainer = Trainer::new(policy.clone(), AdamW::default());
        let (gradients, _) = trainer.gradients(&[unit], 1.0, &ask, &options).unwrap();
        assert_eq!(
            model.gradients.len(),
            policy.weights().iter().count(),
            "{what}"
        );
        for (name, [norm, product]) in &model.gradients {
            let shape = policy.weights().get(name).unwrap().shape();
            let found = gradients.get(name).unwrap();
            let found = match is_dense(name) {
                true => transpose(found, shape[0], shape[1]),
                false => found.to_vec(),
            };
            let squares: f64 = found.iter().map(|x| f64::from(*x).powi(2)).sum();
            let other = units(name, found.len(), 7).map(|unit| unit - 0.5);
            let sum: f64 = found
                .iter()
                .zip(other)
                .map(|(x, y)| f64::from(*x) * y)
                .sum();
            // The gradient of a key's bias is a small difference of large numbers.
            let bound = if name.ends_with("k_proj.bias") {
                2e-2
            } else {
                1e-3
            };
            let error = (squares.sqrt() - norm).abs().max((sum - product).abs()) / norm;
            assert!(error < bound, "{what}: {name} is off by {error}");
        }

        let mut engine = Engine::new(policy, EngineOptions::default());
        let request = GenerationRequest {
            sequence: 0,
            append: token_ids[..20].to_vec(),
            stream: [0; 32],
            turn: 0,
            sampling: Sampling {
                greedy: true,
                ..Sampling::default()
            },
            tokens_max: model.greedy.len(),
            stop_ids: vec![2],
        };
        engine.submit(request).unwrap();
        let mut found = Vec::new();
        while !engine.is_idle() {
            found.extend(
                engine
                    .step()
                    .unwrap()
                    .into_iter()
                    .flat_map(|done| done.token_ids),
            );
        }
        assert_eq!(found, model.greedy, "{what}");
    }
}
