//! The critic: derivatives against finite differences, threads, files.

use super::{Random, SHAPES, random_policy, sequences};
use crate::folder::names::{HEAD_BIAS, HEAD_WEIGHT};
use crate::{
    AdamW, ComputeOptions, Critic, Device, Parameter, Policy, ScoreRequest, Trainer, Unit, Weights,
    values,
};

/// A critic whose head is not zero.
fn random_critic(seed: u64) -> Critic {
    let critic = Critic::new(&random_policy(SHAPES[0], seed)).unwrap();
    let mut random = Random(seed);
    moved(&critic, |name, numbers| {
        if name == HEAD_WEIGHT || name == HEAD_BIAS {
            for number in numbers {
                *number = random.unit() - 0.5;
            }
        }
    })
}

fn moved(critic: &Critic, mut change: impl FnMut(&str, &mut Vec<f32>)) -> Critic {
    let parameters = critic.weights().iter().map(|(name, parameter)| {
        let mut numbers = parameter.numbers().to_vec();
        change(name, &mut numbers);
        let changed = Parameter::new(parameter.shape().to_vec(), numbers);
        (name.to_owned(), changed)
    });
    critic
        .with_weights(Weights::new(parameters.collect()))
        .unwrap()
}

fn units(critic: &Critic) -> Vec<Unit> {
    let sequences = sequences(critic.vocab_size(), &[12, 30, 7, 21], 3);
    let unit = |chunk: &[crate::TrainSequence]| Unit {
        sequences: chunk.to_vec(),
        skip: false,
        share_prefixes: false,
    };
    sequences.chunks(2).map(unit).collect()
}

/// `Σ ½(v − t)²` over the masked tokens, t = 0.3.
const TARGET: f64 = 0.3;

#[expect(clippy::ptr_arg, reason = "what a trainer asks")]
fn coefficients(_: usize, values: &Vec<Vec<f32>>) -> Vec<Vec<f64>> {
    let row = |row: &Vec<f32>| row.iter().map(|v| f64::from(*v) - TARGET).collect();
    values.iter().map(row).collect()
}

fn loss(critic: &Critic, units: &[Unit]) -> f64 {
    let sequences = || units.iter().flat_map(|unit| &unit.sequences);
    let requests: Vec<ScoreRequest<'_>> = sequences()
        .map(|s| ScoreRequest {
            token_ids: &s.token_ids,
            loss_mask: &s.loss_mask,
        })
        .collect();
    let all = values(critic, &requests, &ComputeOptions::default()).unwrap();
    let tokens = all.iter().zip(sequences());
    tokens
        .flat_map(|(row, s)| row.iter().zip(&s.loss_mask))
        .filter(|(_, kept)| **kept)
        .map(|(v, _)| 0.5 * (f64::from(*v) - TARGET).powi(2))
        .sum()
}

#[test]
fn head_and_trunk_follow_finite_differences() {
    let critic = random_critic(11);
    let units = units(&critic);
    let trainer = Trainer::new(critic.clone(), AdamW::default());
    let (gradients, _) = trainer
        .gradients(&units, (), &coefficients, &ComputeOptions::default())
        .unwrap();
    let mut checked = 0;
    for (name, _) in critic.weights().iter() {
        let gradient = gradients
            .get(name)
            .unwrap_or_else(|| panic!("{name} has none"));
        assert!(gradient.iter().all(|g| g.is_finite()), "{name}");
        assert!(gradient.iter().any(|g| *g != 0.0), "{name} gets nothing");
        // Along the gradient itself the difference is largest compared with rounding.
        let norm = gradient
            .iter()
            .map(|g| f64::from(*g).powi(2))
            .sum::<f64>()
            .sqrt();
        // A key's bias moves all scores of a row equally: its true gradient is zero.
        if name.ends_with("k_proj.bias") {
            continue;
        }
        let h = 2e-3;
        let at = |sign: f64| {
            let other = moved(&critic, |n, numbers| {
                if n == name {
                    for (number, g) in numbers.iter_mut().zip(gradient) {
                        *number += (sign * h * f64::from(*g) / norm) as f32;
                    }
                }
            });
            loss(&other, &units)
        };
        let slope = (at(1.0) - at(-1.0)) / (2.0 * h);
        assert!(
            (slope - norm).abs() <= 2e-2 * norm + 2e-2,
            "{name}: slope {slope} along a gradient of norm {norm}"
        );
        checked += 1;
    }
    assert!(checked > 10, "{checked}");
}

#[test]
fn threads_packs_and_units_do_not_show() {
    let critic = random_critic(12);
    let units = units(&critic);
    let bits = |threads, units: &[Unit]| {
        let mut trainer = Trainer::new(critic.clone(), AdamW::default());
        let options = ComputeOptions {
            threads,
            checkpointed: threads > 1,
            ..ComputeOptions::default()
        };
        for _ in 0..3 {
            trainer
                .step(units, (), 1e-2, &coefficients, &options)
                .unwrap();
        }
        trainer.into_model().unwrap().weights().clone()
    };
    assert!(bits(1, &units) == bits(3, &units));
    let requests: Vec<ScoreRequest<'_>> = units
        .iter()
        .flat_map(|unit| &unit.sequences)
        .map(|s| ScoreRequest {
            token_ids: &s.token_ids,
            loss_mask: &s.loss_mask,
        })
        .collect();
    let pack = |pack_tokens| {
        let options = ComputeOptions {
            pack_tokens,
            ..ComputeOptions::default()
        };
        values(&critic, &requests, &options).unwrap()
    };
    assert_eq!(pack(1), pack(10_000));
}

#[test]
fn a_new_critic_values_nothing_and_learns_a_constant() {
    let critic = Critic::new(&random_policy(SHAPES[1], 4)).unwrap();
    let units = units(&critic);
    let mut trainer = Trainer::new(critic.clone(), AdamW::default());
    let first = loss(&trainer.model().unwrap(), &units);
    let tokens = units
        .iter()
        .flat_map(|u| &u.sequences)
        .flat_map(|s| &s.loss_mask)
        .filter(|kept| **kept)
        .count();
    assert!((first - 0.5 * TARGET * TARGET * tokens as f64).abs() < 1e-9);
    for _ in 0..30 {
        trainer
            .step(&units, (), 1e-2, &coefficients, &ComputeOptions::default())
            .unwrap();
    }
    let last = loss(&trainer.model().unwrap(), &units);
    assert!(last < 0.2 * first, "{first} became {last}");
}

#[test]
fn folders_of_critics_and_policies_are_told_apart() {
    let (critic, dir) = (random_critic(13), tempfile::tempdir().unwrap());
    let (own, again) = (dir.path().join("critic"), dir.path().join("again"));
    critic.save(&own).unwrap();
    let read = Critic::load(&own, &Device::cpu()).unwrap();
    assert!(read.weights() == critic.weights());
    read.save(&again).unwrap();
    for file in ["config.json", "model.safetensors"] {
        let bytes = |folder: &std::path::Path| std::fs::read(folder.join(file)).unwrap();
        assert!(bytes(&own) == bytes(&again), "{file}");
    }
    let text = std::fs::read_to_string(own.join("config.json")).unwrap();
    assert!(text.contains("Qwen2ForTokenClassification"), "{text}");
    let message = Policy::load(&own, &Device::cpu()).unwrap_err().to_string();
    assert!(message.contains("critic"), "{message}");

    let trainer = Trainer::new(critic.clone(), AdamW::default());
    trainer.save_optimizer(&again).unwrap();
    assert!(Trainer::resume(critic, AdamW::default(), Some(&again)).is_ok());
}
