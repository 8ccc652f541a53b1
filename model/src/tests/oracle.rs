//! The kernels against the same model built from elementary operations, and against another
//! implementation of each family; the gradients of Qwen3's head norms against finite differences.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_transformers::models::{llama, mistral, qwen2, qwen3};

use super::composed::Composed;
use super::{SHAPES, random_policy, relative_error, requests, sequences, tiny_policy};
use crate::batch::Batch;
use crate::{
    AdamW, Architecture, ComputeOptions, Policy, RopeScaling, TrainSequence, Trainer, Unit,
    UnitCoefficients, UnitStreams, score,
};

/// Lengths around block edges and tile sizes.
const LENGTHS: [usize; 7] = [2, 3, 9, 63, 64, 65, 131];

/// Coefficients of the token at `token`, of both signs.
fn coefficients(token: usize) -> (f64, f64) {
    (
        (token % 5) as f64 * 0.3 - 0.5,
        (token % 3) as f64 * 0.2 - 0.1,
    )
}

/// [`coefficients`] of every token of a unit.
fn ask(_: usize, streams: &UnitStreams) -> UnitCoefficients {
    let spread = |pick: fn((f64, f64)) -> f64| {
        let numbers = |s: &Vec<f32>| (0..s.len()).map(|t| pick(coefficients(t))).collect();
        streams.log_probs.iter().map(numbers).collect()
    };
    UnitCoefficients {
        log_probs: spread(|c| c.0),
        entropies: spread(|c| c.1),
    }
}

#[test]
fn scores_agree_with_elementary_operations() {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        let policy = random_policy(shape, seed as u64);
        let mut sequences = sequences(policy.config().vocab_size, &LENGTHS, 5);
        for sequence in &mut sequences {
            sequence.loss_mask[1..].fill(true);
        }
        let options = ComputeOptions::default();
        let scores = score(&policy, &requests(&sequences), 0.8, &options).unwrap();
        let composed = Composed::new(&policy).unwrap();
        for (sequence, scores) in sequences.iter().zip(&scores) {
            let (log_probs, entropies) = composed.streams(&sequence.token_ids, 0.8).unwrap();
            let log_probs: Vec<f32> = log_probs.to_vec1().unwrap();
            let entropies: Vec<f32> = entropies.to_vec1().unwrap();
            assert!(relative_error(&scores.log_probs[1..], &log_probs) < 1e-5);
            assert!(relative_error(&scores.entropies[1..], &entropies) < 1e-5);
        }
    }
}

#[test]
fn gradients_agree_with_elementary_operations_and_reach_every_parameter() {
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        let policy = random_policy(shape, 10 + seed as u64);
        let sequences = sequences(policy.config().vocab_size, &LENGTHS, 6);
        let trainer = Trainer::new(policy.clone(), AdamW::default());
        let units = [Unit {
            sequences: sequences.clone(),
            skip: false,
            share_prefixes: false,
        }];
        let options = ComputeOptions::default();
        let (found, _) = trainer.gradients(&units, 0.8, &ask, &options).unwrap();
        let expected = summed_gradients(&policy, &sequences);
        for (name, expected) in expected {
            let found = found.get(&name).unwrap();
            assert!(found.iter().all(|x| x.is_finite()), "{name}");
            assert!(found.iter().any(|&x| x != 0.0), "{name}");
            // A key bias moves all scores of a row together: its gradient is a small
            // difference of large numbers.
            let bound = if name.ends_with("k_proj.bias") {
                1e-3
            } else {
                2e-4
            };
            let error = relative_error(found, &expected);
            assert!(error < bound, "shape {seed}: {name} is off by {error}");
        }
    }
}

fn summed_gradients(policy: &Policy, sequences: &[TrainSequence]) -> Vec<(String, Vec<f32>)> {
    let composed = Composed::new(policy).unwrap();
    let mut sums: Vec<(String, Vec<f32>)> = policy
        .weights()
        .iter()
        .map(|(name, parameter)| (name.to_owned(), vec![0.0; parameter.numbers().len()]))
        .collect();
    for sequence in sequences {
        let own = composed.gradients(sequence, 0.8, coefficients).unwrap();
        for (name, sum) in &mut sums {
            sum.iter_mut()
                .zip(&own[name])
                .for_each(|(sum, x)| *sum += x);
        }
    }
    sums
}

