//! What sequences have in common is computed once: the same scores to the bit, and the same
//! gradient in another order of additions.

use super::{Random, SHAPES, random_adapter, random_policy, related, requests, tiny_policy};
use crate::compute::teacher_forced::TeacherForced;
use crate::{
    ALL_LINEAR, AdamW, ComputeOptions, Critic, Device, Gradients, LoraOptions, Policy,
    ScoreRequest, Scores, TrainSequence, Trainer, Unit, UnitCoefficients, UnitStreams, cut_tree,
    score, tree_nodes, values,
};

const TEMPERATURE: f64 = 0.9;

/// Dense policies of every family, and one with an adapter.
fn policies() -> Vec<Policy> {
    let mut policies: Vec<Policy> = SHAPES.map(|shape| random_policy(shape, 21)).into();
    policies.push(tiny_policy());
    let base = random_policy(SHAPES[4], 22);
    let options = LoraOptions::new(3, 6.0, [ALL_LINEAR]).unwrap();
    let adapter = random_adapter(&base, options, 23);
    policies.push(base.with_adapter(adapter).unwrap());
    policies
}

/// Some of them computed in bf16: tied and not, odd widths, the adapter.
fn halved(policies: &[Policy]) -> Vec<Policy> {
    let some = [0, 1, 4, policies.len() - 1].into_iter();
    some.map(|number| policies[number].on(&Device::cpu_bf16()).unwrap())
        .collect()
}

fn units(sequences: &[TrainSequence], share_prefixes: bool) -> Vec<Unit> {
    let requests = requests(sequences);
    let paths: Vec<Vec<&[u32]>> = requests.iter().map(|r| vec![r.path()]).collect();
    let cuts = cut_tree(&paths, 400).unwrap();
    let unit = |cut: Vec<usize>| Unit {
        sequences: cut.iter().map(|&at| sequences[at].clone()).collect(),
        skip: false,
        share_prefixes,
    };
    cuts.into_iter().map(unit).collect()
}

/// Norm of the difference over the norm.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |numbers: &mut dyn Iterator<Item = f32>| -> f64 {
        numbers.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt()
    };
    let apart = found.iter().zip(expected).map(|(a, b)| a - b);
    norm(&mut { apart }) / norm(&mut expected.iter().copied()).max(1e-12)
}

/// Another number for each unit, sequence and token, of either sign; some are zero.
fn number(unit: usize, sequence: usize, token: usize) -> f64 {
    ((unit * 5 + sequence * 7 + token * 3) % 11) as f64 * 0.01 - 0.05
}

fn coefficients(unit: usize, streams: &UnitStreams) -> UnitCoefficients {
    let fill = |streams: &[Vec<f32>], factor: f64| {
        let rows = streams.iter().enumerate();
        rows.map(|(at, row)| {
            (0..row.len())
                .map(|t| factor * number(unit, at, t))
                .collect()
        })
        .collect()
    };
    UnitCoefficients {
        log_probs: fill(&streams.log_probs, 1.0),
        entropies: fill(&streams.entropies, -0.5),
    }
}

fn gradients(policy: &Policy, units: &[Unit], options: &ComputeOptions<'_>) -> (Gradients, usize) {
    let trainer = Trainer::new(policy.clone(), AdamW::default());
    let found = trainer.gradients(units, TEMPERATURE, &coefficients, options);
    found.unwrap()
}

#[test]
fn scores_have_the_bits_of_sequences_apart() {
    let policies = policies();
    let halved = halved(&policies);
    for (seed, policy) in policies.into_iter().chain(halved).enumerate() {
        let sequences = related(policy.config().vocab_size, seed as u64);
        let requests = requests(&sequences);
        let apart: Vec<Scores> = (requests.iter())
            .map(|request| {
                let forced = TeacherForced::apart(std::iter::once(*request));
                if forced.is_empty() {
                    let zeros = vec![0.0; request.token_ids.len()];
                    return Scores {
                        log_probs: zeros.clone(),
                        entropies: zeros,
                    };
                }
                let streams = forced.forward(policy.network(), TEMPERATURE).unwrap();
                Scores {
                    log_probs: forced.spread(&streams.log_probs).remove(0),
                    entropies: forced.spread(&streams.entropies).remove(0),
                }
            })
            .collect();
        for (pack_tokens, threads) in [(1, 1), (90, 2), (400, 1), (usize::MAX, 3)] {
            let options = ComputeOptions {
                threads,
                pack_tokens,
                ..ComputeOptions::default()
            };
            let found = score(&policy, &requests, TEMPERATURE, &options).unwrap();
            assert_eq!(found, apart, "policy {seed}, packs of {pack_tokens}");
        }
    }
}

#[test]
fn values_have_the_bits_of_sequences_apart() {
    let critic = critic(&tiny_policy());
    let sequences = related(critic.vocab_size(), 3);
    let requests = requests(&sequences);
    let options = ComputeOptions {
        pack_tokens: usize::MAX,
        ..ComputeOptions::default()
    };
    let apart: Vec<Vec<f32>> = (requests.iter())
        .map(|request| values(&critic, &[*request], &options).unwrap().remove(0))
        .collect();
    assert_eq!(values(&critic, &requests, &options).unwrap(), apart);
    assert!(apart.concat().iter().any(|value| *value != 0.0));
}