/// The other implementation's logits of the last token of a prompt; `None` where it
/// does not support the model.
fn other_logits(
    policy: &Policy,
    folder: &Path,
    prompts: &[TrainSequence],
) -> Option<Vec<Vec<f32>>> {
    let weights = folder.join("model.safetensors");
    let tensors = candle_core::safetensors::load(weights, &Device::Cpu).unwrap();
    let builder = candle_nn::VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let own = policy.config();
    let mut forward: Box<dyn FnMut(&Tensor) -> Tensor> = match own.architecture {
        Architecture::Qwen2 => {
            let config = qwen2::Config {
                vocab_size: own.vocab_size,
                hidden_size: own.hidden_size,
                intermediate_size: own.intermediate_size,
                num_hidden_layers: own.num_hidden_layers,
                num_attention_heads: own.num_attention_heads,
                num_key_value_heads: own.num_key_value_heads,
                max_position_embeddings: own.max_position_embeddings,
                sliding_window: own.max_position_embeddings,
                max_window_layers: own.num_hidden_layers,
                tie_word_embeddings: own.tie_word_embeddings,
                rope_theta: own.rope.theta,
                rms_norm_eps: own.rms_norm_eps,
                use_sliding_window: false,
                hidden_act: candle_nn::Activation::Silu,
            };
            let mut other = qwen2::ModelForCausalLM::new(&config, builder).unwrap();
            Box::new(move |input| {
                other.clear_kv_cache();
                other.forward(input, 0).unwrap()
            })
        }
        Architecture::Qwen3 => {
            // Read from the saved file, as other programs would.
            let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
            let mut raw: serde_json::Value = serde_json::from_str(&text).unwrap();
            raw["rope_theta"] = own.rope.theta.into();
            for (key, value) in [
                ("attention_bias", false.into()),
                ("sliding_window", serde_json::Value::Null),
                ("max_window_layers", own.num_hidden_layers.into()),
                ("use_sliding_window", false.into()),
            ] {
                raw[key] = value;
            }
            let config: qwen3::Config = serde_json::from_value(raw).unwrap();
            assert_eq!(config.head_dim, own.head_dim);
            let mut other = qwen3::ModelForCausalLM::new(&config, builder).unwrap();
            Box::new(move |input| {
                other.clear_kv_cache();
                other.forward(input, 0).unwrap()
            })
        }
        Architecture::Llama => {
            let rope_scaling = match own.rope.scaling {
                RopeScaling::Llama3 {
                    factor,
                    low_freq_factor,
                    high_freq_factor,
                    original_max_position_embeddings,
                } => Some(llama::Llama3RopeConfig {
                    factor: factor as f32,
                    low_freq_factor: low_freq_factor as f32,
                    high_freq_factor: high_freq_factor as f32,
                    original_max_position_embeddings: original_max_position_embeddings as usize,
                    rope_type: llama::Llama3RopeType::Llama3,
                }),
                // It supports no other scaling, nor a head width of its own.
                _ => return None,
            };
            let config = llama::Config {
                hidden_size: own.hidden_size,
                intermediate_size: own.intermediate_size,
                vocab_size: own.vocab_size,
                num_hidden_layers: own.num_hidden_layers,
                num_attention_heads: own.num_attention_heads,
                num_key_value_heads: own.num_key_value_heads,
                use_flash_attn: false,
                rms_norm_eps: own.rms_norm_eps,
                rope_theta: own.rope.theta as f32,
                bos_token_id: None,
                eos_token_id: None,
                rope_scaling,
                max_position_embeddings: own.max_position_embeddings,
                tie_word_embeddings: own.tie_word_embeddings,
            };
            let other = llama::Llama::load(builder, &config).unwrap();
            Box::new(move |input| {
                let mut cache =
                    llama::Cache::new(false, DType::F32, &config, &Device::Cpu).unwrap();
                other.forward(input, 0, &mut cache).unwrap()
            })
        }
        Architecture::Mistral => {
            let config = mistral::Config {
                vocab_size: own.vocab_size,
                hidden_size: own.hidden_size,
                intermediate_size: own.intermediate_size,
                num_hidden_layers: own.num_hidden_layers,
                num_attention_heads: own.num_attention_heads,
                head_dim: Some(own.head_dim),
                num_key_value_heads: own.num_key_value_heads,
                hidden_act: candle_nn::Activation::Silu,
                max_position_embeddings: own.max_position_embeddings,
                rms_norm_eps: own.rms_norm_eps,
                rope_theta: own.rope.theta,
                sliding_window: None,
                use_flash_attn: false,
            };
            let mut other = mistral::Model::new(&config, builder).unwrap();
            Box::new(move |input| {
                other.clear_kv_cache();
                other.forward(input, 0).unwrap()
            })
        }
    };
    let logits = prompts.iter().map(|prompt| {
        let ids = &prompt.token_ids;
        let input = Tensor::from_slice(ids, (1, ids.len()), &Device::Cpu).unwrap();
        forward(&input).flatten_all().unwrap().to_vec1().unwrap()
    });
    Some(logits.collect())
}