#[test]
fn gradients_are_those_of_sequences_apart() {
    for (seed, policy) in policies().into_iter().enumerate() {
        let sequences = related(policy.config().vocab_size, seed as u64);
        let options = ComputeOptions::default();
        let (apart, tokens) = gradients(&policy, &units(&sequences, false), &options);
        let (shared, nodes) = gradients(&policy, &units(&sequences, true), &options);
        assert!(
            nodes * 10 < tokens * 8,
            "{nodes} of {tokens}: little is shared"
        );
        for ((name, found), (_, expected)) in shared.iter().zip(apart.iter()) {
            let error = distance(found, expected);
            assert!(error < 1e-5, "policy {seed}: {name} is off by {error}");
        }
        // Neither threads nor checkpoints show.
        for (threads, checkpointed) in [(2, false), (3, true)] {
            let options = ComputeOptions {
                threads,
                checkpointed,
                ..options
            };
            let again = gradients(&policy, &units(&sequences, true), &options).0;
            assert!(again == shared, "policy {seed}: {threads} threads");
        }
    }
}

/// Eight significant bits in every operand, and the same formulas.
#[test]
fn gradients_in_bf16_are_close_to_those_in_f32() {
    let policies = policies();
    for halved in halved(&policies) {
        let same = |policy: &&Policy| {
            policy.parameter_count() == halved.parameter_count()
                && policy.adapter().is_some() == halved.adapter().is_some()
        };
        let policy = policies.iter().find(same).unwrap();
        let sequences = related(policy.config().vocab_size, 3);
        let (units, options) = (units(&sequences, true), ComputeOptions::default());
        let exact = gradients(policy, &units, &options).0;
        let rounded = gradients(&halved, &units, &options).0;
        for ((name, found), (_, expected)) in rounded.iter().zip(exact.iter()) {
            let error = distance(found, expected);
            assert!(error > 0.0 && error < 0.05, "{name} is off by {error}");
        }
        let again = ComputeOptions {
            threads: 3,
            checkpointed: true,
            ..options
        };
        assert!(gradients(&halved, &units, &again).0 == rounded);
    }
}

/// Moves all weights along the gradient, and back.
#[test]
fn gradients_agree_with_finite_differences() {
    for (seed, policy) in policies().into_iter().enumerate().step_by(3) {
        let sequences = related(policy.config().vocab_size, seed as u64);
        let units = units(&sequences, true);
        let options = ComputeOptions::default();
        let (gradients, _) = gradients(&policy, &units, &options);
        let squares = gradients.iter().flat_map(|(_, numbers)| numbers);
        let norm = squares.map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 1e-3);
        let loss = |by: f64| -> f64 {
            let mut weights = policy.trained_weights().clone();
            for (name, gradient) in gradients.iter() {
                weights.replace(name, |old| {
                    let moved = old.iter().zip(gradient);
                    moved.map(|(w, g)| w + (by / norm) as f32 * g).collect()
                });
            }
            let moved = policy.with_trained(weights).unwrap();
            let mut sum = 0.0;
            for (number_of, unit) in units.iter().enumerate() {
                let scores = score(&moved, &requests(&unit.sequences), TEMPERATURE, &options);
                for (at, (own, scores)) in unit.sequences.iter().zip(scores.unwrap()).enumerate() {
                    let tokens = (0..own.loss_mask.len()).filter(|t| own.loss_mask[*t]);
                    sum += tokens
                        .map(|t| {
                            let entropy = 0.5 * f64::from(scores.entropies[t]);
                            number(number_of, at, t) * (f64::from(scores.log_probs[t]) - entropy)
                        })
                        .sum::<f64>();
                }
            }
            sum
        };
        let step = 2e-2;
        let found = (loss(step) - loss(-step)) / (2.0 * step);
        assert!(
            (found / norm - 1.0).abs() < 1e-2,
            "policy {seed}: {found} for {norm}"
        );
    }
}

fn critic(policy: &Policy) -> Critic {
    let critic = Critic::new(policy).unwrap();
    let mut weights = critic.weights().clone();
    let mut random = Random(5);
    weights.replace("score.weight", |old| {
        old.iter().map(|_| random.unit() - 0.5).collect()
    });
    critic.with_weights(weights).unwrap()
}

#[test]
fn a_critics_gradients_are_those_of_sequences_apart() {
    let critic = critic(&random_policy(SHAPES[1], 30));
    let sequences = related(critic.vocab_size(), 9);
    let by_value = |unit: usize, values: &Vec<Vec<f32>>| -> Vec<Vec<f64>> {
        let rows = values.iter().enumerate();
        rows.map(|(at, row)| (0..row.len()).map(|t| number(unit, at, t)).collect())
            .collect()
    };
    let [apart, shared] = [false, true].map(|share| {
        let trainer = Trainer::new(critic.clone(), AdamW::default());
        let options = ComputeOptions::default();
        let found = trainer.gradients(&units(&sequences, share), (), &by_value, &options);
        found.unwrap().0
    });
    for ((name, found), (_, expected)) in shared.iter().zip(apart.iter()) {
        let error = distance(found, expected);
        assert!(error < 1e-5, "{name} is off by {error}");
    }
}

/// A token of the tree stands for itself in every sequence that passes it.
#[test]
fn a_shared_token_carries_one_term_for_each_sequence() {
    let policy = tiny_policy();
    let ids: Vec<u32> = (1..40).collect();
    let mask: Vec<bool> = (0..ids.len()).map(|t| t >= 30).collect();
    let request = ScoreRequest {
        token_ids: &ids,
        loss_mask: &mask,
    };
    let forced = TeacherForced::shared([request; 3].into_iter());
    assert_eq!(forced.tokens(), tree_nodes(&[&ids[..38]]));
    let rows = [1.0, 10.0, 100.0].map(|factor| {
        let own = (0..ids.len()).map(|t| factor * t as f64);
        own.collect::<Vec<f64>>()
    });
    let packed = forced.gather(&rows, "log_probs").unwrap();
    let expected: Vec<f32> = (30..39).map(|t| 111.0 * t as f32).collect();
    assert_eq!(packed, expected);
    assert!(policy.config().vocab_size > 40);
}