#[test]
fn last_logits_agree_with_another_implementation_on_a_saved_folder() {
    let mut policies = vec![tiny_policy()];
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        policies.push(random_policy(shape, 3 + seed as u64));
    }
    let mut compared = 0;
    for (number, policy) in policies.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        policy.save(dir.path()).unwrap();
        let prompts = sequences(policy.config().vocab_size, &[5, 70], 9);
        let Some(expected) = other_logits(&policy, dir.path(), &prompts) else {
            continue;
        };
        compared += 1;
        for (prompt, expected) in prompts.iter().zip(expected) {
            let ids = &prompt.token_ids;
            let batch = Batch::new([(0, ids.as_slice())]);
            let network = &policy.network().host;
            let hidden = network.hidden(&batch, &[ids.len() as u32 - 1], None, None);
            let logits = network.logits(&hidden, &network.generating_head());
            let error = relative_error(&logits, &expected);
            assert!(error < 1e-4, "policy {number} is off by {error}");
        }
    }
    assert_eq!(compared, SHAPES.len());
}

/// Moves every weight of the norms of queries and keys in both directions.
#[test]
fn gradients_of_head_norms_agree_with_finite_differences() {
    const STEP: f32 = 5e-3;
    let options = ComputeOptions::default();
    for (seed, shape) in SHAPES.into_iter().enumerate() {
        if shape.architecture != Architecture::Qwen3 {
            continue;
        }
        let policy = random_policy(shape, 40 + seed as u64);
        let sequences = sequences(policy.config().vocab_size, &[9, 64, 40], 6);
        let loss = |policy: &Policy| -> f64 {
            let scores = score(policy, &requests(&sequences), 0.8, &options).unwrap();
            let terms = sequences
                .iter()
                .zip(&scores)
                .flat_map(|(sequence, scores)| {
                    let tokens = sequence.loss_mask.iter().enumerate();
                    tokens.filter(|(_, wanted)| **wanted).map(|(token, _)| {
                        let (a, b) = coefficients(token);
                        a * f64::from(scores.log_probs[token])
                            + b * f64::from(scores.entropies[token])
                    })
                });
            terms.sum()
        };
        let trainer = Trainer::new(policy.clone(), AdamW::default());
        let units = [Unit {
            sequences: sequences.clone(),
            skip: false,
            share_prefixes: false,
        }];
        let (gradients, _) = trainer.gradients(&units, 0.8, &ask, &options).unwrap();
        for layer in 0..shape.layers {
            for part in ["q_norm", "k_norm"] {
                let name = format!("model.layers.{layer}.self_attn.{part}.weight");
                let moved = |at: usize, by: f32| {
                    let mut weights = policy.weights().clone();
                    weights.replace(&name, |old| {
                        let mut new = old.to_vec();
                        new[at] += by;
                        new
                    });
                    loss(&policy.with_weights(weights).unwrap())
                };
                let differences: Vec<f32> = (0..shape.width)
                    .map(|at| ((moved(at, STEP) - moved(at, -STEP)) / f64::from(2.0 * STEP)) as f32)
                    .collect();
                let error = relative_error(gradients.get(&name).unwrap(), &differences);
                assert!(error < 2e-2, "shape {seed}: {name} is off by {error}");
            }
        }
    }
}
